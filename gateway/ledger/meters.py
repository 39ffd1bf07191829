"""Reading the roll-up by meter: what was charged on which meter at which rate.

The rows are the lines of events added up by UTC day, owner, place, quality, meter, rate and price
version; for statements by meter, for the bridge between two periods, and for exports by day. A zone
whose days are not UTC's needs the events themselves. Units without a charge are not in here: they
are what the other roll-ups have beyond these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import cast

import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.ledger import partitions, periods, schema
from gateway.ledger.columns import QUALITIES
from gateway.ledger.grains import DAY_US
from gateway.ledger.meter_sums import MeterCells, MeterPlace, MeterRate, MeterSums
from gateway.ledger.report_sources import epoch_us, exact_sums
from gateway.ledger.schema import METER_DIMENSIONS, METER_SUMS
from pricing.money import Rate
from pricing.usage import Meter, Quality

_table = schema.rollup_meter_day


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterUse:
    """What was charged on a meter at a rate.

    Attributes:
        day: The UTC day; None where a whole time was added up.
        team: The owner.
        project: Of the team.
        model: The logical one that was asked for.
        deployment: What was called.
        provider: Of the deployment.
        upstream_model: What the provider calls it.
        quality: How certain the units are.
        meter: What was counted.
        rate: What is charged, exactly.
        list_rate: The public price, None where none is known apart from what is charged.
        price_version: As events have it (`price_label`).
        lines: How many lines of events were added up.
        units: Their sum.
        cost_pico_usd: What is charged; each line was rounded on its own.
        list_cost_pico_usd: The same at public prices; what is charged, where there is none.
    """

    day: date | None
    team: str
    project: str
    model: str
    deployment: str
    provider: str
    upstream_model: str
    quality: Quality
    meter: Meter
    rate: Rate
    list_rate: Rate | None
    price_version: str
    lines: int
    units: int
    cost_pico_usd: int
    list_cost_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodMeters:
    """What is counted in an accounting month.

    Attributes:
        in_time: What happened in it, as it was when it was closed.
        late: What happened before and came when its own month was closed; amounts may be negative.
    """

    in_time: tuple[MeterUse, ...]
    late: tuple[MeterUse, ...]


def load_meters(
    connection: sa.Connection, from_us: int, to_us: int, *, by_day: bool = False
) -> tuple[MeterUse, ...]:
    """What was charged in a time, by when it happened, in an order that never changes.

    Args:
        connection: In a transaction.
        from_us: The first microsecond of a UTC day.
        to_us: Likewise, of the day after the last.
        by_day: Whether days are told apart.

    Raises:
        ValueError: An end is not the beginning of a UTC day.
    """
    return _named(connection, _load_cells(connection, from_us, to_us, by_day=by_day))


def load_period_meters(
    connection: sa.Connection, month: str, *, by_day: bool = False
) -> PeriodMeters:
    """What is counted in an accounting month, `YYYY-MM`, late events where they are booked.

    Args:
        connection: In a transaction.
        month: `YYYY-MM`, in UTC.
        by_day: Whether days are told apart, those of late events included.
    """
    in_time = MeterSums()
    in_time.cells = _load_cells(connection, *periods.month_bounds_us(month), by_day=by_day)
    for part in periods.late_of(connection, month):
        _add(in_time, part, sign=-1, by_day=by_day)
    late = MeterSums()
    for part in periods.late_in(connection, month):
        _add(late, part, sign=1, by_day=by_day)
    return PeriodMeters(
        in_time=_named(connection, in_time.cells), late=_named(connection, late.cells)
    )


def meter_faults(connection: sa.Connection, expected: MeterSums) -> Iterator[str]:
    """Cells that differ from the events' lines; a cell of zeros is as good as none."""
    return _faults(connection, _stored_cells(connection), expected)


def day_meter_faults(connection: sa.Connection, expected: MeterSums, day_us: int) -> Iterator[str]:
    """The same for the cells of one day alone."""
    cells = _load_cells(connection, day_us, day_us + DAY_US, by_day=True)
    return _faults(connection, cells, expected)


def _faults(connection: sa.Connection, stored: MeterCells, expected: MeterSums) -> Iterator[str]:
    nothing = [0] * len(METER_SUMS)
    # Of months that were dropped the sums alone are there.
    kept_from_us = partitions.kept_from_us(connection)
    for cell in sorted(stored.keys() | expected.cells.keys(), key=repr):
        place, rate = cell
        should, holds = expected.cells.get(cell, nothing), stored.get(cell, nothing)
        if place[0] >= kept_from_us and should != holds:
            wrong = ", ".join(
                f"{name} is {has}, the events say {want}"
                for name, has, want in zip(METER_SUMS, holds, should, strict=True)
                if has != want
            )
            at = from_microseconds(place[0]).date()
            yield f"{_table.name} on {at} {place[1:]}, {rate.meter} at a rate: {wrong}"


def _add(into: MeterSums, part: periods.LatePart, *, sign: int, by_day: bool) -> None:
    row = part.row if by_day else part.row | {"at_us": 0}
    into.add(row, sign=sign * part.sign)


