"""The prover: every cell of a policy, by every road, held against the oracle.

A cell is an instant, a set of tags, a name that can be asked for, a road and a deployment. Nothing
is sampled, and equal things are looked at once: deployments with the same claims are one to the
oracle, sets of tags that come to the same requirements are one, and a name is asked about once for
each part of its deployments that some set of tags allows. What the gateway itself says is asked for
every set of tags and compared name by name, so that a deployment that it files wrongly is seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations, pairwise
from typing import Final, Protocol

from gateway.privacy.checks import all_claims
from gateway.privacy.inventory import Holder, Inventory, Road
from gateway.privacy.model import (
    NO_TOOLS,
    PolicySource,
    Sink,
    TagRule,
    TrustClaim,
    TrustedDeployment,
)
from gateway.privacy.oracle import (
    STRANGER,
    SUBSETS_MAX,
    closed,
    is_allowed,
    is_sink_allowed,
)
from gateway.privacy.proof import Breach, CounterExample, Kind, Notice, Proof

SOON: Final = timedelta(days=30)
"""A claim that ends within so long is told."""

PER_BREACH_MAX: Final = 8
"""Counter-examples of each kind that are told."""

SHOWN_MAX: Final = 3
"""Names that a notice spells out."""

_Tags = frozenset[str]
_Need = tuple[frozenset[str], bool]
"""Required attributes, and whether a tag denies."""


class Runtime(Protocol):
    """What is proved: the gateway's own functions."""

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        """Names of the deployments that the tags may reach with these tools."""
        ...

    def sink_allows(self, sink: str, tags: Iterable[str]) -> bool:
        """Whether something of a request with the tags may reach a sink."""
        ...

    def begins_with(self, holder: Holder, added: frozenset[str]) -> frozenset[str]:
        """Tags of a holder's request to which a client or a detector adds some."""
        ...

    def tried(self, name: str, allowed: frozenset[str], road: Road) -> Collection[str]:
        """Deployments that attempts may go to for a name, everything being up."""
        ...


def prove(
    runtime: Runtime,
    source: PolicySource,
    inventory: Inventory,
    *,
    policy_digest: str,
    at: datetime,
    subsets_max: int = SUBSETS_MAX,
) -> Proof:
    """Look at every cell.

    Args:
        runtime: The gateway's functions.
        source: The policy as it is written.
        inventory: Names and holders as they are written.
        policy_digest: Of what the runtime decides by.
        at: Aware instant of the proof; every later expiry is looked at, too.
        subsets_max: Up to so many sets of tags all are walked; above, those of at most two tags,
            every floor and every floor with one tag more.
    """
    names = sorted(source.tags)
    is_complete = 1 << len(names) <= subsets_max
    walk = _Walk(
        runtime=runtime,
        source=source,
        inventory=inventory,
        instants=(at, *sorted(_expiries(source, at))),
        subsets=_subsets(source, inventory, len(names) if is_complete else 2),
    )
    wrong = tuple(walk.wrong())
    steps = sum(len(leads) * len(roads) for _, leads, roads in inventory.names(source))
    return Proof(
        policy_digest=policy_digest,
        inventory_digest=inventory.digest,
        cells=len(walk.instants) * len(walk.subsets) * steps,
        tag_sets=len(walk.subsets),
        instants=walk.instants,
        is_complete=is_complete,
        counter_examples=wrong,
        # What a broken gateway would warn of is of no use.
        warnings=() if wrong else tuple(walk.notices()),
    )


def lacking(
    source: PolicySource, tags: Iterable[str], deployment: TrustedDeployment, at: datetime
) -> tuple[str, ...]:
    """Attributes that the tags require and the deployment has not, one by one by the oracle."""
    rules = (source.tags[tag].require for tag in carried_by(source, tags))
    missing = [
        attribute
        for attribute in frozenset[str]().union(*rules)
        if not is_allowed(
            replace(
                source,
                tags={attribute: TagRule(require=frozenset({attribute}))},
                floor=frozenset(),
            ),
            {attribute},
            deployment,
            at,
        )
    ]
    return tuple(sorted(missing))


def carried_by(source: PolicySource, tags: Iterable[str]) -> frozenset[str]:
    """The tags with the policy's floor and all that they imply."""
    return frozenset(closed(source, source.floor.union(tags)))


def _expiries(source: PolicySource, at: datetime) -> set[datetime]:
    return {
        claim.expires_at
        for _, claim in all_claims(source)
        if claim.expires_at is not None and claim.expires_at > at
    }


