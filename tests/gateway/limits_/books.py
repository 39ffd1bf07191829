"""Limits and clocks for tests."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.limits.amounts import LimitAmounts
from gateway.limits.local import LocalLimits, Refused, Taken, Use
from gateway.limits.memory import LimitMemory
from gateway.limits.rules import LimitBook, LimitRule, TeamLimits

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US


def team_rules(team: str = "red", **amounts: int) -> Sequence[LimitRule]:
    """The rules of a request of a team with these limits and no others."""
    book = LimitBook(teams={team: TeamLimits(own=LimitAmounts(**amounts))}, models={}, names={})
    return book.rules(team=team, project="", key_id="k", key=None, model="m")


def alone() -> LocalLimits:
    """Limits of one process."""
    memory = LimitMemory()
    memory.take_seat(0)
    return LocalLimits(memory, 0)


def taken(found: Taken | Refused | None) -> Taken:
    """A request that was admitted."""
    assert isinstance(found, Taken), found
    return found


def refused(found: Taken | Refused | None) -> Refused:
    """A request that was refused."""
    assert isinstance(found, Refused), found
    return found


def used(tokens: int) -> Use:
    """All that a request used."""
    return Use(tokens, True, True)
