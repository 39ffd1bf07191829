"""Where the sums of a report are read, and the SQL that adds them up.

Whatever the source, it looks like a roll-up: a time, dimensions, and columns that add up. Events
are brought into that form, so that a report that no roll-up can answer, and the check of the
roll-ups, go through the same addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from gateway.ledger import schema
from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES, InstantUs, PicoTotal
from gateway.ledger.dialects import is_postgresql
from gateway.ledger.errors import BadQuery
from gateway.ledger.price_label import NOMINAL
from gateway.ledger.records import AttemptStatus
from gateway.ledger.report_time import Cuts, Piece
from gateway.ledger.roll_ups import SUM_COLUMNS
from pricing.usage import Quality

ROWS_MAX = 100_000
"""Groups of one report; more are refused before they are in memory."""
ADDED = (
    *SUM_COLUMNS,
    "failed_pico_usd",
    "saved_pico_usd",
    "compared_failed_pico_usd",
    "baseline_estimated_pico_usd",
)
"""What `add_up` gives per group, in this order."""
_Row = Sequence[int]
_LOW_BITS = 32
_PIECES_MAX = 1_000
"""In one question; each has three parameters, of which a statement has 32,767 at most."""
_CERTAIN = (QUALITY_CODES[Quality.EXACT], QUALITY_CODES[Quality.PROVIDER_COST])


class epoch_us(sa.sql.expression.FunctionElement[int]):  # noqa: N801, the name of an SQL function
    """An instant as microseconds since the epoch, on either database."""

    type = sa.BigInteger()
    inherit_cache = True


def _compile_plain(element: epoch_us, compiler: SQLCompiler, **options: object) -> str:
    return compiler.process(element.clauses, **options)


def _compile_native(element: epoch_us, compiler: SQLCompiler, **options: object) -> str:
    inner = compiler.process(element.clauses, **options)
    return f"CAST(EXTRACT(EPOCH FROM {inner}) * 1000000 AS BIGINT)"


compiles(epoch_us)(_compile_plain)
compiles(epoch_us, "postgresql")(_compile_native)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A table of sums, or events that look like one.

    Attributes:
        fine: By quarter-hour, or by event.
        coarse: The same by UTC day; None where there is none.
        of: The column that its family is of; None for everything.
    """

    fine: sa.FromClause
    coarse: sa.FromClause | None
    of: str | None = None


EVERYTHING = Source(fine=schema.rollup_qh, coarse=schema.rollup_day)
KEYS = Source(fine=schema.rollup_key_qh, coarse=schema.rollup_key_day, of="key_id")
COST_TAGS = Source(fine=schema.rollup_tag_qh, coarse=schema.rollup_tag_day, of="cost_tag_id")


def events() -> Source:
    """Every attempt by its highest entry; also by key and by set of cost tags."""
    event = schema.spend_event
    later = event.alias("later")
    is_superseded = sa.exists().where(
        later.c.event_id == event.c.event_id, later.c.entry > event.c.entry
    )
    columns: list[sa.ColumnElement[Any]] = [
        event.c.at_us.label("bucket_us"),
        event.c.key_id,
        event.c.cost_tags_id,
        *(event.c[name] for name in schema.ROLL_UP_DIMENSIONS),
        *(event.c[name] for name in schema.ROLL_UP_CODES),
        *(expression.label(name) for name, expression in _sums_of(event).items()),
    ]
    statement = cast("sa.Select[tuple[object]]", sa.select(*columns))
    return Source(fine=statement.where(~is_superseded).subquery("e"), coarse=None)


