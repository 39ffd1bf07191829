"""Lists that are searched and sorted by their address, and the period before another one."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.finance.comparison import days_before
from gateway.dashboard.listing import Order, read_listing
from gateway.errors import InvalidField

ORDERS: dict[str, Order[tuple[str, int]]] = {
    "name": Order(label="Name", key=lambda one: (0, one[0])),
    "size": Order(label="Size", key=lambda one: (one[1], ""), is_falling=True),
}
FOUND = [("beta", 3), ("Alpha", 1), ("alphabet", 2)]


def lines(**given_: str) -> list[str]:
    listing = read_listing(given_, "/ui/list", ORDERS)
    return [name for name, _ in listing.lines(FOUND, lambda one: (one[0],))]


def test_a_list_keeps_its_own_order_until_another_one_is_asked_for() -> None:
    assert lines() == ["beta", "Alpha", "alphabet"]
    assert lines(sort="name") == ["Alpha", "alphabet", "beta"]
    assert lines(sort="size") == ["beta", "alphabet", "Alpha"]


def test_a_list_is_searched_in_any_case() -> None:
    assert lines(q=" ALPHA ") == ["Alpha", "alphabet"]
    assert lines(q="nothing") == []


def test_links_keep_what_else_is_asked_for() -> None:
    listing = read_listing(
        {"q": "a b", "sort": "size", "void": "1"}, "/ui/list", ORDERS, keeping=("void",)
    )
    columns = listing.columns()
    assert columns["name"].href == "/ui/list?q=a+b&sort=name&void=1"
    assert (columns["size"].is_chosen, columns["size"].order) == (True, "descending")
    assert columns["size"].href == "/ui/list?q=a+b&void=1", "again leads back to the list's own"
    assert listing.address(q="", sort="", void="") == "/ui/list"


@pytest.mark.parametrize("wrong", [{"sort": "cost"}, {"q": "x" * 129}])
def test_what_a_list_cannot_be_asked_is_told(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidField):
        read_listing(wrong, "/ui/list", ORDERS)


PERIODS = {
    "a month that is over: the month before": ("2026-03-01", "2026-03-31", "2026-02-01", 28),
    "a month under way: the same days": ("2026-11-01", "2026-11-30", "2026-10-01", 15),
    "other days: as many": ("2026-11-10", "2026-11-16", "2026-11-03", 7),
    "several months are days": ("2026-01-01", "2026-03-31", "2025-10-03", 90),
}


@pytest.mark.parametrize(("first", "last", "start", "count"), PERIODS.values(), ids=PERIODS.keys())
def test_the_period_before(first: str, last: str, start: str, count: int) -> None:
    found = days_before(
        date.fromisoformat(first), date.fromisoformat(last), date.fromisoformat("2026-11-15")
    )
    end = date.fromisoformat(start) + timedelta(days=count - 1)
    assert found == (date.fromisoformat(start), end)


@given(
    st.dates(date(2000, 1, 1), date(2100, 1, 1)), st.integers(0, 400), st.dates(date(2000, 1, 1))
)
def test_the_period_before_ends_before_the_one_that_is_shown(
    first: date, count: int, today: date
) -> None:
    last = first + timedelta(days=count)
    start, end = days_before(first, last, today)
    assert start <= end < first
    assert (end - start).days <= 31 or end == first - timedelta(days=1)
