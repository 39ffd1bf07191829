"""Months and ranges of days as a page's address names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from gateway.budgets.messages import BudgetWindow
from gateway.budgets.windows import Window, day_start_us, first_day, next_first_day
from gateway.ledger.report_time import local_day

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """A calendar month in a zone.

    Attributes:
        first: Its first day.
        last: Its last one.
        window: From when to when.
    """

    first: date
    last: date
    window: Window

    @property
    def name(self) -> str:
        """`2026-11`."""
        return f"{self.first:%Y-%m}"

    @property
    def title(self) -> str:
        """`November 2026`."""
        return f"{self.first:%B %Y}"

    @property
    def days(self) -> list[date]:
        """Every day."""
        count = (self.last - self.first).days + 1
        return [self.first + timedelta(days=place) for place in range(count)]


def month_of(day: date, *, time_zone: str) -> Month:
    """The month of a day."""
    first = first_day(day, BudgetWindow.MONTH)
    following = next_first_day(first, BudgetWindow.MONTH)
    window = Window(
        start_us=day_start_us(first, time_zone), end_us=day_start_us(following, time_zone)
    )
    return Month(first=first, last=following - timedelta(days=1), window=window)


def month_named(text: str | None, *, now_us: int, time_zone: str) -> Month | None:
    """The month that an address names, or this one; None where it names none."""
    if text is None:
        return month_of(local_day(now_us, ZoneInfo(time_zone)), time_zone=time_zone)
    if not _MONTH.fullmatch(text) or text < "1970-02" or text > "9998-12":
        return None
    return month_of(date.fromisoformat(f"{text}-01"), time_zone=time_zone)


def no_month(text: str | None, *, parameter: str = "month") -> str:
    """What is said of an address whose parameter names no month."""
    return f"{parameter}: {(text or '')[:64]!r} is no month such as 2026-11"


def month_before(month: Month, *, time_zone: str) -> Month:
    """The month before."""
    return month_of(month.first - timedelta(days=1), time_zone=time_zone)


def month_after(month: Month, *, time_zone: str) -> Month:
    """The month after."""
    return month_of(month.last + timedelta(days=1), time_zone=time_zone)
