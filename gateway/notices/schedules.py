"""When statements are due: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, time, timedelta

from gateway.clock import from_microseconds, to_microseconds
from gateway.finance.statement_messages import days_of, week_of
from gateway.ledger.periods import month_of, next_month
from gateway.notices.messages import Schedule

_DAY = timedelta(days=1)
_LOOK_BACK_DAYS = 63
"""A gateway that was away for longer sends no statements of weeks and ended months before that."""


def due_periods(
    schedule: Schedule, closed_at_us: Mapping[str, int], *, seen_at_us: int, now_us: int
) -> Iterator[str]:
    """Periods whose statements are due, oldest first; those that were sent already among them.

    What was over or closed before the schedule was first seen is not sent: a new schedule begins
    with the next period.

    Args:
        schedule: Whose.
        closed_at_us: When each closed month was closed.
        seen_at_us: When the schedule was first seen, microseconds since the epoch.
        now_us: Microseconds since the epoch.
    """
    if schedule.every == "month" and schedule.after == "close":
        for month, at_us in sorted(closed_at_us.items()):
            if at_us >= seen_at_us and now_us >= _next_day_us(at_us):
                yield month
        return
    first_us = now_us - _LOOK_BACK_DAYS * 24 * 3_600 * 1_000_000
    for period in _periods(schedule.every, first_us, now_us):
        end_us = end_of(period)
        if seen_at_us <= end_us <= now_us:
            yield period


def end_of(period: str) -> int:
    """The first microsecond after a month or week."""
    last = days_of(period)[1]
    return to_microseconds(datetime.combine(last + _DAY, time(0), tzinfo=UTC))


def _periods(every: str, from_us: int, to_us: int) -> Iterator[str]:
    if every == "month":
        month = month_of(from_us)
        while month <= month_of(to_us):
            yield month
            month = next_month(month)
        return
    day, last = from_microseconds(from_us).date(), from_microseconds(to_us).date()
    while day <= last:
        yield week_of(day)
        day += 7 * _DAY


def _next_day_us(at_us: int) -> int:
    """The first microsecond of the UTC day after an instant."""
    day = from_microseconds(at_us).date() + _DAY
    return to_microseconds(datetime.combine(day, time(0), tzinfo=UTC))
