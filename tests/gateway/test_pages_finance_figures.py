"""What pages of finance show: cents that add up, months of a zone, addresses that are understood."""

from datetime import date
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.budgets.windows import day_start_us
from gateway.clock import from_microseconds, to_microseconds
from gateway.dashboard.finance import amounts, charts, explorer, periods
from gateway.dashboard.finance.explorer import BadAddress, read_address
from gateway.ledger.report_time import local_day
from gateway.ledger.views import GroupBy
from pricing.money import PICO_PER_USD

CENT = PICO_PER_USD // 100
ZONES = [
    "UTC",
    "Asia/Kathmandu",
    "America/New_York",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Australia/Lord_Howe",
]


def at(text):
    from datetime import datetime

    return to_microseconds(datetime.fromisoformat(text))


def cents(text):
    return int(Decimal(text.replace(",", "").replace(amounts.MINUS, "-")) * 100)


@given(st.lists(st.integers(-(10**18), 10**20), max_size=30))
def test_the_cents_of_a_column_add_up_to_the_cents_of_its_total(column):
    together = amounts.shown_together(column)
    assert sum(cents(one.text) for one in together) == round(Decimal(sum(column)) / CENT)
    for one, amount in zip(together, column, strict=True):
        assert Decimal(one.exact) * PICO_PER_USD == amount
        assert abs(cents(one.text) * CENT - amount) < CENT