def _sums_of(event: sa.Table) -> dict[str, sa.ColumnElement[int]]:
    """What an event adds to each column of a roll-up, in SQL; `roll_ups.sums` says it in Python."""
    zero = sa.literal_column("0", sa.BigInteger)
    cost = sa.func.coalesce(event.c.cost_pico_usd, zero)
    is_unknown = sa.or_(
        event.c.status == STATUS_CODES[AttemptStatus.UNKNOWN_BILLING],
        event.c.quality == QUALITY_CODES[Quality.UNKNOWN],
    )
    is_compared = event.c.baseline_cost_pico_usd.is_not(None)
    is_nominal = sa.func.substr(event.c.price_version, 1, len(NOMINAL)) == NOMINAL
    found = {
        "request_count": _one_if(event.c.attempt == 1),
        "attempt_count": sa.literal_column("1", sa.BigInteger),
        "unpriced_count": _one_if(event.c.cost_pico_usd.is_(None)),
        "list_cost_count": _one_if(event.c.list_cost_pico_usd.is_not(None)),
        "provider_cost_count": _one_if(event.c.provider_cost_pico_usd.is_not(None)),
        "exposure_unknown_count": _one_if(sa.and_(is_unknown, event.c.exposure_pico_usd.is_(None))),
        "compared_count": _one_if(is_compared),
        "uncompared_count": _one_if(sa.and_(event.c.baseline.is_not(None), ~is_compared)),
        **{name: event.c[name] for name in schema.UNITS},
        "cost_pico_usd": cost,
        "list_cost_pico_usd": sa.func.coalesce(
            event.c.list_cost_pico_usd, event.c.cost_pico_usd, zero
        ),
        "provider_cost_pico_usd": sa.func.coalesce(event.c.provider_cost_pico_usd, zero),
        "estimated_pico_usd": sa.case((event.c.quality.in_(_CERTAIN), zero), else_=cost),
        "nominal_pico_usd": sa.case((is_nominal, cost), else_=zero),
        "exposure_pico_usd": sa.func.coalesce(event.c.exposure_pico_usd, zero),
        "cache_saved_pico_usd": sa.func.coalesce(event.c.cache_saved_pico_usd, zero),
        "baseline_cost_pico_usd": sa.func.coalesce(event.c.baseline_cost_pico_usd, zero),
        "compared_cost_pico_usd": sa.case((is_compared, cost), else_=zero),
    }
    assert tuple(found) == SUM_COLUMNS
    return found


def _one_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.case((condition, 1), else_=0)


class Part(NamedTuple):
    """What is read of one table at once.

    Attributes:
        table: Of a `Source`.
        conditions: Its rows.
        is_whole: Whether they are UTC days, which count where their noon is.
    """

    table: sa.FromClause
    conditions: list[sa.ColumnElement[bool]]
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """What of a source's time is added up.

    Attributes:
        from_us: First instant, None for the beginning.
        to_us: First instant after the last, None for no end.
        cuts: How it is made of UTC days and pieces of days; None reads quarter-hours throughout.
    """

    from_us: int | None
    to_us: int | None
    cuts: Cuts | None

    def parts(self, source: Source) -> list[Part]:
        """The tables to read and what of each, apart from the pieces."""
        if self.cuts is None or source.coarse is None:
            return [Part(source.fine, _within(source.fine, self.from_us, self.to_us))]
        if not self.cuts.has_days():
            return []
        days = _within(source.coarse, self.cuts.first_us, self.cuts.last_us)
        return [Part(source.coarse, days, is_whole=True)]

    def pieces(self, source: Source) -> Sequence[Piece]:
        """What is read of the finer table beside, each on its own."""
        return () if self.cuts is None or source.coarse is None else self.cuts.pieces


def _within(
    table: sa.FromClause, from_us: int | None, to_us: int | None
) -> list[sa.ColumnElement[bool]]:
    bounds: list[sa.ColumnElement[bool]] = []
    if from_us is not None:
        bounds.append(table.c.bucket_us >= from_us)
    if to_us is not None:
        bounds.append(table.c.bucket_us < to_us)
    return bounds


Added = dict[tuple[int, ...], list[int]]
"""Sums in the order of `ADDED`, by the values of the grouping columns."""


def add_up(
    connection: sa.Connection,
    table: sa.FromClause,
    grouping: Sequence[sa.ColumnElement[int]],
    conditions: Sequence[sa.ColumnElement[bool]],
    into: Added,
) -> None:
    """Add up what matches, in SQL, exactly, and add the sums to those of other tables.

    Args:
        connection: In a transaction.
        table: Of a `Source`.
        grouping: What each group has in common; at least one.
        conditions: What is added up.
        into: Changed in place.

    Raises:
        BadQuery: There are more than `ROWS_MAX` groups.
    """
    columns = list(_added_columns(table).values())
    found = exact_sums(connection, grouping, columns, conditions, rows_max=ROWS_MAX + 1)
    width = len(grouping)
    for values in found:
        add_to(into, tuple(map(int, values[:width])), list(map(int, values[width:])))
    check_size(into)


