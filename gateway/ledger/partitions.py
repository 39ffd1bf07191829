"""Events by month on PostgreSQL: partitions made ahead, and dropped when they are old enough.

An event belongs to the month, in UTC, in which its attempt began; that instant is part of its
identity, so it is always looked for in one partition. What no month's partition takes falls into a
default one, which stays empty: the loader makes a month before it writes into it. A month is never
emptied row by row, it is dropped whole, in order, and only once it is closed for good; its sums
stay. SQLite has one table and nothing to do here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import cast

import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.ledger import periods, schema
from gateway.ledger.dialects import Lock, insert_into, is_postgresql, take
from gateway.ledger.facts import load_fact
from gateway.ledger.finance_tables import late_entry

_log = logging.getLogger(__name__)

MONTHS_AHEAD = 3
_TABLE = "spend_event"
_DEFAULT = "spend_event_default"
_NAME = re.compile(rf"{_TABLE}_(\d{{4}})_(\d{{2}})")
_KEPT_FROM = "events_from"
"""Row of `meta`: the first month, `YYYY-MM`, whose events were not dropped."""

MayDrop = Callable[[sa.Connection, str], bool]
"""Whether a month's events, `YYYY-MM`, may go."""


class Partitions:
    """Makes the months that rows need; remembers which there are, until `forget`."""

    def __init__(self) -> None:
        self._first_us = self._last_us = 0
        self._months: set[str] = set()

    def forget(self) -> None:
        """Drop what a rollback took back."""
        self._first_us = self._last_us = 0
        self._months.clear()

    def ensure(self, connection: sa.Connection, instants_us: Iterable[int]) -> None:
        """Make the partitions of these instants' months, in the caller's transaction."""
        if not is_postgresql(connection):
            return
        strange = [at_us for at_us in instants_us if not self._first_us <= at_us < self._last_us]
        if not strange:
            return
        missing = {periods.month_of(at_us) for at_us in strange} - self._months
        if missing:
            make(connection, missing)
            self._months |= missing
        # The month of the newest is the one that most of the next rows are in, too.
        self._first_us, self._last_us = periods.month_bounds_us(periods.month_of(max(strange)))


def make(connection: sa.Connection, months: Iterable[str]) -> None:
    """Make the partitions of months that have none.

    A month of which rows lie in the default partition cannot have one: further rows go there, too,
    and `ledger verify` tells.
    """
    take(connection, Lock.PARTITIONS)
    for month in sorted(set(months) - existing(connection)):
        start_us, end_us = periods.month_bounds_us(month)
        event = sa.table(_DEFAULT, sa.column("at_us", schema.spend_event.c.at_us.type))
        strays = sa.select(sa.literal(1)).where(event.c.at_us >= start_us, event.c.at_us < end_us)
        if connection.execute(strays.limit(1)).scalar_one_or_none():
            _log.error("events of %s lie in the default partition, so it gets none", month)
            continue
        name = f"{_TABLE}_{month.replace('-', '_')}"
        # Attached, because making it in its place would wait for everybody who reads events.
        connection.exec_driver_sql(
            f"CREATE TABLE {name} (LIKE {_TABLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        )
        connection.exec_driver_sql(
            f"ALTER TABLE {_TABLE} ATTACH PARTITION {name} FOR VALUES"
            f" FROM ('{_written(start_us)}') TO ('{_written(end_us)}')"
        )


def existing(connection: sa.Connection) -> set[str]:
    """Months that have a partition."""
    found = connection.exec_driver_sql(
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'spend_event'::regclass"
    )
    names = cast("list[str]", [*found.scalars()])
    return {f"{match[1]}-{match[2]}" for name in names if (match := _NAME.fullmatch(name))}


def maintain(
    connection: sa.Connection,
    *,
    now_us: int,
    keep_months: int | None,
    may_drop: MayDrop | None = None,
) -> tuple[str, ...]:
    """Make the months ahead, and drop those that are past their time.

    Args:
        connection: In a transaction that may write.
        now_us: Now.
        keep_months: Whole months of events to keep beside the present one; None keeps all.
        may_drop: Asked for each; `is_closed_for_good` when None.

    Returns:
        The months that were dropped.
    """
    if not is_postgresql(connection):
        return ()
    ahead = [periods.month_of(now_us)]
    for _ in range(MONTHS_AHEAD):
        ahead.append(periods.next_month(ahead[-1]))
    make(connection, ahead)
    if keep_months is None:
        return ()
    oldest_kept = ahead[0]
    for _ in range(keep_months):
        oldest_kept = _month_before(oldest_kept)
    asked = may_drop or is_closed_for_good
    dropped: list[str] = []
    for month in sorted(month for month in existing(connection) if month < oldest_kept):
        # In their order: what is kept is everything from one month on.
        if not asked(connection, month):
            break
        connection.exec_driver_sql(f"DROP TABLE {_TABLE}_{month.replace('-', '_')}")
        dropped.append(month)
    if dropped:
        _note_kept_from(connection, periods.next_month(dropped[-1]))
        _log.info("dropped the events of %s; their sums stay", ", ".join(dropped))
    return tuple(dropped)


def is_closed_for_good(connection: sa.Connection, month: str) -> bool:
    """Whether a month is closed, and every month in which late entries of it are counted."""
    through = periods.closed_through(connection)
    if through is None or month > through:
        return False
    start_us, end_us = periods.month_bounds_us(month)
    counted = sa.select(sa.func.max(late_entry.c.booked_period)).where(
        late_entry.c.at_us >= start_us, late_entry.c.at_us < end_us
    )
    latest = cast("str | None", connection.execute(counted).scalar_one())
    return latest is None or latest <= through


def kept_from_us(connection: sa.Connection) -> int:
    """From which instant on all events are there; 0 when none were dropped."""
    month = load_fact(connection, _KEPT_FROM)
    return 0 if month is None else periods.month_bounds_us(month)[0]


def default_faults(connection: sa.Connection) -> Iterable[str]:
    """Events that are in no month's partition."""
    if not is_postgresql(connection):
        return
    count = sa.select(sa.func.count()).select_from(sa.table(_DEFAULT))
    strays = connection.execute(count).scalar_one()
    if strays:
        yield f"{strays} events lie in the default partition, in no month's"


def _note_kept_from(connection: sa.Connection, month: str) -> None:
    added = insert_into(connection.dialect.name, schema.meta).values(name=_KEPT_FROM, value=month)
    connection.execute(
        added.on_conflict_do_update(
            index_elements=["name"], set_={"value": month}, where=schema.meta.c.value < month
        )
    )


def _month_before(month: str) -> str:
    start_us, _ = periods.month_bounds_us(month)
    return periods.month_of(start_us - 1)


def _written(at_us: int) -> str:
    return from_microseconds(at_us).isoformat()
