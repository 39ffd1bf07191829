"""Sums of the ledger's events for an export, one charge period at a time.

A month of events is never held: the database sums one hour (or day) by owner, place, price,
quality and meter, and only these sums come here. Sums are taken in two halves, millions and the
rest, because SQLite's integers would overflow at 9.2 million dollars; they are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from gateway.finance.focus.charges import Owner, Resource
from gateway.finance.focus.inputs import PendingSum, UsageSum
from gateway.finance.focus.order import ExportOrder
from gateway.ledger import schema
from gateway.ledger.columns import QUALITIES, QUALITY_CODES, STATUS_CODES
from gateway.ledger.dialects import is_postgresql
from gateway.ledger.finance_tables import late_entry
from gateway.ledger.price_label import is_nominal, plain_version
from gateway.ledger.records import AttemptStatus
from pricing.money import Rate
from pricing.usage import Meter, Quality

Number = int | Decimal
"""A sum: PostgreSQL answers with a decimal."""

_Columns = list[sa.ColumnElement[Any]]
_Select = sa.Select[*tuple[Any, ...]]

_HALF = 1_000_000
_FIRST = "is_first"
_TOKEN_METERS = (
    Meter.INPUT,
    Meter.CACHE_READ,
    Meter.CACHE_WRITE,
    Meter.OUTPUT,
    Meter.REASONING,
)
_UNKNOWN_QUALITY = QUALITY_CODES[Quality.UNKNOWN]
_UNKNOWN_BILLING = STATUS_CODES[AttemptStatus.UNKNOWN_BILLING]

_event = schema.spend_event
_privacy = schema.tag_set.alias("privacy")
_cost = schema.tag_set.alias("cost")


class Counted(StrEnum):
    """Which entries of a range are summed."""

    IN_TIME = "in_time"
    """Those that are counted in the month in which they happened: of each event the highest."""
    LATE = "late"
    """Those that came when their month was closed, and are counted in a later one."""
    REPLACED = "replaced"
    """Those that a late one took the place of; the later month takes them back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is summed.

    Attributes:
        with_keys: Whether keys are told apart.
        counted: Which entries.
        period: For late ones and those that they replace: the month (`YYYY-MM`) they count in.
    """

    with_keys: bool
    counted: Counted = Counted.IN_TIME
    period: str = ""


def periods(connection: sa.Connection, order: ExportOrder) -> Iterator[tuple[int, int]]:
    """Charge periods of a range that have events: first instant, and the first one after it."""
    within = (_event.c.at_us < order.to_us,)
    return _periods(connection, _event.c.at_us, within, order.from_us, order.grain_us)


def late_periods(
    connection: sa.Connection, period: str, grain_us: int
) -> Iterator[tuple[int, int]]:
    """Charge periods of which something is counted in a later month, which is `period`."""
    within = (late_entry.c.booked_period == period,)
    return _periods(connection, late_entry.c.at_us, within, 0, grain_us)


def _periods(
    connection: sa.Connection,
    column: sa.Column[int],
    conditions: Sequence[sa.ColumnElement[bool]],
    from_us: int,
    grain_us: int,
) -> Iterator[tuple[int, int]]:
    at_us = from_us
    while True:
        first = sa.select(sa.func.min(column)).where(column >= at_us, *conditions)
        found_us = cast("int | None", connection.execute(first).scalar_one())
        if found_us is None:
            return
        start_us = found_us - found_us % grain_us
        at_us = start_us + grain_us
        yield start_us, at_us


def usage_sums(
    connection: sa.Connection, start_us: int, end_us: int, wanted: Wanted
) -> list[UsageSum]:
    """What was metered and priced in a charge period, in an order of its own that never changes."""
    lines = _lines(connection)
    is_first = sa.and_(lines.number == 0, _event.c.attempt == 1)
    read: _Columns = [
        *_dimensions(with_keys=wanted.with_keys),
        _event.c.price_version,
        _event.c.quality,
        *(lines.values[name].label(name) for name in _LINE if name not in _LINE_SUMS),
        lines.values["units"].label("units"),
        lines.values["cost"].label("line_cost"),
        sa.func.coalesce(lines.values["list_cost"], 0).label("list_cost"),
        _tokens().label("tokens"),
        sa.case((is_first, 1), else_=0).label("is_first"),
    ]
    chosen = cast("_Select", sa.select(*read))
    inner = (
        chosen.select_from(_event.join(lines.source, sa.true()))
        .where(*_counting(start_us, end_us, wanted))
        .subquery()
    )
    statement = _named(
        _grouped(inner, "units", "line_cost", "list_cost", "tokens"), with_keys=wanted.with_keys
    )
    rows = cast("Sequence[_UsageRow]", connection.execute(statement).all())
    return sorted((_usage_sum(row, start_us, end_us) for row in rows), key=_usage_key)


def pending_sums(
    connection: sa.Connection, start_us: int, end_us: int, wanted: Wanted
) -> list[PendingSum]:
    """Attempts of a charge period whose price or bill is unknown."""
    is_unpriced = _event.c.cost_pico_usd.is_(None)
    is_unknown = sa.or_(_event.c.quality == _UNKNOWN_QUALITY, _event.c.status == _UNKNOWN_BILLING)
    # A first attempt with lines counts where its usage is.
    is_first = sa.and_(_event.c.attempt == 1, sa.cast(_event.c.lines, sa.Text) == _NO_LINES)
    read: _Columns = [
        *_dimensions(with_keys=wanted.with_keys),
        _event.c.quality,
        sa.case((is_unpriced, 1), else_=0).label("is_unpriced"),
        _tokens().label("tokens"),
        sa.func.coalesce(_event.c.exposure_pico_usd, 0).label("exposure"),
        sa.case((is_first, 1), else_=0).label("is_first"),
    ]
    chosen = cast("_Select", sa.select(*read))
    conditions = (*_counting(start_us, end_us, wanted), sa.or_(is_unpriced, is_unknown))
    inner = chosen.where(*conditions).subquery()
    statement = _named(_grouped(inner, "tokens", "exposure"), with_keys=wanted.with_keys)
    rows = cast("Sequence[_PendingRow]", connection.execute(statement).all())
    found = [_pending_sum(row, start_us, end_us) for row in rows]
    return sorted(
        found, key=lambda one: (_place_key(one.owner, one.resource), one.quality, one.is_unpriced)
    )


_NO_LINES = "[]"
_PLACES = ("team_id", "project_id", "key_id", "deployment_id", "tags_id", "cost_tags_id")


def _counting(from_us: int, to_us: int, wanted: Wanted) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions for the entries of a range that are wanted."""
    within = (_event.c.at_us >= from_us, _event.c.at_us < to_us)
    late = late_entry
    if wanted.counted is Counted.LATE:
        is_late = late.c.entry == _event.c.entry
        return *within, _has_late(late, is_late, late.c.booked_period == wanted.period)
    if wanted.counted is Counted.REPLACED:
        is_lower = late.c.entry > _event.c.entry
        return *within, _has_late(late, is_lower, late.c.booked_period == wanted.period)
    higher = _event.alias("higher")
    is_superseded = sa.exists().where(
        higher.c.event_id == _event.c.event_id,
        higher.c.at_us == _event.c.at_us,
        higher.c.entry > _event.c.entry,
        ~sa.exists()
        .where(late.c.event_id == higher.c.event_id, late.c.entry == higher.c.entry)
        .correlate(higher),
    )
    return *within, ~_has_late(late, late.c.entry == _event.c.entry), ~is_superseded


