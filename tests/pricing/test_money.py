"""Money is integer picodollars: parsed exactly, rounded once, written back exactly."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.errors import InvalidAmount, PricingError
from pricing.money import (
    PICO_PER_USD,
    Rate,
    clean_imported_usd,
    format_usd,
    line_cost,
    parse_usd,
    rate_per_hour_us,
    rate_per_minute_ms,
    rate_per_mtok,
    rate_per_unit,
    round_reported_usd,
)

units = st.integers(min_value=0, max_value=10**13)
rates = st.builds(
    Rate,
    pico_usd=st.integers(min_value=0, max_value=10**16),
    per_units=st.integers(min_value=1, max_value=10**13),
)

LINE_COSTS = {
    "a million tokens at 0.0375 USD per million": (
        1_000_000,
        Rate(pico_usd=37_500),
        37_500_000_000,
    ),
    "one second at 3 USD per hour rounds to the nearest": (
        1,
        Rate(pico_usd=3 * 10**12, per_units=3_600),
        833_333_333,
    ),
    "nothing used costs nothing": (0, Rate(pico_usd=37_500), 0),
    "a free rate costs nothing": (7, Rate(pico_usd=0), 0),
    "half of an odd picodollar goes up to the even one": (1, Rate(pico_usd=3, per_units=2), 2),
    "half above an even picodollar stays": (1, Rate(pico_usd=5, per_units=2), 2),
    "just under half stays": (1, Rate(pico_usd=4_999, per_units=10_000), 0),
    "just over half goes up": (1, Rate(pico_usd=5_001, per_units=10_000), 1),
}


@pytest.mark.parametrize(("units", "rate", "cost"), LINE_COSTS.values(), ids=LINE_COSTS.keys())
def test_line_cost(units: int, rate: Rate, cost: int) -> None:
    assert line_cost(units, rate) == cost


@given(units=units, rate=rates)
def test_a_line_is_the_exact_product_rounded_half_even(units: int, rate: Rate) -> None:
    assert line_cost(units, rate) == round(Fraction(units * rate.pico_usd, rate.per_units))


@given(units=units, more=units, rate=rates)
def test_more_units_never_cost_less(units: int, more: int, rate: Rate) -> None:
    assert line_cost(units + more, rate) >= line_cost(units, rate)


@given(units=units, rate=rates, factor=st.integers(min_value=1, max_value=1000))
def test_the_way_a_fraction_is_written_does_not_matter(units: int, rate: Rate, factor: int) -> None:
    scaled = Rate(pico_usd=rate.pico_usd * factor, per_units=rate.per_units * factor)
    assert line_cost(units, scaled) == line_cost(units, rate)


def test_negative_units_are_refused() -> None:
    with pytest.raises(ValueError, match="units must be >= 0, got -1"):
        line_cost(-1, Rate(pico_usd=1))


BAD_RATES = {
    "a negative price": (-1, 1),
    "a price for no units": (1, 0),
    "a price for negative units": (1, -5),
}


@pytest.mark.parametrize(("pico_usd", "per_units"), BAD_RATES.values(), ids=BAD_RATES.keys())
def test_a_rate_refuses(pico_usd: int, per_units: int) -> None:
    with pytest.raises(InvalidAmount):
        Rate(pico_usd=pico_usd, per_units=per_units)


AMOUNTS = {
    "a picodollar": ("0.000000000001", 1),
    "an integer": (5, 5 * 10**12),
    "a decimal": (Decimal("0.02"), 2 * 10**10),
    "an exponent": ("1.5e-7", 150_000),
    "trailing zeros beyond the picodollar": ("1.0000000000000000", 10**12),
    "no leading digit": (".5", 5 * 10**11),
    "a trailing point": ("5.", 5 * 10**12),
    "a plus sign": ("+1", 10**12),
    "money back": ("-0.25", -25 * 10**10),
    "zero": ("0", 0),
}


@pytest.mark.parametrize(("amount", "pico"), AMOUNTS.values(), ids=AMOUNTS.keys())
def test_dollars_become_picodollars(amount: str | int | Decimal, pico: int) -> None:
    assert parse_usd(amount) == pico


BAD_AMOUNTS = {
    "a float": 0.1,
    "a truth value": True,
    "nothing": None,
    "empty text": "",
    "a word": "free",
    "a currency sign": "$5",
    "a thousands separator": "1,000",
    "an underscore": "1_000",
    "white space": " 1",
    "a line break": "1\n",
    "digits of another script": "\u0661",
    "not a number": "nan",
    "infinity": "inf",
    "a decimal that is no number": Decimal("nan"),
    "a decimal infinity": Decimal("-Infinity"),
    "a huge exponent": "1e999",
    "an exponent of four digits": "1e1000",
    "a tiny exponent": "1e-999",
    "a huge decimal": Decimal("1e999999"),
    "a tiny decimal": Decimal("1e-999999"),
    "a huge integer": 10**40,
    "a long text": "1" * 65,
    "half a picodollar": "0.0000000000005",
}


@pytest.mark.parametrize("amount", BAD_AMOUNTS.values(), ids=BAD_AMOUNTS.keys())
def test_dollars_are_refused(amount: object) -> None:
    with pytest.raises(InvalidAmount) as refused:
        parse_usd(amount)  # type: ignore[arg-type]
    assert isinstance(refused.value, PricingError)
    assert len(str(refused.value)) < 150


@given(st.integers(min_value=-(10**30), max_value=10**30))
def test_formatted_dollars_parse_back_to_the_same_picodollars(pico: int) -> None:
    text = format_usd(pico)
    assert parse_usd(text) == pico
    assert "e" not in text.lower()


FORMATTED = {
    "below a micro": (1_234_000, "0.000001234"),
    "whole dollars": (3 * PICO_PER_USD, "3"),
    "just below a dollar": (PICO_PER_USD - 1, "0.999999999999"),
    "a dollar": (PICO_PER_USD, "1"),
    "a tenth": (PICO_PER_USD // 10, "0.1"),
    "zero": (0, "0"),
    "one picodollar": (1, "0.000000000001"),
    "money back": (-500_000_000_000, "-0.5"),
    "more than 64 bits": (10**26 + 1, "100000000000000.000000000001"),
}


@pytest.mark.parametrize(("pico", "text"), FORMATTED.values(), ids=FORMATTED.keys())
def test_picodollars_are_written(pico: int, text: str) -> None:
    assert format_usd(pico) == text


MTOK_RATES = {
    "a usual price": ("0.0375", Rate(pico_usd=37_500)),
    "an integer price": (15, Rate(pico_usd=15_000_000)),
    "a price below a picodollar per token": ("0.0000005", Rate(pico_usd=1, per_units=2)),
    "free": ("0", Rate(pico_usd=0)),
}


@pytest.mark.parametrize(("usd", "rate"), MTOK_RATES.values(), ids=MTOK_RATES.keys())
def test_a_price_per_million_tokens_becomes_a_rate_per_token(usd: str | int, rate: Rate) -> None:
    assert rate_per_mtok(usd) == rate


@given(
    usd=st.decimals(min_value=0, max_value=10**6, allow_nan=False, places=15),
    tokens=st.integers(min_value=0, max_value=10**9),
)
def test_token_rates_lose_nothing(usd: Decimal, tokens: int) -> None:
    exact = Fraction(usd) * PICO_PER_USD * tokens / 1_000_000
    assert line_cost(tokens, rate_per_mtok(usd)) == round(exact)


def test_an_hour_of_busy_microseconds_costs_the_hourly_price() -> None:
    rate = rate_per_hour_us("3.00", count=2)
    assert rate == Rate(pico_usd=6 * 10**12, per_units=3_600_000_000)
    assert line_cost(3_600_000_000, rate) == parse_usd(6)


def test_an_hourly_price_finer_than_a_picodollar_is_exact() -> None:
    assert rate_per_hour_us("0.0000000000005") == Rate(pico_usd=1, per_units=7_200_000_000)


def test_a_price_per_image_becomes_a_rate() -> None:
    assert rate_per_unit("0.04") == Rate(pico_usd=4 * 10**10)


def test_a_minute_of_audio_costs_the_price_per_minute() -> None:
    assert line_cost(60_000, rate_per_minute_ms("0.006")) == parse_usd("0.006")


@pytest.mark.parametrize(
    "make", [rate_per_mtok, rate_per_hour_us, rate_per_minute_ms, rate_per_unit]
)
def test_a_negative_price_is_refused(make) -> None:
    with pytest.raises(InvalidAmount, match="at least 0"):
        make("-0.01")


def test_a_machine_without_gpus_has_no_hourly_price() -> None:
    with pytest.raises(InvalidAmount, match="1 GPU or more"):
        rate_per_hour_us("3", count=0)


CLEANED = {
    "float noise above": ("7.000000000000001e-07", Decimal("7e-7")),
    "float noise below": ("0.00000014999999999999999", Decimal("1.5e-7")),
    "a real digit stays": ("0.123456789012", Decimal("0.123456789012")),
    "a tie goes to the even digit": ("1.000000000005", Decimal(1)),
}


@pytest.mark.parametrize(("imported", "cleaned"), CLEANED.values(), ids=CLEANED.keys())
def test_imported_prices_keep_twelve_significant_digits(imported: str, cleaned: Decimal) -> None:
    assert clean_imported_usd(imported) == cleaned


def test_a_reported_cost_with_float_noise_becomes_the_nearest_picodollar() -> None:
    assert round_reported_usd("0.00014124999999999999") == 141_250_000
    assert round_reported_usd("0.0000000000005") == 0
    assert round_reported_usd("0.0000000000015") == 2
