"""Exchange rates: exact, of the right day, and every wrong line told with its number."""

from __future__ import annotations

from datetime import date, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.errors import NoRate, UnreadableSource
from gateway.finance.fx import FxRates, load_rates, parse_rates

HEAD = "day,base,quote,rate,source\n"
FRIDAY = date(2026, 10, 2)


def rates(*lines: str) -> FxRates:
    return parse_rates(HEAD + "\n".join(lines) + "\n", name="rates.csv")


def test_a_rate_is_the_exact_fraction_of_its_day_with_its_source():
    found = rates("2026-10-02,EUR,USD,1.0842,ECB").rate(FRIDAY, "EUR", "USD")
    assert (found.rate, found.source, found.day) == (Fraction("1.0842"), "ECB", FRIDAY)


def test_a_sunday_takes_fridays_rate():
    table = rates("2026-10-02,EUR,USD,1.0842,ECB", "2026-09-30,EUR,USD,1.07,ECB")
    assert table.rate(date(2026, 10, 4), "EUR", "USD").day == FRIDAY


@pytest.mark.parametrize("day", [FRIDAY - timedelta(days=1), FRIDAY + timedelta(days=8)])
def test_a_later_rate_or_one_older_than_a_week_is_never_taken(day):
    with pytest.raises(NoRate, match="from EUR to USD for"):
        rates("2026-10-02,EUR,USD,1.0842,ECB").rate(day, "EUR", "USD")


def test_a_pair_is_found_the_other_way_round():
    found = rates("2026-10-02,EUR,USD,1.25,ECB").rate(FRIDAY, "USD", "EUR")
    assert found.rate == Fraction(4, 5)


def test_a_pair_is_found_through_a_third_currency():
    table = rates("2026-10-02,EUR,USD,1.25,ECB", "2026-10-02,EUR,GBP,0.8,BoE")
    found = table.rate(FRIDAY, "GBP", "USD")
    assert (found.rate, found.source) == (Fraction("1.25") / Fraction("0.8"), "BoE x ECB")


def test_a_currency_is_worth_itself_without_any_file():
    assert FxRates().rate(FRIDAY, "USD", "USD").convert(7) == 7


def test_converting_rounds_once_half_to_even():
    half = rates("2026-10-02,EUR,USD,0.5,ECB").rate(FRIDAY, "EUR", "USD")
    assert [half.convert(amount) for amount in (1, 3, -1, -3)] == [0, 2, 0, -2]


@given(st.integers(-(10**20), 10**20), st.integers(1, 10**6))
def test_converting_is_off_by_half_a_unit_at_most(amount, millionths):
    rate = Fraction(millionths, 10**6)
    text = f"{millionths // 10**6}.{millionths % 10**6:06d}"
    found = rates(f"2026-10-02,EUR,USD,{text},ECB").rate(FRIDAY, "EUR", "USD")
    assert abs(found.convert(amount) - amount * rate) <= Fraction(1, 2)


WRONG = {
    "a day that is none": ("2026-13-02,EUR,USD,1,ECB", "is no day such as"),
    "a currency in small letters": ("2026-10-02,eur,USD,1,ECB", "'eur' is no currency"),
    "one currency twice": ("2026-10-02,USD,USD,1,ECB", "base and quote are both USD"),
    "a rate of zero": ("2026-10-02,EUR,USD,0.0,ECB", "no number above 0"),
    "a negative rate": ("2026-10-02,EUR,USD,-1,ECB", "no number above 0"),
    "a rate with a decimal comma": ('2026-10-02,EUR,USD,"1,08",ECB', "no number above 0"),
    "no source": ("2026-10-02,EUR,USD,1,", "the source is empty"),
    "a column too few": ("2026-10-02,EUR,USD,1", "4 columns, must be 5"),
    "a second rate of the day": (
        "2026-10-02,EUR,USD,1,ECB\n2026-10-02,EUR,USD,2,ECB",
        "has two rates from EUR to USD",
    ),
    "a quote that never ends": ('2026-10-02,EUR,USD,1,"ECB', "unexpected end of data"),
}


@pytest.mark.parametrize(("line", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_line_is_told_with_file_and_line(line, says):
    with pytest.raises(UnreadableSource, match=rf"UNREADABLE: rates.csv:[234]: .*{says}"):
        rates(line)


def test_all_wrong_lines_are_told_up_to_a_bound():
    with pytest.raises(UnreadableSource, match="rates.csv:21: .*and 5 more problems") as caught:
        rates(*["x,EUR,USD,1,ECB"] * 25)
    assert len(caught.value.problems) == 25


def test_other_columns_are_refused():
    with pytest.raises(UnreadableSource, match=r"x.csv:1: the columns must be day, base"):
        parse_rates("date,from,to,rate\n", name="x.csv")


def test_blank_lines_are_nothing():
    assert rates("", "2026-10-02,EUR,USD,1,ECB", "").rate(FRIDAY, "EUR", "USD").rate == 1


def test_a_file_on_disk_is_read_with_or_without_a_byte_order_mark(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text(HEAD + "2026-10-02,EUR,USD,2,ECB\n", encoding="utf-8-sig")
    assert load_rates(path).rate(FRIDAY, "EUR", "USD").rate == 2


def test_a_file_that_is_missing_or_no_text_is_unreadable(tmp_path):
    path = tmp_path / "rates.csv"
    with pytest.raises(UnreadableSource, match="No such file"):
        load_rates(path)
    path.write_bytes(b"day,base\xff")
    with pytest.raises(UnreadableSource, match="not UTF-8 at byte 8"):
        load_rates(path)
