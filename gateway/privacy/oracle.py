"""An independent, slow and obvious reading of the policy, and the check of the fast one against it.

The oracle shares nothing with `gateway.privacy.policy` but the source it reads: sets instead of
masks, a fixed point instead of a walk. `serve` runs `verify` at start and refuses a policy whose
compiled form differs in any cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import chain, combinations, islice
from typing import Protocol

from gateway.privacy.model import PolicySource, TrustedDeployment

SUBSETS_MAX = 4096
"""Up to so many sets of tags are walked completely; above, those of at most two tags."""
COUNTER_EXAMPLES_MAX = 20


class Evaluator(Protocol):
    """What is checked: the runtime's own function."""

    def allowed(self, tags: Iterable[str], *, at: datetime) -> frozenset[str]:
        """Names of the deployments that the tags may reach."""
        ...


class Fault(StrEnum):
    """How a cell is wrong."""

    TOO_WIDE = "too_wide"
    """The runtime allows what the policy forbids."""
    TOO_NARROW = "too_narrow"
    """The runtime forbids what the policy allows."""
    NOT_MONOTONIC = "not_monotonic"
    """One more tag widened the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterExample:
    """One wrong cell.

    Attributes:
        fault: How it is wrong.
        tags: The request's tags, sorted.
        deployment: Where it could go, or could not.
        at: The instant.
        added_tag: The tag whose addition widened the set, None for the other faults.
    """

    fault: Fault
    tags: tuple[str, ...]
    deployment: str
    at: datetime
    added_tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the walk found.

    Attributes:
        cells: How many cells (instant, set of tags, deployment) there are to compare.
        is_complete: Whether every set of tags was walked.
        counter_examples: At most `COUNTER_EXAMPLES_MAX`; empty when the policy holds.
    """

    cells: int
    is_complete: bool
    counter_examples: tuple[CounterExample, ...]

    @property
    def holds(self) -> bool:
        """Whether no cell is wrong."""
        return not self.counter_examples


def is_allowed(
    source: PolicySource, tags: Iterable[str], deployment: TrustedDeployment, at: datetime
) -> bool:
    """Whether the policy lets a request with these tags reach the deployment."""
    carried = set(tags) | source.floor
    while more := {one for tag in carried for one in source.tags[tag].implies} - carried:
        carried |= more
    facts = {claim.attribute for claim in deployment.claims if claim.counts_at(at)}
    while more := {one for fact in facts for one in source.implications.get(fact, ())} - facts:
        facts |= more
    if any(source.tags[tag].deny for tag in carried):
        return False
    return all(source.tags[tag].require <= facts for tag in carried)


def verify(
    evaluator: Evaluator,
    source: PolicySource,
    *,
    instants: Sequence[datetime],
    floors: Iterable[Iterable[str]] = (),
    subsets_max: int = SUBSETS_MAX,
) -> Verdict:
    """Compare the runtime with the oracle in every cell, and check that tags only narrow.

    Args:
        evaluator: The compiled policy.
        source: What the operator wrote.
        instants: Aware instants to check at: now, and each expiry that is to be proved.
        floors: Tag sets that teams start from; walked with each single tag added, in any case.
        subsets_max: Largest number of tag sets to walk completely.
    """
    names = sorted(source.tags)
    is_complete = 1 << len(names) <= subsets_max
    subsets = _subsets(names, floors, len(names) if is_complete else 2)
    wrong = chain.from_iterable(_wrong_cells(evaluator, source, subsets, at) for at in instants)
    return Verdict(
        cells=len(instants) * len(subsets) * len(source.deployments),
        is_complete=is_complete,
        counter_examples=tuple(islice(wrong, COUNTER_EXAMPLES_MAX)),
    )


def _subsets(
    names: Sequence[str], floors: Iterable[Iterable[str]], size_max: int
) -> list[frozenset[str]]:
    """Sets of at most `size_max` tags, each floor, and each floor with one tag more."""
    walked = {
        frozenset(chosen) for size in range(size_max + 1) for chosen in combinations(names, size)
    }
    for floor in floors:
        base = frozenset(floor)
        walked |= {base, *(base | {name} for name in names)}
    return sorted(walked, key=lambda tags: (len(tags), sorted(tags)))


def _wrong_cells(
    evaluator: Evaluator,
    source: PolicySource,
    subsets: Sequence[frozenset[str]],
    at: datetime,
) -> Iterator[CounterExample]:
    runtime = {tags: evaluator.allowed(tags, at=at) for tags in subsets}
    for tags, reached in runtime.items():
        shown = tuple(sorted(tags))
        rightly = {one.name for one in source.deployments if is_allowed(source, tags, one, at)}
        for name in sorted(reached - rightly):
            yield CounterExample(fault=Fault.TOO_WIDE, tags=shown, deployment=name, at=at)
        for name in sorted(rightly - reached):
            yield CounterExample(fault=Fault.TOO_NARROW, tags=shown, deployment=name, at=at)
        for added in sorted(source.tags.keys() - tags):
            # A larger set that is not walked (above the bound) cannot be compared.
            for name in sorted(runtime.get(tags | {added}, frozenset()) - reached):
                yield CounterExample(
                    fault=Fault.NOT_MONOTONIC,
                    tags=shown,
                    deployment=name,
                    at=at,
                    added_tag=added,
                )
