"""The loader's hot statements as SQL text, written out once per dialect from the schema.

SQLAlchemy's own execution of an INSERT with thousands of rows converts every value of every row
by its column's type; all of them already are what the drivers take. The text goes to the driver
with tuples instead, a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from gateway.ledger import booking, roll_ups, schema
from gateway.ledger.columns import Id16, InstantUs
from gateway.ledger.dialects import POSTGRESQL, Insert, insert_into, text
from gateway.ledger.roll_ups import RollUpTable

IDS_MAX = 500
"""Values of a long IN list."""
FEW_IDS = 20
"""Values of a short one."""
METER_KEY = ("bucket_us", *schema.METER_DIMENSIONS, "meter_rate_id")
"""What names a cell of the roll-up by meter; `schema.METER_SUMS` follow it."""
CURSOR_COLUMNS = ("directory", "number", "offset_bytes", "session")
INTENT_COLUMNS = ("event_id", "directory", "session", "at_us", "expires_at_us", "payload")


@cache
def insert_events(dialect: str) -> str:
    """Add entries, columns as in `booking.EVENT_COLUMNS`; a known one is an error."""
    return text(_insert(dialect, schema.spend_event, booking.EVENT_COLUMNS), dialect)


@cache
def insert_intents(dialect: str) -> str:
    """Add open attempts, columns as in `INTENT_COLUMNS`; a known one changes nothing."""
    statement = _insert(dialect, schema.attempt_intent, INTENT_COLUMNS)
    return text(statement.on_conflict_do_nothing(), dialect)


@cache
def add_to_roll_up(dialect: str, one: RollUpTable) -> str:
    """Add deltas to cells, columns as in its `key` and `roll_ups.SUM_COLUMNS`."""
    return _add_sums(dialect, one.table, one.key, roll_ups.SUM_COLUMNS)


@cache
def add_to_meters(dialect: str) -> str:
    """Add deltas to cells of the roll-up by meter, columns as in `METER_KEY` and `METER_SUMS`."""
    table = schema.rollup_meter_day
    return _add_sums(dialect, table, METER_KEY, schema.METER_SUMS)


@cache
def select_entries(dialect: str, count: int) -> str:
    """Entries of so many events, columns as in `booking.EVENT_COLUMNS`, lowest entry first."""
    table = schema.spend_event
    columns = [table.c[name] for name in booking.EVENT_COLUMNS]
    selected = cast("sa.Select[tuple[object]]", sa.select(*columns))
    return text(selected.where(_is_one_of(dialect, table, count)).order_by(table.c.entry), dialect)


@cache
def select_entries_between() -> str:
    """The same on PostgreSQL for a list of ids, looked for between two instants only.

    The months' partitions each have an index of their own to look into.
    """
    table = schema.spend_event
    columns = [table.c[name] for name in booking.EVENT_COLUMNS]
    selected = cast("sa.Select[tuple[object]]", sa.select(*columns))
    is_between = table.c.at_us.between(
        sa.bindparam("first", type_=InstantUs), sa.bindparam("last", type_=InstantUs)
    )
    chosen = selected.where(_is_one_of(POSTGRESQL, table, 0), is_between)
    return text(chosen.order_by(table.c.entry), POSTGRESQL)


@cache
def take_intents(dialect: str, count: int) -> str:
    """Close those of so many events that are open; gives their payloads."""
    table = schema.attempt_intent
    closed = sa.delete(table).where(_is_one_of(dialect, table, count))
    return text(closed.returning(table.c.payload), dialect)


@cache
def add_cursor(dialect: str) -> str:
    """A directory's first cursor, columns as in `CURSOR_COLUMNS`; none when there is one."""
    statement = _insert(dialect, schema.spool_cursor, CURSOR_COLUMNS)
    return text(statement.on_conflict_do_nothing(), dialect)


@cache
def move_cursor(dialect: str) -> str:
    """Set all but the directory where all are as given, columns as in `CURSOR_COLUMNS`."""
    table = schema.spool_cursor
    moved = sa.update(table).values(
        {name: sa.bindparam(f"to_{name}") for name in CURSOR_COLUMNS[1:]}
    )
    stands = (table.c[name] == sa.bindparam(f"at_{name}") for name in CURSOR_COLUMNS)
    return text(moved.where(*stands), dialect)


def id_lists(dialect: str, event_ids: Iterable[bytes]) -> Iterator[tuple[object, ...]]:
    """The ids, sorted, as the parameters of statements made for `list_length` of each.

    SQLite gets lists of `FEW_IDS` or `IDS_MAX`, filled up with their last id: two lengths only, so
    that the driver keeps the statements that it has parsed. PostgreSQL takes an array.
    """
    if dialect == POSTGRESQL:
        if ordered := sorted(event_ids):
            yield (ordered,)
        return
    for some in some_at_once(event_ids):
        count = FEW_IDS if len(some) <= FEW_IDS else IDS_MAX
        yield (*some, *(some[-1:] * (count - len(some))))


def some_at_once(event_ids: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The ids, sorted, at most `IDS_MAX` at a time, as many parameters as SQLite takes well."""
    ordered = sorted(event_ids)
    for start in range(0, len(ordered), IDS_MAX):
        yield ordered[start : start + IDS_MAX]


def _insert(dialect: str, table: sa.Table, columns: Sequence[str]) -> Insert:
    # A table of its own, because the text names columns in the order of the table.
    ordered = [sa.column(name, table.c[name].type) for name in columns]
    return insert_into(dialect, sa.table(table.name, *ordered))


def _add_sums(dialect: str, table: sa.Table, key: Sequence[str], sums: Sequence[str]) -> str:
    statement = _insert(dialect, table, (*key, *sums))
    added = {name: table.c[name] + statement.excluded[name] for name in sums}
    summed = statement.on_conflict_do_update(index_elements=list(key), set_=added)
    return text(summed, dialect)


def _is_one_of(dialect: str, table: sa.Table, count: int) -> sa.ColumnElement[bool]:
    """Whether an event's id is in a list of so many; of any length on PostgreSQL."""
    if dialect == POSTGRESQL:
        ids = sa.bindparam("ids", type_=postgresql.ARRAY(Id16))
        return table.c.event_id == sa.any_(ids)
    return table.c.event_id.in_([sa.bindparam(f"id_{index}") for index in range(count)])
