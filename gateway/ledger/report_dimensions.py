"""What a report is grouped by: as expressions in SQL, and from their numbers back to words."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import cast

import sqlalchemy as sa

from gateway.ledger import cost_tags, report_names, schema
from gateway.ledger.cost_centres import CostCentreBook
from gateway.ledger.grains import DAY_US
from gateway.ledger.report_names import COLUMNS, Words
from gateway.ledger.report_sources import Source
from gateway.ledger.report_time import (
    HOUR_US,
    Calendar,
    Stretch,
    day_label,
    hour_label,
    offset_us,
    period_label,
    stretches,
)
from gateway.ledger.views import COST_TAG, CostCentre, GroupBy

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dimension:
    """One thing that a report is grouped by.

    Attributes:
        name: As in the query.
        width: How many numbers say its value.
        columns: The expressions that give them, made for a table of a source and the instant at
            which a row counts, in microseconds.
        words: From all numbers that occur to what each of them is called.
        needs: The column that not every source has, None for none.
        at: The numbers of an instant, of a time that is cut out of days; None of anything else.
    """

    name: str
    width: int
    columns: Callable[[sa.FromClause, sa.ColumnElement[int]], Sequence[sa.ColumnElement[int]]]
    words: Callable[[sa.Connection, Collection[Numbers]], Mapping[Numbers, Words]]
    needs: str | None = None
    at: Callable[[int], Numbers] | None = None

    def is_in(self, source: Source) -> bool:
        """Whether a source can tell it."""
        return self.needs is None or self.needs in source.fine.c

    def without_value(self) -> Dimension:
        """The same where nothing carries it: 0 for every row."""
        return replace(self, columns=partial(_zeros, self.width))


def plain(by: GroupBy) -> Dimension:
    """A dimension that a column of the source decides."""
    column = COLUMNS[by]

    def words(connection: sa.Connection, used: Collection[Numbers]) -> Mapping[Numbers, Words]:
        word = report_names.words_of(connection, by, {number for (number,) in used})
        return {(number,): word(number) for (number,) in used}

    return Dimension(
        name=by, width=1, columns=lambda table, _at: [table.c[column]], words=words, needs=column
    )


def cost_tag(name: str, *, is_by_set: bool) -> Dimension:
    """The value of one cost tag.

    Args:
        name: Of the tag.
        is_by_set: Whether the source has sets of cost tags; else it has single ones.
    """
    column = "cost_tags_id" if is_by_set else "cost_tag_id"
    return Dimension(
        name=f"{COST_TAG}{name}",
        width=1,
        columns=lambda table, _at: [table.c[column]],
        words=partial(_values_by_set if is_by_set else _values_by_id, name),
        needs=column,
    )


def cost_centre(entries: Sequence[CostCentre]) -> Dimension:
    """The cost centre of a row's project and team."""
    book = CostCentreBook(entries)

    def words(connection: sa.Connection, used: Collection[Numbers]) -> Mapping[Numbers, Words]:
        team = report_names.words_of(connection, GroupBy.TEAM, {one[0] for one in used})
        project = report_names.words_of(connection, GroupBy.PROJECT, {one[1] for one in used})
        return {one: (book.of(team(one[0])[0], project(one[1])[0]),) for one in used}

    return Dimension(
        name=GroupBy.COST_CENTRE,
        width=2,
        columns=lambda table, _at: [table.c.team_id, table.c.project_id],
        words=words,
    )


