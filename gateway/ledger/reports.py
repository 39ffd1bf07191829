"""What was spent, by whom and on what: from the roll-ups, added up in SQL.

Groupings and filters are closed sets; a filter's value is only ever a bound parameter. Each
question is answered from the coarsest sums that can tell: UTC days wherever none of the report's
boundaries falls inside one, quarter-hours elsewhere; the sums of everything, of keys, or of cost
tags. Only what none of them can tell, such as one key's spend by cost tag, is read from events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from fractions import Fraction
from itertools import islice, product
from typing import TypeVar, cast

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.ledger import cost_tags, report_names, schema
from gateway.ledger.errors import BadQuery
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.report_dimensions import (
    Dimension,
    cost_centre,
    cost_tag,
    plain,
    time_dimension,
)
from gateway.ledger.report_sources import (
    ADDED,
    COST_TAGS,
    EVERYTHING,
    KEYS,
    Added,
    Source,
    TimeRange,
    add_to,
    add_up,
    add_up_pieces,
    check_size,
    epoch_us,
    events,
)
from gateway.ledger.report_time import HALF_DAY_US, Calendar, Cuts, Piece, cut_range, zone_of
from gateway.ledger.views import (
    AMOUNTS,
    COST_TAG,
    TIMES,
    USD,
    GroupBy,
    SpendQuery,
    SpendReport,
    SpendRow,
    SpendSums,
    is_dimension,
)

EVENT_DAYS_MAX = 93
"""Longest range that is read from single events."""
_FIELDS = SpendSums.__struct_fields__
assert len(_FIELDS) == len(ADDED)
_AMOUNTS_AT = tuple(_FIELDS.index(name) for name in AMOUNTS)

_Number = TypeVar("_Number", int, Fraction)
Group = tuple[str, ...]
Conditions = list[sa.ColumnElement[bool]]


def spend_report(connection: sa.Connection, query: SpendQuery) -> SpendReport:
    """Sum the ledger.

    Raises:
        BadQuery: The grouping, the filters or the bounds have no meaning together, or a day that
            has to be converted has no exchange rate.
    """
    asked = _Asked(query)
    calendar = asked.calendar(connection)
    cells = _Cells(query)
    if calendar is not None or not asked.times:
        reading = _Reading(connection, asked, calendar)
        added = reading.added()
        cells.fill(added, reading.dimensions, reading.words(added), asked.filters)
    return cells.report(asked.columns)


class _Asked:
    """A query whose parts have a meaning together.

    Raises:
        BadQuery: They have none.
    """

    def __init__(self, query: SpendQuery) -> None:
        self.query = query
        self.columns = _columns(query.group_by)
        self.times = [GroupBy(name) for name in self.columns if name in TIMES]
        self.filters = {
            str(name): (values,) if isinstance(values, str) else tuple(values)
            for name, values in query.filters.items()
        }
        self.zone = zone_of(query.zone)
        _check_bounds(query)
        for name, values in self.filters.items():
            if not is_dimension(name):
                raise BadQuery(f"{name!r} is nothing that a report can be filtered by")
            if name in TIMES:
                raise BadQuery(f"{name}s are chosen with --from and --to")
            if not values:
                raise BadQuery(f"the filter {name} has no value")
        self.tags = sorted(
            {
                name.removeprefix(COST_TAG)
                for name in (*self.columns, *self.filters)
                if name.startswith(COST_TAG)
            }
        )
        self.has_key = GroupBy.KEY in (*self.columns, *self.filters)

    def calendar(self, connection: sa.Connection) -> Calendar | None:
        """The range and its zone; None when it has no end of its own and nothing is in the ledger.

        Without bounds it ends where the ledger does.
        """
        from_us, to_us = self.query.from_us, self.query.to_us
        if self.times and (from_us is None or to_us is None):
            held = _held_days(connection)
            if held is None:
                return None
            from_us = held[0] if from_us is None else from_us
            to_us = held[1] + DAY_US if to_us is None else to_us
        if from_us is None or to_us is None or from_us >= to_us:
            return None
        return Calendar(
            from_us=from_us, to_us=to_us, zone=self.zone, fiscal_month=self.query.fiscal_month
        )

    def source(self, connection: sa.Connection) -> Source:
        """The coarsest sums that can tell; events where no sums can.

        Raises:
            BadQuery: A cost tag has no sums, or the range is too long for events.
        """
        listed = cost_tags.load_listed(connection, is_locked=False)
        for name in self.tags:
            if name not in listed:
                raise BadQuery(
                    f"the cost tag {name!r} has no sums; name it in finance.cost_tags"
                    f" (there are: {', '.join(listed) or 'none'})"
                )
        if not self.tags:
            return KEYS if self.has_key else EVERYTHING
        if len(self.tags) == 1 and not self.has_key:
            return COST_TAGS
        query = self.query
        longest_us = EVENT_DAYS_MAX * DAY_US
        if query.from_us is None or query.to_us is None or query.to_us - query.from_us > longest_us:
            raise BadQuery(
                "several cost tags, or a key and a cost tag, are added up event by event: give"
                f" --from and --to at most {EVENT_DAYS_MAX} days apart"
            )
        return events()


def _held_days(connection: sa.Connection) -> tuple[int, int] | None:
    """The first and the last UTC day with an attempt; None of an empty ledger."""
    days = schema.rollup_day.c.bucket_us
    first_us, last_us = (
        cast("int | None", connection.execute(sa.select(days).order_by(end).limit(1)).scalar())
        for end in (days.asc(), days.desc())
    )
    return None if first_us is None or last_us is None else (first_us, last_us)


def _columns(group_by: Sequence[str]) -> tuple[str, ...]:
    """Column names; a project's name is only unique within its team, which goes with it."""
    if not group_by:
        raise BadQuery("a report needs at least one of " + ", ".join(GroupBy))
    names: list[str] = []
    for one in group_by:
        if not is_dimension(one):
            raise BadQuery(f"{one!r} is none of {', '.join(GroupBy)}, {COST_TAG}<name>")
        if one == GroupBy.PROJECT and GroupBy.TEAM not in group_by:
            names.append(GroupBy.TEAM)
        names.append(str(one))
    if len(set(names)) < len(names):
        raise BadQuery("a report cannot be grouped twice by the same thing")
    return tuple(names)


