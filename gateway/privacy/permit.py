"""Permits: a second reading of the policy, which whoever sends demands with each request.

A permit is built from the tags that a request came with and from the policy as it is written, by
`gateway.privacy.oracle`, and never from what the evaluator or the router made of them. So a request
that either of them leads astray is refused where it would be sent. To read the policy this way is
slow; what was read is remembered until a claim begins to be out of date.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from gateway.clock import from_microseconds, to_microseconds
from gateway.privacy.model import NO_TOOLS, PolicySource, TeamFloor
from gateway.privacy.oracle import is_allowed
from providers.contract import EgressPermit

PERMITS_MAX: Final = 1024
"""Sets of tags whose permit is remembered; a client can make up no more than there are."""

DEPLOYMENTS_MAX: Final = 131_072
"""Deployments in all permits that are remembered, about 10 MB."""

NOWHERE: Final = EgressPermit(origins=MappingProxyType({}))
"""What a request gets whose team or tags nobody knows."""

_FIRST_US: Final = to_microseconds(datetime.min.replace(tzinfo=UTC))
_END_US: Final = to_microseconds(datetime.max.replace(tzinfo=UTC)) + 1

_Key = tuple[str, str, frozenset[str], tuple[str, ...], frozenset[str]]
_NOBODY: Final = TeamFloor()


class Permits:
    """Gives permits under one configuration.

    Args:
        source: The policy as it is written, with the floors of teams and projects.
        origins: Where each deployment is, as `EgressPermit.origins`; one that is missing is reached
            by nobody.

    Attributes:
        is_narrowed: Whether a newer configuration counts, too.
    """

    __slots__ = (
        "_expiries_us", "_known", "_max", "_origins", "_readings", "_since_us", "_until_us",
        "is_narrowed",
    )  # fmt: skip

    def __init__(
        self,
        source: PolicySource,
        *,
        origins: Mapping[str, str],
    ) -> None:
        self.is_narrowed = False
        self._readings = [source]
        self._origins = dict(origins)
        self._forget()

    def issue(
        self,
        team: str,
        added: frozenset[str],
        closed: tuple[str, ...],
        wall_us: int,
        project: str = "",
        tools: frozenset[str] = NO_TOOLS,
    ) -> EgressPermit:
        """The permit of a request.

        Args:
            team: Whose floor it carries; empty for the administrator.
            added: Tags that were added to it, by its key, its client or what looked at it.
            closed: What the evaluator made of them; it may hold more, and then that counts too.
            wall_us: Microseconds since the epoch.
            project: Whose floor it carries with that, empty for none.
            tools: What it asks for that leaves the machine of its deployment.
        """
        if not self._since_us <= wall_us < self._until_us:
            self._enter(wall_us)
        key = (team, project, added, closed, tools)
        permit = self._known.get(key)
        if permit is None:
            permit = self._make(team, project, added.union(closed), tools, wall_us)
            if len(self._known) >= self._max:
                self._known.clear()
            self._known[key] = permit
        return permit

    def narrow(
        self,
        source: PolicySource,
        *,
        origins: Mapping[str, str],
    ) -> None:
        """Permit from now on only what another policy permits too: that of a newer configuration.

        Args:
            source: The other policy; a tag or a deployment that it does not know leads nowhere,
                and a team or a project that is gone reaches nothing.
            origins: Where its deployments are; one that is elsewhere by now is not reached.
        """
        self.is_narrowed = True
        self._readings.append(source)
        self._origins = {
            name: place for name, place in self._origins.items() if origins.get(name) == place
        }
        self._forget()

    def _make(
        self, team: str, project: str, tags: frozenset[str], tools: frozenset[str], wall_us: int
    ) -> EgressPermit:
        at = from_microseconds(wall_us)
        permitted = set(self._origins)
        for source in self._readings:
            floor = _floor(source, team, project)
            permitted &= set() if floor is None else _permitted(source, tags | floor, at, tools)
        if not permitted:
            return NOWHERE
        places = {name: self._origins[name] for name in sorted(permitted)}
        return EgressPermit(origins=MappingProxyType(places))

    def _forget(self) -> None:
        """Remember nothing, and look at the clock anew."""
        self._known: dict[_Key, EgressPermit] = {}
        self._max = max(1, min(PERMITS_MAX, DEPLOYMENTS_MAX // max(1, len(self._origins))))
        self._expiries_us = sorted(
            {
                to_microseconds(claim.expires_at)
                for source in self._readings
                for claims in (
                    *(one.claims for one in source.deployments),
                    *source.tools.values(),
                )
                for claim in claims
                if claim.expires_at is not None
            }
        )
        self._since_us = self._until_us = _FIRST_US

    def _enter(self, wall_us: int) -> None:
        """Begin another time between two expiries."""
        self._known.clear()
        bounds = [_FIRST_US, *self._expiries_us, _END_US]
        place = bisect_right(bounds, wall_us)
        self._since_us, self._until_us = bounds[place - 1], bounds[place]


def _floor(source: PolicySource, team: str, project: str) -> frozenset[str] | None:
    """The floor of a team and a project; None where one of them is not known.

    The administrator has no team, no project and no tags.
    """
    floor = source.teams.get(team) if team else _NOBODY
    if floor is None or not project:
        return None if floor is None else floor.tags
    more = floor.projects.get(project)
    return None if more is None else floor.tags | more


def both(frozen: EgressPermit, current: EgressPermit) -> EgressPermit:
    """What the permit of a request's admission and that of its dispatch both name.

    Args:
        frozen: Of the admission; nothing is ever added to it.
        current: Of now; a claim may have expired, or a newer configuration have come.
    """
    if current is frozen:
        return frozen
    places = {
        name: place for name, place in frozen.origins.items() if current.origins.get(name) == place
    }
    return EgressPermit(origins=MappingProxyType(places), purpose=frozen.purpose)


def operator_permit(purpose: str, origins: Mapping[str, str]) -> EgressPermit:
    """The permit of an errand that carries nobody's request: a probe, a warm-up, a benchmark.

    Args:
        purpose: What for, as it is shown where the errand is refused.
        origins: By deployment, where it is.
    """
    return EgressPermit(origins=MappingProxyType(dict(origins)), purpose=purpose)


def _permitted(
    source: PolicySource, tags: Iterable[str], at: datetime, tools: frozenset[str]
) -> set[str]:
    """Deployments that a policy lets these tags reach; none where it does not know one of them."""
    if not source.tags.keys() >= set(tags):
        return set()
    return {one.name for one in source.deployments if is_allowed(source, tags, one, at, tools)}
