"""The digest of a closed month: the same on every database, and recomputable from its rows.

SHA-256 over one canonical JSON document per line: the month's events that were not late, the cells
of the roll-ups (not those of cost tags) less what came late, and the adjustments of the period.
Interned ids are replaced by names; lines are sorted, so the order of loading does not matter. What
a row does not say (null, empty text, units and sums of zero) is left out, so that a column which a
later release adds does not change the digest of a month that was closed before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.booking import Row, Value
from gateway.ledger.finance_tables import late_entry, period_close, spend_adjustment
from gateway.ledger.partitions import kept_from_us
from gateway.ledger.periods import CLOSED, late_of, late_roll_ups, month_bounds_us
from gateway.ledger.report_sources import exact_sums
from gateway.ledger.roll_ups import ROLL_UPS, SUM_COLUMNS

_BATCH_ROWS = 1_000
_ROLL_UPS = tuple(one for one in ROLL_UPS if one.of != "cost_tag_id")
"""Which cost tags have sums is a setting, that may change after a month was closed."""
_ADJUSTMENT_COLUMNS = tuple(
    column.name for column in spend_adjustment.columns if column.name not in ("id", "proposal_id")
)
_NAMES: Mapping[str, tuple[sa.Table, tuple[str, ...]]] = {
    "team_id": (schema.team, ("name",)),
    "project_id": (schema.project, ("team", "name")),
    "key_id": (schema.api_key_name, ("key_id",)),
    "model_id": (schema.model, ("name",)),
    "deployment_id": (schema.deployment, ("name", "provider", "upstream_model")),
    "tags_id": (schema.tag_set, ("sha256",)),
    "cost_tags_id": (schema.tag_set, ("sha256",)),
}
"""Interned columns and what stands for them in the digest."""


class MonthFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a closed month holds.

    Attributes:
        events: Entries of its events, late ones not counted.
        cost_pico_usd: Sum of the entries that count.
        adjusted_pico_usd: Sum of the adjustments of the period.
        adjustments: How many there are.
    """

    events: int
    cost_pico_usd: int
    adjusted_pico_usd: int
    adjustments: int


def month_digest(connection: sa.Connection, month: str) -> tuple[bytes, MonthFigures]:
    """Compute the digest of a month and what it holds, from rows alone.

    Args:
        connection: In a transaction; one state of the database is read.
        month: `YYYY-MM`; closed or about to be.
    """
    names = _Names(connection)
    whole = hashlib.sha256(month.encode())
    events = cost_pico_usd = 0
    previous: Row | None = None
    for row in _events(connection, month):
        events += 1
        cost_pico_usd += _whole(row["cost_pico_usd"])
        if previous is not None and previous["event_id"] == row["event_id"]:
            cost_pico_usd -= _whole(previous["cost_pico_usd"])
        previous = row
        _add(whole, "event", names.document(row))
    late = late_roll_ups(late_of(connection, month))
    for one in _ROLL_UPS:
        table, key = one.table, one.key
        cells = [
            names.place(key, place) | {name: amount for name, amount in sums.items() if amount}
            for place, sums in _cells(connection, table, key, month, late.cells[table.name])
        ]
        for cell in sorted(cells, key=_canonical):
            _add(whole, str(table.name), cell)
    adjustments = [[_plain(value) for value in row] for row in _adjustment_rows(connection, month)]
    for document in sorted(adjustments, key=_canonical):
        _add(whole, "adjustment", document)
    amount_at = _ADJUSTMENT_COLUMNS.index("amount_pico_usd")
    figures = MonthFigures(
        events=events,
        cost_pico_usd=cost_pico_usd,
        adjusted_pico_usd=sum(cast("int", document[amount_at]) for document in adjustments),
        adjustments=len(adjustments),
    )
    return whole.digest(), figures


def month_sum(connection: sa.Connection, month: str, column: str) -> int:
    """A column of `rollup_day` over a month, whatever was counted later."""
    days = schema.rollup_day
    start_us, end_us = month_bounds_us(month)
    within = (days.c.bucket_us >= start_us, days.c.bucket_us < end_us)
    [(found,)] = exact_sums(connection, (), (days.c[column],), within)
    return int(found or 0)


def month_figures(connection: sa.Connection, month: str) -> MonthFigures:
    """What a month holds that is not closed, from its sums: quickly, and without a digest."""
    start_us, end_us = month_bounds_us(month)
    event, posted = schema.spend_event, spend_adjustment
    count = sa.select(sa.func.count()).select_from(event)
    events = connection.execute(count.where(event.c.at_us >= start_us, event.c.at_us < end_us))
    amounts = connection.execute(
        sa.select(posted.c.amount_pico_usd).where(posted.c.period == month)
    )
    adjusted = cast("Sequence[int]", amounts.scalars().all())
    return MonthFigures(
        events=events.scalar_one(),
        cost_pico_usd=month_sum(connection, month, "cost_pico_usd"),
        adjusted_pico_usd=sum(adjusted),
        adjustments=len(adjusted),
    )