def check_size(added: Added) -> None:
    """Raise `BadQuery` when there are more than `ROWS_MAX` groups."""
    if len(added) > ROWS_MAX:
        raise BadQuery(
            f"the report would have more than {ROWS_MAX:,} rows; ask for a shorter time, or by"
            " fewer things"
        )


def add_up_pieces(
    connection: sa.Connection,
    table: sa.FromClause,
    pieces: Sequence[Piece],
    grouping: Sequence[sa.ColumnElement[int]],
    conditions: Sequence[sa.ColumnElement[bool]],
) -> Iterator[tuple[Piece, tuple[int, ...], list[int]]]:
    """Add up each of some pieces of days on its own, like `add_up`.

    Each is a range of the primary key. One list of all their quarter-hours would be a scan of the
    whole table to PostgreSQL, and what part of a group a row is in would be sorted by SQLite.

    Args:
        connection: In a transaction.
        table: By quarter-hour.
        pieces: Which of its times.
        grouping: What each group has in common within a piece; nothing for one group.
        conditions: What else is added up.

    Yields:
        Piece, values of the grouping, sums.
    """
    width = len(grouping)
    read = _rows_at_once if is_postgresql(connection) else _rows_one_by_one
    for start in range(0, len(pieces), _PIECES_MAX):
        some = pieces[start : start + _PIECES_MAX]
        for n, row in read(connection, table, some, grouping, conditions):
            # Without a grouping there is a row, of nulls, of a piece that holds nothing, too.
            if any(sums := [int(one or 0) for one in row[width:]]):
                yield some[n], tuple(map(int, row[:width])), sums


def _rows_one_by_one(
    connection: sa.Connection,
    table: sa.FromClause,
    pieces: Sequence[Piece],
    grouping: Sequence[sa.ColumnElement[int]],
    conditions: Sequence[sa.ColumnElement[bool]],
) -> Iterator[tuple[int, _Row]]:
    """The place of each piece with its rows as `exact_sums` has them, in one question for each."""
    columns = list(_added_columns(table).values())
    # One statement for all of them: to make it takes longer than a piece does.
    start, end = (sa.bindparam(name, type_=InstantUs()) for name in ("from_us", "to_us"))
    within = [*conditions, table.c.bucket_us >= start, table.c.bucket_us < end]
    sums_of = _summing(connection, grouping, columns, within, ROWS_MAX + 1)
    for n, piece in enumerate(pieces):
        for row in sums_of({"from_us": piece.from_us, "to_us": piece.to_us}):
            yield n, row


def _rows_at_once(
    connection: sa.Connection,
    table: sa.FromClause,
    pieces: Sequence[Piece],
    grouping: Sequence[sa.ColumnElement[int]],
    conditions: Sequence[sa.ColumnElement[bool]],
) -> Iterator[tuple[int, _Row]]:
    """The same in one question for all of them, to PostgreSQL, unless that is too much at once."""
    piece = sa.values(
        sa.column("n", sa.Integer),
        sa.column("from_us", InstantUs()),
        sa.column("to_us", InstantUs()),
        name="piece",
    ).data([(n, one.from_us, one.to_us) for n, one in enumerate(pieces)])
    at, columns = table.c.bucket_us, list(_added_columns(table).values())
    within = [*conditions, at >= piece.c.from_us, at < piece.c.to_us]
    sums = _selected(grouping, columns, within, is_split=False).lateral("sums")
    statement = cast("sa.Select[tuple[object]]", sa.select(piece.c.n, *sums.c))
    statement = statement.select_from(piece.join(sums, sa.true())).limit(ROWS_MAX + 1)
    found = cast("Sequence[_Row]", connection.execute(statement).all())
    if len(found) > ROWS_MAX:  # a group is in many pieces, so these may be no more groups than that
        yield from _rows_one_by_one(connection, table, pieces, grouping, conditions)
        return
    for n, *values in found:
        yield n, values


