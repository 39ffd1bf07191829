"""The sums of one UTC day against its events, in steps that each take one short transaction.

A quarter of an hour at a time the lines of each entry must be units at rates that sum to its cost
(`entry_checks`); the database adds up the events (`report_sources.events`, another way than the
loader's), and every cell of that quarter must hold just that. The cells of the day must
then be the sums of their quarters, and the day's sums by meter must add up to its cost. What is in
memory is the cells of a quarter or of a day, never the events. Each step sees one state of the
database, so it is no matter whether something is being loaded.

On the way it counts what nobody would miss in any sum: usage at a price that was not charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.ledger import cost_tags, schema
from gateway.ledger.booking import Row
from gateway.ledger.columns import STATUS_CODES, PicoTotal
from gateway.ledger.entry_checks import entry_faults
from gateway.ledger.errors import BadQuery
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.price_label import plain_version
from gateway.ledger.records import AttemptStatus
from gateway.ledger.report_sources import Added, add_up, events, exact_sums
from gateway.ledger.roll_ups import DIMENSIONS, ROLL_UPS, SUM_COLUMNS, Cells, RollUps, RollUpTable
from pricing.usage import METERS, Meter

_NOT_TOKENS = frozenset({Meter.REQUESTS, Meter.GPU_US})
_TOKENS = tuple(f"{meter}_units" for meter in METERS if meter not in _NOT_TOKENS)
_COST = SUM_COLUMNS.index("cost_pico_usd")
HOUR_US = 4 * QUARTER_US
_BATCH_ROWS = 1_000
_NOTHING = (0,) * len(SUM_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncharged:
    """Attempts that counted usage at a price and cost nothing.

    Attributes:
        deployment: What was called.
        price_version: What they should have been charged by.
        is_unpriced: Whether their cost is unknown, where it is not 0.
        attempts: How many.
        units: What they counted.
    """

    deployment: str
    price_version: str
    is_unpriced: bool
    attempts: int
    units: int

    def __str__(self) -> str:
        """A sentence."""
        cost = "have no price" if self.is_unpriced else "cost nothing"
        return (
            f"{self.attempts} attempts of {self.deployment} counted {self.units} units and {cost},"
            f" although price {self.price_version} was in force"
        )


def quarters_in_use(connection: sa.Connection, day_us: int) -> list[int]:
    """First instants of the quarters of a day that have a sum, or lie in an hour with entries."""
    event = schema.spend_event
    found: set[int] = set()
    for one in ROLL_UPS:
        if one.width_us == QUARTER_US:
            bucket = one.table.c.bucket_us
            cells = sa.select(bucket).where(bucket >= day_us, bucket < day_us + DAY_US).distinct()
            found.update(connection.execute(cells).scalars())
    for hour_us in range(day_us, day_us + DAY_US, HOUR_US):
        within = (event.c.at_us >= hour_us, event.c.at_us < hour_us + HOUR_US)
        if connection.execute(sa.select(sa.literal(1)).where(*within).limit(1)).first():
            found.update(range(hour_us, hour_us + HOUR_US, QUARTER_US))
    return sorted(found)


def quarter_faults(connection: sa.Connection, start_us: int) -> list[str]:
    """Entries of a quarter of an hour that do not hold, cells that are not what they add up to."""
    return [*_entry_faults(connection, start_us), *_cell_faults(connection, start_us)]


def _entry_faults(connection: sa.Connection, start_us: int) -> Iterator[str]:
    table = schema.spend_event
    within = (table.c.at_us >= start_us, table.c.at_us < start_us + QUARTER_US)
    ordered = sa.select(table).where(*within).order_by(table.c.event_id, table.c.entry)
    previous: Row | None = None
    # Of the statement: as an option of the connection it would stay with what comes after.
    found = connection.execute(ordered.execution_options(yield_per=_BATCH_ROWS))
    for mapping in found.mappings():
        row = cast("Row", dict(mapping))
        yield from entry_faults(row, previous)
        previous = row


def _cell_faults(connection: sa.Connection, start_us: int) -> list[str]:
    expected = _of_events(connection, start_us, start_us + QUARTER_US)
    return [
        fault
        for one in ROLL_UPS
        if one.width_us == QUARTER_US
        for fault in cell_faults(
            one,
            stored_cells(connection, one, start_us, start_us + QUARTER_US),
            expected.cells[one.table.name],
            what="events",
        )
    ]


def day_faults(connection: sa.Connection, day_us: int) -> list[str]:
    """Cells of a day that are not the sums of its quarters; sums by meter that are not its cost."""
    faults: list[str] = []
    costs: dict[tuple[int, ...], int] = {}
    for fine, coarse in zip(ROLL_UPS[::2], ROLL_UPS[1::2], strict=True):
        expected: Cells = {}
        for place, sums in stored_cells(connection, fine, day_us, day_us + DAY_US).items():
            known = expected.get((day_us, *place[1:]), _NOTHING)
            expected[day_us, *place[1:]] = [a + b for a, b in zip(known, sums, strict=True)]
        stored = stored_cells(connection, coarse, day_us, day_us + DAY_US)
        faults += cell_faults(coarse, stored, expected, what="quarters")
        if fine.of is None:
            costs = _costs(expected)
    return faults + _meter_faults(connection, day_us, costs)


def uncharged(connection: sa.Connection, from_us: int, to_us: int) -> list[Uncharged]:
    """What was counted at a price and cost nothing, in a part of a day (GW-076).

    A free price leaves a line of 0 for each meter, and no price leaves no version: neither is here.
    """
    event = schema.spend_event
    later = event.alias("later")
    units = sum((event.c[name] for name in _TOKENS[1:]), event.c[_TOKENS[0]])
    is_unpriced = sa.case((event.c.cost_pico_usd.is_(None), 1), else_=0)
    statement = cast(
        "sa.Select[tuple[object]]",
        sa.select(
            event.c.deployment_id,
            event.c.price_version,
            is_unpriced.label("is_unpriced"),
            sa.func.count(),
            sa.func.sum(sa.type_coerce(units, PicoTotal())),
        ),
    )
    found = connection.execute(
        statement.where(
            event.c.at_us >= from_us,
            event.c.at_us < to_us,
            event.c.status == STATUS_CODES[AttemptStatus.OK],
            event.c.price_version != "",
            sa.func.coalesce(event.c.cost_pico_usd, 0) == 0,
            sa.cast(event.c.lines, sa.Text) == "[]",
            units > 0,
            ~sa.exists().where(later.c.event_id == event.c.event_id, later.c.entry > event.c.entry),
        ).group_by(event.c.deployment_id, event.c.price_version, is_unpriced)
    ).all()
    return [
        Uncharged(
            deployment=_deployment(connection, deployment_id),
            price_version=plain_version(version),
            is_unpriced=bool(unpriced),
            attempts=int(attempts),
            units=int(counted),
        )
        for deployment_id, version, unpriced, attempts, counted in cast(
            "Sequence[tuple[int, str, int, int, int]]", found
        )
    ]


def stored_cells(
    connection: sa.Connection, one: RollUpTable, from_us: int, to_us: int | None = None
) -> Mapping[tuple[int, ...], Sequence[int]]:
    """The cells of a time as they are stored, by their place; None for no end."""
    table, key = one.table, one.key
    columns = (*(table.c[name] for name in key), *(table.c[name] for name in SUM_COLUMNS))
    statement = cast("sa.Select[tuple[int]]", sa.select(*columns))
    within = [table.c.bucket_us >= from_us]
    if to_us is not None:
        within.append(table.c.bucket_us < to_us)
    rows = cast("Sequence[tuple[int, ...]]", connection.execute(statement.where(*within)).all())
    return {tuple(row[: len(key)]): tuple(row[len(key) :]) for row in rows}


def cell_faults(
    one: RollUpTable,
    stored: Mapping[tuple[int, ...], Sequence[int]],
    expected: Mapping[tuple[int, ...], Sequence[int]],
    *,
    what: str,
) -> Iterator[str]:
    """Cells that differ; a cell of zeros is as good as none.

    Args:
        one: The table.
        stored: What it holds.
        expected: What it should hold.
        what: Who says so.
    """
    for place in sorted(stored.keys() | expected.keys()):
        should, holds = expected.get(place, _NOTHING), stored.get(place, _NOTHING)
        if tuple(should) != tuple(holds):
            wrong = ", ".join(
                f"{name} is {has}, the {what} say {want}"
                for name, has, want in zip(SUM_COLUMNS, holds, should, strict=True)
                if has != want
            )
            at = from_microseconds(place[0]).isoformat()
            yield f"{one.table.name} at {at} {place[1:]}: {wrong}"


def _of_events(connection: sa.Connection, from_us: int, to_us: int) -> RollUps:
    """What the events of a time, within one quarter, add to every table."""
    tag_ids = cost_tags.load_tag_ids(connection)
    roll_ups = RollUps()
    for group, sums in _groups(connection, from_us, to_us):
        key_id, cost_tags_id, *dimensions = group
        roll_ups.add_sums(from_us, key_id, tag_ids.get(cost_tags_id, ()), tuple(dimensions), sums)
    return roll_ups


def _groups(
    connection: sa.Connection, from_us: int, to_us: int
) -> Iterator[tuple[tuple[int, ...], Sequence[int]]]:
    """Sums of events by key, set of cost tags and dimensions; the same group may come twice."""
    table = events().fine
    grouping = [table.c.key_id, table.c.cost_tags_id, *(table.c[name] for name in DIMENSIONS)]
    within = [table.c.bucket_us >= from_us, table.c.bucket_us < to_us]
    found: Added = {}
    try:
        add_up(connection, table, grouping, within, found)
    except BadQuery:
        # More groups than one answer may hold: every half has fewer, at the latest of an instant.
        if to_us - from_us <= 1:
            raise
        middle_us = (from_us + to_us) // 2
        yield from _groups(connection, from_us, middle_us)
        yield from _groups(connection, middle_us, to_us)
        return
    for group, sums in found.items():
        yield group, sums[: len(SUM_COLUMNS)]


def _costs(cells: Cells) -> dict[tuple[int, ...], int]:
    """Cost by the dimensions of the sums by meter."""
    places = [DIMENSIONS.index(name) + 1 for name in schema.METER_DIMENSIONS]
    costs: dict[tuple[int, ...], int] = {}
    for place, sums in cells.items():
        owner = tuple(place[at] for at in places)
        costs[owner] = costs.get(owner, 0) + sums[_COST]
    return costs


def _meter_faults(
    connection: sa.Connection, day_us: int, costs: Mapping[tuple[int, ...], int]
) -> list[str]:
    table = schema.rollup_meter_day
    grouping: list[sa.ColumnElement[int]] = [table.c[name] for name in schema.METER_DIMENSIONS]
    summed: list[sa.ColumnElement[Any]] = [table.c.cost_pico_usd]
    within = [table.c.bucket_us >= day_us, table.c.bucket_us < day_us + DAY_US]
    rows = exact_sums(connection, grouping, summed, within)
    found = {tuple(map(int, row[:-1])): int(row[-1]) for row in rows}
    at = from_microseconds(day_us).date()
    return [
        f"{table.name} on {at} {owner}: cost_pico_usd is {found.get(owner, 0)},"
        f" the quarters say {costs.get(owner, 0)}"
        for owner in sorted(found.keys() | costs.keys())
        if found.get(owner, 0) != costs.get(owner, 0)
    ]


def first_day_us(connection: sa.Connection) -> int | None:
    """The first day that has an event or a sum; None where there is nothing."""
    event, cells = schema.spend_event, schema.rollup_qh
    instants = [
        cast("int | None", connection.execute(sa.select(sa.func.min(column))).scalar_one())
        for column in (event.c.at_us, cells.c.bucket_us)
    ]
    found = [at_us for at_us in instants if at_us is not None]
    return min(found) // DAY_US * DAY_US if found else None


def _deployment(connection: sa.Connection, deployment_id: int) -> str:
    table = schema.deployment
    name = connection.execute(sa.select(table.c.name).where(table.c.id == deployment_id))
    return name.scalar_one_or_none() or f"deployment {deployment_id}"
