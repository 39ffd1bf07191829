"""What the same usage would have cost elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.baseline import Baseline, baseline_cost
from pricing.money import Rate, line_cost, rate_per_hour_us, rate_per_mtok, rate_per_unit
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.quote import EVENT_PICO_USD_MAX
from pricing.usage import Meter

PLAIN = {Meter.INPUT: rate_per_mtok("3"), Meter.OUTPUT: rate_per_mtok("15")}


def price(**rates: Rate) -> PriceVersion:
    named = {Meter(name): rate for name, rate in rates.items()}
    return PriceVersion(source="test", rates=PLAIN | named)


USED = {"input": 1_000, "cache_read": 400, "output": 50}
CASES = {
    "counts at the baseline's rates, reads at its own": (
        USED, price(cache_read=rate_per_mtok("0.3")), 1_000 * 3_000_000 + 400 * 300_000 + 50 * 15_000_000,
    ),
    "reads without a rate of their own are fresh input": (
        USED, price(), 1_400 * 3_000_000 + 50 * 15_000_000,
    ),
    "a fee of the attempt's own price is none of the baseline": (
        {**USED, "requests": 1}, price(), 1_400 * 3_000_000 + 50 * 15_000_000,
    ),
    "a fee of the baseline counts once": (
        USED, price(requests=rate_per_unit("0.01")), 1_400 * 3_000_000 + 50 * 15_000_000 + 10**10,
    ),
    "a fee for several requests counts for each": (
        {**USED, "requests": 3}, price(requests=rate_per_unit("0.01")),
        1_400 * 3_000_000 + 50 * 15_000_000 + 3 * 10**10,
    ),
    "busy time of a machine is nothing that a vendor bills": (
        {**USED, "gpu_us": 7_000_000}, price(), 1_400 * 3_000_000 + 50 * 15_000_000,
    ),
    "nothing used costs nothing, a fee neither": ({}, price(requests=rate_per_unit("1")), 0),
}  # fmt: skip


@pytest.mark.parametrize(("used", "version", "cost"), CASES.values(), ids=CASES.keys())
def test_baseline_cost(used: dict[str, int], version: PriceVersion, cost: int) -> None:
    assert baseline_cost(used, version) == cost


UNPRICED = {
    "a meter without a rate makes it unknown, never zero": (
        {**USED, "images": 1}, price(), "no rate for images",
    ),
    "no price at all": (USED, Unpriced(reason="no price configured"), "no price configured"),
    "a price of machine time": (
        USED,
        PriceVersion(source="t", rates={Meter.GPU_US: rate_per_hour_us("2")}, basis=Basis.GPU_TIME),
        "the baseline is priced by machine time",
    ),
    "more than an entry can hold": (
        {"input": EVENT_PICO_USD_MAX}, price(), "more than an entry of the ledger can hold",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("used", "version", "reason"), UNPRICED.values(), ids=UNPRICED.keys())
def test_what_has_no_baseline_cost(
    used: dict[str, int], version: PriceVersion | Unpriced, reason: str
) -> None:
    assert baseline_cost(used, version) == Unpriced(reason=reason)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**9), st.integers(1, 10**6))
def test_a_baseline_cost_is_the_sum_of_its_lines_each_rounded_once(
    tokens: int, output: int, pico: int, per: int
) -> None:
    rate = Rate(pico_usd=pico, per_units=per)
    used = {name: units for name, units in (("input", tokens), ("output", output)) if units}
    version = PriceVersion(source="t", rates={Meter.INPUT: rate, Meter.OUTPUT: rate})
    assert baseline_cost(used, version) == line_cost(tokens, rate) + line_cost(output, rate)


def test_a_label_names_deployment_and_version() -> None:
    version = price()
    priced = Baseline(deployment="openai/gpt", price=version)
    assert priced.label == f"openai/gpt@{version.version_id}"
    assert Baseline(deployment="openai/gpt", price=Unpriced(reason="none")).label == "openai/gpt@"