def _has_late(late: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return sa.exists().where(late.c.event_id == _event.c.event_id, *conditions).correlate(_event)


def _dimensions(*, with_keys: bool) -> list[sa.ColumnElement[int]]:
    names = [name for name in _PLACES if with_keys or name != "key_id"]
    return [_event.c[name] for name in names]


def _tokens() -> sa.ColumnElement[int]:
    first, *others = (_event.c[f"{meter.value}_units"] for meter in _TOKEN_METERS)
    total = first
    for one in others:
        total = total + one
    return total


def _name(column: sa.ColumnElement[Any]) -> str:
    return str(cast("object", column.key))


def _grouped(inner: sa.Subquery, *summed: str) -> _Select:
    """Sum some columns, count first attempts and attempts, and group by all the others.

    Each column is summed in two halves that cannot overflow: the millions, and what is left over
    them.
    """
    groups: _Columns = [column for column in inner.c if _name(column) not in (*summed, _FIRST)]
    half = sa.literal_column(str(_HALF), sa.BigInteger)
    sums: _Columns = [
        sa.func.sum(part).label(f"{name}_{place}")
        for name in summed
        for part, place in ((inner.c[name] // half, "high"), (inner.c[name] % half, "low"))
    ]
    counts: _Columns = [
        sa.func.sum(inner.c[_FIRST]).label("requests"),
        sa.func.count().label("attempts"),
    ]
    chosen = cast("_Select", sa.select(*groups, *sums, *counts))
    return chosen.group_by(*groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """The lines of an event as rows of a table that goes with it.

    Attributes:
        source: The table.
        values: Columns by name.
        number: A line's place, from 0.
    """

    source: sa.FromClause
    values: Mapping[str, sa.ColumnElement[Any]]
    number: sa.ColumnElement[int]


_LINE = ("meter", "units", "rate", "per", "cost", "list_rate", "list_per", "list_cost")
"""How `gateway.ledger.booking` writes a line; the last three only where a public price is known."""
_LINE_SUMS = frozenset({"units", "cost", "list_cost"})


def _lines(connection: sa.Connection) -> _Lines:
    """Take lines apart in the database's own way."""
    if is_postgresql(connection):
        return _postgresql_lines()
    source = sa.func.json_each(_event.c.lines).table_valued(
        sa.column("key", sa.Integer), sa.column("value", sa.Text), name="line"
    )
    values: dict[str, sa.ColumnElement[Any]] = {
        name: sa.func.json_extract(
            source.c.value,
            sa.literal_column(f"'$[{index}]'"),
            type_=sa.Text() if name == "meter" else sa.BigInteger(),
        )
        for index, name in enumerate(_LINE)
    }
    return _Lines(source=source, values=values, number=source.c.key)


def _postgresql_lines() -> _Lines:
    elements = sa.func.jsonb_array_elements(_event.c.lines)
    rows = elements.table_valued(sa.column("value", JSONB), with_ordinality="number", name="line")
    source = rows.render_derived()
    values: dict[str, sa.ColumnElement[Any]] = {}
    for index, name in enumerate(_LINE):
        place = sa.literal_column(str(index), sa.Integer)
        value: sa.ColumnElement[str] = source.c.value.op("->>", return_type=sa.Text())(place)
        values[name] = value if name == "meter" else sa.cast(value, sa.BigInteger)
    one = sa.literal_column("1", sa.BigInteger)
    return _Lines(source=source, values=values, number=source.c.number - one)


def _named(statement: _Select, *, with_keys: bool) -> _Select:
    """Put names in the place of ids, once per group."""
    sums = statement.subquery("sums")
    key = schema.api_key_name
    joined = (
        sums.join(schema.team, schema.team.c.id == sums.c.team_id)
        .join(schema.project, schema.project.c.id == sums.c.project_id)
        .join(schema.deployment, schema.deployment.c.id == sums.c.deployment_id)
        .join(_privacy, _privacy.c.id == sums.c.tags_id)
        .join(_cost, _cost.c.id == sums.c.cost_tags_id)
    )
    if with_keys:
        joined = joined.join(key, key.c.id == sums.c.key_id)
    names: _Columns = [
        schema.team.c.name.label("team"),
        schema.project.c.name.label("project"),
        (key.c.key_id if with_keys else sa.literal("")).label("credential"),
        _privacy.c.tags.label("privacy_tags"),
        _cost.c.tags.label("cost_tags"),
        schema.deployment.c.provider.label("provider"),
        schema.deployment.c.name.label("deployment"),
        schema.deployment.c.upstream_model.label("model_id"),
    ]
    others: _Columns = [column for column in sums.c if _name(column) not in _PLACES]
    chosen = cast("_Select", sa.select(*names, *others))
    return chosen.select_from(joined)


class _Row(Protocol):
    """Columns that both kinds of sums have, by their labels."""

    team: str
    project: str
    credential: str
    privacy_tags: list[str]
    cost_tags: list[list[str]]
    provider: str
    deployment: str
    model_id: str
    quality: int
    tokens_high: Number
    tokens_low: Number
    requests: Number
    attempts: Number


class _UsageRow(_Row, Protocol):
    price_version: str
    meter: str
    rate: Number
    per: Number
    list_rate: Number | None
    list_per: Number | None
    list_cost_high: Number
    list_cost_low: Number
    units_high: Number
    units_low: Number
    line_cost_high: Number
    line_cost_low: Number


class _PendingRow(_Row, Protocol):
    is_unpriced: int
    exposure_high: Number
    exposure_low: Number


def _owner(row: _Row) -> Owner:
    return Owner(
        team=row.team,
        project=row.project,
        key_id=row.credential,
        data_class=tuple(sorted(row.privacy_tags)),
        cost_tags=tuple(sorted((name, value) for name, value in row.cost_tags)),
    )


def _resource(row: _Row) -> Resource:
    return Resource(provider=row.provider, deployment=row.deployment, model_id=row.model_id)


def _usage_sum(row: _UsageRow, start_us: int, end_us: int) -> UsageSum:
    list_rate = _rate(row.list_rate, row.list_per)
    list_cost = _whole(row.list_cost_high, row.list_cost_low)
    return UsageSum(
        start_us=start_us,
        end_us=end_us,
        owner=_owner(row),
        resource=_resource(row),
        meter=row.meter,
        units=_whole(row.units_high, row.units_low),
        rate=Rate(pico_usd=int(row.rate), per_units=int(row.per)),
        cost_pico_usd=_whole(row.line_cost_high, row.line_cost_low),
        list_rate=list_rate,
        list_cost_pico_usd=None if list_rate is None else list_cost,
        tokens=_whole(row.tokens_high, row.tokens_low),
        requests=int(row.requests),
        attempts=int(row.attempts),
        quality=QUALITIES[row.quality].value,
        price_version=plain_version(row.price_version),
        is_nominal=is_nominal(row.price_version),
    )


def _pending_sum(row: _PendingRow, start_us: int, end_us: int) -> PendingSum:
    return PendingSum(
        start_us=start_us,
        end_us=end_us,
        owner=_owner(row),
        resource=_resource(row),
        quality=QUALITIES[row.quality].value,
        is_unpriced=bool(row.is_unpriced),
        attempts=int(row.attempts),
        requests=int(row.requests),
        tokens=_whole(row.tokens_high, row.tokens_low),
        exposure_pico_usd=_whole(row.exposure_high, row.exposure_low),
    )


def _rate(pico_usd: Number | None, per_units: Number | None) -> Rate | None:
    if pico_usd is None or per_units is None:
        return None
    return Rate(pico_usd=int(pico_usd), per_units=int(per_units))


def _whole(millions: Number, rest: Number) -> int:
    return int(millions) * _HALF + int(rest)


def _place_key(owner: Owner, resource: Resource) -> tuple[object, ...]:
    names = (owner.team, owner.project, owner.key_id, owner.data_class, owner.cost_tags)
    return *names, resource.deployment, resource.provider, resource.model_id


def _usage_key(one: UsageSum) -> tuple[object, ...]:
    listed = one.list_rate or one.rate
    rates = (one.rate.pico_usd, one.rate.per_units, listed.pico_usd, listed.per_units)
    price = (one.price_version, one.is_nominal, *rates, one.list_rate is None)
    return *_place_key(one.owner, one.resource), one.meter, *price, one.quality
