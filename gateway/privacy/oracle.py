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

from gateway.privacy.model import NO_TOOLS, PolicySource, Sink, TrustClaim, TrustedDeployment

SUBSETS_MAX = 4096
"""Up to so many sets of tags are walked completely; above, those of at most two tags."""
COUNTER_EXAMPLES_MAX = 20

STRANGER = "a tool that nobody knows"
"""Walked with the tools of the policy: it has no claims, so it satisfies no requirement."""


class Evaluator(Protocol):
    """What is checked: the runtime's own function."""

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        """Names of the deployments that the tags may reach with these tools."""
        ...

    def sink_allows(self, sink: str, tags: Iterable[str]) -> bool:
        """Whether the tags may reach a sink."""
        ...


class Fault(StrEnum):
    """How a cell is wrong."""

    TOO_WIDE = "too_wide"
    """The runtime allows what the policy forbids."""
    TOO_NARROW = "too_narrow"
    """The runtime forbids what the policy allows."""
    NOT_MONOTONIC = "not_monotonic"
    """One more tag, or a tool, widened the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterExample:
    """One wrong cell.

    Attributes:
        fault: How it is wrong.
        tags: The request's tags, sorted.
        deployment: Where it could go, or could not; `sink:` and a name for a sink.
        at: The instant.
        added_tag: The tag whose addition widened the set, None for the other faults.
        tools: Tools that the request uses, sorted.
    """

    fault: Fault
    tags: tuple[str, ...]
    deployment: str
    at: datetime
    added_tag: str | None = None
    tools: tuple[str, ...] = ()


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
    source: PolicySource,
    tags: Iterable[str],
    deployment: TrustedDeployment,
    at: datetime,
    tools: frozenset[str] = NO_TOOLS,
) -> bool:
    """Whether the policy lets a request with these tags and tools reach the deployment."""
    carried = closed(source, set(tags) | source.floor)
    if any(source.tags[tag].deny for tag in carried):
        return False
    kept = [one for one in deployment.claims if one.condition in {"", *deployment.enforces}]
    # A tool has no adapter of ours before it, so nobody enforces a condition there.
    lent = [[one for one in source.tools.get(tool, ()) if not one.condition] for tool in tools]
    known = [_facts(source, claims, at) for claims in (kept, *lent)]
    return all(source.tags[tag].require <= facts for tag in carried for facts in known)


def is_sink_allowed(source: PolicySource, sink: str, tags: Iterable[str]) -> bool:
    """Whether the policy lets something of a request with these tags reach a sink."""
    listed = closed(source, source.sinks.get(sink, frozenset[str]()))
    return not closed(source, set(tags) | source.floor) - listed


def closed(source: PolicySource, tags: Iterable[str]) -> set[str]:
    """The tags and everything that they imply.

    Raises:
        KeyError: One of them is no tag.
    """
    carried = set(tags)
    while more := {one for tag in carried for one in source.tags[tag].implies} - carried:
        carried |= more
    return carried


def _facts(source: PolicySource, claims: Iterable[TrustClaim], at: datetime) -> set[str]:
    facts = {claim.attribute for claim in claims if claim.counts_at(at)}
    while more := {one for fact in facts for one in source.implications.get(fact, ())} - facts:
        facts |= more
    return facts


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
    begun = [frozenset(floor) for floor in floors]
    is_complete = 1 << len(names) <= subsets_max
    subsets = _subsets(names, begun, len(names) if is_complete else 2)
    # What a tool lacks depends on what is required alone, and that is joined from single tags.
    single = _subsets((), [frozenset(), *begun], 0) + [frozenset({name}) for name in names]
    toolsets = [frozenset({tool}) for tool in (*sorted(source.tools), STRANGER)]
    wrong = chain.from_iterable(
        chain(
            _wrong_cells(evaluator, source, subsets, at),
            _wrong_tools(evaluator, source, single, toolsets, at),
        )
        for at in instants
    )
    sinks = _wrong_sinks(evaluator, source, subsets, instants[0])
    return Verdict(
        cells=len(instants) * len(subsets) * len(source.deployments)
        + len(instants) * len(single) * len(toolsets) * len(source.deployments)
        + len(subsets) * len(Sink),
        is_complete=is_complete,
        counter_examples=tuple(islice(chain(wrong, sinks), COUNTER_EXAMPLES_MAX)),
    )


def _subsets(
    names: Sequence[str], floors: Iterable[frozenset[str]], size_max: int
) -> list[frozenset[str]]:
    """Sets of at most `size_max` tags, each floor, and each floor with one tag more."""
    walked = {
        frozenset(chosen) for size in range(size_max + 1) for chosen in combinations(names, size)
    }
    for base in floors:
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


def _wrong_tools(
    evaluator: Evaluator,
    source: PolicySource,
    subsets: Sequence[frozenset[str]],
    toolsets: Sequence[frozenset[str]],
    at: datetime,
) -> Iterator[CounterExample]:
    for tags in subsets:
        bare = evaluator.allowed(tags, at=at)
        for tools in toolsets:
            reached = evaluator.allowed(tags, at=at, tools=tools)
            rightly = {
                one.name for one in source.deployments if is_allowed(source, tags, one, at, tools)
            }
            for fault, names in (
                (Fault.TOO_WIDE, reached - rightly),
                (Fault.TOO_NARROW, rightly - reached),
                (Fault.NOT_MONOTONIC, reached - bare),
            ):
                for name in sorted(names):
                    yield CounterExample(
                        fault=fault,
                        tags=tuple(sorted(tags)),
                        deployment=name,
                        at=at,
                        tools=tuple(sorted(tools)),
                    )


def _wrong_sinks(
    evaluator: Evaluator, source: PolicySource, subsets: Sequence[frozenset[str]], at: datetime
) -> Iterator[CounterExample]:
    for tags in subsets:
        for sink in Sink:
            is_open = evaluator.sink_allows(sink, tags)
            if is_open is not is_sink_allowed(source, sink, tags):
                yield CounterExample(
                    fault=Fault.TOO_WIDE if is_open else Fault.TOO_NARROW,
                    tags=tuple(sorted(tags)),
                    deployment=f"sink:{sink}",
                    at=at,
                )
