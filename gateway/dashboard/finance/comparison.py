"""The period before the one that a page shows, to compare with. Pure."""

from __future__ import annotations

from datetime import date, timedelta

import msgspec

from gateway.budgets.windows import day_start_us
from gateway.ledger.views import SpendQuery

PREVIOUS = "previous"
"""As what an address compares with: the period before."""


def days_before(first: date, last: date, today: date) -> tuple[date, date]:
    """The first and the last day of the period before.

    Of a month that is the month before, until the same day where the month is not over; of other
    days, as many as there are.

    Args:
        first: Of the period that is shown.
        last: The same, counted too.
        today: In the zone of its days.
    """
    count = (last - first).days + 1
    is_month = first.day == 1 and (last + timedelta(days=1)).day == 1 and count < 32
    end = first - timedelta(days=1)
    if not is_month:
        return first - timedelta(days=count), end
    start = end.replace(day=1)
    if first <= today < last:
        end = min(end, start + (today - first))
    return start, end


def query_before(query: SpendQuery, by: str, days: tuple[date, date]) -> SpendQuery:
    """The report of the period before, without steps of time.

    Args:
        query: That of the period that is shown.
        by: Dimension of its rows.
        days: Those of `days_before`.
    """
    first, last = days
    return msgspec.structs.replace(
        query,
        group_by=(by,),
        from_us=day_start_us(first, query.zone),
        to_us=day_start_us(last + timedelta(days=1), query.zone),
    )
