"""Runtime and oracle agree on every policy, and the walk finds each planted fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.privacy.model import (
    NO_TOOLS,
    PolicySource,
    Sink,
    TagRule,
    TrustClaim,
    TrustedDeployment,
    shipped_implications,
)
from gateway.privacy.oracle import (
    COUNTER_EXAMPLES_MAX,
    STRANGER,
    Fault,
    is_allowed,
    is_sink_allowed,
    verify,
)
from gateway.privacy.policy import Policy

NOW = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)
TAG_NAMES = ("t0", "t1", "t2", "t3", "t4")
ATTRIBUTES = ("a0", "a1", "a2", "a3")

some_tags = st.frozensets(st.sampled_from(TAG_NAMES), max_size=5)
some_attributes = st.frozensets(st.sampled_from(ATTRIBUTES), max_size=3)
rules = st.builds(
    TagRule,
    require=some_attributes,
    implies=st.frozensets(st.sampled_from(TAG_NAMES), max_size=2),
    deny=st.integers(0, 9).map(lambda one: one == 0),
)
claims = st.builds(
    TrustClaim,
    attribute=st.sampled_from(ATTRIBUTES),
    expires_at=st.none() | st.sampled_from([NOW - DAY, NOW, NOW + DAY]),
    condition=st.sampled_from(["", "", "", "zdr"]),
)
claimed = claims.map(lambda one: (one,)) | st.tuples(claims, claims) | st.just(())
fleets = st.lists(
    st.tuples(claimed, st.frozensets(st.sampled_from(["zdr", "other"]), max_size=1)), max_size=4
).map(
    lambda fleet: tuple(
        TrustedDeployment(name=f"p/{place}", claims=made, enforces=enforces)
        for place, (made, enforces) in enumerate(fleet)
    )
)
TOOLS = ("web_search", "mcp")
some_tools = st.frozensets(st.sampled_from((*TOOLS, "stranger")), max_size=2)
sources = st.builds(
    PolicySource,
    tags=st.fixed_dictionaries(dict.fromkeys(TAG_NAMES, rules)),
    deployments=fleets,
    floor=st.frozensets(st.sampled_from(TAG_NAMES), max_size=1),
    implications=st.dictionaries(st.sampled_from(ATTRIBUTES), some_attributes, max_size=2),
    tools=st.dictionaries(st.sampled_from(TOOLS), claimed, max_size=2),
    sinks=st.dictionaries(st.sampled_from(list(Sink)), some_tags, max_size=2),
)


def compiled(source: PolicySource) -> Policy:
    return Policy.of(source)


@given(
    source=sources,
    tags=some_tags,
    at=st.sampled_from([NOW - DAY, NOW, NOW + DAY]),
    tools=some_tools,
)
def test_runtime_and_oracle_agree(
    source: PolicySource, tags: frozenset[str], at: datetime, tools: frozenset[str]
) -> None:
    policy = compiled(source)
    rightly = {one.name for one in source.deployments if is_allowed(source, tags, one, at, tools)}
    assert policy.allowed(tags, at=at, tools=tools) == rightly
    for sink in Sink:
        assert policy.sink_allows(sink, tags) is is_sink_allowed(source, sink, tags)


@given(source=sources, tags=some_tags, tools=some_tools, more=some_tools)
def test_more_tools_never_widen(
    source: PolicySource, tags: frozenset[str], tools: frozenset[str], more: frozenset[str]
) -> None:
    policy = compiled(source)
    assert policy.allowed(tags, at=NOW, tools=tools | more) <= policy.allowed(
        tags, at=NOW, tools=tools
    )


@given(source=sources, tags=some_tags, more=some_tags)
def test_a_tag_never_opens_a_sink(
    source: PolicySource, tags: frozenset[str], more: frozenset[str]
) -> None:
    policy = compiled(source)
    for sink in Sink:
        assert policy.sink_allows(sink, tags | more) <= policy.sink_allows(sink, tags)


@given(source=sources, tags=some_tags, more=some_tags)
def test_more_tags_never_widen(
    source: PolicySource, tags: frozenset[str], more: frozenset[str]
) -> None:
    policy = compiled(source)
    assert policy.allowed(tags | more, at=NOW) <= policy.allowed(tags, at=NOW)


@given(source=sources, tags=some_tags)
def test_time_alone_never_widens(source: PolicySource, tags: frozenset[str]) -> None:
    policy = compiled(source)
    assert (
        policy.allowed(tags, at=NOW + DAY)
        <= policy.allowed(tags, at=NOW)
        <= policy.allowed(tags, at=NOW - DAY)
    )


@given(source=sources, tags=some_tags)
def test_a_deployment_is_allowed_or_explained(source: PolicySource, tags: frozenset[str]) -> None:
    policy = compiled(source)
    allowed, reasons = policy.allowed(tags, at=NOW), policy.reasons(tags, at=NOW)
    assert allowed.isdisjoint(reasons)
    assert allowed | reasons.keys() == {one.name for one in source.deployments}
    for one in source.deployments:
        is_free = not policy.missing(tags, one.name, at=NOW) and not policy.denied_by(tags)
        assert is_free is (one.name in allowed)


MOMENTS = [NOW - 2 * DAY, NOW - DAY, NOW - DAY / 2, NOW, NOW + DAY / 2, NOW + DAY, NOW + 2 * DAY]


@given(
    source=sources,
    asked=st.lists(
        st.tuples(some_tags, st.sampled_from(MOMENTS), some_tools), min_size=1, max_size=12
    ),
)
def test_what_is_remembered_is_what_holds_whenever_it_is_asked(source: PolicySource, asked) -> None:
    policy = compiled(source)
    for tags, at, tools in asked:  # in any order: a clock can be set back
        reach, fresh = policy.reach(tags, at=at, tools=tools), compiled(source)
        assert reach.holds_at(at)
        assert reach.tags == fresh.close(tags)
        assert reach.sorted_tags == tuple(sorted(reach.tags))
        assert reach.allowed == fresh.allowed(tags, at=at, tools=tools)
        assert reach.reasons == fresh.reasons(tags, at=at, tools=tools)
        assert reach.sinks == {sink for sink in Sink if fresh.sink_allows(sink, tags)}


@given(source=sources)
def test_every_compiled_policy_is_proved(source: PolicySource) -> None:
    verdict = verify(compiled(source), source, instants=[NOW, NOW + DAY], floors=[["t0", "t1"]])
    assert verdict.holds
    assert verdict.is_complete
    # Every set of tags alone; none, single ones and the floor with each tool and with a stranger.
    tooled = (1 + len(TAG_NAMES) + 1) * (len(source.tools) + 1)
    deployed = 2 * (2 ** len(TAG_NAMES) + tooled) * len(source.deployments)
    assert verdict.cells == deployed + 2 ** len(TAG_NAMES) * len(Sink)


SOURCE = PolicySource(
    tags={
        "internal": TagRule(require=frozenset({"no_train"})),
        "confidential": TagRule(implies=frozenset({"internal"}), require=frozenset({"dpa"})),
        "private": TagRule(implies=frozenset({"confidential"}), require=frozenset({"self_hosted"})),
        "gdpr": TagRule(require=frozenset({"region:eu"})),
        "export": TagRule(deny=True),
    },
    deployments=(
        TrustedDeployment(name="open/m"),
        TrustedDeployment(name="half/m", claims=(TrustClaim(attribute="no_train"),)),
        TrustedDeployment(
            name="agreed/m",
            claims=(TrustClaim(attribute="no_train"), TrustClaim(attribute="dpa", expires_at=NOW)),
        ),
        TrustedDeployment(
            name="careful/m", claims=(TrustClaim(attribute="no_train"), TrustClaim(attribute="dpa"))
        ),
        TrustedDeployment(name="paper/m", claims=(TrustClaim(attribute="dpa"),)),
        TrustedDeployment(
            name="own/m",
            claims=(TrustClaim(attribute="self_hosted"), TrustClaim(attribute="region:eu")),
        ),
        TrustedDeployment(name="far/m", claims=(TrustClaim(attribute="self_hosted"),)),
        TrustedDeployment(name="here/m", claims=(TrustClaim(attribute="local"),)),
        TrustedDeployment(
            name="asked/m",
            claims=(TrustClaim(attribute="no_train", condition="zdr"),),
            enforces=frozenset({"zdr"}),
        ),
        TrustedDeployment(
            name="unasked/m", claims=(TrustClaim(attribute="no_train", condition="zdr"),)
        ),
    ),
    implications=shipped_implications("eu"),
    tools={
        "web_search": (TrustClaim(attribute="no_train"),),
        "mcp": (TrustClaim(attribute="no_train", expires_at=NOW),),
    },
    sinks={Sink.TRACES: frozenset({"confidential"}), Sink.EXPORTS: frozenset()},
)


def with_tag(tag: str, **changes) -> PolicySource:
    return replace(SOURCE, tags={**SOURCE.tags, tag: replace(SOURCE.tags[tag], **changes)})


def with_claims(name: str, *claims: TrustClaim) -> PolicySource:
    others = tuple(one for one in SOURCE.deployments if one.name != name)
    return replace(SOURCE, deployments=(*others, TrustedDeployment(name=name, claims=claims)))


def with_tool(name: str, *claims: TrustClaim) -> PolicySource:
    return replace(SOURCE, tools={**SOURCE.tools, name: claims})


MUTANTS = {
    "internal no longer requires no_train": (
        with_tag("internal", require=frozenset()),
        Fault.TOO_WIDE,
    ),
    "confidential no longer requires dpa": (
        with_tag("confidential", require=frozenset()),
        Fault.TOO_WIDE,
    ),
    "confidential no longer implies internal": (
        with_tag("confidential", implies=frozenset()),
        Fault.TOO_WIDE,
    ),
    "private no longer requires self_hosted": (
        with_tag("private", require=frozenset()),
        Fault.TOO_WIDE,
    ),
    "gdpr no longer requires the region": (with_tag("gdpr", require=frozenset()), Fault.TOO_WIDE),
    "export no longer denies": (with_tag("export", deny=False), Fault.TOO_WIDE),
    "a claim is added": (with_claims("open/m", TrustClaim(attribute="no_train")), Fault.TOO_WIDE),
    "an expiry is lost": (
        with_claims("agreed/m", TrustClaim(attribute="no_train"), TrustClaim(attribute="dpa")),
        Fault.TOO_WIDE,
    ),
    "a region is added to local": (
        replace(
            SOURCE, implications={**SOURCE.implications, "self_hosted": frozenset({"region:eu"})}
        ),
        Fault.TOO_NARROW,
    ),
    "local is no longer self-hosted": (
        replace(SOURCE, implications={**SOURCE.implications, "local": frozenset({"region:eu"})}),
        Fault.TOO_NARROW,
    ),
    "a deployment is lost": (replace(SOURCE, deployments=SOURCE.deployments[1:]), Fault.TOO_NARROW),
    "a floor appears": (replace(SOURCE, floor=frozenset({"private"})), Fault.TOO_NARROW),
    "a condition counts that nobody enforces": (
        with_claims("unasked/m", TrustClaim(attribute="no_train")),
        Fault.TOO_WIDE,
    ),
    "a condition that is enforced no longer counts": (
        with_claims("asked/m", TrustClaim(attribute="no_train", condition="zdr")),
        Fault.TOO_NARROW,
    ),
    "a tool is trusted more": (
        with_tool("web_search", TrustClaim(attribute="no_train"), TrustClaim(attribute="dpa")),
        Fault.TOO_WIDE,
    ),
    "the expiry of a tool's claim is lost": (
        with_tool("mcp", TrustClaim(attribute="no_train")),
        Fault.TOO_WIDE,
    ),
    "a tool is lost": (replace(SOURCE, tools={}), Fault.TOO_NARROW),
    "a sink is opened": (
        replace(SOURCE, sinks={**SOURCE.sinks, Sink.EXPORTS: frozenset({"gdpr"})}),
        Fault.TOO_WIDE,
    ),
    "a sink without a word is opened": (
        replace(SOURCE, sinks={**SOURCE.sinks, Sink.CONTENT_LOG: frozenset({"internal"})}),
        Fault.TOO_WIDE,
    ),
    "a sink is closed": (replace(SOURCE, sinks={}), Fault.TOO_NARROW),
}


@pytest.mark.parametrize(("mutant", "fault"), MUTANTS.values(), ids=MUTANTS.keys())
def test_the_walk_finds(mutant: PolicySource, fault: Fault) -> None:
    verdict = verify(compiled(mutant), SOURCE, instants=[NOW])
    assert not verdict.holds
    assert fault in {example.fault for example in verdict.counter_examples}


def test_the_unchanged_policy_holds() -> None:
    assert verify(compiled(SOURCE), SOURCE, instants=[NOW]).holds


def test_a_fault_that_shows_only_later_is_found_at_that_instant() -> None:
    lasting = with_claims("agreed/m", TrustClaim(attribute="no_train"), TrustClaim(attribute="dpa"))
    assert verify(compiled(lasting), SOURCE, instants=[NOW - DAY]).holds
    assert not verify(compiled(lasting), SOURCE, instants=[NOW - DAY, NOW]).holds


class ForgetsWhenTagged:
    """Allows everything once two tags come together, as a broken cache would."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        given = frozenset(tags)
        everything = frozenset(one.name for one in SOURCE.deployments)
        return everything if len(given) == 2 else self.policy.allowed(given, at=at, tools=tools)

    def sink_allows(self, sink: str, tags: Iterable[str]) -> bool:
        return self.policy.sink_allows(sink, tags)


