"""The compiled policy: which deployments a set of tags may reach, as bit masks.

Requirements are the only gate and they only add up, so more tags never widen the set. Tags with
all that they imply become one mask of required attributes; a deployment's unexpired claims with all
that they give become one mask of attributes; allowed means that no required bit is missing.
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from gateway.privacy.checks import all_claims, digest_of, problems_of
from gateway.privacy.errors import PolicyError, UnknownTags
from gateway.privacy.model import (
    NO_TOOLS,
    PolicySource,
    Sink,
    TagRule,
    TeamFloor,
    TrustClaim,
    TrustedDeployment,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompiledTag:
    tags: frozenset[str]  # itself and all that it implies
    need: int  # mask of required attributes
    denied_by: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompiledTrust:
    lasting: int  # mask of attributes from claims without expiry
    expiring: tuple[tuple[datetime, int], ...]

    def at(self, at: datetime) -> int:
        """Mask of the attributes that count at an instant."""
        mask = self.lasting
        for expires_at, gives in self.expiring:
            if at < expires_at:
                mask |= gives
        return mask


REACHES_MAX = 1024
"""Sets of tags that are remembered; a client can make up no more than there are declared ones."""

REACHED_MAX = 131_072
"""Deployments in all that is remembered of sets of tags, each of which is about all of them: about
18 MB."""


_TAG_CHARS_MAX = 64
_NEAREST_MAX = 5
"""Unknown tags whose nearest names are looked for, which takes up to 0.3 ms each with 50 tags, and
ten times that for the first, whose nearest is told however far it is."""
_SIMILAR_RATIO = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where a set of tags may go, for as long as no claim expires.

    Attributes:
        tags: The closed tags.
        sorted_tags: The same, sorted.
        allowed: Names of the deployments that may be reached.
        reasons: Why each other deployment may not.
        sinks: Names of the sinks that may be reached.
        since: Aware instant from which on it holds, None for always.
        until: First aware instant at which it does not hold any more, None for never.
    """

    tags: frozenset[str]
    sorted_tags: tuple[str, ...]
    allowed: frozenset[str]
    reasons: Mapping[str, str]
    sinks: frozenset[str]
    since: datetime | None
    until: datetime | None

    def holds_at(self, at: datetime) -> bool:
        """Whether it holds at an aware instant."""
        if self.since is not None and at < self.since:
            return False
        return self.until is None or at < self.until


