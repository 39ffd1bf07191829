"""What was spent, by whom and on what: from the roll-ups, summed in Python integers.

Groupings and filters are closed sets; a filter's value is only ever a bound parameter. Reports by
key come from daily sums, all others from quarter-hours, so that any time zone's days are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import starmap
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.booking import DAY_US, QUARTER_US, SUM_COLUMNS
from gateway.ledger.columns import from_microseconds
from gateway.ledger.errors import BadQuery
from pricing.money import format_usd


class GroupBy(StrEnum):
    """What a report has a row for."""

    TEAM = "team"
    PROJECT = "project"
    MODEL = "model"
    DEPLOYMENT = "deployment"
    KEY = "key"
    DAY = "day"


FILTERS = frozenset(GroupBy) - {GroupBy.DAY}
_OF_KEYS = frozenset({GroupBy.KEY, GroupBy.DAY, GroupBy.TEAM, GroupBy.DEPLOYMENT})
"""What daily sums by key can tell."""


class SpendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which report is wanted.

    Attributes:
        group_by: One or more dimensions, in the order of the columns.
        from_us: First instant, microseconds since the epoch; None for the beginning.
        to_us: First instant after the last; None for no end.
        filters: Exact values by dimension; `day` is not among them.
    """

    group_by: tuple[GroupBy, ...] = (GroupBy.TEAM,)
    from_us: int | None = None
    to_us: int | None = None
    filters: dict[GroupBy, str] = {}


class SpendSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of one row. Token meters are disjoint: `input_tokens` are fresh ones.

    Attributes:
        requests: Requests, counted where their first attempt went.
        attempts: Calls to deployments, failed ones included.
        unpriced_attempts: Attempts whose price is unknown; they are not in the cost.
        input_tokens: Neither read from nor written to a cache.
        cached_input_tokens: Read from a cache.
        cache_write_tokens: Written to a cache at a rate of their own.
        output_tokens: Generated, reasoning included unless billed apart.
        reasoning_tokens: Reasoning billed apart.
        images: Generated images.
        audio_ms: Milliseconds of audio.
        gpu_us: Busy microseconds of our machines.
        billed_requests: Requests billed by number.
        cost_pico_usd: What was booked.
        estimated_cost_pico_usd: The part of it whose counts are not the upstream's own.
        nominal_cost_pico_usd: The part of it at a nominal machine rate.
        exposure_pico_usd: Upper bound of attempts whose bill is unknown; not in the cost.
    """

    requests: int
    attempts: int
    unpriced_attempts: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    images: int
    audio_ms: int
    gpu_us: int
    billed_requests: int
    cost_pico_usd: int
    estimated_cost_pico_usd: int
    nominal_cost_pico_usd: int
    exposure_pico_usd: int


_SUM_FIELDS = SpendSums.__struct_fields__
assert len(_SUM_FIELDS) == len(SUM_COLUMNS)


class SpendRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row: the values of the grouping, in its order, and the sums."""

    group: tuple[str, ...]
    sums: SpendSums


class SpendReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report: rows by falling cost, days ascending, and their total.

    Attributes:
        columns: Names of the grouping; a project's row also names its team.
        rows: Groups with at least one attempt.
        total: The sum of the rows.
    """

    columns: tuple[str, ...]
    rows: tuple[SpendRow, ...]
    total: SpendSums


def spend_report(connection: sa.Connection, query: SpendQuery) -> SpendReport:
    """Sum the ledger's roll-ups.

    Raises:
        BadQuery: The grouping, the filters or the bounds have no meaning together.
    """
    columns = _columns(query.group_by)
    cells: dict[tuple[str, ...], list[int]] = {}
    total = [0] * len(SUM_COLUMNS)
    for group, amounts in _read(connection, query, columns):
        cell = cells.setdefault(group, [0] * len(SUM_COLUMNS))
        for index, amount in enumerate(amounts):
            cell[index] += amount
            total[index] += amount
    rows = [SpendRow(group=group, sums=_sums(cell)) for group, cell in cells.items() if any(cell)]
    day_at = columns.index(GroupBy.DAY) if GroupBy.DAY in columns else None
    rows.sort(
        key=lambda row: (
            "" if day_at is None else row.group[day_at],
            -row.sums.cost_pico_usd,
            row.group,
        )
    )
    return SpendReport(columns=columns, rows=tuple(rows), total=_sums(total))


def report_document(report: SpendReport) -> dict[str, object]:
    """The report as `spend report --format json` prints it: amounts as strings and integers."""
    return {
        "rows": [
            {**dict(zip(report.columns, row.group, strict=True)), **sums_document(row.sums)}
            for row in report.rows
        ],
        "total": sums_document(report.total),
    }


def sums_document(sums: SpendSums) -> dict[str, int | str]:
    """Sums by name, each amount both exact in dollars, as a string, and in picodollars."""
    document: dict[str, int | str] = {}
    for name, value in cast("dict[str, int]", msgspec.structs.asdict(sums)).items():
        if name.endswith("_pico_usd"):
            document[f"{name.removesuffix('_pico_usd')}_usd"] = format_usd(value)
        document[name] = value
    return document


def _sums(amounts: Sequence[int]) -> SpendSums:
    return msgspec.convert(dict(zip(_SUM_FIELDS, amounts, strict=True)), SpendSums)


def _columns(group_by: Sequence[GroupBy]) -> tuple[str, ...]:
    """Column names; a project's name is only unique within its team, which goes with it."""
    if not group_by:
        raise BadQuery("a report needs at least one of " + ", ".join(GroupBy))
    names: list[str] = []
    for one in group_by:
        if one is GroupBy.PROJECT and GroupBy.TEAM not in group_by:
            names.append(GroupBy.TEAM)
        names.append(one)
    if len(set(names)) < len(names):
        raise BadQuery("a report cannot be grouped twice by the same thing")
    return tuple(names)