class ForgetsTools(ForgetsWhenTagged):
    """Looks at the deployment and never at the tools."""

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        return self.policy.allowed(tags, at=at)


def test_an_evaluator_that_forgets_tools_is_found_though_the_policy_names_none() -> None:
    bare = replace(SOURCE, tools={})
    verdict = verify(ForgetsTools(compiled(bare)), bare, instants=[NOW])
    example = verdict.counter_examples[0]
    assert (example.fault, example.tools) == (Fault.TOO_WIDE, (STRANGER,))


class Widens(ForgetsTools):
    """Allows more with a tool than without."""

    def allowed(
        self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
    ) -> frozenset[str]:
        everything = frozenset(one.name for one in SOURCE.deployments)
        return everything if tools else self.policy.allowed(tags, at=at)


def test_a_tool_that_widens_the_set_is_a_counter_example() -> None:
    verdict = verify(Widens(compiled(SOURCE)), SOURCE, instants=[NOW])
    assert any(one.fault is Fault.NOT_MONOTONIC and one.tools for one in verdict.counter_examples)


def test_a_set_that_widens_with_a_tag_is_a_counter_example_that_names_the_tag() -> None:
    few = {name: SOURCE.tags[name] for name in ("gdpr", "internal")}
    single = replace(SOURCE, tags=few, sinks={})
    verdict = verify(ForgetsWhenTagged(compiled(single)), single, instants=[NOW])
    widened = [one for one in verdict.counter_examples if one.fault is Fault.NOT_MONOTONIC]
    assert {(one.tags, one.added_tag) for one in widened} == {
        (("gdpr",), "internal"),
        (("internal",), "gdpr"),
    }
    assert "open/m" in {one.deployment for one in widened}