def time_dimension(unit: GroupBy, calendar: Calendar) -> Dimension:
    """Hours, days, weeks, months or fiscal years of a calendar."""
    if unit is GroupBy.HOUR:
        found = stretches(calendar.zone, calendar.from_us, calendar.to_us)
        return Dimension(
            name=unit, width=2, columns=partial(_hours, found), words=_named(_hour_words)
        )
    if unit is GroupBy.DAY:
        found = stretches(calendar.zone, calendar.from_us, calendar.to_us)
        return Dimension(
            name=unit,
            width=1,
            columns=partial(_days, found),
            words=_named(_day_words),
            at=lambda at_us: ((at_us + offset_us(found, at_us)) // DAY_US,),
        )
    boundaries = calendar.boundaries(unit)
    labels = [period_label(unit, first) for first in calendar.starts(unit)]
    return Dimension(
        name=unit,
        width=1,
        columns=partial(_periods, boundaries),
        words=_named(lambda numbers: labels[numbers[0]]),
        at=lambda at_us: (bisect_right(boundaries, at_us),),
    )


def _named(
    label: Callable[[Numbers], str],
) -> Callable[[sa.Connection, Collection[Numbers]], Mapping[Numbers, Words]]:
    return lambda _connection, used: {numbers: (label(numbers),) for numbers in used}


def _hour_words(numbers: Numbers) -> str:
    return hour_label(numbers[0], numbers[1])


def _day_words(numbers: Numbers) -> str:
    return day_label(numbers[0])


def _periods(
    boundaries: Sequence[int], table: sa.FromClause, at_us: sa.ColumnElement[int]
) -> list[sa.ColumnElement[int]]:
    if not boundaries:
        return [_constant(table, 0)]
    return [_place(at_us, boundaries, 0, len(boundaries))]


def _hours(
    found: Sequence[Stretch], table: sa.FromClause, at_us: sa.ColumnElement[int]
) -> list[sa.ColumnElement[int]]:
    offset = _offset(found, table, at_us)
    return [(at_us + offset) // HOUR_US, offset]


def _days(
    found: Sequence[Stretch], table: sa.FromClause, at_us: sa.ColumnElement[int]
) -> list[sa.ColumnElement[int]]:
    return [(at_us + _offset(found, table, at_us)) // DAY_US]


def _offset(
    found: Sequence[Stretch], table: sa.FromClause, at_us: sa.ColumnElement[int]
) -> sa.ColumnElement[int]:
    """Local time less UTC of an instant."""
    if len(found) == 1:
        return _constant(table, found[0].offset_us)
    whens = [
        (at_us < _number(after.start_us), _number(one.offset_us)) for one, after in pairwise(found)
    ]
    return sa.case(*whens, else_=_number(found[-1].offset_us))


def _place(
    at: sa.ColumnElement[int], boundaries: Sequence[int], low: int, high: int
) -> sa.ColumnElement[int]:
    """How many of some sorted boundaries are not after an instant, by halving."""
    if low == high:
        return _number(low)
    middle = (low + high) // 2
    return sa.case(
        (at < _number(boundaries[middle]), _place(at, boundaries, low, middle)),
        else_=_place(at, boundaries, middle + 1, high),
    )


def _zeros(
    width: int, table: sa.FromClause, _at: sa.ColumnElement[int]
) -> list[sa.ColumnElement[int]]:
    return [_constant(table, 0)] * width


def _constant(table: sa.FromClause, value: int) -> sa.ColumnElement[int]:
    """A number that is the same for every row, as an expression.

    A plain number in GROUP BY would be the place of a column.
    """
    return sa.type_coerce(table.c.status, sa.BigInteger) * _number(0) + _number(value)


def _number(value: int) -> sa.ColumnElement[int]:
    """A number of ours, written out: PostgreSQL does not guess its type then."""
    return sa.literal_column(str(value), sa.BigInteger)


def _values_by_id(
    name: str, connection: sa.Connection, used: Collection[Numbers]
) -> Mapping[Numbers, Words]:
    table = schema.cost_tag
    wanted = sa.select(table.c.id, table.c.value).where(table.c.name == name)
    rows = cast("Sequence[tuple[int, str]]", connection.execute(wanted).all())
    found: dict[Numbers, Words] = {(id_,): (value,) for id_, value in rows}
    return {numbers: found.get(numbers, ("",)) for numbers in used}


def _values_by_set(
    name: str, connection: sa.Connection, used: Collection[Numbers]
) -> Mapping[Numbers, Words]:
    found: dict[Numbers, Words] = {
        (set_id,): (value,)
        for set_id, tags in cost_tags.load_pairs(connection, {number for (number,) in used})
        for _, value in cost_tags.of_names(tags, {name})
    }
    return {numbers: found.get(numbers, ("",)) for numbers in used}
