"""Making the sums of a day anew from its events, by command, with a line in the audit log."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.ledger import booking, cost_tags, partitions, schema
from gateway.ledger.audit import append_audit
from gateway.ledger.booking import Row, Values
from gateway.ledger.cells import add_cells, add_meter_cells
from gateway.ledger.day_checks import cell_faults, first_day_us, stored_cells
from gateway.ledger.dialects import Lock, take
from gateway.ledger.dimensions import Dimensions
from gateway.ledger.grains import DAY_US
from gateway.ledger.meter_sums import MeterSums
from gateway.ledger.meters import day_meter_faults
from gateway.ledger.roll_ups import ROLL_UPS, RollUps, whole

_BATCH_ROWS = 1_000


class RebuiltDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day whose sums were made anew.

    Attributes:
        day: `YYYY-MM-DD`, in UTC.
        events: Entries that they are made of.
        cost_before_pico_usd: What the day's sums said.
        cost_pico_usd: What they say now: what the events say.
    """

    day: str
    events: int
    cost_before_pico_usd: int
    cost_pico_usd: int


def days_of(connection: sa.Connection, *, now_us: int) -> tuple[int, ...]:
    """First instants of every day that may have entries; none of a dropped month."""
    first_us = first_day_us(connection)
    if first_us is None:
        return ()
    from_us = max(first_us, partitions.kept_from_us(connection))
    newest = connection.execute(sa.select(sa.func.max(schema.spend_event.c.at_us)))
    to_us = max(now_us, cast("int | None", newest.scalar_one()) or 0) + 1
    return tuple(range(from_us, to_us, DAY_US))


def is_wrong(connection: sa.Connection, day_us: int) -> bool:
    """Whether the sums of a day are not those of its events."""
    roll_ups, meters, _ = _sums_of(connection, day_us)
    faults = itertools.chain(
        *(
            cell_faults(
                one,
                stored_cells(connection, one, day_us, day_us + DAY_US),
                roll_ups.cells[one.table.name],
                what="events",
            )
            for one in ROLL_UPS
        ),
        day_meter_faults(connection, meters, day_us),
    )
    return any(True for _ in faults)


def rebuild_day(connection: sa.Connection, day_us: int, *, actor: str, now_us: int) -> RebuiltDay:
    """Make the sums of a day anew.

    Args:
        connection: In a transaction that may write; nothing else changes sums until it ends.
        day_us: The day's first instant, of a month whose events are there.
        actor: Who asked for it.
        now_us: Now.
    """
    rates = Dimensions()
    # Rates are interned before the lock of the sums is taken, as the loader does it.
    rates.rate_ids(connection, _sums_of(connection, day_us)[1].rates())
    take(connection, Lock.AUDIT)  # in the order of `Lock`: a close holds it, and waits for loaders
    take(connection, Lock.SUMS)
    before = _stored_cost(connection, day_us)
    roll_ups, meters, events = _sums_of(connection, day_us)
    for table in (*(one.table for one in ROLL_UPS), schema.rollup_meter_day):
        within = (table.c.bucket_us >= day_us, table.c.bucket_us < day_us + DAY_US)
        connection.execute(sa.delete(table).where(*within))
    add_cells(connection, roll_ups)
    add_meter_cells(connection, meters, rates.rate_ids(connection, meters.rates()))
    done = RebuiltDay(
        day=from_microseconds(day_us).date().isoformat(),
        events=events,
        cost_before_pico_usd=before,
        cost_pico_usd=_stored_cost(connection, day_us),
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=actor,
        action="ledger.rebuild",
        subject=done.day,
        details={
            "events": done.events,
            "cost_before_pico_usd": done.cost_before_pico_usd,
            "cost_pico_usd": done.cost_pico_usd,
        },
    )
    return done


def _sums_of(connection: sa.Connection, day_us: int) -> tuple[RollUps, MeterSums, int]:
    """What the events of a day add up to, and how many entries they have."""
    tag_ids = cost_tags.load_tag_ids(connection)
    roll_ups, meters = RollUps(), MeterSums()
    count = 0
    previous: Row | None = None
    for row in _entries(connection, day_us):
        count += 1
        signed = [(row, 1)]
        if previous is not None and previous["event_id"] == row["event_id"]:
            signed.append((previous, -1))
        for one, sign in signed:
            roll_ups.add(one, tag_ids.get(whole(one, "cost_tags_id"), ()), sign=sign)
            meters.add(one, sign=sign)
        previous = row
    return roll_ups, meters, count


def _entries(connection: sa.Connection, day_us: int) -> Iterator[Row]:
    """The day's entries by event, the lowest first."""
    table = schema.spend_event
    columns = [table.c[name] for name in booking.EVENT_COLUMNS]
    wanted = cast("sa.Select[tuple[object]]", sa.select(*columns))
    wanted = wanted.where(table.c.at_us >= day_us, table.c.at_us < day_us + DAY_US)
    ordered = wanted.order_by(table.c.event_id, table.c.entry)
    found = connection.execute(ordered.execution_options(yield_per=_BATCH_ROWS))
    for values in found:
        yield booking.row_of(cast("Values", tuple(values)))


def _stored_cost(connection: sa.Connection, day_us: int) -> int:
    table = schema.rollup_day
    rows = connection.execute(
        sa.select(table.c.cost_pico_usd).where(
            table.c.bucket_us >= day_us, table.c.bucket_us < day_us + DAY_US
        )
    )
    return sum(map(int, cast("Sequence[int]", rows.scalars().all())))