def test_counter_examples_are_bounded() -> None:
    verdict = verify(ForgetsWhenTagged(compiled(SOURCE)), SOURCE, instants=[NOW])
    assert len(verdict.counter_examples) == COUNTER_EXAMPLES_MAX


def test_above_the_bound_pairs_and_floors_are_walked() -> None:
    verdict = verify(
        compiled(SOURCE),
        SOURCE,
        instants=[NOW],
        floors=[["gdpr", "internal", "private"]],
        subsets_max=8,
    )
    assert not verdict.is_complete
    assert verdict.holds
    # No tag, 5 single ones, 10 pairs, the floor of three and 2 sets of four; with each tool none,
    # single ones and the floor.
    walked, tooled = 1 + 5 + 10 + 1 + 2, (1 + 5 + 1) * (len(SOURCE.tools) + 1)
    assert verdict.cells == (walked + tooled) * len(SOURCE.deployments) + walked * len(Sink)


def test_a_fault_of_three_tags_together_is_found_through_a_floor() -> None:
    class ForgetsThree(ForgetsWhenTagged):
        def allowed(
            self, tags: Iterable[str], *, at: datetime, tools: frozenset[str] = NO_TOOLS
        ) -> frozenset[str]:
            given = frozenset(tags)
            rightly = self.policy.allowed(given, at=at, tools=tools)
            return frozenset({"open/m"}) if len(given) == 3 else rightly

    broken = ForgetsThree(compiled(SOURCE))
    assert verify(broken, SOURCE, instants=[NOW], subsets_max=8).holds
    assert not verify(
        broken, SOURCE, instants=[NOW], subsets_max=8, floors=[["gdpr", "internal"]]
    ).holds