@pytest.mark.parametrize(
    ("pico", "text", "exact"),
    [
        (0, "0.00", "0"),
        (1, "< 0.01", "0.000000000001"),
        (-1, f"> {amounts.MINUS}0.01", "-0.000000000001"),
        (CENT // 2, "< 0.01", "0.005"),
        (CENT, "0.01", "0.01"),
        (1_234_567 * PICO_PER_USD + CENT // 2 + 1, "1,234,567.01", "1234567.005000000001"),
        (-5 * PICO_PER_USD, f"{amounts.MINUS}5.00", "-5"),
    ],
)
def test_an_amount_is_cents_with_every_digit_beside_it(pico, text, exact):
    assert amounts.shown(pico) == amounts.Shown(text=text, exact=exact)


def test_shares_and_changes():
    assert amounts.share_text(1, 3) == "33.3 %"
    assert amounts.share_text(1, 0) == amounts.NOTHING
    assert amounts.share_text(-1, 4) == f"{amounts.MINUS}25.0 %"
    assert amounts.change_text(150, 100) == "+50.0 %"
    assert amounts.change_text(50, 100) == f"{amounts.MINUS}50.0 %"
    assert amounts.change_text(5, 0) == amounts.NOTHING
    assert amounts.unit_cost_text(PICO_PER_USD, 3, 1000).text == "333.33"
    assert amounts.unit_cost_text(PICO_PER_USD, 3, 100).text == "33.3333"
    assert amounts.unit_cost_text(1, 0, 1000).text == amounts.NOTHING


def test_a_chart_draws_numbers_and_tells_texts():
    figure = charts.bars(["a", "b"], [charts.Series(name="x", amounts_pico_usd=[CENT, None])])
    assert figure["series"] == [
        {"name": "x", "dashed": False, "values": [0.01, None], "texts": ["0.01", ""]}
    ]
    assert charts.lines(["1"], [], label="Day")["kind"] == "lines"


@pytest.mark.parametrize("zone", ZONES)
@given(day=st.dates(date(1971, 1, 1), date(2199, 12, 31)))
def test_a_month_is_whole_in_every_zone_and_months_follow_each_other(zone, day):
    month = periods.month_of(day, time_zone=zone)
    assert month.first <= day <= month.last
    assert (month.first.year, month.first.month) == (day.year, day.month)
    after = periods.month_after(month, time_zone=zone)
    assert after.window.start_us == month.window.end_us
    assert periods.month_before(after, time_zone=zone) == month
    assert local_day(month.window.start_us, ZoneInfo(zone)) == month.first
    assert len(month.days) == (after.first - month.first).days


@pytest.mark.parametrize("zone", ZONES)
@given(day=st.dates(date(2009, 1, 1), date(2031, 12, 31)))
def test_the_first_instant_of_a_day_is_found_in_every_zone(zone, day):
    start = day_start_us(day, zone)
    assert local_day(start, ZoneInfo(zone)) >= day
    assert local_day(start - 1, ZoneInfo(zone)) < day


@pytest.mark.parametrize(
    "text", ["", "2026", "2026-13", "2026-1", "1970-01", "9999-01", "x", "２０２６-01"]
)
def test_what_is_no_month_is_none(text):
    assert periods.month_named(text, now_us=at("2026-11-30T12:00Z"), time_zone="UTC") is None


def test_this_month_is_the_zones_own():
    now_us = at("2026-11-30T20:00Z")
    assert periods.month_named(None, now_us=now_us, time_zone="Asia/Tokyo").name == "2026-12"
    assert periods.month_named(None, now_us=now_us, time_zone="UTC").title == "November 2026"


NOW_US = at("2026-11-30T12:00Z")


def read(**given_parameters):
    parameters = {name.rstrip("_"): value for name, value in given_parameters.items()}
    return read_address(parameters, now_us=NOW_US, zone="UTC", fiscal_month=4, cost_tags=("env",))


def test_an_empty_address_is_this_month_by_team_and_day():
    wanted = read()
    assert (wanted.by, wanted.step, wanted.filters) == ("team", "day", {})
    assert (wanted.first, wanted.last) == (date(2026, 11, 1), date(2026, 11, 30))


@pytest.mark.parametrize(
    ("period", "first", "last"),
    [
        ("last-month", date(2026, 10, 1), date(2026, 10, 31)),
        ("last-7-days", date(2026, 11, 24), date(2026, 11, 30)),
        ("fiscal-year", date(2026, 4, 1), date(2026, 11, 30)),
        ("2026-02", date(2026, 2, 1), date(2026, 2, 28)),
    ],
)
def test_periods_have_names(period, first, last):
    wanted = read(period=period)
    assert (wanted.first, wanted.last, wanted.preset) == (first, last, period)


def test_an_address_comes_back_as_it_was():
    wanted = read(by="model", per="week", from_="2026-01-01", to="2026-03-31", team="a&b=c")
    query = wanted.address().partition("?")[2]
    from urllib.parse import parse_qsl

    again = read_address(dict(parse_qsl(query)), now_us=NOW_US, zone="UTC", fiscal_month=4)
    assert again == wanted
    assert "team" not in wanted.address(team=None)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"by": "nothing"}, "by: 'nothing' is none of team"),
        ({"per": "minute"}, "per: 'minute' is none of hour"),
        ({"period": "someday"}, "period: 'someday' is no month"),
        ({"from_": "2026-11-01"}, "to: '' is no day"),
        ({"from_": "2026-11-02", "to": "2026-11-01"}, "from is after to"),
        ({"from_": "0001-01-01", "to": "2026-11-01"}, "out of range"),
        ({"from_": "2024-01-01", "to": "2026-11-01", "per": "hour"}, "over 750 steps"),
        ({"tag": "x"}, "'tag' is nothing that this page knows"),
        ({"cost_tag:other": "x"}, "nothing that this page knows"),
        ({"team": "x" * 201}, "team is longer than 200"),
    ],
)
def test_what_an_address_says_wrongly_is_told(parameters, message):
    with pytest.raises(BadAddress, match=message):
        read(**parameters)


def test_the_query_has_the_days_of_the_zone_and_only_teams_that_may_be_seen():
    wanted = read_address({"period": "2026-11"}, now_us=NOW_US, zone="Asia/Kathmandu")
    query = explorer.query_of(wanted, zone="Asia/Kathmandu", fiscal_month=1, teams=("mine",))
    assert query.group_by == (GroupBy.DAY, GroupBy.TEAM)
    assert from_microseconds(query.from_us).isoformat() == "2026-10-31T18:15:00+00:00"
    assert query.teams == ("mine",)