def _subsets(source: PolicySource, inventory: Inventory, size_max: int) -> list[_Tags]:
    """Sets of at most `size_max` tags, each floor, and each floor with one tag more."""
    names = sorted(source.tags)
    walked = {_Tags(some) for size in range(size_max + 1) for some in combinations(names, size)}
    for holder in inventory.holders:
        walked |= {holder.floor, *(holder.floor | {name} for name in names)}
    return sorted(walked, key=lambda tags: (len(tags), sorted(tags)))


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One walk over all cells; what it has asked it remembers."""

    runtime: Runtime
    source: PolicySource
    inventory: Inventory
    instants: tuple[datetime, ...]
    subsets: Sequence[_Tags]
    _alike: Mapping[TrustedDeployment, frozenset[str]] = field(init=False)
    _named: Mapping[str, TrustedDeployment] = field(init=False)
    _rightly: dict[tuple[_Need, datetime, _Tags], frozenset[str]] = field(
        default_factory=dict[tuple[_Need, datetime, _Tags], frozenset[str]], init=False
    )
    _verdicts: dict[tuple[_Need, TrustedDeployment], bool] = field(
        default_factory=dict[tuple[_Need, TrustedDeployment], bool], init=False
    )
    _told: dict[Breach, set[tuple[object, ...]]] = field(
        default_factory=dict[Breach, set[tuple[object, ...]]], init=False
    )
    _firing: set[str] = field(default_factory=set[str], init=False)

    def __post_init__(self) -> None:
        """File the deployments by what is claimed of them."""
        alike: dict[TrustedDeployment, set[str]] = {}
        for one in self.source.deployments:
            alike.setdefault(replace(one, name=""), set()).add(one.name)
        self._alike = {claims: frozenset(names) for claims, names in alike.items()}
        self._named = {one.name: one for one in self.source.deployments}

    def wrong(self) -> Iterator[CounterExample]:
        """Every wrong cell."""
        yield from self._wrong_floors()
        seen: dict[_Tags, tuple[_Tags, datetime]] = {}
        before: Mapping[_Tags, _Tags] = {}
        for at in self.instants:
            reached: dict[_Tags, _Tags] = {}
            for tags in self.subsets:
                rightly = self.rightly(tags, at)
                allowed = self.runtime.allowed(tags, at=at)
                if allowed == rightly:
                    allowed = rightly  # the same object where sets are the same
                else:
                    yield from self._wrong_sets(tags, at, allowed, rightly)
                reached[tags] = allowed
                seen.setdefault(allowed, (tags, at))
            yield from self._widened_by_a_tag(reached, at)
            yield from self._widened_by_time(before, reached, at)
            yield from self._wrong_tools(at)
            before = reached
        yield from self._wrong_roads(seen)
        yield from self._wrong_sinks()

    def rightly(self, tags: _Tags, at: datetime, tools: _Tags = NO_TOOLS) -> frozenset[str]:
        """What the oracle lets the tags reach with these tools."""
        carried = carried_by(self.source, tags)
        rules = [self.source.tags[tag] for tag in carried]
        need = (
            frozenset[str]().union(*(rule.require for rule in rules)),
            any(rule.deny for rule in rules),
        )
        known = self._rightly.get((need, at, tools))
        if known is None:
            reached = [
                names
                for claims, names in self._alike.items()
                if self._verdict(need, carried, claims, at)
                and (not tools or is_allowed(self.source, carried, claims, at, tools))
            ]
            known = self._rightly[need, at, tools] = frozenset[str]().union(*reached)
        return known

    def _verdict(
        self, need: _Need, carried: _Tags, deployment: TrustedDeployment, at: datetime
    ) -> bool:
        # Between two expiries of its own claims nothing changes for a deployment.
        standing = tuple(claim for claim in deployment.claims if claim.counts_at(at))
        key = (need, replace(deployment, claims=standing))
        known = self._verdicts.get(key)
        if known is None:
            known = self._verdicts[key] = is_allowed(self.source, carried, deployment, at)
        return known

    def _is_news(self, breach: Breach, *what: object) -> bool:
        """Whether a wrong cell is to be told: the first few of each kind, each once."""
        told = self._told.setdefault(breach, set())
        if what in told or len(told) >= PER_BREACH_MAX:
            return False
        told.add(what)
        return True

    def _wrong_floors(self) -> Iterator[CounterExample]:
        additions = [_Tags(), *(_Tags({tag}) for tag in sorted(self.source.tags))]
        for holder in self.inventory.holders:
            for added in additions:
                begun = self.runtime.begins_with(holder, added)
                lost = (holder.floor | added) - begun
                if lost and self._is_news(Breach.FLOOR_LOST, holder, lost):
                    yield CounterExample(
                        breach=Breach.FLOOR_LOST,
                        tags=tuple(sorted(begun)),
                        holder=holder.name,
                        missing=tuple(sorted(lost)),
                        at=self.instants[0],
                    )

    def _wrong_sets(
        self, tags: _Tags, at: datetime, allowed: _Tags, rightly: _Tags, tool: str = ""
    ) -> Iterator[CounterExample]:
        missing = (f"tool {tool}",) if tool else ()
        for name in sorted(allowed - rightly):
            yield from self._cell(Breach.TOO_WIDE, tags, name, at, missing=missing)
        for name in sorted(rightly - allowed):
            yield from self._cell(Breach.TOO_NARROW, tags, name, at, missing=missing)

    def _wrong_tools(self, at: datetime) -> Iterator[CounterExample]:
        # What a tool lacks depends on what is required alone, and that is joined from single tags.
        floors = {holder.floor for holder in self.inventory.holders}
        walked = {_Tags(), *floors, *(_Tags({tag}) for tag in self.source.tags)}
        for tags in sorted(walked, key=sorted):
            for tool in (*sorted(self.source.tools), STRANGER):
                tools = _Tags({tool})
                allowed = self.runtime.allowed(tags, at=at, tools=tools)
                rightly = self.rightly(tags, at, tools)
                yield from self._wrong_sets(tags, at, allowed, rightly, tool)

    def _wrong_sinks(self) -> Iterator[CounterExample]:
        at = self.instants[0]
        for tags in self.subsets:
            for sink in Sink:
                is_open = self.runtime.sink_allows(sink, tags)
                if is_open is is_sink_allowed(self.source, sink, tags):
                    continue
                breach = Breach.SINK_TOO_WIDE if is_open else Breach.TOO_NARROW
                carried = tuple(sorted(carried_by(self.source, tags)))
                if self._is_news(breach, carried, sink):
                    where = f"sink {sink}"
                    yield CounterExample(breach=breach, tags=carried, deployment=where, at=at)

    def _cell(
        self,
        breach: Breach,
        tags: _Tags,
        deployment: str,
        at: datetime,
        *,
        asked: str = "",
        road: Road | None = None,
        missing: tuple[str, ...] = (),
    ) -> Iterator[CounterExample]:
        """A wrong cell, with a name and a road that lead there, unless enough were told."""
        if not asked:
            asked, road = self._way_to(deployment)
        carried = carried_by(self.source, tags)
        if not self._is_news(breach, carried, deployment, at, road, missing):
            return
        known = self._named.get(deployment)
        if not missing:
            missing = tuple(sorted(tag for tag in carried if self.source.tags[tag].deny))
        if not missing:
            missing = (
                ("no such deployment",)
                if known is None
                else lacking(self.source, carried, known, at)
            )
        yield CounterExample(
            breach=breach,
            tags=tuple(sorted(carried)),
            model=asked,
            road=road,
            deployment=deployment,
            missing=missing,
            at=at,
        )

    def _way_to(self, deployment: str) -> tuple[str, Road]:
        for model, listed in self.inventory.models.items():
            if deployment in listed:
                return model, Road.PRIMARY if deployment == listed[0] else Road.FALLBACK
        return deployment, Road.DIRECT

    def _widened_by_a_tag(
        self, reached: Mapping[_Tags, _Tags], at: datetime
    ) -> Iterator[CounterExample]:
        for tags, before in reached.items():
            for added in sorted(self.source.tags.keys() - tags):
                # A larger set that is not walked (above the bound) cannot be compared.
                after = reached.get(tags | {added}, before)
                if after is before:
                    continue
                self._firing.add(added)
                for name in sorted(after - before):
                    yield from self._cell(
                        Breach.NOT_MONOTONIC, tags, name, at, missing=(f"opened by tag {added}",)
                    )

    def _widened_by_time(
        self, earlier: Mapping[_Tags, _Tags], later: Mapping[_Tags, _Tags], at: datetime
    ) -> Iterator[CounterExample]:
        for tags, before in earlier.items():
            for name in sorted(later[tags] - before):
                yield from self._cell(
                    Breach.NOT_MONOTONIC, tags, name, at, missing=("opened by time alone",)
                )

    def _wrong_roads(
        self, seen: Mapping[_Tags, tuple[_Tags, datetime]]
    ) -> Iterator[CounterExample]:
        names = [
            (name, frozenset(leads), roads)
            for name, leads, roads in self.inventory.names(self.source)
        ]
        asked: set[tuple[str, Road, _Tags]] = set()
        for allowed, (tags, at) in seen.items():
            for name, leads, roads in names:
                within = leads & allowed
                for road in roads:
                    if (name, road, within) in asked:
                        continue
                    asked.add((name, road, within))
                    tried = frozenset(self.runtime.tried(name, allowed, road))
                    for one in sorted(tried - within):
                        missing = () if one in leads else (f"{name} does not stand for it",)
                        yield from self._cell(
                            Breach.OUTSIDE, tags, one, at, asked=name, road=road, missing=missing
                        )
                    for one in sorted(within - tried):
                        yield from self._cell(
                            Breach.TOO_NARROW, tags, one, at, asked=name, road=road,
                            missing=("left out",),
                        )  # fmt: skip

    def notices(self) -> Iterator[Notice]:
        """What deserves a look, once nothing is wrong."""
        yield from self._nobody()
        yield from self._never_firing()
        yield from self._unreachable()
        yield from self._expiring()

    def _nobody(self) -> Iterator[Notice]:
        for tag in sorted(self.source.tags):
            if any(self.source.tags[one].deny for one in carried_by(self.source, {tag})):
                continue
            if not self.rightly(_Tags({tag}), self.instants[0]):
                what = self._lacks(_Tags({tag}), self._named, self.instants[0])
                message = f"no deployment can serve a request with tag {tag!r}: {what}"
                yield Notice(kind=Kind.NOBODY, subject=tag, message=message)
        for holder in self.inventory.holders:
            for model, listed in self.inventory.models.items():
                if model in holder.names:
                    yield from self._unserved(holder, model, frozenset(listed))

    def _unserved(self, holder: Holder, model: str, listed: _Tags) -> Iterator[Notice]:
        """When nobody can serve a model to a holder: from the beginning, or from an expiry on."""
        served = [bool(self.rightly(holder.floor, at) & listed) for at in self.instants]
        if not served[0]:
            when, at = "", self.instants[0]
        else:
            ends = [at for at, (one, two) in zip(self.instants[1:], pairwise(served), strict=True)
                    if one and not two]  # fmt: skip
            if not ends:
                return
            when, at = f" from {ends[0].isoformat()} on", ends[0]
        what = self._lacks(holder.floor, listed, at)
        yield Notice(
            kind=Kind.NOBODY,
            subject=holder.name,
            message=f"nobody can serve {model} to {holder.name}{when}: {what}",
        )

    def _lacks(self, tags: _Tags, names: Collection[str], at: datetime) -> str:
        """Why each of some deployments cannot be reached."""
        denying = sorted(tag for tag in carried_by(self.source, tags) if self.source.tags[tag].deny)
        if denying:
            return f"tag {', '.join(denying)} denies every deployment"
        shown = [
            f"{name} lacks {', '.join(lacking(self.source, tags, self._named[name], at))}"
            for name in sorted(names)[:SHOWN_MAX]
        ]
        return "; ".join(_shortened(shown, len(names))) or "there is none"

    def _never_firing(self) -> Iterator[Notice]:
        for tag in sorted(self.source.tags.keys() - self._firing - self.source.floor):
            message = f"tag {tag!r} never keeps a request from a deployment that it could reach"
            yield Notice(kind=Kind.NEVER_FIRES, subject=tag, message=message)

    def _unreachable(self) -> Iterator[Notice]:
        teams = [one for one in self.inventory.holders if one.team] or self.inventory.holders
        leads = {name: frozenset(listed) for name, listed, _ in self.inventory.names(self.source)}
        reached: set[str] = set()
        for holder in teams:
            asked = frozenset[str]().union(*(leads.get(one, _Tags()) for one in holder.names))
            reached |= asked & self.rightly(holder.floor, self.instants[0])
        for name in sorted(self._named.keys() - reached):
            message = f"nobody can reach {name}, by any name"
            yield Notice(kind=Kind.UNREACHABLE, subject=name, message=message)

    def _expiring(self) -> Iterator[Notice]:
        soon: dict[tuple[datetime, str], list[str]] = {}
        for name, claim in all_claims(self.source):
            if claim.expires_at is not None and _ends_soon(claim, self.instants[0]):
                soon.setdefault((claim.expires_at, claim.attribute), []).append(name)
        for (ends, attribute), names in sorted(soon.items()):
            word = "has ended" if ends <= self.instants[0] else "ends"
            whose = ", ".join(_shortened(names[:SHOWN_MAX], len(names)))
            message = f"{attribute} of {whose} {word} at {ends.isoformat()}"
            yield Notice(kind=Kind.EXPIRES, subject=names[0], message=message)


def _ends_soon(claim: TrustClaim, at: datetime) -> bool:
    return not claim.counts_at(at + SOON)


def _shortened(shown: Sequence[str], count: int) -> list[str]:
    return [*shown, *([f"and {count - len(shown)} more"] if count > len(shown) else [])]
