"""Exact price orders; what is not known ranks last; other strategies compare only what was observed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec.structs import replace as changed

from gateway.routing.needs import EXPECTED_OUTPUT_TOKENS, RequestNeeds
from gateway.routing.ranking import Strategy
from gateway.routing.snapshot import DeploymentView, ObservedLatency
from pricing.money import Rate, rate_per_mtok
from pricing.price_book import PriceVersion, Unpriced
from pricing.quote import Quote
from pricing.usage import Meter
from providers.contract import Capabilities
from tests.gateway.routing_.fleets import (
    CHEAP,
    DEAR,
    GPU_PRICE,
    NEEDS,
    NOW,
    OWN,
    UNKNOWN,
    ask,
    order,
    price,
)


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
    warm = changed(NEEDS, cached_tokens={"caching/m": 900})
    assert order(ask(caching, DEAR, needs=warm)) == ["caching/m", "dear/m"]
    more_than_the_prompt = changed(NEEDS, cached_tokens={"caching/m": 10**9})
    assert order(ask(caching, DEAR, needs=more_than_the_prompt)) == ["caching/m", "dear/m"]


QUANTITIES = {
    "the client's limit bounds and is expected where it is small": (NEEDS, 100, 100),
    "without a limit the window bounds": (
        RequestNeeds(prompt_tokens_estimate=1000),
        EXPECTED_OUTPUT_TOKENS,
        7000,
    ),
    "a learned expectation counts": (changed(NEEDS, expected_output_tokens=7), 7, 100),
    "an expectation above the limit is cut": (changed(NEEDS, expected_output_tokens=700), 100, 100),
    "several choices multiply": (changed(NEEDS, n=3), 300, 300),
}


@pytest.mark.parametrize(("needs", "expected", "bound"), QUANTITIES.values(), ids=QUANTITIES.keys())
def test_output_tokens_of_a_quote(needs: RequestNeeds, expected: int, bound: int) -> None:
    view = replace(CHEAP, capabilities=Capabilities(context_window_tokens=8000))
    assert ask(view, needs=needs).candidates[0].quote == Quote(
        expected_pico_usd=1000 * 50_000 + expected * 80_000,
        upper_bound_pico_usd=1000 * 50_000 + bound * 80_000,
    )


def test_an_attempt_is_exposed_to_the_upper_bound_of_its_quote() -> None:
    known = ask(CHEAP, needs=NEEDS).candidates[0]
    assert isinstance(known.quote, Quote)
    assert known.exposure_pico_usd == known.quote.upper_bound_pico_usd
    assert ask(UNKNOWN, needs=NEEDS).candidates[0].exposure_pico_usd is None


def test_the_upper_bound_uses_the_largest_prompt() -> None:
    for largest, counted in ((5000, 5000), (10, 1000)):
        quoted = ask(CHEAP, needs=changed(NEEDS, max_prompt_tokens=largest)).candidates[0].quote
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