def add_to(into: Added, group: tuple[int, ...], sums: list[int], *, sign: int = 1) -> None:
    """Add to a group's sums, or take from them with `sign` -1."""
    known = into.get(group)
    if known is None:
        known = [0] * len(sums)
    into[group] = [a + sign * b for a, b in zip(known, sums, strict=True)]


def exact_sums(
    connection: sa.Connection,
    grouping: Sequence[sa.ColumnElement[int]],
    columns: Sequence[sa.ColumnElement[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
    *,
    rows_max: int | None = None,
) -> Sequence[Sequence[int]]:
    """Sums of columns by group, whatever their size: the values of the grouping, then the sums."""
    return _summing(connection, grouping, columns, conditions, rows_max)({})


def _summing(
    connection: sa.Connection,
    grouping: Sequence[sa.ColumnElement[int]],
    columns: Sequence[sa.ColumnElement[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
    rows_max: int | None,
) -> Callable[[Mapping[str, int]], Sequence[_Row]]:
    """`exact_sums` for any values of parameters that the conditions have."""

    def statement(*, is_split: bool) -> sa.Select[tuple[object]]:
        return _selected(grouping, columns, conditions, is_split=is_split).limit(rows_max)

    whole = statement(is_split=False)

    def sums_of(parameters: Mapping[str, int]) -> Sequence[_Row]:
        try:
            return cast("Sequence[_Row]", connection.execute(whole, parameters).all())
        except DatabaseError as error:
            # SQLite refuses a sum beyond 64 bits; halves of the numbers cannot reach it.
            if "integer overflow" not in str(error.orig):
                raise
        halves = connection.execute(statement(is_split=True), parameters).all()
        return [_joined(row, len(grouping)) for row in cast("Sequence[_Row]", halves)]

    return sums_of


def _selected(
    grouping: Sequence[sa.ColumnElement[int]],
    columns: Sequence[sa.ColumnElement[Any]],
    conditions: Sequence[sa.ColumnElement[bool]],
    *,
    is_split: bool,
) -> sa.Select[tuple[object]]:
    labels = [column.label(f"g{index}") for index, column in enumerate(grouping)]
    sums: list[sa.ColumnElement[Any]] = []
    for column in columns:
        sums += _halves(column) if is_split else [sa.func.sum(column)]
    statement = cast("sa.Select[tuple[object]]", sa.select(*labels, *sums))
    return statement.where(*conditions).group_by(*labels)


def _added_columns(table: sa.FromClause) -> Mapping[str, sa.ColumnElement[Any]]:
    columns: dict[str, sa.ColumnElement[Any]] = {name: table.c[name] for name in SUM_COLUMNS}
    is_failed = table.c.status != STATUS_CODES[AttemptStatus.OK]
    zero = sa.literal_column("0", PicoTotal())
    baseline, compared = table.c.baseline_cost_pico_usd, table.c.compared_cost_pico_usd
    columns["failed_pico_usd"] = sa.case((is_failed, table.c.cost_pico_usd), else_=zero)
    columns["saved_pico_usd"] = baseline - compared
    columns["compared_failed_pico_usd"] = sa.case((is_failed, compared), else_=zero)
    is_certain = table.c.quality.in_(_CERTAIN)
    columns["baseline_estimated_pico_usd"] = sa.case((is_certain, zero), else_=baseline)
    return columns


def _halves(column: sa.ColumnElement[Any]) -> list[sa.ColumnElement[Any]]:
    """The sums of the high and of the low bits; two's complement keeps the sign in the high."""
    plain = sa.type_coerce(column, sa.BigInteger)
    low = plain.op("&")(2**_LOW_BITS - 1)
    return [sa.func.sum(plain.op(">>")(_LOW_BITS)), sa.func.sum(low)]


def _joined(row: Sequence[int], width: int) -> Sequence[int]:
    sums = row[width:]
    joined = [(high << _LOW_BITS) + low for high, low in zip(sums[::2], sums[1::2], strict=True)]
    return [*row[:width], *joined]
