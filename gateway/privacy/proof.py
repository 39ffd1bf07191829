"""What a proof says: wrong cells, warnings, and how much was looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from gateway.privacy.inventory import Road


class Breach(StrEnum):
    """How a cell is wrong."""

    TOO_WIDE = "too_wide"
    """The gateway would go where the policy forbids it."""
    TOO_NARROW = "too_narrow"
    """The gateway would not go where the policy lets it."""
    NOT_MONOTONIC = "not_monotonic"
    """One more tag opened a deployment, or time alone did."""
    FLOOR_LOST = "floor_lost"
    """A request begins without a tag of its floor."""
    OUTSIDE = "outside"
    """A name leads to a deployment that it does not stand for, or that its tags do not allow."""
    SINK_TOO_WIDE = "sink_too_wide"
    """Something of a request could come to rest where its tags forbid it."""


class Kind(StrEnum):
    """What a warning is about."""

    NOBODY = "nobody"
    """Somebody may ask for a model and nobody can serve it."""
    NEVER_FIRES = "never_fires"
    """A tag that never keeps a request from anywhere."""
    UNREACHABLE = "unreachable"
    """A deployment that no holder can reach."""
    EXPIRES = "expires"
    """A claim that ends soon, or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterExample:
    """A wrong cell.

    Attributes:
        breach: How it is wrong.
        tags: Tags that the request carries, closed and sorted.
        model: The name that was asked for, empty where that plays no part.
        road: By what the attempt came there, None where that plays no part.
        deployment: Where it could go, or could not; empty where that plays no part.
        missing: Attributes or tags that are missing there, sorted; the tag that denies.
        at: Aware instant.
        holder: Whose request, empty for anybody's.
        line: Where the file says so, `FILE:LINE`; empty where no file does.
    """

    breach: Breach
    tags: tuple[str, ...]
    at: datetime
    model: str = ""
    road: Road | None = None
    deployment: str = ""
    missing: tuple[str, ...] = ()
    holder: str = ""
    line: str = ""

    def __str__(self) -> str:
        """One sentence."""
        return "".join(self._words())

    def _words(self) -> Iterator[str]:
        yield f"{self.line}: " if self.line else ""
        yield f"{self.breach}: a request with {', '.join(self.tags) or 'no tags'}"
        yield f" of {self.holder}" if self.holder else ""
        yield f" for {self.model}" if self.model else ""
        yield f", {self.road}," if self.road else ""
        yield f" and {self.deployment}" if self.deployment else ""
        yield f": {', '.join(self.missing)}" if self.missing else ""
        yield f" (at {self.at.isoformat()})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What is no fault, and deserves a look.

    Attributes:
        kind: What it is about.
        message: One sentence.
        subject: The holder, tag or deployment.
        line: As `CounterExample.line`.
    """

    kind: Kind
    subject: str
    message: str
    line: str = ""

    def __str__(self) -> str:
        """The sentence, with its place."""
        return f"{self.line}: {self.message}" if self.line else self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the prover found.

    Attributes:
        policy_digest: Of everything that decides.
        inventory_digest: Of names, floors and who may ask for what.
        cells: Combinations of instant, set of tags, name, road and deployment.
        tag_sets: How many sets of tags.
        instants: Aware instants that were looked at: that of the proof, and every later expiry.
        is_complete: Whether every set of tags was walked.
        counter_examples: The first few of each kind; empty when the policy holds.
        warnings: All of them.
    """

    policy_digest: str
    inventory_digest: str
    cells: int
    tag_sets: int
    instants: tuple[datetime, ...]
    is_complete: bool
    counter_examples: tuple[CounterExample, ...]
    warnings: tuple[Notice, ...]

    @property
    def holds(self) -> bool:
        """Whether no cell is wrong."""
        return not self.counter_examples

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "holds": self.holds,
            "policy_digest": self.policy_digest,
            "inventory_digest": self.inventory_digest,
            "cells": self.cells,
            "tag_sets": self.tag_sets,
            "instants": [at.isoformat() for at in self.instants],
            "is_complete": self.is_complete,
            "counter_examples": [
                {**asdict(one), "at": one.at.isoformat()} for one in self.counter_examples
            ],
            "warnings": [asdict(one) for one in self.warnings],
        }
