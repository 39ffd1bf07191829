"""The loader's hot statements as SQL text, written out once from the schema.

SQLAlchemy's own execution of an INSERT with thousands of rows converts every value of every row
by its column's type; on SQLite all of them already are what the driver takes. The text goes to
the driver with tuples instead, a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import cast

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import insert

from gateway.ledger import booking, roll_ups, schema
from gateway.ledger.roll_ups import RollUpTable

IDS_MAX = 500
"""Values of a long IN list."""
FEW_IDS = 20
"""Values of a short one."""
CURSOR_COLUMNS = ("directory", "number", "offset_bytes", "session")
INTENT_COLUMNS = ("event_id", "directory", "session", "at_us", "expires_at_us", "payload")


@cache
def insert_events() -> str:
    """Add entries, columns as in `booking.EVENT_COLUMNS`; a known one is an error."""
    return _text(_insert(schema.spend_event, booking.EVENT_COLUMNS))


@cache
def insert_intents() -> str:
    """Add open attempts, columns as in `INTENT_COLUMNS`; a known one changes nothing."""
    return _text(_insert(schema.attempt_intent, INTENT_COLUMNS).on_conflict_do_nothing())


@cache
def add_to_roll_up(one: RollUpTable) -> str:
    """Add deltas to cells, columns as in its `key` and `roll_ups.SUM_COLUMNS`."""
    return _add_sums(one.table, one.key)


@cache
def select_entries(count: int) -> str:
    """Entries of so many events, columns as in `booking.EVENT_COLUMNS`, lowest entry first."""
    table = schema.spend_event
    columns = [table.c[name] for name in booking.EVENT_COLUMNS]
    selected = cast("sa.Select[tuple[object]]", sa.select(*columns))
    return _text(selected.where(_is_one_of(table, count)).order_by(table.c.entry))


@cache
def take_intents(count: int) -> str:
    """Close those of so many events that are open; gives their payloads."""
    table = schema.attempt_intent
    return _text(sa.delete(table).where(_is_one_of(table, count)).returning(table.c.payload))


@cache
def add_cursor() -> str:
    """A directory's first cursor, columns as in `CURSOR_COLUMNS`; none when there is one."""
    return _text(_insert(schema.spool_cursor, CURSOR_COLUMNS).on_conflict_do_nothing())


@cache
def move_cursor() -> str:
    """Set all but the directory where all are as given, columns as in `CURSOR_COLUMNS`."""
    table = schema.spool_cursor
    moved = sa.update(table).values(
        {name: sa.bindparam(f"to_{name}") for name in CURSOR_COLUMNS[1:]}
    )
    return _text(moved.where(*(table.c[name] == sa.bindparam(name) for name in CURSOR_COLUMNS)))


def id_lists(event_ids: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """The ids, sorted, in lists of `FEW_IDS` or `IDS_MAX`, filled up with their last id.

    Two lengths only, so that the driver keeps the statements that it has parsed.
    """
    ordered = sorted(event_ids)
    for start in range(0, len(ordered), IDS_MAX):
        some = ordered[start : start + IDS_MAX]
        count = FEW_IDS if len(some) <= FEW_IDS else IDS_MAX
        yield (*some, *(some[-1:] * (count - len(some))))


def _insert(table: sa.Table, columns: Sequence[str]) -> sqlite.Insert:
    # A table of its own, because the text names columns in the order of the table.
    ordered = [sa.column(name, sa.Integer) for name in columns]
    return insert(sa.table(table.name, *ordered))


def _add_sums(table: sa.Table, key: Sequence[str]) -> str:
    statement = _insert(table, (*key, *roll_ups.SUM_COLUMNS))
    added = {name: table.c[name] + statement.excluded[name] for name in roll_ups.SUM_COLUMNS}
    return _text(statement.on_conflict_do_update(index_elements=list(key), set_=added))


def _is_one_of(table: sa.Table, count: int) -> sa.ColumnElement[bool]:
    return table.c.event_id.in_([sa.bindparam(f"id_{index}") for index in range(count)])


def _text(statement: sa.ClauseElement) -> str:
    return str(statement.compile(dialect=sqlite.dialect()))
