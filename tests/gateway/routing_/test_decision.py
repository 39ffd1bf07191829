"""Decisions: privacy and scope are hard, ability and health give reasons, exact price orders."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.privacy.model import TagRule, TrustClaim, TrustedDeployment, shipped_implications
from gateway.privacy.policy import Policy
from gateway.routing.decision import Decision, Stage, decide
from gateway.routing.explanation import explain
from gateway.routing.needs import EXPECTED_OUTPUT_TOKENS, RequestNeeds
from gateway.routing.ranking import Strategy
from gateway.routing.refusal import RefusalCode
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, FleetSnapshot, ObservedLatency
from pricing.money import Rate, rate_per_hour_us, rate_per_mtok
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.quote import MeasuredSpeed, Quote
from pricing.usage import Meter
from providers.contract import Capabilities

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NEEDS = RequestNeeds(prompt_tokens_estimate=1000, max_output_tokens=100)


def price(input_usd: str, output_usd: str, **changes) -> PriceVersion:
    rates = {Meter.INPUT: rate_per_mtok(input_usd), Meter.OUTPUT: rate_per_mtok(output_usd)}
    return PriceVersion(rates=rates, source="test", **changes)


GPU_PRICE = PriceVersion(
    rates={Meter.GPU_US: rate_per_hour_us("3.6")}, basis=Basis.GPU_TIME, source="test"
)
DEAR = DeploymentView(name="dear/m", price=price("5", "15"))
CHEAP = DeploymentView(name="cheap/m", price=price("0.05", "0.08"))
OWN = DeploymentView(
    name="own/m", price=GPU_PRICE, speed=MeasuredSpeed(prefill_tps=1000, decode_tps=100)
)
UNKNOWN = DeploymentView(name="unknown/m", price=Unpriced(reason="no price configured"))


def fleet(*views: DeploymentView) -> FleetSnapshot:
    return FleetSnapshot(
        deployments={view.name: view for view in views},
        models={"chat": tuple(view.name for view in views)},
        aliases={"small": "chat"},
    )


def ask(*views: DeploymentView, **changes) -> Decision:
    snapshot = changes.pop("snapshot", None) or fleet(*views)
    base = {
        "model": "chat",
        "allowed": frozenset(snapshot.deployments),
        "scope": KeyScope(),
        "needs": NEEDS,
        "now": NOW,
    }
    return decide(snapshot, **{**base, **changes})


def order(decision: Decision) -> list[str]:
    return [one.deployment for one in decision.candidates]


def test_the_cheapest_comes_first_with_its_quote_and_reason() -> None:
    decision = ask(DEAR, CHEAP)
    assert order(decision) == ["cheap/m", "dear/m"]
    assert [one.reason for one in decision.candidates] == ["cheapest", "number 2 cheapest"]
    first = decision.candidates[0]
    assert first.quote == Quote(expected_pico_usd=58_000_000, upper_bound_pico_usd=58_000_000)
    assert first.price == CHEAP.price
    assert decision.refusal is None
    assert decision.reachable == {"cheap/m", "dear/m"}


def test_equal_prices_keep_the_order_of_the_configuration() -> None:
    twins = [replace(CHEAP, name=f"{name}/m") for name in ("c", "a", "b")]
    assert order(ask(*twins)) == ["c/m", "a/m", "b/m"]


def test_one_picodollar_decides() -> None:
    rates = {Meter.INPUT: Rate(pico_usd=50_001), Meter.OUTPUT: rate_per_mtok("0.08")}
    dearer = DeploymentView(name="dearer/m", price=PriceVersion(rates=rates, source="test"))
    needs = RequestNeeds(prompt_tokens_estimate=1, max_output_tokens=0)
    assert order(ask(dearer, CHEAP, needs=needs)) == ["cheap/m", "dearer/m"]


def test_an_unpriced_deployment_ranks_last_and_says_so() -> None:
    decision = ask(UNKNOWN, DEAR)
    assert order(decision) == ["dear/m", "unknown/m"]
    assert decision.candidates[-1].reason == "unpriced (no price configured), ranks last"


def test_a_busy_time_price_competes_through_measured_speed() -> None:
    # One second of prefill and one of decode at 0.001 USD per second.
    decision = ask(DEAR, OWN, CHEAP)
    assert order(decision) == ["cheap/m", "own/m", "dear/m"]
    assert decision.candidates[1].quote == Quote(
        expected_pico_usd=2 * 10**9, upper_bound_pico_usd=2 * 10**9
    )


def test_a_busy_time_price_without_measured_speed_ranks_last_but_can_be_charged() -> None:
    decision = ask(replace(OWN, speed=None), DEAR)
    assert order(decision) == ["dear/m", "own/m"]
    last = decision.candidates[-1]
    assert last.quote == Unpriced(reason="no measured rates")
    assert last.price == GPU_PRICE


def test_a_price_that_lapsed_since_the_snapshot_is_unknown() -> None:
    lapsed = replace(CHEAP, price=price("0.05", "0.08", valid_to=NOW))
    assert order(ask(lapsed, DEAR)) == ["dear/m", "cheap/m"]
    assert order(ask(lapsed, DEAR, now=NOW - timedelta(seconds=1))) == ["cheap/m", "dear/m"]
    assert ask(lapsed).candidates[0].price == Unpriced(reason="its price is not in force any more")


def test_an_expected_cache_hit_can_turn_the_order() -> None:
    caching = DeploymentView(
        name="caching/m",
        price=PriceVersion(
            rates={
                Meter.INPUT: rate_per_mtok(6),
                Meter.CACHE_READ: rate_per_mtok("0.6"),
                Meter.OUTPUT: rate_per_mtok(15),
            },
            source="test",
        ),
    )
    assert order(ask(caching, DEAR)) == ["dear/m", "caching/m"]
    warm = replace(NEEDS, cached_tokens={"caching/m": 900})
    assert order(ask(caching, DEAR, needs=warm)) == ["caching/m", "dear/m"]
    more_than_the_prompt = replace(NEEDS, cached_tokens={"caching/m": 10**9})
    assert order(ask(caching, DEAR, needs=more_than_the_prompt)) == ["caching/m", "dear/m"]


QUANTITIES = {
    "the client's limit bounds and is expected where it is small": (NEEDS, 100, 100),
    "without a limit the window bounds": (
        RequestNeeds(prompt_tokens_estimate=1000),
        EXPECTED_OUTPUT_TOKENS,
        7000,
    ),
    "a learned expectation counts": (replace(NEEDS, expected_output_tokens=7), 7, 100),
    "an expectation above the limit is cut": (replace(NEEDS, expected_output_tokens=700), 100, 100),
    "several choices multiply": (replace(NEEDS, n=3), 300, 300),
}


@pytest.mark.parametrize(("needs", "expected", "bound"), QUANTITIES.values(), ids=QUANTITIES.keys())
def test_output_tokens_of_a_quote(needs: RequestNeeds, expected: int, bound: int) -> None:
    view = replace(CHEAP, capabilities=Capabilities(context_window_tokens=8000))
    assert ask(view, needs=needs).candidates[0].quote == Quote(
        expected_pico_usd=1000 * 50_000 + expected * 80_000,
        upper_bound_pico_usd=1000 * 50_000 + bound * 80_000,
    )


def test_the_upper_bound_uses_the_largest_prompt() -> None:
    for largest, counted in ((5000, 5000), (10, 1000)):
        quoted = ask(CHEAP, needs=replace(NEEDS, max_prompt_tokens=largest)).candidates[0].quote
        assert isinstance(quoted, Quote)
        assert quoted.upper_bound_pico_usd == counted * 50_000 + 100 * 80_000


def test_without_limit_and_window_the_bound_is_unknown() -> None:
    quoted = ask(CHEAP, needs=RequestNeeds(prompt_tokens_estimate=10)).candidates[0].quote
    assert isinstance(quoted, Quote)
    assert quoted.upper_bound_pico_usd is None


# Strategies other than price.
SLOW = replace(CHEAP, latency=ObservedLatency(ttft_s=2.0, decode_tps=50.0))
FAST = replace(DEAR, latency=ObservedLatency(ttft_s=0.1, decode_tps=100.0))


def test_the_fastest_is_the_one_whose_answer_is_complete_first() -> None:
    decision = ask(SLOW, FAST, strategy=Strategy.FASTEST)
    assert order(decision) == ["dear/m", "cheap/m"]
    assert [one.reason for one in decision.candidates] == ["fastest", "number 2 fastest"]


def test_a_deployment_without_observed_latency_ranks_behind_and_says_so() -> None:
    decision = ask(CHEAP, FAST, UNKNOWN, strategy=Strategy.FASTEST)
    assert order(decision) == ["dear/m", "cheap/m", "unknown/m"]
    assert (
        decision.candidates[1].reason
        == "no latency observed, not comparable as fastest, ranked by price"
    )
    assert decision.candidates[2].reason == "unpriced (no price configured), ranks last"


def test_without_any_latency_fastest_is_by_price() -> None:
    assert order(ask(DEAR, CHEAP, strategy=Strategy.FASTEST)) == ["cheap/m", "dear/m"]


def test_balanced_takes_the_lowest_product_of_cost_and_time() -> None:
    slower = replace(CHEAP, latency=ObservedLatency(ttft_s=500.0, decode_tps=50.0))
    assert order(ask(slower, FAST, strategy=Strategy.BALANCED)) == ["dear/m", "cheap/m"]
    assert order(ask(FAST, SLOW, strategy=Strategy.BALANCED)) == ["cheap/m", "dear/m"]


def test_balanced_compares_nothing_that_it_does_not_know() -> None:
    timed_but_unpriced = replace(UNKNOWN, latency=ObservedLatency(ttft_s=0.1, decode_tps=100.0))
    decision = ask(timed_but_unpriced, CHEAP, FAST, strategy=Strategy.BALANCED)
    assert order(decision) == ["dear/m", "cheap/m", "unknown/m"]


# Names and scope.
def test_an_unknown_model_lists_near_names() -> None:
    decision = ask(CHEAP, model="chatt")
    assert decision.refusal is not None
    assert decision.refusal.code is RefusalCode.MODEL_NOT_FOUND
    assert decision.refusal.near == ("chat",)
    assert decision.refusal.message == "no model 'chatt'; near names: chat"
    assert (decision.candidates, decision.excluded, decision.reachable) == ((), (), frozenset())


def test_an_unknown_model_with_nothing_near_says_only_that() -> None:
    refusal = ask(CHEAP, model="z" * 5000 + "\n").refusal
    assert refusal is not None
    assert refusal.message == f"no model '{'z' * 100}'"


def test_a_deployment_can_be_asked_for_directly() -> None:
    decision = ask(CHEAP, DEAR, model="dear/m")
    assert order(decision) == ["dear/m"]
    assert decision.model is None


def gateway_103() -> FleetSnapshot:
    views = (replace(CHEAP, name="prov/cheap"), replace(DEAR, name="prov/frontier"))
    return FleetSnapshot(
        deployments={view.name: view for view in views},
        models={"cheap": ("prov/cheap",), "frontier": ("prov/frontier",)},
        aliases={"fast": "frontier"},
    )


@pytest.mark.parametrize("name", ["fast", "frontier", "prov/frontier"])
def test_an_alias_or_deployment_outside_the_scope_is_refused_by_the_name_asked_for(
    name: str,
) -> None:
    decision = ask(snapshot=gateway_103(), model=name, scope=KeyScope(models=("cheap",)))
    assert decision.refusal is not None
    assert decision.refusal.code is RefusalCode.MODEL_NOT_ALLOWED
    assert decision.refusal.message == f"this key may not use model '{name}'"
    assert [one.stage for one in decision.excluded] == [Stage.SCOPE]
    assert not decision.reachable


@pytest.mark.parametrize(
    "name", ["Fast", "FRONTIER", "fr\u043entier", "prov/Frontier", "frontier "]
)
def test_variants_of_a_name_outside_the_scope_reach_nothing_and_learn_nothing(name: str) -> None:
    refusal = ask(snapshot=gateway_103(), model=name, scope=KeyScope(models=("cheap",))).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.MODEL_NOT_FOUND
    assert "frontier" not in refusal.near


# GW-104: a fallback that was never authorised.
def test_no_candidate_of_a_granted_model_lies_outside_it() -> None:
    decision = ask(snapshot=gateway_103(), model="cheap", scope=KeyScope(models=("cheap",)))
    assert order(decision) == ["prov/cheap"]
    assert decision.reachable == {"prov/cheap"}


# GW-107: the opposite, an alias that was granted and is denied by what it stands for.
def test_a_granted_alias_is_enough() -> None:
    snapshot = FleetSnapshot(
        deployments={"vendor/coder-bf16": replace(CHEAP, name="vendor/coder-bf16")},
        models={},
        aliases={"coder": "vendor/coder-bf16"},
    )
    assert order(ask(snapshot=snapshot, model="coder", scope=KeyScope(models=("coder",)))) == [
        "vendor/coder-bf16"
    ]


# Privacy.
def test_privacy_is_refused_by_configuration_whatever_is_healthy() -> None:
    decision = ask(
        CHEAP,
        DEAR,
        allowed=frozenset({"elsewhere/m"}),
        privacy_reasons={"cheap/m": "lacks self_hosted"},
    )
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PRIVACY_DENIED
    assert "cheap/m: lacks self_hosted" in refusal.message
    assert "dear/m: does not satisfy the request's privacy tags" in refusal.message


def test_an_allowed_deployment_that_is_down_never_opens_a_disallowed_one() -> None:
    down = replace(OWN, is_available=False, unavailable_reason="breaker open", retry_after_s=7.5)
    decision = ask(CHEAP, down, allowed=frozenset({"own/m"}))
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PRIVATE_CAPACITY_UNAVAILABLE
    assert refusal.retry_after_s == 7.5
    assert "own/m: breaker open" in refusal.message
    assert {one.deployment: one.stage for one in decision.excluded} == {
        "cheap/m": Stage.PRIVACY,
        "own/m": Stage.HEALTH,
    }
    assert decision.reachable == {"own/m"}


def policy_of(*deployments: TrustedDeployment, **tags: TagRule) -> Policy:
    return Policy.compile(
        tags=tags, floor=(), deployments=deployments, implications=shipped_implications(None)
    )


def ask_tagged(policy: Policy, snapshot: FleetSnapshot, tags: list[str], **changes) -> Decision:
    allowed, reasons = policy.allowed(tags, at=NOW), policy.reasons(tags, at=NOW)
    return ask(snapshot=snapshot, allowed=allowed, privacy_reasons=reasons, **changes)


# GW-121: a tag filter that is off for wildcard routes.
def test_a_private_request_goes_to_the_machine_of_our_own_only() -> None:
    cloud, own = replace(CHEAP, name="cloud/anything"), replace(DEAR, name="self/anything")
    policy = policy_of(
        TrustedDeployment(name="cloud/anything"),
        TrustedDeployment(name="self/anything", claims=(TrustClaim(attribute="self_hosted"),)),
        private=TagRule(require=frozenset({"self_hosted"})),
    )
    for name in ("chat", "small", "self/anything"):
        assert order(ask_tagged(policy, fleet(cloud, own), ["private"], model=name)) == [
            "self/anything"
        ]
    denied = ask_tagged(policy, fleet(cloud, own), ["private"], model="cloud/anything").refusal
    assert denied is not None
    assert denied.code is RefusalCode.PRIVACY_DENIED
    assert order(ask_tagged(policy, fleet(cloud, own), [])) == ["cloud/anything", "self/anything"]


# GW-124: a denial downgraded to a preference.
def test_a_request_that_nobody_may_serve_is_refused_with_the_rule() -> None:
    policy = policy_of(
        TrustedDeployment(name="open/m1"), internal=TagRule(require=frozenset({"no_train"}))
    )
    refusal = ask_tagged(policy, fleet(replace(CHEAP, name="open/m1")), ["internal"]).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.PRIVACY_DENIED
    assert "open/m1: lacks no_train" in refusal.message


# GW-127: an untagged request captured by a deployment that the model does not list.
def test_an_untagged_request_goes_where_its_model_says_and_nowhere_else() -> None:
    plain, semantic = replace(DEAR, name="plain/m"), replace(CHEAP, name="semantic/m")
    snapshot = FleetSnapshot(
        deployments={"plain/m": plain, "semantic/m": semantic},
        models={"shared": ("plain/m",), "smart": ("semantic/m",)},
    )
    assert order(ask(snapshot=snapshot, model="shared")) == ["plain/m"]


# Ability.
CLOSED = Capabilities(is_open=False, supported=frozenset({"temperature"}))
ABILITIES = {
    "a named field is refused with its reason": (
        Capabilities(unsupported={"logit_bias": "the vendor ignores it"}), {"fields": frozenset({"logit_bias"})},
        "logit_bias", "logit_bias is not supported: the vendor ignores it",
    ),
    "a closed wire refuses what it does not list": (
        CLOSED, {"fields": frozenset({"temperature", "top_k"})}, "top_k", "top_k is not supported",
    ),
    "media need a model that understands them": (
        Capabilities(multimodal=False), {"has_media": True}, "messages", "other than text",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("capabilities", "needs", "param", "reason"), ABILITIES.values(), ids=ABILITIES.keys()
)
def test_a_parameter_is_honoured_elsewhere_or_refused(
    capabilities, needs, param: str, reason: str
) -> None:
    unable = replace(CHEAP, capabilities=capabilities)
    elsewhere = ask(unable, DEAR, needs=replace(NEEDS, **needs))
    assert order(elsewhere) == ["dear/m"]
    assert elsewhere.excluded[0].stage is Stage.ABILITY
    assert reason in elsewhere.excluded[0].reason
    refusal = ask(unable, needs=replace(NEEDS, **needs)).refusal
    assert refusal is not None
    assert (refusal.code, refusal.param) == (RefusalCode.UNSUPPORTED_PARAMETER, param)
    assert f"can honour {param!r}" in refusal.message
    assert reason in refusal.message


def test_an_open_or_listed_field_is_no_obstacle() -> None:
    needs = replace(NEEDS, fields=frozenset({"temperature"}))
    assert order(ask(CHEAP, replace(DEAR, capabilities=CLOSED), needs=needs)) == [
        "cheap/m",
        "dear/m",
    ]


def test_the_parameter_that_nobody_honours_is_named_before_one_that_somebody_does() -> None:
    first = replace(CHEAP, capabilities=Capabilities(unsupported={"a": "no", "z": "never"}))
    second = replace(DEAR, capabilities=Capabilities(unsupported={"z": "never"}))
    refusal = ask(first, second, needs=replace(NEEDS, fields=frozenset({"a", "z"}))).refusal
    assert refusal is not None
    assert refusal.param == "z"


def test_without_a_common_parameter_each_deployment_says_its_own() -> None:
    first = replace(CHEAP, capabilities=Capabilities(unsupported={"a": "no"}))
    second = replace(DEAR, capabilities=Capabilities(unsupported={"b": "never"}))
    refusal = ask(first, second, needs=replace(NEEDS, fields=frozenset({"a", "b"}))).refusal
    assert refusal is not None
    assert refusal.param == "a"
    assert "cheap/m: a is not supported: no; dear/m: b is not supported: never" in refusal.message


def test_too_long_for_every_candidate_names_the_numbers() -> None:
    short = replace(CHEAP, capabilities=Capabilities(context_window_tokens=512))
    longer = replace(DEAR, capabilities=Capabilities(context_window_tokens=1050))
    refusal = ask(short, longer).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.CONTEXT_LENGTH_EXCEEDED
    assert refusal.message == (
        "the longest context window of 'chat' is 1050 tokens; "
        "the prompt has about 1000 tokens and 100 tokens of output"
    )


WINDOWS = {
    "prompt and output fill it exactly": (1100, NEEDS, True),
    "one token too many": (1099, NEEDS, False),
    "no limit asks for one token of room": (1001, RequestNeeds(prompt_tokens_estimate=1000), True),
    "no room for one token": (1000, RequestNeeds(prompt_tokens_estimate=1000), False),
    "an unknown window excludes nothing": (None, RequestNeeds(prompt_tokens_estimate=10**7), True),
}


@pytest.mark.parametrize(("window", "needs", "fits"), WINDOWS.values(), ids=WINDOWS.keys())
def test_context_window(window: int | None, needs: RequestNeeds, fits: bool) -> None:
    decision = ask(
        replace(CHEAP, capabilities=Capabilities(context_window_tokens=window)), needs=needs
    )
    assert (decision.refusal is None) is fits
    if decision.refusal is not None:
        assert decision.refusal.code is RefusalCode.CONTEXT_LENGTH_EXCEEDED


def test_a_deployment_that_is_only_too_short_makes_the_length_to_blame() -> None:
    unable = replace(
        CHEAP, capabilities=Capabilities(unsupported={"a": "no"}, context_window_tokens=100)
    )
    short = replace(DEAR, capabilities=Capabilities(context_window_tokens=200))
    needs = replace(NEEDS, fields=frozenset({"a"}))
    refusal = ask(unable, short, needs=needs).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.CONTEXT_LENGTH_EXCEEDED
    assert "is 200 tokens" in refusal.message
    only = ask(unable, needs=needs).refusal
    assert only is not None
    assert only.code is RefusalCode.UNSUPPORTED_PARAMETER


# The request's own ceiling.
def test_a_ceiling_excludes_what_may_cost_more() -> None:
    decision = ask(CHEAP, DEAR, max_pico_usd=58_000_000)
    assert order(decision) == ["cheap/m"]
    assert decision.reachable == {"cheap/m"}
    assert decision.excluded[0].stage is Stage.PRICE
    assert decision.excluded[0].reason == "may cost up to 0.0065 USD"


def test_what_is_not_known_is_not_within_a_ceiling() -> None:
    decision = ask(
        UNKNOWN, CHEAP, max_pico_usd=10**12, needs=RequestNeeds(prompt_tokens_estimate=1)
    )
    assert {one.deployment: one.reason for one in decision.excluded} == {
        "unknown/m": "unpriced (no price configured), so not within the request's ceiling",
        "cheap/m": "no upper bound of its cost without max_tokens",
    }
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.MAX_USD_EXCEEDED
    assert refusal.message.endswith("within 1 USD: none has a known upper bound; set max_tokens")


def test_a_ceiling_below_everything_names_the_lowest_bound() -> None:
    refusal = ask(CHEAP, DEAR, max_pico_usd=0).refusal
    assert refusal is not None
    assert refusal.message == (
        "no deployment of 'chat' is sure to stay within 0 USD: "
        "the cheapest may cost up to 0.000058 USD; lower max_tokens"
    )


# Health.
def test_what_is_down_is_left_out_with_its_reason_and_stays_reachable() -> None:
    decision = ask(replace(CHEAP, is_available=False, unavailable_reason="cooling down"), DEAR)
    assert order(decision) == ["dear/m"]
    assert decision.excluded[0].stage is Stage.HEALTH
    assert decision.excluded[0].reason == "cooling down"
    assert decision.reachable == {"cheap/m", "dear/m"}


def test_when_all_are_down_the_shortest_wait_is_told() -> None:
    decision = ask(
        replace(CHEAP, is_available=False, retry_after_s=30.0),
        replace(DEAR, is_available=False, retry_after_s=4.0),
        replace(OWN, is_available=False),
    )
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.NO_HEALTHY_DEPLOYMENT
    assert refusal.retry_after_s == 4.0
    assert "own/m: not available now" in refusal.message


def test_a_refusal_spells_out_a_few_deployments_and_counts_the_rest() -> None:
    views = [replace(CHEAP, name=f"p{place}/m", is_available=False) for place in range(8)]
    refusal = ask(*views).refusal
    assert refusal is not None
    assert refusal.retry_after_s is None
    assert refusal.message.count("not available now") == 5
    assert refusal.message.endswith("; and 3 more")


# Properties.
capabilities = st.builds(
    Capabilities,
    context_window_tokens=st.sampled_from([None, 500, 1050, 9000]),
    unsupported=st.sampled_from([{}, {"seed": "no"}]),
    multimodal=st.booleans(),
)
prices = st.sampled_from(
    [
        Unpriced(reason="none"),
        price("1", "2"),
        price("2", "1"),
        price("1", "2", valid_to=NOW),
        GPU_PRICE,
    ]
)
latencies = st.none() | st.builds(
    ObservedLatency, ttft_s=st.floats(0.01, 5), decode_tps=st.floats(1, 500)
)
views = st.builds(
    DeploymentView, name=st.sampled_from([f"p{place}/m" for place in range(6)]), price=prices,
    capabilities=capabilities, is_available=st.booleans(), latency=latencies,
    speed=st.none() | st.just(MeasuredSpeed(prefill_tps=1000, decode_tps=100)),
)  # fmt: skip
questions = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["chat", "small", "p0/m", "nothing"]),
        "scope": st.sampled_from([KeyScope(), KeyScope(models=("chat",)), KeyScope(models=("p*",)), KeyScope(models=())]),
        "strategy": st.sampled_from(list(Strategy)),
        "max_pico_usd": st.sampled_from([None, 0, 1_150_000_000, 10**13]),
        "needs": st.builds(
            RequestNeeds, prompt_tokens_estimate=st.sampled_from([10, 1000]), max_output_tokens=st.sampled_from([None, 0, 100]),
            fields=st.sampled_from([frozenset(), frozenset({"seed"})]), has_media=st.booleans(), n=st.integers(1, 3),
        ),
    }
)  # fmt: skip
fleets = st.lists(views, min_size=1, max_size=5, unique_by=lambda view: view.name)
some_names = st.frozensets(st.sampled_from([f"p{place}/m" for place in range(6)]))


@given(fleet_views=fleets, allowed=some_names, question=questions)
def test_every_deployment_of_the_model_is_a_candidate_or_excluded_and_never_both(
    fleet_views, allowed, question
) -> None:
    decision = ask(*fleet_views, allowed=allowed, **question)
    tried, left_out = order(decision), [one.deployment for one in decision.excluded]
    assert bool(tried) is (decision.refusal is None)
    assert set(tried) <= decision.reachable <= allowed
    if decision.refusal is not None and decision.refusal.code is RefusalCode.MODEL_NOT_FOUND:
        return
    names = [view.name for view in fleet_views]
    of_model = names if question["model"] != "p0/m" else ["p0/m"]
    assert sorted(tried + left_out) == sorted(of_model)


@given(fleet_views=fleets, allowed=some_names, more=some_names, question=questions)
def test_a_smaller_allowed_set_never_reaches_more(fleet_views, allowed, more, question) -> None:
    narrow = ask(*fleet_views, allowed=allowed, **question)
    wide = ask(*fleet_views, allowed=allowed | more, **question)
    assert narrow.reachable <= wide.reachable
    assert set(order(narrow)) <= set(order(wide))


@given(fleet_views=fleets, allowed=some_names, question=questions)
def test_health_never_changes_what_can_be_reached(fleet_views, allowed, question) -> None:
    healthy = [replace(view, is_available=True) for view in fleet_views]
    seen, ideal = (
        ask(*fleet_views, allowed=allowed, **question),
        ask(*healthy, allowed=allowed, **question),
    )
    assert seen.reachable == ideal.reachable
    assert set(order(seen)) <= set(order(ideal))
    if ideal.refusal is not None:
        assert seen.refusal is not None
        assert seen.refusal.code is ideal.refusal.code


@given(fleet_views=fleets, question=questions)
def test_cheapest_is_sorted_by_exact_cost_with_unpriced_ones_last(fleet_views, question) -> None:
    decision = ask(*fleet_views, **{**question, "strategy": Strategy.CHEAPEST})
    places = {view.name: place for place, view in enumerate(fleet_views)}
    for one, other in pairwise(decision.candidates):
        if isinstance(one.quote, Unpriced):
            assert isinstance(other.quote, Unpriced)
        elif isinstance(other.quote, Quote):
            assert one.quote.expected_pico_usd <= other.quote.expected_pico_usd
            if one.quote.expected_pico_usd == other.quote.expected_pico_usd:
                assert places[one.deployment] < places[other.deployment]


@given(fleet_views=fleets, allowed=some_names, question=questions)
def test_the_same_question_has_the_same_answer_and_it_explains_itself_in_json(
    fleet_views, allowed, question
) -> None:
    decision = ask(*fleet_views, allowed=allowed, **question)
    assert decision == ask(*fleet_views, allowed=allowed, **question)
    shown = json.loads(json.dumps(explain(decision).to_json()))
    assert [one["deployment"] for one in shown["candidates"]] == order(decision)
    assert [one["deployment"] for one in shown["excluded"]] == [
        one.deployment for one in decision.excluded
    ]
    assert (shown["refusal"] is None) is (decision.refusal is None)
    assert all(one["reason"] for one in [*shown["candidates"], *shown["excluded"]])


def test_an_explanation_holds_exact_costs_as_text() -> None:
    nominal = replace(CHEAP, price=price("0.05", "0.08", is_nominal=True))
    shown = explain(ask(nominal, UNKNOWN, needs=RequestNeeds(prompt_tokens_estimate=1))).to_json()
    assert shown == {
        "asked": "chat",
        "model": "chat",
        "strategy": "cheapest",
        "candidates": (
            {
                "rank": 1, "deployment": "cheap/m", "reason": "cheapest",
                "price_version": nominal.price.version_id, "is_nominal": True,
                "expected_usd": "0.00002053", "upper_bound_usd": None, "unpriced": None,
            },
            {
                "rank": 2, "deployment": "unknown/m", "reason": "unpriced (no price configured), ranks last",
                "price_version": None, "is_nominal": False,
                "expected_usd": None, "upper_bound_usd": None, "unpriced": "no price configured",
            },
        ),
        "excluded": (),
        "refusal": None,
    }  # fmt: skip


def test_an_explanation_of_a_refusal_holds_what_the_client_gets() -> None:
    decision = ask(replace(CHEAP, is_available=False, retry_after_s=3.0))
    shown = explain(decision)
    assert shown.refusal is not None
    assert (shown.refusal.code, shown.refusal.retry_after_s) == ("no_healthy_deployment", 3.0)
    assert [(one.stage, one.reason) for one in shown.excluded] == [("health", "not available now")]
    assert explain(ask(CHEAP)).candidates[0].upper_bound_usd == "0.000058"


def test_a_deployment_name_splits_at_the_first_slash() -> None:
    view = DeploymentView(name="together/meta-llama/Llama-3", price=Unpriced(reason="test"))
    assert (view.provider, view.model_id) == ("together", "meta-llama/Llama-3")
