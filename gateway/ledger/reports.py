"""What was spent, by whom and on what: from the roll-ups, summed in Python integers.

Groupings and filters are closed sets; a filter's value is only ever a bound parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.ledger import schema
from gateway.ledger.errors import BadQuery
from gateway.ledger.roll_ups import QUARTER_US, SUM_COLUMNS
from gateway.ledger.views import GroupBy, SpendQuery, SpendReport, SpendRow, SpendSums

FILTERS = frozenset(GroupBy) - {GroupBy.DAY}
_SUM_FIELDS = SpendSums.__struct_fields__
assert len(_SUM_FIELDS) == len(SUM_COLUMNS)


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
    if query.teams is not None:
        needed.add(GroupBy.TEAM)
    is_of_keys = GroupBy.KEY in needed
    if GroupBy.DAY in query.filters:
        raise BadQuery("days are chosen with --from and --to")
    table = schema.rollup_key_qh if is_of_keys else schema.rollup_qh
    names = _names(table)
    selected = [names[name] for name in columns]
    conditions = [
        *_bounds(query, names[GroupBy.DAY]),
        *(names[name] == value for name, value in query.filters.items()),
    ]
    if query.teams is not None:
        conditions.append(schema.team.c.name.in_(query.teams))
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
        GroupBy.DAY: table.c.bucket_us,
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
    query: SpendQuery, bucket: sa.ColumnElement[str | int]
) -> Iterator[sa.ColumnElement[bool]]:
    for bound_us in (query.from_us, query.to_us):
        if bound_us is not None and bound_us % QUARTER_US:
            at = from_microseconds(bound_us).isoformat()
            raise BadQuery(f"{at} is not the beginning of a quarter of an hour")
    if query.from_us is not None and query.to_us is not None and query.from_us >= query.to_us:
        raise BadQuery("--from is not before --to, the first day or instant that is not counted")
    if query.from_us is not None:
        yield bucket >= query.from_us
    if query.to_us is not None:
        yield bucket < query.to_us


def _word(column: str, value: str | int) -> str:
    """A grouping value as text; an instant as its UTC day."""
    if column != GroupBy.DAY:
        return str(value)
    return from_microseconds(int(value)).date().isoformat()
