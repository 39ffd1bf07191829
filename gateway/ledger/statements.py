"""The loader's hot statements as SQL text, written out once per dialect from the schema.

SQLAlchemy's own execution of an INSERT with thousands of rows converts every value of every row
by its column's type; all of them already are what the drivers take. The text goes to the driver
with tuples instead, a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

from gateway.ledger import booking, roll_ups, schema
from gateway.ledger.columns import Id16, InstantUs, PicoTotal
from gateway.ledger.dialects import POSTGRESQL, Insert, insert_into, text
from gateway.ledger.roll_ups import ROLL_UPS

_SUMS_STATEMENTS_MAX = 200
"""Of each set of columns that batches change there is one statement; these are the last ones."""
IDS_MAX = 500
"""Values of a long IN list."""
FEW_IDS = 20
"""Values of a short one."""
CURSOR_COLUMNS = ("directory", "number", "offset_bytes", "session")
INTENT_COLUMNS = ("event_id", "directory", "session", "at_us", "expires_at_us", "payload")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SumsTable:
    """A table of sums.

    Attributes:
        table: Where it is.
        key: Columns that name a cell.
        columns: Those that add up.
    """

    table: sa.Table
    key: tuple[str, ...]
    columns: tuple[str, ...]


SUMS = {
    one.table.name: SumsTable(table=one.table, key=one.key, columns=roll_ups.SUM_COLUMNS)
    for one in ROLL_UPS
}
"""Those of `roll_ups.ROLL_UPS`, by the table's name."""
METER_SUMS = SumsTable(
    table=schema.rollup_meter_day,
    key=("bucket_us", *schema.METER_DIMENSIONS, "meter_rate_id"),
    columns=schema.METER_SUMS,
)
"""That of `meter_sums`."""


@cache
def insert_events(dialect: str) -> str:
    """Add entries, columns as in `booking.EVENT_COLUMNS`; a known one is an error."""
    return text(_insert(dialect, schema.spend_event, booking.EVENT_COLUMNS), dialect)


@cache
def insert_intents(dialect: str) -> str:
    """Add open attempts, columns as in `INTENT_COLUMNS`; a known one changes nothing."""
    statement = _insert(dialect, schema.attempt_intent, INTENT_COLUMNS)
    return text(statement.on_conflict_do_nothing(), dialect)


@lru_cache(maxsize=_SUMS_STATEMENTS_MAX)
def add_to_cells(dialect: str, sums: SumsTable, columns: Sequence[str]) -> str:
    """Add deltas to cells.

    Args:
        dialect: Whose.
        sums: Where to.
        columns: Those that any delta changes, of `sums.columns`; the others are 0 in a new cell.
            Most events use two meters of nine, so this is a third of the work.

    Returns:
        SQL with the parameters that `deltas` makes of rows of the key and these columns.
    """
    table, named = sums.table, (*sums.key, *columns)
    unchanged = [name for name in sums.columns if name not in columns]
    insert = _insert(dialect, table, (*named, *unchanged))
    types = {name: table.c[name].type for name in named}
    zero = sa.literal_column("0", sa.BigInteger)
    if dialect == POSTGRESQL:
        arrays = [sa.cast(sa.bindparam(name, type_=sa.Text), _array(types[name])) for name in named]
        rows = sa.func.unnest(*arrays).table_valued(*named, name="delta").render_derived()
        read = [_from_array(rows.c[name], types[name]) for name in named]
        selected = cast("sa.Select[tuple[object]]", sa.select(*read, *[zero] * len(unchanged)))
        insert = insert.from_select((*named, *unchanged), selected)
    else:
        values = {name: sa.bindparam(name, type_=types[name]) for name in named}
        insert = insert.values(values | dict.fromkeys(unchanged, zero))
    added = {name: table.c[name] + insert.excluded[name] for name in columns}
    summed = insert.on_conflict_do_update(index_elements=list(sums.key), set_=added)
    return text(summed, dialect)


def deltas(dialect: str, rows: Iterable[tuple[int, ...]]) -> Sequence[tuple[object, ...]]:
    """Rows, at least one, as the parameters of `add_to_cells`.

    A statement per row would cost PostgreSQL ten times what it does to the row, so it gets all at
    once, a column as the text of an array: the driver looks at each value of a list in Python. They
    come in the order of their keys, as they lie in the table's index.
    """
    ordered = sorted(rows)
    if dialect != POSTGRESQL:
        return ordered
    return [tuple(f"{{{str(list(column))[1:-1]}}}" for column in zip(*ordered, strict=True))]


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
    that the driver keeps the statements that it has parsed. PostgreSQL takes an `id_array`.
    """
    if dialect == POSTGRESQL:
        if ordered := sorted(event_ids):
            yield (id_array(ordered),)
        return
    for some in some_at_once(event_ids):
        count = FEW_IDS if len(some) <= FEW_IDS else IDS_MAX
        yield (*some, *(some[-1:] * (count - len(some))))


def id_array(event_ids: Iterable[bytes]) -> str:
    """The ids as PostgreSQL's statements take them: the text of an array, as for `deltas`."""
    return f"{{{','.join([event_id.hex() for event_id in event_ids])}}}"


def some_at_once(event_ids: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The ids, sorted, at most `IDS_MAX` at a time, as many parameters as SQLite takes well."""
    ordered = sorted(event_ids)
    for start in range(0, len(ordered), IDS_MAX):
        yield ordered[start : start + IDS_MAX]


def _insert(dialect: str, table: sa.Table, columns: Sequence[str]) -> Insert:
    # A table of its own, because the text names columns in the order of the table.
    ordered = [sa.column(name, table.c[name].type) for name in columns]
    return insert_into(dialect, sa.table(table.name, *ordered))


def _array(of: TypeEngine[Any]) -> TypeEngine[Any]:
    """What values of a type come in; sums beyond 64 bits come again in smaller batches."""
    is_wide = isinstance(of, PicoTotal | InstantUs)
    return postgresql.ARRAY(sa.BigInteger() if is_wide else of)


def _from_array(value: sa.ColumnElement[Any], of: TypeEngine[Any]) -> sa.ColumnElement[Any]:
    if isinstance(of, InstantUs):
        # Exact: microseconds of our times have less than the 53 bits of a float.
        return sa.text("'epoch'::timestamptz") + value * sa.text("interval '1 microsecond'")
    return value


def _is_one_of(dialect: str, table: sa.Table, count: int) -> sa.ColumnElement[bool]:
    """Whether an event's id is in a list of so many; of any length on PostgreSQL."""
    if dialect == POSTGRESQL:
        ids = sa.cast(sa.bindparam("ids", type_=sa.Text), postgresql.ARRAY(Id16))
        return table.c.event_id == sa.any_(ids)
    return table.c.event_id.in_([sa.bindparam(f"id_{index}") for index in range(count)])
