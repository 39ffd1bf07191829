"""Accounting months, and entries that come when theirs is closed.

Months are calendar months in UTC, as vendors bill. They close in their order, so one name says
which are closed. An entry whose month is closed keeps its instant and its place in the roll-ups;
`late_entry` says in which month it is counted instead: the first that is open when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import cast

import sqlalchemy as sa

from gateway.clock import from_microseconds, to_microseconds
from gateway.ledger import schema
from gateway.ledger.booking import EVENT_COLUMNS, Row, Values
from gateway.ledger.finance_tables import late_entry, period_close
from gateway.ledger.roll_ups import RollUps

CLOSED = "closed"
_MONTHS = 12
_ENTRY_AT = EVENT_COLUMNS.index("entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatePart:
    """What a late entry adds to sums, or takes out of them.

    Attributes:
        booked_period: The month that it is counted in.
        row: The entry, columns as in `spend_event`.
        sign: 1 for what was added; -1 for the lost entry that a settlement took the place of.
    """

    booked_period: str
    row: Row
    sign: int


def month_of(at_us: int) -> str:
    """The month of an instant, `YYYY-MM`."""
    return f"{from_microseconds(at_us):%Y-%m}"


def month_bounds_us(month: str) -> tuple[int, int]:
    """The first microsecond of a month and the first one after it."""
    return _start_us(month), _start_us(next_month(month))


def next_month(month: str) -> str:
    """The month after one."""
    first = date.fromisoformat(f"{month}-01")
    is_last = first.month == _MONTHS
    return f"{first.year + is_last:04d}-{1 if is_last else first.month + 1:02d}"


def closed_through(connection: sa.Connection) -> str | None:
    """The last month that is closed; every one before it is, too. None when none is."""
    table = period_close
    latest = sa.select(sa.func.max(table.c.month)).where(table.c.state == CLOSED)
    return cast("str | None", connection.execute(latest).scalar_one())


def note_late(connection: sa.Connection, entries: Sequence[Values], *, now_us: int) -> None:
    """Say of entries that were just inserted whether they came too late for their month.

    Args:
        connection: In the transaction that inserted them. Insert first, then call: the close of a
            month locks the events before it looks, so one of the two sees the other.
        entries: Columns as in `booking.EVENT_COLUMNS`.
        now_us: Microseconds since the epoch.
    """
    through = closed_through(connection)
    if through is None:
        return
    booked_period = next_month(through)
    open_us = _start_us(booked_period)
    late = [
        {
            "event_id": entry[0],
            "entry": entry[_ENTRY_AT],
            "at_us": entry[1],
            "booked_period": booked_period,
            "noted_at_us": now_us,
        }
        for entry in entries
        if cast("int", entry[1]) < open_us
    ]
    if late:
        connection.execute(sa.insert(late_entry), late)


def late_in(connection: sa.Connection, period: str) -> Iterator[LatePart]:
    """What is counted in a month although it happened before it: corrections, by original day."""
    return _parts(connection, late_entry.c.booked_period == period)


def late_of(connection: sa.Connection, month: str) -> Iterator[LatePart]:
    """What happened in a month and is counted in a later one."""
    return late_of_days(connection, *month_bounds_us(month))


def late_of_days(connection: sa.Connection, start_us: int, end_us: int) -> Iterator[LatePart]:
    """What happened in `[start_us, end_us)` and came when its month was closed."""
    return _parts(connection, late_entry.c.at_us >= start_us, late_entry.c.at_us < end_us)


def came_late(connection: sa.Connection, start_us: int, end_us: int) -> Iterator[LatePart]:
    """What came in `[start_us, end_us)` when its month was closed.

    An entry that was noted without its instant came, as far as can be told, when the month of its
    booking began; so each entry is in one stretch of time, however time is divided.
    """
    came = late_entry.c.noted_at_us
    months = sa.select(late_entry.c.booked_period).where(came.is_(None)).distinct()
    begun = [
        month
        for month in cast("Sequence[str]", connection.execute(months).scalars().all())
        if start_us <= _start_us(month) < end_us
    ]
    is_noted = sa.and_(came >= start_us, came < end_us)
    is_older = sa.and_(came.is_(None), late_entry.c.booked_period.in_(begun))
    return _parts(connection, sa.or_(is_noted, is_older))


def late_roll_ups(parts: Iterable[LatePart]) -> RollUps:
    """Late parts as cells of the roll-ups, those of cost tags left out."""
    sums = RollUps()
    for part in parts:
        sums.add(part.row, (), sign=part.sign)
    return sums


def _start_us(month: str) -> int:
    return to_microseconds(datetime.fromisoformat(f"{month}-01").replace(tzinfo=UTC))


def _parts(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> Iterator[LatePart]:
    event = schema.spend_event
    # A late entry comes with all lower ones of its event: it takes the place of the one before it.
    joined = sa.select(late_entry.c.booked_period, late_entry.c.entry.label("late"), event).join(
        event,
        sa.and_(event.c.event_id == late_entry.c.event_id, event.c.entry <= late_entry.c.entry),
    )
    ordered = joined.where(*conditions).order_by(
        event.c.at_us, event.c.event_id, late_entry.c.entry, event.c.entry
    )
    for mapping in connection.execute(ordered).mappings():
        row = cast("Row", dict(mapping))
        booked_period, late = cast("str", row.pop("booked_period")), row.pop("late")
        is_late_one = row["entry"] == late
        yield LatePart(booked_period=booked_period, row=row, sign=1 if is_late_one else -1)
