"""Where a machine of one's own costs what a vendor would: exact, and never a part of a cost."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.break_even import BreakEven, mix_cost
from pricing.money import rate_per_hour_us, rate_per_mtok, rate_per_unit
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.usage import Meter

USD = 10**12
HOSTED = PriceVersion(
    rates={
        Meter.INPUT: rate_per_mtok("0.25"),
        Meter.CACHE_READ: rate_per_mtok("0.025"),
        Meter.OUTPUT: rate_per_mtok(2),
    },
    source="a price list",
)


def test_a_mix_costs_the_sum_of_its_meters_with_fallbacks():
    used = {"input": 10**6, "cache_read": 10**6, "cache_write": 4, "output": 3, "reasoning": 2}
    found = mix_cost({**used, "gpu_us": 10**9, "requests": 7, "images": 0}, HOSTED)
    assert found == Fraction(USD * 275, 1000) + 4 * 250_000 + 5 * 2_000_000


def test_a_mix_is_not_rounded():
    third = PriceVersion(rates={Meter.INPUT: rate_per_hour_us("0.000000000001")}, source="x")
    assert mix_cost({"input": 1}, third) == Fraction(1, 3_600_000_000)


def test_a_fee_per_request_counts_where_there_is_one():
    fee = PriceVersion(rates={**HOSTED.rates, Meter.REQUESTS: rate_per_unit("0.01")}, source="x")
    assert mix_cost({"requests": 3}, fee) == 3 * USD // 100


@pytest.mark.parametrize(
    ("used", "version", "reason"),
    [
        ({"input": 1, "images": 1}, HOSTED, "no rate for images"),
        (
            {"input": 1},
            PriceVersion(
                rates={Meter.GPU_US: rate_per_hour_us(1)}, source="x", basis=Basis.GPU_TIME
            ),
            "it is priced by machine time",
        ),
    ],
    ids=["a meter without a rate", "a price by the hour"],
)
def test_what_has_no_price_is_not_compared(used, version, reason):
    assert mix_cost(used, version) == Unpriced(reason=reason)


def crossing(fixed, hosted, own=0) -> BreakEven:
    return BreakEven(
        fixed_pico_usd=Fraction(fixed),
        own_pico_usd_per_unit=Fraction(own),
        hosted_pico_usd_per_unit=Fraction(hosted),
    )


def test_the_course_case_breaks_even_at_14_76_billion_tokens_a_month():
    # Two GPUs at 3 USD for 730 hours and 3,000 USD of running, against 0.50 USD per million.
    found = crossing((2 * 3 * 730 + 3_000) * USD, 500_000)
    assert found.units == found.whole_units == 14_760_000_000


def test_a_machine_that_saves_nothing_per_token_never_breaks_even():
    assert crossing(1, 5, own=5).units is None
    assert crossing(1, 5, own=6).whole_units is None


def test_a_machine_that_costs_nothing_to_have_breaks_even_at_once():
    assert crossing(0, 1).whole_units == 0


@pytest.mark.parametrize("costs", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_a_negative_cost_is_refused(costs):
    with pytest.raises(ValueError, match="costs must be >= 0"):
        crossing(*costs)


amounts = st.fractions(0, 10**15, max_denominator=10**9)


@given(amounts, amounts, amounts)
def test_both_cost_the_same_there_and_the_machine_is_no_dearer_beyond(fixed, hosted, own):
    found = crossing(fixed, hosted, own)
    units, whole = found.units, found.whole_units
    if units is None or whole is None:
        assert hosted <= own
        return
    assert found.saved_pico_usd(units) == 0
    assert found.saved_pico_usd(whole) >= 0
    assert whole == 0 or found.saved_pico_usd(whole - 1) < 0