def _load_cells(connection: sa.Connection, from_us: int, to_us: int, *, by_day: bool) -> MeterCells:
    if from_us % DAY_US or to_us % DAY_US:
        raise ValueError("sums by meter are of whole UTC days")
    day = epoch_us(_table.c.bucket_us) if by_day else sa.literal_column("0", sa.BigInteger)
    dimensions = [_table.c[name] for name in METER_DIMENSIONS]
    within = (_table.c.bucket_us >= from_us, _table.c.bucket_us < to_us)
    sums = [_table.c[name] for name in METER_SUMS]
    grouping = [*((day,) if by_day else ()), *dimensions, _table.c.meter_rate_id]
    rows = exact_sums(connection, grouping, sums, within)
    first = () if by_day else (0,)
    return _cells(connection, ((*first, *map(int, row)) for row in rows))


def _stored_cells(connection: sa.Connection) -> MeterCells:
    """Every cell as it is stored."""
    columns = ("bucket_us", *METER_DIMENSIONS, "meter_rate_id", *METER_SUMS)
    statement = cast("sa.Select[tuple[int]]", sa.select(*(_table.c[name] for name in columns)))
    rows = cast("Sequence[Sequence[int]]", connection.execute(statement).all())
    return _cells(connection, (tuple(row) for row in rows))


def _cells(connection: sa.Connection, rows: Iterable[tuple[int, ...]]) -> MeterCells:
    """Cells from their place, the id of their rate, and their sums."""
    rates = _rates(connection)
    width = 1 + len(METER_DIMENSIONS)
    sums = MeterSums()
    for row in rows:
        sums.add_amounts(row[:width], rates[row[width]], row[width + 1 :])
    return sums.cells


def _rates(connection: sa.Connection) -> dict[int, MeterRate]:
    """All of them: there are as many as prices had meters."""
    table = schema.meter_rate
    columns = (table.c.id, *(table.c[name] for name in MeterRate._fields))
    rows = connection.execute(cast("sa.Select[tuple[object]]", sa.select(*columns))).all()
    return {
        cast("int", row[0]): MeterRate(*cast("tuple[str, int, int, None, None, str]", row[1:]))
        for row in rows
    }


def _named(connection: sa.Connection, cells: MeterCells) -> tuple[MeterUse, ...]:
    name = _Names(connection)
    uses = [name.use(place, rate, sums) for (place, rate), sums in cells.items() if any(sums)]
    return tuple(sorted(uses, key=_order))


class _Names:
    """What interned ids stand for."""

    def __init__(self, connection: sa.Connection) -> None:
        self._teams = _texts(connection, schema.team.c.name)
        self._projects = _texts(connection, schema.project.c.name)
        self._models = _texts(connection, schema.model.c.name)
        deployment = schema.deployment.c
        self._deployments = _texts(
            connection, deployment.name, deployment.provider, deployment.upstream_model
        )

    def use(self, place: MeterPlace, rate: MeterRate, sums: Sequence[int]) -> MeterUse:
        at_us, team_id, project_id, model_id, deployment_id, quality = place
        deployment, provider, upstream_model = self._deployments[deployment_id]
        lines, units, cost_pico_usd, list_cost_pico_usd = sums
        listed = None
        if rate.list_rate_pico_usd is not None:
            assert rate.list_rate_per_units is not None, "they come together"
            listed = Rate(pico_usd=rate.list_rate_pico_usd, per_units=rate.list_rate_per_units)
        return MeterUse(
            day=from_microseconds(at_us).date() if at_us else None,
            team=self._teams[team_id][0],
            project=self._projects[project_id][0],
            model=self._models[model_id][0],
            deployment=deployment,
            provider=provider,
            upstream_model=upstream_model,
            quality=QUALITIES[quality],
            meter=Meter(rate.meter),
            rate=Rate(pico_usd=rate.rate_pico_usd, per_units=rate.rate_per_units),
            list_rate=listed,
            price_version=rate.price_version,
            lines=lines,
            units=units,
            cost_pico_usd=cost_pico_usd,
            list_cost_pico_usd=list_cost_pico_usd,
        )


def _texts(connection: sa.Connection, *columns: sa.Column[str]) -> dict[int, tuple[str, ...]]:
    table = columns[0].table
    wanted = cast("sa.Select[tuple[object]]", sa.select(table.c.id, *columns))
    rows = connection.execute(wanted).all()
    return {cast("int", row[0]): tuple(cast("Sequence[str]", row[1:])) for row in rows}


def _order(use: MeterUse) -> tuple[object, ...]:
    listed = use.list_rate
    return (
        use.day or date.min,
        use.team,
        use.project,
        use.model,
        use.deployment,
        use.provider,
        list(Meter).index(use.meter),
        use.price_version,
        (use.rate.pico_usd, use.rate.per_units),
        (0, 0) if listed is None else (listed.pico_usd, listed.per_units),
        use.quality,
    )
