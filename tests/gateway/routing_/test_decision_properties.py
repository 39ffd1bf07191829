"""What holds for every fleet and question, and how a decision explains itself."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.explanation import explain
from gateway.routing.needs import RequestNeeds
from gateway.routing.ranking import Strategy
from gateway.routing.refusal import RefusalCode
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, ObservedLatency
from pricing.price_book import Unpriced
from pricing.quote import MeasuredSpeed, Quote
from providers.contract import Capabilities
from tests.gateway.routing_.fleets import (
    CHEAP,
    GPU_PRICE,
    NOW,
    UNKNOWN,
    ask,
    order,
    price,
)

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