class Policy:
    """A policy ready for decisions; made by `compile`, immutable, shared by all requests.

    Attributes:
        source: What it was compiled from.
        digest: Hexadecimal SHA-256 of everything that decides.
    """

    __slots__ = (
        "_attributes", "_expiries", "_floor", "_named", "_reaches", "_reaches_max", "_sinks",
        "_tags", "_tools", "_trust", "digest", "source",
    )  # fmt: skip

    def __init__(
        self,
        *,
        source: PolicySource,
        attributes: Sequence[str],
        tags: Mapping[str, _CompiledTag],
        trust: Mapping[str, _CompiledTrust],
        tools: Mapping[str, _CompiledTrust],
        sinks: Mapping[str, frozenset[str]],
    ) -> None:
        """Keep the compiled tables; use `compile` or `of`."""
        self.source = source
        self.digest = digest_of(source)
        self._attributes = tuple(attributes)
        self._tags = dict(tags)
        self._trust = dict(trust)
        self._tools = dict(tools)
        self._sinks = dict(sinks)
        # Most deployments of a provider are trusted alike, and all those are looked at as one.
        self._named: dict[_CompiledTrust, list[str]] = {}
        for name, one in self._trust.items():
            self._named.setdefault(one, []).append(name)
        self._floor = source.floor
        self._expiries = sorted(
            {
                expires_at
                for one in (*self._named, *self._tools.values())
                for expires_at, _ in one.expiring
            }
        )
        self._reaches: dict[tuple[frozenset[str], frozenset[str]], Reach] = {}
        self._reaches_max = max(1, min(REACHES_MAX, REACHED_MAX // max(1, len(self._trust))))

    @classmethod
    def compile(
        cls,
        *,
        tags: Mapping[str, TagRule],
        floor: Iterable[str],
        deployments: Iterable[TrustedDeployment],
        implications: Mapping[str, frozenset[str]],
        tools: Mapping[str, Iterable[TrustClaim]] = MappingProxyType({}),
        sinks: Mapping[str, Iterable[str]] = MappingProxyType({}),
        teams: Mapping[str, TeamFloor] = MappingProxyType({}),
    ) -> Policy:
        """Check a policy and compile it.

        Args:
            tags: Rule per tag.
            floor: Tags that every request carries.
            deployments: Every deployment that can be called.
            implications: What an attribute gives beside itself; see `shipped_implications`.
            tools: What is claimed of tools that leave the machine.
            sinks: Tags that may reach each sink.
            teams: Floors by team.

        Raises:
            PolicyError: With every problem.
        """
        return cls.of(
            PolicySource(
                tags=dict(tags),
                floor=frozenset(floor),
                deployments=tuple(deployments),
                implications=dict(implications),
                tools={name: tuple(claims) for name, claims in tools.items()},
                sinks={name: frozenset(allowed) for name, allowed in sinks.items()},
                teams=dict(teams),
            )
        )

    @classmethod
    def of(cls, source: PolicySource) -> Policy:
        """Check a policy as it is written and compile it.

        Raises:
            PolicyError: With every problem.
        """
        problems = list(problems_of(source))
        if problems:
            raise PolicyError(problems)
        attributes = _all_attributes(source)
        bits = {attribute: 1 << place for place, attribute in enumerate(attributes)}
        return cls(
            source=source,
            attributes=attributes,
            tags={tag: _compile_tag(source, tag, bits) for tag in source.tags},
            trust={
                one.name: _compile_trust(source, one.claims, bits, one.enforces)
                for one in source.deployments
            },
            tools={
                name: _compile_trust(source, claims, bits, NO_TOOLS)
                for name, claims in source.tools.items()
            },
            sinks={
                name: frozenset[str]().union(*(_implied(source, tag) for tag in allowed))
                for name, allowed in source.sinks.items()
            },
        )

    def close(self, tags: Iterable[str]) -> frozenset[str]:
        """The tags with the policy's floor and everything that they imply.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        return frozenset[str]().union(*(tag.tags for tag in self._compiled(tags)))

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        """Names of the deployments that a request with these tags may reach.

        Args:
            tags: Closed or not; the floor and implied tags count either way.
            at: Aware instant; a claim that has expired by then is absent.
            tools: What it asks for that leaves the machine of its deployment. Its data goes there,
                too, so all of them must have what the tags require; a stranger has nothing.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        compiled = self._compiled(tags)
        if any(tag.denied_by for tag in compiled):
            return frozenset()
        need = _need(compiled)
        if any(self._tool_lacks(tool, need, at) for tool in tools):
            return frozenset()
        alike = [names for trust, names in self._named.items() if need & ~trust.at(at) == 0]
        return frozenset[str]().union(*alike)

    def sink_allows(self, sink: str, tags: Iterable[str]) -> bool:
        """Whether something of a request with these tags may reach a sink.

        Each of its tags, closed, must be listed there or be implied by one that is.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        return self.close(tags) <= self._sinks.get(sink, frozenset())

    def reach(
        self, tags: frozenset[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> Reach:
        """Everything that a request with these tags needs to know, remembered until it changes.

        The same as `close`, `allowed`, `reasons` and `sink_allows` say at that instant.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        known = self._reaches.get((tags, tools))
        if known is not None and known.holds_at(at):
            return known
        closed = self.close(tags)
        place = bisect_right(self._expiries, at)
        made = Reach(
            tags=closed,
            sorted_tags=tuple(sorted(closed)),
            allowed=self.allowed(closed, at=at, tools=tools),
            reasons=self.reasons(closed, at=at, tools=tools),
            sinks=frozenset(sink for sink in Sink if self.sink_allows(sink, closed)),
            since=self._expiries[place - 1] if place else None,
            until=self._expiries[place] if place < len(self._expiries) else None,
        )
        if len(self._reaches) >= self._reaches_max:
            self._reaches.clear()
        self._reaches[tags, tools] = made
        return made

    def missing(self, tags: Iterable[str], deployment: str, *, at: datetime) -> tuple[str, ...]:
        """Required attributes that a deployment lacks, sorted; a stranger lacks them all.

        Empty for an allowed deployment, and also where nothing but a denying tag stands in the way.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        need = _need(self._compiled(tags))
        trust = self._trust.get(deployment)
        return self._names(need if trust is None else need & ~trust.at(at))

    def denied_by(self, tags: Iterable[str]) -> tuple[str, ...]:
        """Tags, given or implied, that let the request go nowhere; sorted, usually empty.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        return tuple(
            sorted(frozenset[str]().union(*(tag.denied_by for tag in self._compiled(tags))))
        )

    def tools_lacking(
        self, tags: Iterable[str], tools: Iterable[str], *, at: datetime
    ) -> Mapping[str, tuple[str, ...]]:
        """Tools that such a request may not use, with the required attributes that they lack.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        need = _need(self._compiled(tags))
        lacking = {tool: self._tool_lacks(tool, need, at) for tool in sorted(tools)}
        return {tool: self._names(mask) for tool, mask in lacking.items() if mask}

    def reasons(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> Mapping[str, str]:
        """Why each deployment that is not allowed is not, as one phrase per deployment.

        Raises:
            UnknownTags: The policy does not know some of them.
        """
        given = frozenset(tags)
        denied_by = self.denied_by(given)
        if denied_by:
            return dict.fromkeys(self._trust, f"tag {', '.join(denied_by)} denies every deployment")
        if lacking_tools := self.tools_lacking(given, tools, at=at):
            said = (f"{tool} lacks {', '.join(names)}" for tool, names in lacking_tools.items())
            return dict.fromkeys(self._trust, f"tool {'; tool '.join(said)}")
        need = _need(self._compiled(given))
        reasons: dict[str, str] = {}
        for trust, names in self._named.items():
            if lacking := need & ~trust.at(at):
                reasons.update(dict.fromkeys(names, f"lacks {', '.join(self._names(lacking))}"))
        return reasons

    def _tool_lacks(self, tool: str, need: int, at: datetime) -> int:
        trust = self._tools.get(tool)
        return need if trust is None else need & ~trust.at(at)

    def _names(self, mask: int) -> tuple[str, ...]:
        return tuple(
            attribute for place, attribute in enumerate(self._attributes) if mask >> place & 1
        )

    def _compiled(self, tags: Iterable[str]) -> list[_CompiledTag]:
        found: list[_CompiledTag] = []
        unknown: list[str] = []
        for tag in dict.fromkeys((*self._floor, *tags)):
            compiled = self._tags.get(tag)
            if compiled is None:
                unknown.append(tag[:_TAG_CHARS_MAX])
            else:
                found.append(compiled)
        if unknown:
            raise UnknownTags(unknown, self._nearest(unknown[:_NEAREST_MAX]))
        return found

    def _nearest(self, tags: Iterable[str]) -> dict[str, str]:
        near: dict[str, str] = {}
        ratio = 0.0
        for tag in tags:
            if names := difflib.get_close_matches(tag, self._tags, n=1, cutoff=ratio):
                near[tag] = names[0]
            ratio = _SIMILAR_RATIO
        return near


def _need(tags: Iterable[_CompiledTag]) -> int:
    return _join(tag.need for tag in tags)


def _join(masks: Iterable[int]) -> int:
    joined = 0
    for mask in masks:
        joined |= mask
    return joined


def _all_attributes(source: PolicySource) -> list[str]:
    required = (rule.require for rule in source.tags.values())
    claimed = (frozenset({claim.attribute}) for _, claim in all_claims(source))
    given = (gives | {attribute} for attribute, gives in source.implications.items())
    return sorted(frozenset[str]().union(*required, *claimed, *given))


def _compile_tag(source: PolicySource, tag: str, bits: Mapping[str, int]) -> _CompiledTag:
    implied = _implied(source, tag)
    rules = [source.tags[name] for name in implied]
    return _CompiledTag(
        tags=implied,
        need=_join(bits[attribute] for rule in rules for attribute in rule.require),
        denied_by=frozenset(name for name in implied if source.tags[name].deny),
    )


def _implied(source: PolicySource, tag: str) -> frozenset[str]:
    return _closure(tag, {name: rule.implies for name, rule in source.tags.items()})


def _compile_trust(
    source: PolicySource,
    claims: Iterable[TrustClaim],
    bits: Mapping[str, int],
    enforced: frozenset[str],
) -> _CompiledTrust:
    lasting = 0
    expiring: list[tuple[datetime, int]] = []
    for claim in claims:
        if claim.condition and claim.condition not in enforced:
            continue
        gives = _join(bits[one] for one in _closure(claim.attribute, source.implications))
        if claim.expires_at is None:
            lasting |= gives
        else:
            expiring.append((claim.expires_at, gives))
    return _CompiledTrust(lasting=lasting, expiring=tuple(expiring))


def _closure(start: str, gives: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Everything reachable from `start`, itself included; cycles are harmless."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        one = waiting.pop()
        if one not in reached:
            reached.add(one)
            waiting.extend(gives.get(one, ()))
    return frozenset(reached)
