"""Windows of budgets: calendars, zones and the days on which clocks change."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.budgets.messages import BudgetWindow
from gateway.budgets.windows import (
    EVER_END_US,
    EVER_START_US,
    Window,
    first_day,
    next_first_day,
    window_of,
)
from gateway.clock import from_microseconds, to_microseconds

DAY, WEEK, MONTH, FISCAL, TOTAL = BudgetWindow
HOUR_US = 3_600_000_000
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # midnight was skipped each spring until 2018
    "America/Havana",  # midnight is skipped each spring, and comes twice each autumn
    "America/St_Johns",  # clocks changed at 00:01 until 2011: midnight came twice
    "America/Asuncion",
    "Asia/Beirut",
    "Asia/Kathmandu",  # +5:45
    "Asia/Kolkata",
    "Asia/Seoul",
    "Australia/Lord_Howe",  # half an hour of daylight saving
    "Pacific/Apia",  # had no 30 December 2011
    "Pacific/Chatham",  # +12:45
    "Pacific/Kiritimati",  # +14, had no 31 December 1994
    "Africa/Cairo",
)
INSTANTS = st.integers(
    to_microseconds(datetime(1972, 1, 1, tzinfo=UTC)),
    to_microseconds(datetime(2100, 1, 1, tzinfo=UTC)),
)
LENGTHS_DAYS = {DAY: (1, 1), WEEK: (7, 7), MONTH: (28, 31), FISCAL: (365, 366)}


def us(text: str) -> int:
    return to_microseconds(datetime.fromisoformat(text))


# Each line: an instant, the windows, their zone, and where its window begins and ends.
CASES = {
    "a day in UTC": ("2026-11-30T15:00Z", DAY, "UTC", "2026-11-30T00:00Z", "2026-12-01T00:00Z"),
    "a window's first microsecond is in it": (
        "2026-11-30T00:00Z",
        DAY,
        "UTC",
        "2026-11-30T00:00Z",
        "2026-12-01T00:00Z",
    ),
    "a week begins on Monday": (
        "2026-11-29T23:59Z",
        WEEK,
        "UTC",
        "2026-11-23T00:00Z",
        "2026-11-30T00:00Z",
    ),
    # GW-098: a monthly budget in Seoul starts again at its own midnight.
    "a month in Seoul, one minute before its end": (
        "2026-01-31T23:59+09:00",
        MONTH,
        "Asia/Seoul",
        "2026-01-01T00:00+09:00",
        "2026-02-01T00:00+09:00",
    ),
    "a month in Seoul, one minute after its beginning": (
        "2026-02-01T00:01+09:00",
        MONTH,
        "Asia/Seoul",
        "2026-02-01T00:00+09:00",
        "2026-03-01T00:00+09:00",
    ),
    "the 29th of February": (
        "2028-02-29T12:00Z",
        MONTH,
        "UTC",
        "2028-02-01T00:00Z",
        "2028-03-01T00:00Z",
    ),
    "a December ends with the year": (
        "2026-12-31T23:59Z",
        MONTH,
        "UTC",
        "2026-12-01T00:00Z",
        "2027-01-01T00:00Z",
    ),
    "a day in Kathmandu": (
        "2026-11-30T18:15Z",
        DAY,
        "Asia/Kathmandu",
        "2026-12-01T00:00+05:45",
        "2026-12-02T00:00+05:45",
    ),
    "a day of 23 hours": (
        "2026-03-29T12:00+02:00",
        DAY,
        "Europe/Berlin",
        "2026-03-29T00:00+01:00",
        "2026-03-30T00:00+02:00",
    ),
    "a day of 25 hours": (
        "2026-10-25T12:00+01:00",
        DAY,
        "Europe/Berlin",
        "2026-10-25T00:00+02:00",
        "2026-10-26T00:00+01:00",
    ),
    "a day without a midnight begins when clocks change": (
        "2018-11-04T12:00-02:00",
        DAY,
        "America/Sao_Paulo",
        "2018-11-04T03:00Z",
        "2018-11-05T02:00Z",
    ),
    "a day whose midnight is skipped from the evening before begins when clocks change": (
        "1919-03-31T12:00Z",  # 23:30 on the 30th was followed by 00:30 on the 31st
        DAY,
        "America/Toronto",
        "1919-03-31T04:30Z",
        "1919-04-01T00:00-04:00",
    ),
    "a day whose midnight comes twice begins with the first": (
        "2026-11-01T12:00-05:00",
        DAY,
        "America/Havana",
        "2026-11-01T00:00-04:00",
        "2026-11-02T00:00-05:00",
    ),
    "a day that clocks leave once more after it has begun goes on": (
        "2010-11-07T03:00Z",  # 23:30 on the 6th, after it was 00:00 on the 7th
        DAY,
        "America/St_Johns",
        "2010-11-07T02:30Z",
        "2010-11-08T03:30Z",
    ),
    "the day before one that never was": (
        "2011-12-29T12:00-10:00",
        DAY,
        "Pacific/Apia",
        "2011-12-29T00:00-10:00",
        "2011-12-31T00:00+14:00",
    ),
    "the day after one that never was": (
        "2011-12-31T12:00+14:00",
        DAY,
        "Pacific/Apia",
        "2011-12-31T00:00+14:00",
        "2012-01-01T00:00+14:00",
    ),
}


@pytest.mark.parametrize(("at", "window", "zone", "start", "end"), CASES.values(), ids=CASES.keys())
def test_window(at: str, window: BudgetWindow, zone: str, start: str, end: str) -> None:
    found = window_of(us(at), window, time_zone=zone)
    assert found == Window(start_us=us(start), end_us=us(end))


FISCAL_CASES = {
    "a fiscal year is the calendar's where it begins in January": (
        "2026-11-30T00:00Z",
        1,
        "2026-01-01T00:00Z",
        "2027-01-01T00:00Z",
    ),
    "a fiscal year from April, before it": (
        "2026-03-31T23:59Z",
        4,
        "2025-04-01T00:00Z",
        "2026-04-01T00:00Z",
    ),
    "a fiscal year from April, in it": (
        "2026-04-01T00:00Z",
        4,
        "2026-04-01T00:00Z",
        "2027-04-01T00:00Z",
    ),
    "a fiscal year with a leap day": (
        "2028-02-29T00:00Z",
        3,
        "2027-03-01T00:00Z",
        "2028-03-01T00:00Z",
    ),
}


@pytest.mark.parametrize(
    ("at", "month", "start", "end"), FISCAL_CASES.values(), ids=FISCAL_CASES.keys()
)
def test_fiscal_window(at: str, month: int, start: str, end: str) -> None:
    found = window_of(us(at), FISCAL, fiscal_month=month)
    assert found == Window(start_us=us(start), end_us=us(end))


def test_a_budget_in_total_has_one_window_for_ever() -> None:
    ever = Window(start_us=EVER_START_US, end_us=EVER_END_US)
    assert window_of(us("2026-11-30T00:00Z"), TOTAL, time_zone="Asia/Seoul") == ever
    with pytest.raises(ValueError, match="no first day"):
        first_day(date(2026, 11, 30), TOTAL)
    with pytest.raises(ValueError, match="never starts again"):
        next_first_day(date(2026, 11, 30), TOTAL)


@given(
    at_us=INSTANTS,
    window=st.sampled_from((DAY, WEEK, MONTH, FISCAL)),
    zone=st.sampled_from(ZONES),
    fiscal_month=st.integers(1, 12),
    share=st.floats(0, 1, exclude_max=True),
)
@example(us("2011-12-30T09:59:59.999999Z"), DAY, "Pacific/Apia", 1, 0.5)
@example(us("2010-11-07T02:31Z"), DAY, "America/St_Johns", 1, 0.99)
@example(us("2018-11-04T02:59Z"), MONTH, "America/Sao_Paulo", 11, 0.99)
def test_windows_follow_each_other_without_gap_or_overlap_and_never_widen(
    at_us: int, window: BudgetWindow, zone: str, fiscal_month: int, share: float
) -> None:
    def find(instant_us: int) -> Window:
        return window_of(instant_us, window, time_zone=zone, fiscal_month=fiscal_month)

    found = find(at_us)
    length_us = found.end_us - found.start_us
    assert found.start_us <= at_us < found.end_us
    assert find(found.start_us + int(share * length_us)) == found
    assert find(found.end_us).start_us == found.end_us
    assert find(found.start_us - 1).end_us == found.start_us
    # A change of clocks moves an end by hours; a day may also be missing, never come twice.
    least, most = LENGTHS_DAYS[window]
    assert (least - 1) * 24 * HOUR_US <= length_us <= (most * 24 + 2) * HOUR_US


@given(at_us=INSTANTS, zone=st.sampled_from(ZONES))
def test_a_window_begins_with_the_first_instant_of_its_local_day(at_us: int, zone: str) -> None:
    start_us = window_of(at_us, DAY, time_zone=zone).start_us
    local = from_microseconds(start_us).astimezone(ZoneInfo(zone))
    just_before = from_microseconds(start_us - 1).astimezone(ZoneInfo(zone))
    assert just_before.date() < local.date()
    at = from_microseconds(at_us).astimezone(ZoneInfo(zone))
    assert at.date() in (local.date(), local.date() - timedelta(days=1))
