"""Single attempts behind a figure of a report, a page at a time; no content.

A page looks through at most `SCANNED_MAX` entries, newest first by the index on time, and goes on
from where it ended: whatever is filtered by, no question reads more than that. Of an attempt that
has two entries the later one counts alone, as in every sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import sqlalchemy as sa

from gateway.ledger import cost_tags, report_names, schema
from gateway.ledger.attempt_views import (
    PAGE_MAX,
    Attempt,
    AttemptPage,
    AttemptPlace,
    AttemptQuery,
    RequestQuery,
)
from gateway.ledger.columns import QUALITIES, STATUSES
from gateway.ledger.errors import BadQuery
from gateway.ledger.schema import METERS
from gateway.ledger.views import COST_TAG, TIMES, GroupBy, is_dimension
from pricing.quote import CostLine

SCANNED_MAX = 10_000
"""Entries that one page looks through at most."""
_LINE = (
    "meter",
    "units",
    "rate_pico_usd",
    "rate_per_units",
    "cost_pico_usd",
    "list_rate_pico_usd",
    "list_rate_per_units",
    "list_cost_pico_usd",
)
"""Of a line as it is stored; the last three only where a public price is known."""
_NAMED = (GroupBy.TEAM, GroupBy.PROJECT, GroupBy.KEY, GroupBy.MODEL, GroupBy.DEPLOYMENT)
_SAME = (
    "event_id",
    "request_id",
    "attempt",
    "at_us",
    "settled_at_us",
    "route",
    "is_stream",
    "reason",
    "is_lost",
    "price_version",
    "cost_pico_usd",
    "list_cost_pico_usd",
    "provider_cost_pico_usd",
    "exposure_pico_usd",
    "cache_saved_pico_usd",
    "http_status",
    "error_code",
    "upstream_request_id",
    "finish_reason",
    "ttft_us",
    "duration_us",
)
_EVENT = schema.spend_event

_Row = Mapping[str, object]
_Words = Callable[[int], tuple[str, ...]]


def load_attempts(connection: sa.Connection, query: AttemptQuery) -> AttemptPage:
    """A page of attempts, newest first.

    Args:
        connection: In a transaction.
        query: Which; its bounds may be any instants.

    Raises:
        BadQuery: A filter has no meaning.
    """
    count = max(1, min(query.count, PAGE_MAX))
    scanned = _newest(query, _EVENT).limit(SCANNED_MAX).subquery()
    wanted = (
        sa.select(scanned)
        .where(_counts(scanned), *_conditions(connection, query, scanned))
        .order_by(*_order(scanned))
        .limit(count + 1)
    )
    rows = [cast("_Row", row) for row in connection.execute(wanted).mappings()]
    attempts = _told(connection, rows[:count])
    if len(rows) > count:
        last = attempts[-1]
        return AttemptPage(attempts=attempts, next=AttemptPlace(last.at_us, last.event_id))
    end = _newest(query, _EVENT.c.at_us, _EVENT.c.event_id).offset(SCANNED_MAX - 1).limit(1)
    place = connection.execute(end).one_or_none()
    if place is None:
        return AttemptPage(attempts=attempts)
    at_us, event_id = cast("tuple[int, bytes]", tuple(place))
    return AttemptPage(attempts=attempts, next=AttemptPlace(at_us, event_id), is_cut=True)


def load_request(connection: sa.Connection, query: RequestQuery) -> tuple[Attempt, ...]:
    """Every booked attempt of a request, the first one first; none where it may not be seen."""
    conditions = [_EVENT.c.request_id == query.request_id, _counts(_EVENT)]
    if query.teams is not None:
        ids = report_names.ids_of(connection, GroupBy.TEAM, query.teams)
        conditions.append(_EVENT.c.team_id.in_(ids))
    wanted = sa.select(_EVENT).where(*conditions).order_by(_EVENT.c.attempt, _EVENT.c.at_us)
    rows = connection.execute(wanted.limit(PAGE_MAX)).mappings()
    return _told(connection, [cast("_Row", row) for row in rows])


def _newest(query: AttemptQuery, *columns: sa.FromClause | sa.Column[int]) -> sa.Select[object]:
    """Entries of the range from where the page before ended."""
    at_us, event_id = _EVENT.c.at_us, _EVENT.c.event_id
    found = sa.select(*columns).where(at_us >= query.from_us, at_us < query.to_us)
    if query.after is not None:
        # The first bound alone is what the index is walked by.
        found = found.where(
            at_us <= query.after.at_us,
            sa.or_(at_us < query.after.at_us, event_id < query.after.event_id),
        )
    return found.order_by(*_order(_EVENT))


def _order(table: sa.FromClause) -> list[sa.ColumnElement[object]]:
    return [table.c.at_us.desc(), table.c.event_id.desc(), table.c.entry.desc()]


def _counts(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether an entry is the highest one of its attempt; all of them have the same instant."""
    later = _EVENT.alias()
    return ~sa.exists().where(
        later.c.event_id == table.c.event_id,
        later.c.at_us == table.c.at_us,
        later.c.entry > table.c.entry,
    )