def close_faults(
    connection: sa.Connection, *, only: Collection[str] | None = None
) -> Iterator[str]:
    """Closed months, all of them or only some, whose rows are not those that were closed."""
    table = period_close
    closed = sa.select(table.c.month, table.c.ledger_digest).where(table.c.state == CLOSED)
    rows = connection.execute(closed.order_by(table.c.month)).all()
    from_us = kept_from_us(connection)
    for month, stored in cast("Sequence[tuple[str, bytes]]", rows):
        if month_bounds_us(month)[0] < from_us or (only is not None and month not in only):
            continue  # its events were dropped since, or nobody asks
        if month_digest(connection, month)[0] != stored:
            yield f"the closed month {month} does not hold what was closed"


def _add(whole: hashlib._Hash, kind: str, document: object) -> None:  # pyright: ignore[reportPrivateUsage]
    whole.update(_canonical([kind, document]) + b"\n")


def _canonical(document: object) -> bytes:
    return msgspec.json.encode(document, order="deterministic")


def _events(connection: sa.Connection, month: str) -> Iterator[Row]:
    """Entries of the month that were there when it closed, by event and entry."""
    table = schema.spend_event
    start_us, end_us = month_bounds_us(month)
    is_late = sa.exists().where(
        late_entry.c.event_id == table.c.event_id, late_entry.c.entry == table.c.entry
    )
    in_the_month = sa.select(table).where(table.c.at_us >= start_us, table.c.at_us < end_us)
    ordered = in_the_month.where(~is_late).order_by(table.c.event_id, table.c.entry)
    # Of the statement: as an option of the connection it would stay with what comes after.
    found = connection.execute(ordered.execution_options(yield_per=_BATCH_ROWS))
    for mapping in found.mappings():
        yield cast("Row", dict(mapping))


def _cells(
    connection: sa.Connection,
    table: sa.Table,
    key: Sequence[str],
    month: str,
    taken: Mapping[tuple[int, ...], Sequence[int]],
) -> Iterator[tuple[tuple[int, ...], dict[str, int]]]:
    """Cells of the month less what came late; those without anything are left out."""
    start_us, end_us = month_bounds_us(month)
    columns = (*(table.c[name] for name in key), *(table.c[name] for name in SUM_COLUMNS))
    statement = cast("sa.Select[tuple[int]]", sa.select(*columns))
    bucket = table.c[key[0]]
    found = connection.execute(statement.where(bucket >= start_us, bucket < end_us)).all()
    nothing = (0,) * len(SUM_COLUMNS)
    for values in cast("Sequence[tuple[int, ...]]", found):
        place, sums = tuple(values[: len(key)]), values[len(key) :]
        less = taken.get(place, nothing)
        left = [holds - late for holds, late in zip(sums, less, strict=True)]
        if any(left):
            yield place, dict(zip(SUM_COLUMNS, left, strict=True))


def _adjustment_rows(connection: sa.Connection, month: str) -> Sequence[Sequence[Value]]:
    table = spend_adjustment
    columns = [table.c[name] for name in _ADJUSTMENT_COLUMNS]
    statement = cast("sa.Select[tuple[object]]", sa.select(*columns))
    found = connection.execute(statement.where(table.c.period == month)).all()
    return cast("Sequence[Sequence[Value]]", found)


class _Names:
    """Names of interned ids, looked up once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[str, int], Value | list[Value]] = {}

    def document(self, row: Row) -> dict[str, object]:
        """An event with names for ids; bytes as hexadecimal text."""
        return {
            name: self._value(name, value)
            for name, value in row.items()
            if value not in (None, "") and not (name.endswith("_units") and value == 0)
        }

    def place(self, key: Sequence[str], place: Sequence[int]) -> dict[str, object]:
        """The key of a cell with names for ids."""
        return {name: self._value(name, value) for name, value in zip(key, place, strict=True)}

    def _value(self, column: str, value: Value) -> object:
        if column not in _NAMES:
            return _plain(value)
        known = (column, _whole(value))
        if known not in self._known:
            table, names = _NAMES[column]
            statement = cast(
                "sa.Select[tuple[object]]", sa.select(*(table.c[name] for name in names))
            )
            found = self._connection.execute(statement.where(table.c.id == value)).one()
            self._known[known] = [_plain(part) for part in cast("Sequence[Value]", found)]
        return self._known[known]


def _plain(value: Value) -> Value:
    return value.hex() if isinstance(value, bytes) else value


def _whole(value: Value) -> int:
    assert value is None or isinstance(value, int)
    return value or 0