def _check_bounds(query: SpendQuery) -> None:
    for bound_us in (query.from_us, query.to_us):
        if bound_us is not None and bound_us % QUARTER_US:
            at = from_microseconds(bound_us).isoformat()
            raise BadQuery(f"{at} is not the beginning of a quarter of an hour")
    if query.from_us is not None and query.to_us is not None and query.from_us >= query.to_us:
        raise BadQuery("--from is not before --to, the first day or instant that is not counted")


_ConditionsOf = Callable[[sa.FromClause], Conditions]


class _Reading:
    """Reads what was asked for, as sums by numbers.

    Args:
        connection: In a transaction.
        asked: The question.
        calendar: Its range; None where it has no bounds and no time is grouped by.
    """

    def __init__(self, connection: sa.Connection, asked: _Asked, calendar: Calendar | None) -> None:
        self._connection = connection
        self._asked = asked
        self._source = asked.source(connection)
        self._calendar = calendar
        self._is_converted = asked.query.currency != USD
        hidden = [name for name in asked.filters if _is_known_in_words(name)]
        names = (*asked.columns, *(name for name in hidden if name not in asked.columns))
        self.dimensions = [self._dimension(name) for name in names]
        self._time = TimeRange(
            from_us=asked.query.from_us, to_us=asked.query.to_us, cuts=self._cuts()
        )

    def words(self, added: Added) -> list[Mapping[tuple[int, ...], tuple[str, ...]]]:
        """What each dimension's numbers are in words."""
        found: list[Mapping[tuple[int, ...], tuple[str, ...]]] = []
        start = 0
        for one in self.dimensions:
            used = {key[start : start + one.width] for key in added}
            found.append(one.words(self._connection, used))
            start += one.width
        return found

    def added(self) -> Added:
        """Sums by the numbers of all dimensions, and by UTC day where amounts are converted."""
        conditions = self._conditions
        if self._source is not COST_TAGS:
            return self._read(self._source, self.dimensions, conditions)
        (tag,) = self._asked.tags
        values = self._asked.filters.get(f"{COST_TAG}{tag}")
        is_rest_wanted = values is None or "" in values
        ids = _tag_ids(self._connection, tag, None if is_rest_wanted else values)
        added = self._read(
            COST_TAGS,
            self.dimensions,
            lambda table: [*conditions(table), table.c.cost_tag_id.in_(ids)],
        )
        if is_rest_wanted:
            self._add_rest(added)
        return added

    def _add_rest(self, added: Added) -> None:
        """What does not carry the tag, in no sum of it: everything less what does."""
        dimensions = [
            one if one.is_in(EVERYTHING) else one.without_value() for one in self.dimensions
        ]
        rest = self._read(EVERYTHING, dimensions, self._conditions)
        places = [
            place
            for start, one in _starts(self.dimensions)
            if not one.is_in(EVERYTHING)
            for place in range(start, start + one.width)
        ]
        for key, sums in added.items():
            without = tuple(0 if place in places else value for place, value in enumerate(key))
            rest[without] = [a - b for a, b in zip(rest[without], sums, strict=True)]
        added.update(rest)

    def _read(
        self,
        source: Source,
        dimensions: Sequence[Dimension],
        conditions: _ConditionsOf,
    ) -> Added:
        added: Added = {}
        for part in self._time.parts(source):
            table = part.table
            at_us = epoch_us(table.c.bucket_us)
            counted_us = at_us // DAY_US * DAY_US + HALF_DAY_US if part.is_whole else at_us
            grouping = [column for one in dimensions for column in one.columns(table, counted_us)]
            if self._is_converted:
                grouping.append(at_us // DAY_US)
            add_up(self._connection, table, grouping, [*part.conditions, *conditions(table)], added)
        if pieces := self._time.pieces(source):
            self._add_pieces(added, source.fine, pieces, dimensions, conditions(source.fine))
        return added

    def _add_pieces(
        self,
        added: Added,
        table: sa.FromClause,
        pieces: Sequence[Piece],
        dimensions: Sequence[Dimension],
        conditions: Conditions,
    ) -> None:
        """Count pieces of days where they are, and no longer where the noon of their day is."""
        at_us = epoch_us(table.c.bucket_us)
        grouping = [
            column for one in dimensions if one.at is None for column in one.columns(table, at_us)
        ]
        found = add_up_pieces(self._connection, table, pieces, grouping, conditions)
        for piece, group, sums in found:
            add_to(added, self._key(group, dimensions, piece.from_us), sums)
            if piece.noon_us is not None:
                add_to(added, self._key(group, dimensions, piece.noon_us), sums, sign=-1)
            check_size(added)

    def _key(
        self, group: tuple[int, ...], dimensions: Sequence[Dimension], at_us: int
    ) -> tuple[int, ...]:
        """The numbers of all dimensions at an instant, from those of what is no time."""
        rest = iter(group)
        key: list[int] = []
        for one in dimensions:
            key += islice(rest, one.width) if one.at is None else one.at(at_us)
        if self._is_converted:
            key.append(at_us // DAY_US)
        return tuple(key)

    def _dimension(self, name: str) -> Dimension:
        if name in TIMES:
            assert self._calendar is not None, "nothing is read without"
            return time_dimension(GroupBy(name), self._calendar)
        if name == GroupBy.COST_CENTRE:
            return cost_centre(self._asked.query.cost_centres)
        if name.startswith(COST_TAG):
            return cost_tag(name.removeprefix(COST_TAG), is_by_set=self._source is not COST_TAGS)
        return plain(GroupBy(name))

    def _cuts(self) -> Cuts | None:
        if self._calendar is not None:
            return self._calendar.cuts(self._asked.times)
        return cut_range(self._asked.query.from_us, self._asked.query.to_us)

    def _conditions(self, table: sa.FromClause) -> Conditions:
        found: Conditions = []
        for name, values in self._asked.filters.items():
            if not _is_known_in_words(name):
                by = GroupBy(name)
                ids = report_names.ids_of(self._connection, by, values)
                found.append(table.c[report_names.COLUMNS[by]].in_(ids))
        teams = self._asked.query.teams
        if teams is not None:
            ids = report_names.ids_of(self._connection, GroupBy.TEAM, teams)
            found.append(table.c.team_id.in_(ids))
        return found


def _is_known_in_words(name: str) -> bool:
    """Whether what a filter means is only known once numbers are words."""
    return name.startswith(COST_TAG) or name == GroupBy.COST_CENTRE


def _starts(dimensions: Sequence[Dimension]) -> Iterator[tuple[int, Dimension]]:
    """Where each dimension's numbers begin in a key."""
    start = 0
    for one in dimensions:
        yield start, one
        start += one.width


def _tag_ids(connection: sa.Connection, name: str, values: Collection[str] | None) -> Sequence[int]:
    table = schema.cost_tag
    wanted = sa.select(table.c.id).where(table.c.name == name)
    if values is not None:
        wanted = wanted.where(table.c.value.in_(sorted(values)))
    return connection.execute(wanted).scalars().all()


class _Cells:
    """The report's rows as they are added up."""

    def __init__(self, query: SpendQuery) -> None:
        self._query = query
        self._rates = {one.day: Fraction(one.rate) for one in query.rates}
        self._rows: dict[Group, list[int]] = {}
        self._converted: dict[Group, list[Fraction]] = {}
        self._total = [0] * len(ADDED)
        self._total_converted = [Fraction()] * len(AMOUNTS)

    def fill(
        self,
        added: Added,
        dimensions: Sequence[Dimension],
        words: Sequence[Mapping[tuple[int, ...], tuple[str, ...]]],
        filters: Mapping[str, Sequence[str]],
    ) -> None:
        """Take over sums by numbers.

        Args:
            added: The sums.
            dimensions: What their keys consist of, in order.
            words: What the numbers of each dimension are.
            filters: Those that are only known in words, among others.
        """
        starts = list(_starts(dimensions))
        width = len(_columns(self._query.group_by))
        for key, sums in added.items():
            values = [
                found[key[start : start + one.width]]
                for found, (start, one) in zip(words, starts, strict=True)
            ]
            is_wanted = all(
                value[0] in filters[one.name]
                for one, value in zip(dimensions, values, strict=True)
                if _is_known_in_words(one.name) and one.name in filters
            )
            if not is_wanted or not any(sums):
                continue
            converted = self._convert(sums, key[-1])
            _add(self._total, sums)
            _add(self._total_converted, converted)
            for group in product(*values[:width]):
                _add(self._rows.setdefault(group, [0] * len(ADDED)), sums)
                zeros = [Fraction()] * len(converted)
                _add(self._converted.setdefault(group, zeros), converted)

    def report(self, columns: tuple[str, ...]) -> SpendReport:
        """The finished report."""
        rows = [
            SpendRow(group=group, sums=_sums(cell), converted=_rounded(self._converted[group]))
            for group, cell in self._rows.items()
        ]
        times = [index for index, name in enumerate(columns) if name in TIMES]
        rows.sort(
            key=lambda row: (
                [_chronological(row.group[index]) for index in times],
                -row.sums.cost_pico_usd,
                row.group,
            )
        )
        is_converted = self._query.currency != USD
        return SpendReport(
            columns=columns,
            rows=tuple(rows),
            total=_sums(self._total),
            total_converted=_rounded(self._total_converted) if is_converted else (),
            currency=self._query.currency,
            zone=self._query.zone,
            is_partition=GroupBy.PRIVACY_TAG not in columns,
        )

    def _convert(self, sums: Sequence[int], day: int) -> list[Fraction]:
        """The amounts of a UTC day in the report's currency; nothing for a report in dollars.

        Raises:
            BadQuery: The day has no rate.
        """
        if self._query.currency == USD:
            return []
        amounts = [sums[index] for index in _AMOUNTS_AT]
        rate = self._rates.get(day)
        if rate is None and not any(amounts):
            rate = Fraction()
        if rate is None:
            on = date(1970, 1, 1) + timedelta(days=day)
            raise BadQuery(
                f"there is no exchange rate from USD to {self._query.currency} for {on};"
                " add it to finance.rates_file"
            )
        return [amount * rate for amount in amounts]


def _add(into: list[_Number], more: Sequence[_Number]) -> None:
    for index, amount in enumerate(more):
        into[index] += amount


def _rounded(amounts: Sequence[Fraction]) -> tuple[int, ...]:
    """Each to a whole number, half to even."""
    return tuple(round(amount) for amount in amounts)


def _chronological(label: str) -> tuple[datetime, str]:
    """What orders the labels of a time; of two hours with one name the earlier first."""
    is_hour = "T" in label
    at = datetime.fromisoformat(label) if is_hour else from_microseconds(0)
    return at, label


def _sums(amounts: Sequence[int]) -> SpendSums:
    return msgspec.convert(dict(zip(_FIELDS, amounts, strict=True)), SpendSums)