def _conditions(
    connection: sa.Connection, query: AttemptQuery, table: sa.FromClause
) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    for name, given in query.filters.items():
        values = (given,) if isinstance(given, str) else tuple(given)
        if not is_dimension(name) or name in TIMES:
            raise BadQuery(f"{name!r} is nothing that attempts can be filtered by")
        if name.startswith(COST_TAG):
            ids = _sets_with(connection, query, name.removeprefix(COST_TAG), values)
            found.append(table.c.cost_tags_id.in_(ids))
            continue
        by = GroupBy(name)
        ids = report_names.ids_of(connection, by, values)
        found.append(table.c[report_names.COLUMNS[by]].in_(ids))
    if query.teams is not None:
        ids = report_names.ids_of(connection, GroupBy.TEAM, query.teams)
        found.append(table.c.team_id.in_(ids))
    return found


def _sets_with(
    connection: sa.Connection, query: AttemptQuery, name: str, values: Sequence[str]
) -> list[int]:
    """Sets of cost tags, of those that the page looks through, in which a tag has a value.

    An empty value stands for sets without the tag.
    """
    scanned = _newest(query, _EVENT.c.cost_tags_id).limit(SCANNED_MAX).subquery()
    used = connection.execute(sa.select(scanned.c.cost_tags_id).distinct()).scalars().all()
    found: list[int] = []
    for set_id, pairs in cost_tags.load_pairs(connection, cast("Sequence[int]", used)):
        value = next((value for _, value in cost_tags.of_names(pairs, {name})), "")
        if value in values:
            found.append(set_id)
    return found


def _told(connection: sa.Connection, rows: Sequence[_Row]) -> tuple[Attempt, ...]:
    """Rows in words."""
    words = {
        by: report_names.words_of(
            connection, by, {_id(row, report_names.COLUMNS[by]) for row in rows}
        )
        for by in _NAMED
    }
    privacy = report_names.words_of(
        connection, GroupBy.PRIVACY_TAG, {_id(row, "tags_id") for row in rows}
    )
    sets = {_id(row, "cost_tags_id") for row in rows}
    costs = {
        set_id: tuple((name, value) for name, value in pairs)
        for set_id, pairs in cost_tags.load_pairs(connection, sets)
    }
    return tuple(map(partial(_attempt, words=words, privacy=privacy, costs=costs), rows))


def _attempt(
    row: _Row,
    *,
    words: Mapping[GroupBy, _Words],
    privacy: _Words,
    costs: Mapping[int, tuple[tuple[str, str], ...]],
) -> Attempt:
    named = {by: words[by](_id(row, report_names.COLUMNS[by]))[0] for by in _NAMED}
    values: dict[str, object] = {name: row[name] for name in _SAME}
    return Attempt(
        **values,  # pyright: ignore[reportArgumentType] columns of the same names and types
        team=named[GroupBy.TEAM],
        project=named[GroupBy.PROJECT],
        key_id=named[GroupBy.KEY],
        model=named[GroupBy.MODEL],
        deployment=named[GroupBy.DEPLOYMENT],
        privacy_tags=tuple(tag for tag in privacy(_id(row, "tags_id")) if tag),
        cost_tags=costs[_id(row, "cost_tags_id")],
        status=STATUSES[_id(row, "status")].value,
        is_correction=_id(row, "entry") > 0,
        quality=QUALITIES[_id(row, "quality")].value,
        units={meter: units for meter in METERS if (units := _id(row, f"{meter}_units"))},
        lines=tuple(_line(line) for line in cast("Sequence[Sequence[object]]", row["lines"])),
    )


def _line(stored: Sequence[object]) -> CostLine:
    values = dict(zip(_LINE, stored, strict=False))
    return CostLine(**values)  # pyright: ignore[reportArgumentType] as the loader wrote it


def _id(row: _Row, column: str) -> int:
    return cast("int", row[column])
