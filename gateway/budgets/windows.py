"""Windows of budgets: from when to when an amount may be spent, in the budget's own time zone.

A window begins with the first instant of a local day. Where clocks skip midnight, that is the
instant of the change; where midnight comes twice, the first of the two. A day that a zone never had
(Samoa's 30 December 2011) is a window of no length, which no instant falls into. So windows follow
each other without a gap and without an overlap, and none is longer than its calendar says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import assert_never
from zoneinfo import ZoneInfo

from gateway.budgets.messages import BudgetWindow
from gateway.clock import from_microseconds, to_microseconds

EVER_START_US = 0
EVER_END_US = to_microseconds(datetime(9999, 12, 31, tzinfo=UTC))
"""The window `total`, as far as both databases' calendars go."""
_DAY = timedelta(days=1)
_MONTHS = 12
_STARTS_CACHED_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A half-open range of time.

    Attributes:
        start_us: Its first microsecond since the epoch.
        end_us: The first microsecond after it.
    """

    start_us: int
    end_us: int


def window_of(
    at_us: int, window: BudgetWindow, *, time_zone: str = "UTC", fiscal_month: int = 1
) -> Window:
    """The window that an instant falls into.

    Args:
        at_us: Microseconds since the epoch, in the calendar's years 1 to 9999.
        window: Which windows.
        time_zone: IANA name of the zone whose calendar counts.
        fiscal_month: Month in which the fiscal year begins, 1 to 12.

    Raises:
        ZoneInfoNotFoundError: This machine does not know the zone.
        OverflowError: The window reaches beyond the calendar.
    """
    if window is BudgetWindow.TOTAL:
        return Window(start_us=EVER_START_US, end_us=EVER_END_US)
    day = from_microseconds(at_us).astimezone(ZoneInfo(time_zone)).date()
    first = first_day(day, window, fiscal_month=fiscal_month)
    start_us = day_start_us(first, time_zone)
    following = next_first_day(first, window)
    end_us = day_start_us(following, time_zone)
    while end_us <= at_us:  # the day after had begun, and then clocks went back over midnight
        following, start_us = next_first_day(following, window), end_us
        end_us = day_start_us(following, time_zone)
    return Window(start_us=start_us, end_us=end_us)


def first_day(day: date, window: BudgetWindow, *, fiscal_month: int = 1) -> date:
    """The local day on which the window of a local day begins; not for `total`."""
    match window:
        case BudgetWindow.DAY:
            return day
        case BudgetWindow.WEEK:
            return day - timedelta(days=day.weekday())
        case BudgetWindow.MONTH:
            return day.replace(day=1)
        case BudgetWindow.FISCAL:
            year = day.year if day.month >= fiscal_month else day.year - 1
            return date(year, fiscal_month, 1)
        case BudgetWindow.TOTAL:
            raise ValueError("a budget in total has no first day")
    assert_never(window)


def next_first_day(first: date, window: BudgetWindow) -> date:
    """The local day on which the window after the one of a first day begins; not for `total`."""
    match window:
        case BudgetWindow.DAY:
            return first + _DAY
        case BudgetWindow.WEEK:
            return first + 7 * _DAY
        case BudgetWindow.MONTH:
            years, month = divmod(first.month, _MONTHS)
            return date(first.year + years, month + 1, 1)
        case BudgetWindow.FISCAL:
            return first.replace(year=first.year + 1)
        case BudgetWindow.TOTAL:
            raise ValueError("a budget in total never starts again")
    assert_never(window)


@lru_cache(maxsize=_STARTS_CACHED_MAX)
def day_start_us(day: date, time_zone: str) -> int:
    """The first instant at which a zone's calendar shows a day, or a later one.

    Where clocks skip midnight that is the moment of the change; where midnight comes twice on a
    day, the first one.
    """
    zone = ZoneInfo(time_zone)
    midnight = datetime.combine(day, time(0), tzinfo=zone)
    at = midnight.astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return to_microseconds(at)
    # Clocks skip this midnight. They change between the two instants that the offsets before and
    # after the change take it for.
    before = to_microseconds(midnight.replace(fold=1).astimezone(UTC))
    return _first(
        lambda at_us: from_microseconds(at_us).astimezone(zone).date() >= day,
        before,
        to_microseconds(at),
    )


def _first(is_reached: Callable[[int], bool], low: int, high: int) -> int:
    """The least integer above `low`, up to `high`, from which on something is reached."""
    while high - low > 1:
        middle = (low + high) // 2
        if is_reached(middle):
            high = middle
        else:
            low = middle
    return high
