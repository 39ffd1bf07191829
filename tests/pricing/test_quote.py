"""Charges are exact sums of their lines; a quote's upper bound holds; unknown is never 0."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.money import Rate, line_cost, rate_per_hour_us, rate_per_mtok
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.quote import (
    EVENT_PICO_USD_MAX,
    Charge,
    MeasuredSpeed,
    Quote,
    Workload,
    _quote_tokens,
    cache_saved,
    charge,
    quote,
)
from pricing.usage import Meter, Usage

TOKEN_PRICE = PriceVersion(
    source="fareway.yaml",
    rates={
        Meter.INPUT: rate_per_mtok("0.05"),
        Meter.CACHE_READ: rate_per_mtok("0.01"),
        Meter.OUTPUT: rate_per_mtok("0.08"),
    },
)
GPU_PRICE = PriceVersion(
    source="fareway.yaml", basis=Basis.GPU_TIME, rates={Meter.GPU_US: rate_per_hour_us("3.60")}
)
SPEED = MeasuredSpeed(prefill_tps=1000, decode_tps=50)

counts = st.integers(min_value=0, max_value=10**9)
usages = st.builds(
    Usage, input_tokens=counts, cache_read_tokens=counts, cache_write_tokens=counts, output_tokens=counts,
    reasoning_tokens=counts, images=counts, audio_ms=counts, gpu_us=counts, requests=counts,
)  # fmt: skip
rates = st.builds(
    Rate,
    pico_usd=st.integers(min_value=0, max_value=10**9),
    per_units=st.integers(min_value=1, max_value=10**6),
)
token_meters = st.sampled_from([meter for meter in Meter if meter is not Meter.GPU_US])
token_prices = st.builds(
    PriceVersion, source=st.just("test"), rates=st.dictionaries(token_meters, rates, min_size=1)
)

whole_rates = st.builds(Rate, pico_usd=st.integers(min_value=0, max_value=10**9))
whole_prices = st.builds(
    PriceVersion,
    source=st.just("test"),
    rates=st.fixed_dictionaries(
        {Meter.INPUT: whole_rates, Meter.OUTPUT: whole_rates},
        optional=dict.fromkeys(
            (Meter.CACHE_READ, Meter.CACHE_WRITE, Meter.REASONING, Meter.REQUESTS), whole_rates
        ),
    ),
)


def test_each_used_meter_is_one_line_at_its_rate() -> None:
    charged = charge(
        Usage(input_tokens=1000, cache_read_tokens=500, output_tokens=10).named(), TOKEN_PRICE
    )
    assert isinstance(charged, Charge)
    assert [(line.meter, line.units, line.cost_pico_usd) for line in charged.lines] == [
        (Meter.INPUT, 1000, 50_000_000),
        (Meter.CACHE_READ, 500, 5_000_000),
        (Meter.OUTPUT, 10, 800_000),
    ]
    assert charged.total_pico_usd == 55_800_000


def test_nothing_used_is_a_charge_of_nothing() -> None:
    assert charge({}, TOKEN_PRICE) == Charge(lines=(), total_pico_usd=0)


def test_a_fallback_rate_is_shown_on_the_line_of_its_own_meter() -> None:
    charged = charge(Usage(cache_write_tokens=2, reasoning_tokens=3).named(), TOKEN_PRICE)
    assert isinstance(charged, Charge)
    assert [
        (line.meter, Rate(pico_usd=line.rate_pico_usd, per_units=line.rate_per_units))
        for line in charged.lines
    ] == [
        (Meter.CACHE_WRITE, rate_per_mtok("0.05")),
        (Meter.REASONING, rate_per_mtok("0.08")),
    ]


def test_one_meter_without_a_rate_makes_the_whole_attempt_unpriced() -> None:
    assert charge(Usage(input_tokens=5, images=1).named(), TOKEN_PRICE) == Unpriced(
        reason="no rate for images"
    )


def test_a_busy_time_price_charges_busy_time_and_nothing_else() -> None:
    charged = charge(
        Usage(input_tokens=10, output_tokens=10, requests=1, gpu_us=1_000_000).named(), GPU_PRICE
    )
    assert isinstance(charged, Charge)
    assert [line.meter for line in charged.lines] == [Meter.GPU_US]
    assert charged.total_pico_usd == 10**9


def test_busy_time_on_a_token_price_is_information_only() -> None:
    assert charge(Usage(input_tokens=1, gpu_us=10**9).named(), TOKEN_PRICE) == charge(
        Usage(input_tokens=1).named(), TOKEN_PRICE
    )


def test_a_busy_time_price_without_its_rate_is_unpriced() -> None:
    empty = PriceVersion(source="test", basis=Basis.GPU_TIME, rates={})
    assert charge(Usage(gpu_us=1).named(), empty) == Unpriced(reason="no rate for gpu_us")
    workload = Workload(prompt_tokens=1, expected_output_tokens=1, max_output_tokens=1)
    assert quote(workload, empty, speed=SPEED) == Unpriced(reason="no rate for gpu_us")


@given(usage=usages, price=token_prices)
def test_a_charge_is_the_sum_of_its_exactly_rounded_lines_or_unpriced(
    usage: Usage, price: PriceVersion
) -> None:
    charged = charge(usage.named(), price)
    used = {meter: units for meter, units in usage.meters() if meter is not Meter.GPU_US}
    if any(price.rate_for(meter) is None for meter in used):
        assert isinstance(charged, Unpriced)
        return
    assert isinstance(charged, Charge)
    assert {line.meter: line.units for line in charged.lines} == used
    for line in charged.lines:
        assert line.cost_pico_usd == round(
            Fraction(line.units * line.rate_pico_usd, line.rate_per_units)
        )
    assert charged.total_pico_usd == sum(line.cost_pico_usd for line in charged.lines)


def test_a_quote_prices_fresh_cached_and_generated_tokens() -> None:
    workload = Workload(
        prompt_tokens=1000, cached_tokens=600, expected_output_tokens=100, max_output_tokens=500
    )
    assert quote(workload, TOKEN_PRICE) == Quote(
        expected_pico_usd=400 * 50_000 + 600 * 10_000 + 100 * 80_000,
        upper_bound_pico_usd=1000 * 50_000 + 500 * 80_000,
    )


@given(
    prompt=st.integers(0, 10**7),
    cached=st.integers(0, 10**7),
    written=st.integers(0, 10**7),
    output=st.integers(0, 10**7),
    limit=st.none() | st.integers(0, 10**7),
    largest=st.none() | st.integers(0, 10**7),
    price=token_prices | whole_prices,
)
def test_the_short_way_to_a_quote_gives_what_the_long_one_gives(
    prompt: int,
    cached: int,
    written: int,
    output: int,
    limit: int | None,
    largest: int | None,
    price: PriceVersion,
) -> None:
    cached = min(cached, prompt)
    workload = Workload(
        prompt_tokens=prompt,
        cached_tokens=cached,
        written_tokens=min(written, prompt - cached),
        expected_output_tokens=output if limit is None else min(output, limit),
        max_output_tokens=limit,
        max_prompt_tokens=None if largest is None else max(largest, prompt),
    )
    assert quote(workload, price) == _quote_tokens(workload, price)


BOUNDLESS = {
    "output": (Meter.INPUT, {"prompt_tokens": 5, "expected_output_tokens": 0}),
    "input": (Meter.OUTPUT, {"prompt_tokens": 0, "expected_output_tokens": 1}),
}


@pytest.mark.parametrize(("known", "expected"), BOUNDLESS.values(), ids=BOUNDLESS.keys())
def test_what_is_not_expected_but_possible_needs_a_rate_too(known, expected) -> None:
    price = PriceVersion(source="test", rates={known: Rate(pico_usd=1)})
    workload = Workload(**expected, max_prompt_tokens=9, max_output_tokens=9)
    missing = Meter.OUTPUT if known is Meter.INPUT else Meter.INPUT
    assert quote(workload, price) == Unpriced(reason=f"no rate for {missing}")


SHORT = {
    "whole rates": ({Meter.INPUT: 5, Meter.OUTPUT: 7}, True),
    "whole rates and a fee": ({Meter.INPUT: 5, Meter.OUTPUT: 7, Meter.REQUESTS: 9}, True),
    "no rate for output": ({Meter.INPUT: 5}, False),
    "no rate for input": ({Meter.OUTPUT: 5}, False),
}


@pytest.mark.parametrize(("rates", "is_short"), SHORT.values(), ids=SHORT.keys())
def test_the_short_way_is_for_complete_prices_without_rounding(rates, is_short) -> None:
    made = {meter: Rate(pico_usd=pico) for meter, pico in rates.items()}
    assert (PriceVersion(source="test", rates=made).linear is not None) is is_short
    split = {meter: Rate(pico_usd=rate.pico_usd, per_units=3) for meter, rate in made.items()}
    assert PriceVersion(source="test", rates=split).linear is None
    dear_reasoning = {**made, Meter.REASONING: Rate(pico_usd=9, per_units=2)}
    assert PriceVersion(source="test", rates=dear_reasoning).linear is None


def test_unbounded_output_has_no_upper_bound() -> None:
    workload = Workload(prompt_tokens=10, expected_output_tokens=5, max_output_tokens=None)
    for price in (TOKEN_PRICE, GPU_PRICE):
        quoted = quote(workload, price, speed=SPEED)
        assert isinstance(quoted, Quote)
        assert quoted.upper_bound_pico_usd is None


def test_a_fee_per_request_is_quoted_once() -> None:
    fee = PriceVersion(
        source="test", rates={Meter.INPUT: Rate(pico_usd=1), Meter.REQUESTS: Rate(pico_usd=1000)}
    )
    workload = Workload(prompt_tokens=5, expected_output_tokens=0, max_output_tokens=0)
    assert quote(workload, fee) == Quote(expected_pico_usd=1005, upper_bound_pico_usd=1005)


UNPRICED_QUOTES = {
    "output is expected but has no rate": (
        Workload(prompt_tokens=1, expected_output_tokens=1, max_output_tokens=1),
        PriceVersion(source="test", rates={Meter.INPUT: Rate(pico_usd=1)}),
        "no rate for output",
    ),
    "output is only possible but has no rate": (
        Workload(prompt_tokens=1, expected_output_tokens=0, max_output_tokens=1),
        PriceVersion(source="test", rates={Meter.INPUT: Rate(pico_usd=1)}),
        "no rate for output",
    ),
    "a busy-time price without measured speed": (
        Workload(prompt_tokens=1, expected_output_tokens=1, max_output_tokens=1),
        GPU_PRICE,
        "no measured rates",
    ),
}


@pytest.mark.parametrize(
    ("workload", "price", "reason"), UNPRICED_QUOTES.values(), ids=UNPRICED_QUOTES.keys()
)
def test_a_quote_is_unpriced_when(workload: Workload, price: PriceVersion, reason: str) -> None:
    assert quote(workload, price) == Unpriced(reason=reason)


def test_a_busy_time_quote_is_the_hourly_rate_over_the_measured_speed() -> None:
    workload = Workload(
        prompt_tokens=1000, cached_tokens=500, expected_output_tokens=50, max_output_tokens=100
    )
    # 3.60 USD per hour is 0.001 USD per second: half a second of prefill, one of decode; the bound 1 + 2 seconds.
    assert quote(workload, GPU_PRICE, speed=SPEED) == Quote(
        expected_pico_usd=1_500_000_000, upper_bound_pico_usd=3_000_000_000
    )


def test_the_upper_bound_leaves_room_for_rounding_a_split_prompt_up_line_by_line() -> None:
    halves = PriceVersion(source="test", rates={Meter.INPUT: Rate(pico_usd=3, per_units=2)})
    workload = Workload(prompt_tokens=3, expected_output_tokens=0, max_output_tokens=0)
    quoted = quote(workload, halves)
    charged = charge(
        Usage(input_tokens=1, cache_read_tokens=1, cache_write_tokens=1).named(), halves
    )
    assert isinstance(quoted, Quote)
    assert isinstance(charged, Charge)
    # Each line of 1.5 is charged as 2, while 3 tokens in one line would be 4.
    assert charged.total_pico_usd == 6
    assert quoted.upper_bound_pico_usd >= 6


@given(
    price=token_prices, data=st.data(),
    prompt=st.integers(min_value=0, max_value=10**6), output=st.integers(min_value=0, max_value=10**6),
)  # fmt: skip
def test_no_charge_within_the_maxima_is_above_the_upper_bound(
    price, data, prompt: int, output: int
) -> None:
    workload = Workload(
        prompt_tokens=0,
        max_prompt_tokens=prompt,
        expected_output_tokens=0,
        max_output_tokens=output,
    )
    quoted = quote(workload, price)
    read = data.draw(st.integers(min_value=0, max_value=prompt))
    written = data.draw(st.integers(min_value=0, max_value=prompt - read))
    reasoning = data.draw(st.integers(min_value=0, max_value=output))
    usage = Usage(
        input_tokens=prompt - read - written, cache_read_tokens=read, cache_write_tokens=written,
        output_tokens=output - reasoning, reasoning_tokens=reasoning, requests=int(Meter.REQUESTS in price.rates),
    )  # fmt: skip
    charged = charge(usage.named(), price)
    if isinstance(quoted, Quote) and isinstance(charged, Charge):
        assert charged.total_pico_usd <= quoted.upper_bound_pico_usd


@given(
    price=token_prices,
    prompt=st.integers(min_value=0, max_value=10**6),
    cached=st.integers(min_value=0, max_value=10**6),
    output=st.integers(min_value=0, max_value=10**6),
)
def test_the_expected_cost_is_the_charge_for_the_expected_counts(
    price, prompt: int, cached: int, output: int
) -> None:
    workload = Workload(
        prompt_tokens=prompt + cached,
        cached_tokens=cached,
        expected_output_tokens=output,
        max_output_tokens=output,
    )
    fee = int(Meter.REQUESTS in price.rates)
    usage = Usage(input_tokens=prompt, cache_read_tokens=cached, output_tokens=output, requests=fee)
    quoted, charged = quote(workload, price), charge(usage.named(), price)
    if isinstance(charged, Unpriced):
        assert isinstance(quoted, Unpriced)
    else:
        assert isinstance(quoted, Quote)
        assert quoted.expected_pico_usd == charged.total_pico_usd
        assert quoted.upper_bound_pico_usd >= quoted.expected_pico_usd


BAD_WORKLOADS = {
    "more cached than there is": {"prompt_tokens": 5, "cached_tokens": 6},
    "negative cached": {"prompt_tokens": 5, "cached_tokens": -1},
    "negative written": {"prompt_tokens": 5, "written_tokens": -1},
    "a negative prompt": {"prompt_tokens": -1},
    "negative output": {"prompt_tokens": 5, "expected_output_tokens": -1},
    "more output than the maximum": {
        "prompt_tokens": 5,
        "expected_output_tokens": 2,
        "max_output_tokens": 1,
    },
    "a longer prompt than the maximum": {"prompt_tokens": 5, "max_prompt_tokens": 4},
}


@pytest.mark.parametrize("fields", BAD_WORKLOADS.values(), ids=BAD_WORKLOADS.keys())
def test_a_workload_refuses(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Workload(**{"expected_output_tokens": 0, "max_output_tokens": None, **fields})


@pytest.mark.parametrize(("prefill", "decode"), [(0, 1), (1, 0), (-1, 5)])
def test_a_speed_of_nothing_is_refused(prefill: int, decode: int) -> None:
    with pytest.raises(ValueError, match="speeds must be >= 1"):
        MeasuredSpeed(prefill_tps=prefill, decode_tps=decode)


LISTED_PRICE = PriceVersion(
    source="test",
    rates={Meter.INPUT: rate_per_mtok("2.5"), Meter.CACHE_READ: rate_per_mtok("0.25"), Meter.OUTPUT: rate_per_mtok("12")},
    list_rates={Meter.INPUT: rate_per_mtok("3"), Meter.OUTPUT: rate_per_mtok("15")},
)  # fmt: skip


def test_a_charge_says_what_it_is_at_public_prices() -> None:
    used = Usage(input_tokens=1_000, cache_read_tokens=10, output_tokens=100).named()
    charged = charge(used, LISTED_PRICE)
    assert charged.total_pico_usd == 1_000 * 2_500_000 + 10 * 250_000 + 100 * 12_000_000
    # What the public price leaves out is as contracted.
    assert charged.list_pico_usd == 1_000 * 3_000_000 + 10 * 250_000 + 100 * 15_000_000
    assert [line.list_cost_pico_usd for line in charged.lines] == [3 * 10**9, 2_500_000, 15 * 10**8]
    assert charge(used, TOKEN_PRICE).list_pico_usd is None
    assert charge({}, LISTED_PRICE).list_pico_usd == 0


@given(usage=usages, price=token_prices, listed=st.dictionaries(token_meters, rates, min_size=1))
def test_public_prices_never_change_what_is_charged(usage, price, listed) -> None:
    known = {meter: rate for meter, rate in listed.items() if price.rate_for(meter) is not None}
    both = PriceVersion(source="test", rates=price.rates, list_rates=known)
    plain, charged = charge(usage.named(), price), charge(usage.named(), both)
    if isinstance(plain, Unpriced):
        assert charged == plain
        return
    assert charged.total_pico_usd == plain.total_pico_usd
    assert [line.cost_pico_usd for line in charged.lines] == [
        line.cost_pico_usd for line in plain.lines
    ]
    if known:
        assert charged.list_pico_usd == sum(line.list_cost_pico_usd for line in charged.lines)
        for line in charged.lines:
            rate = Rate(pico_usd=line.list_rate_pico_usd, per_units=line.list_rate_per_units)
            assert line.list_cost_pico_usd == line_cost(line.units, rate)


SAVINGS = {
    "a cache read saves the difference": (LISTED_PRICE, 1_000, 1_000 * 2_250_000),
    "nothing read, nothing to tell": (LISTED_PRICE, 0, None),
    "without a rate of its own a read saves nothing": (
        PriceVersion(source="t", rates={Meter.INPUT: Rate(pico_usd=5)}), 1_000, 0,
    ),
    "a dearer read costs": (
        PriceVersion(source="t", rates={Meter.INPUT: Rate(pico_usd=5), Meter.CACHE_READ: Rate(pico_usd=6)}), 10, -10,
    ),
    "machine time has no cache to tell of": (GPU_PRICE, 1_000, None),
    "an unknown rate saves an unknown amount": (
        PriceVersion(source="t", rates={Meter.CACHE_READ: Rate(pico_usd=6)}), 10, None,
    ),
    "nonsense is unknown": (LISTED_PRICE, 10**15, None),
}  # fmt: skip


@pytest.mark.parametrize(("price", "read", "saved"), SAVINGS.values(), ids=SAVINGS.keys())
def test_cache_savings(price: PriceVersion, read: int, saved: int | None) -> None:
    assert cache_saved(Usage(cache_read_tokens=read).named(), price) == saved


def test_a_charge_fits_when_both_of_its_amounts_do() -> None:
    largest = EVENT_PICO_USD_MAX
    assert Charge(lines=(), total_pico_usd=largest, list_pico_usd=largest).fits
    assert Charge(lines=(), total_pico_usd=largest).fits
    assert not Charge(lines=(), total_pico_usd=largest + 1).fits
    assert not Charge(lines=(), total_pico_usd=0, list_pico_usd=largest + 1).fits