def _read(
    connection: sa.Connection, query: SpendQuery, columns: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Sequence[int]]]:
    """Cells of the roll-up with the names of their group."""
    needed = {GroupBy(name) for name in columns} | query.filters.keys()
    is_of_keys = GroupBy.KEY in needed
    if GroupBy.DAY in query.filters:
        raise BadQuery("days are chosen with --from and --to")
    if is_of_keys and not needed <= _OF_KEYS:
        odd = ", ".join(sorted(needed - _OF_KEYS))
        raise BadQuery(f"spend by key is kept by day, team and deployment, not by {odd}")
    table, bucket_us = (schema.rollup_day, DAY_US) if is_of_keys else (schema.rollup_qh, QUARTER_US)
    names = _names(table)
    selected = [names[name] for name in columns]
    conditions = [
        *_bounds(query, names[GroupBy.DAY], bucket_us),
        *(names[name] == value for name, value in query.filters.items()),
    ]
    columns_read: list[sa.ColumnElement[str | int]] = [
        *selected,
        *(table.c[name] for name in SUM_COLUMNS),
    ]
    statement: sa.Select[*tuple[Any, ...]] = sa.select(*columns_read)
    found = connection.execute(statement.select_from(_joined(table, needed)).where(*conditions))
    width = len(columns)
    for values in cast("Iterator[Sequence[str | int]]", found):
        group = tuple(starmap(_word, zip(columns, values[:width], strict=True)))
        yield group, cast("Sequence[int]", values[width:])


def _names(table: sa.Table) -> Mapping[str, sa.ColumnElement[str | int]]:
    """Where each dimension's value is found."""
    return {
        GroupBy.TEAM: schema.team.c.name,
        GroupBy.PROJECT: schema.project.c.name,
        GroupBy.MODEL: schema.model.c.name,
        GroupBy.DEPLOYMENT: schema.deployment.c.name,
        GroupBy.KEY: schema.api_key_name.c.key_id,
        GroupBy.DAY: table.c.day_us if table is schema.rollup_day else table.c.bucket_us,
    }


def _joined(table: sa.Table, needed: set[GroupBy]) -> sa.FromClause:
    dimensions = {
        GroupBy.TEAM: (schema.team, "team_id"),
        GroupBy.PROJECT: (schema.project, "project_id"),
        GroupBy.MODEL: (schema.model, "model_id"),
        GroupBy.DEPLOYMENT: (schema.deployment, "deployment_id"),
        GroupBy.KEY: (schema.api_key_name, "key_id"),
    }
    joined: sa.FromClause = table
    for name, (dimension, column) in dimensions.items():
        if name in needed:
            joined = joined.join(dimension, dimension.c.id == table.c[column])
    return joined


def _bounds(
    query: SpendQuery, bucket: sa.ColumnElement[str | int], bucket_us: int
) -> Iterator[sa.ColumnElement[bool]]:
    unit = "a UTC day" if bucket_us == DAY_US else "a quarter of an hour"
    for bound_us in (query.from_us, query.to_us):
        if bound_us is not None and bound_us % bucket_us:
            at = from_microseconds(bound_us).isoformat()
            raise BadQuery(f"{at} is not the beginning of {unit}")
    if query.from_us is not None:
        yield bucket >= query.from_us
    if query.to_us is not None:
        yield bucket < query.to_us


def _word(column: str, value: str | int) -> str:
    """A grouping value as text; an instant as its UTC day."""
    if column != GroupBy.DAY:
        return str(value)
    return from_microseconds(int(value)).date().isoformat()
