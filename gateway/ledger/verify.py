"""`ledger verify`: recomputes everything that can be recomputed, and lists what does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import cost_tags, node, partitions, schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.booking import Row
from gateway.ledger.budget_checks import budget_faults
from gateway.ledger.day_checks import cell_faults, stored_cells
from gateway.ledger.dialects import is_postgresql
from gateway.ledger.meter_sums import MeterSums
from gateway.ledger.meters import meter_faults
from gateway.ledger.month_digest import close_faults
from gateway.ledger.roll_ups import ROLL_UPS, Cells, RollUps, RollUpTable, whole
from gateway.ledger.schema import METERS
from gateway.ledger.spool_reader import Cursor, SpoolDamage, SpoolReader
from gateway.ledger.store import load_cursors
from pricing.money import Rate, line_cost

FAULTS_MAX = 100
"""Faults listed one by one; the rest is counted."""
_BATCH_ROWS = 1_000
_LINE_COLUMNS = 5
"""Of a line without a public price."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked and what was found.

    Attributes:
        faults: One sentence each; empty when everything holds.
        events: Entries checked.
        cost_pico_usd: Sum of the entries that count.
        open_intents: Attempts under way, or waiting to be given up.
        backlog_records: Records in the spools that are not loaded yet; no fault.
        quarantined: Entries that could not be booked; a fault each.
    """

    faults: tuple[str, ...]
    events: int
    cost_pico_usd: int
    open_intents: int
    backlog_records: int
    quarantined: int


def verify(connection: sa.Connection, spool_root: Path) -> Verification:
    """Check the database, within one transaction, and what the spools still hold."""
    checker = _Checker(cost_tags.load_tag_ids(connection))
    faults = [
        *_database_faults(connection),
        *checker.event_faults(connection),
        *checker.roll_up_faults(connection),
        *_settled_intent_faults(connection),
        *partitions.default_faults(connection),
        *audit_faults(connection),
        *budget_faults(connection),
        *close_faults(connection),
    ]
    quarantined = _quarantine_faults(connection)
    prefix = node.load(spool_root) if is_postgresql(connection) else ""
    backlog_records, spool_faults = _scan_spools(spool_root, load_cursors(connection, prefix))
    faults += [*quarantined, *spool_faults]
    count = sa.select(sa.func.count()).select_from(schema.attempt_intent)
    hidden = len(faults) - FAULTS_MAX
    if hidden > 0:
        faults = [*faults[:FAULTS_MAX], f"and {hidden} more faults"]
    return Verification(
        faults=tuple(faults),
        events=checker.events,
        cost_pico_usd=checker.cost_pico_usd,
        open_intents=connection.execute(count).scalar_one(),
        backlog_records=backlog_records,
        quarantined=len(quarantined),
    )


class _Checker:
    """Walks all events once and keeps what the roll-ups should hold."""

    def __init__(self, cost_tag_ids: Mapping[int, tuple[int, ...]]) -> None:
        self.events = 0
        self.cost_pico_usd = 0
        self._roll_ups = RollUps()
        self._meters = MeterSums()
        self._cost_tag_ids = cost_tag_ids

    def event_faults(self, connection: sa.Connection) -> Iterator[str]:
        table = schema.spend_event
        rows = connection.execution_options(yield_per=_BATCH_ROWS).execute(
            sa.select(table).order_by(table.c.event_id, table.c.entry)
        )
        previous: Row | None = None
        for mapping in rows.mappings():
            row = cast("Row", dict(mapping))
            self.events += 1
            yield from _line_faults(row)
            yield from self._count(row, previous)
            previous = row

    def _count(self, row: Row, previous: Row | None) -> Iterator[str]:
        """Let an event's highest entry stand for it."""
        self._add(row)
        self.cost_pico_usd += whole(row, "cost_pico_usd")
        if row["entry"] == 0:
            return
        if previous is None or previous["event_id"] != row["event_id"]:
            yield f"event {_name(row)} has a later entry without a first one"
            return
        if not previous["is_lost"]:
            yield f"event {_name(row)} is settled twice"
        self._add(previous, sign=-1)
        self.cost_pico_usd -= whole(previous, "cost_pico_usd")

    def _add(self, row: Row, *, sign: int = 1) -> None:
        cost_tag_ids = self._cost_tag_ids.get(whole(row, "cost_tags_id"), ())
        self._roll_ups.add(row, cost_tag_ids, sign=sign)
        self._meters.add(row, sign=sign)

    def roll_up_faults(self, connection: sa.Connection) -> Iterator[str]:
        for one in ROLL_UPS:
            yield from _cell_faults(connection, one, self._roll_ups.cells[one.table.name])
        yield from meter_faults(connection, self._meters)


def _line_faults(row: Row) -> Iterator[str]:
    """Whether each line is its units at its rate, and the cost is the lines' sum."""
    lines = cast("Sequence[tuple[str, int, int, int, int, int, int, int]]", row["lines"])
    charged: dict[str, int] = dict.fromkeys(METERS, 0)
    for meter, units, rate_pico_usd, per_units, cost_pico_usd, *listed in lines:
        if listed:
            yield from _list_line_faults(row, meter, units, listed)
        charged[meter] = charged.get(meter, 0) + units
        if per_units < 1 or rate_pico_usd < 0 or units < 0:
            yield f"event {_name(row)}: the {meter} line has a rate or count that cannot be"
        elif cost_pico_usd != line_cost(units, Rate(pico_usd=rate_pico_usd, per_units=per_units)):
            yield f"event {_name(row)}: the {meter} line is not its units at its rate"
    for meter, units in charged.items():
        if units and row.get(f"{meter}_units") != units:
            yield f"event {_name(row)}: the {meter} line charges other units than were counted"
    total = sum(line[4] for line in lines)
    if row["cost_pico_usd"] != total and (row["cost_pico_usd"] is not None or lines):
        yield f"event {_name(row)}: the cost is not the sum of its lines"
    listed = [line[7] for line in lines if len(line) > _LINE_COLUMNS]
    has_list_cost = row["list_cost_pico_usd"] is not None
    if has_list_cost != bool(listed) and lines:
        yield f"event {_name(row)}: its lines and its list cost do not belong together"
    elif has_list_cost and row["list_cost_pico_usd"] != sum(listed):
        yield f"event {_name(row)}: the list cost is not the sum of its lines"


def _list_line_faults(row: Row, meter: str, units: int, listed: Sequence[int]) -> Iterator[str]:
    """Whether a line's units at its public rate are its list cost."""
    rate_pico_usd, per_units, cost_pico_usd = listed
    if per_units < 1 or rate_pico_usd < 0:
        yield f"event {_name(row)}: the {meter} line has a public rate that cannot be"
    elif cost_pico_usd != line_cost(units, Rate(pico_usd=rate_pico_usd, per_units=per_units)):
        yield f"event {_name(row)}: the {meter} line is not its units at its public rate"


def _cell_faults(connection: sa.Connection, one: RollUpTable, expected: Cells) -> Iterator[str]:
    """Cells that differ from the events; of months that were dropped the sums alone are there."""
    from_us = partitions.kept_from_us(connection)
    stored = stored_cells(connection, one, from_us)
    kept = {place: sums for place, sums in expected.items() if place[0] >= from_us}
    yield from cell_faults(one, stored, kept, what="events")


def _database_faults(connection: sa.Connection) -> Iterator[str]:
    if is_postgresql(connection):
        return  # the server checks its own pages
    found = connection.exec_driver_sql("PRAGMA quick_check").scalars().all()
    yield from (f"database file: {line}" for line in cast("Sequence[str]", found) if line != "ok")


def _settled_intent_faults(connection: sa.Connection) -> Iterator[str]:
    intent, event = schema.attempt_intent, schema.spend_event
    both = sa.select(intent.c.event_id).join(event, event.c.event_id == intent.c.event_id)
    for event_id in cast("Sequence[bytes]", connection.execute(both).scalars().all()):
        yield f"attempt {event_id.hex()} is both open and booked"


def _quarantine_faults(connection: sa.Connection) -> list[str]:
    table = schema.quarantine
    rows = connection.execute(
        sa.select(table.c.directory, table.c.number, table.c.offset_bytes, table.c.reason).order_by(
            table.c.id
        )
    ).all()
    return [
        f"quarantined from spool {directory}, segment {number} at {offset}: {reason}"
        for directory, number, offset, reason in cast("Sequence[tuple[str, int, int, str]]", rows)
    ]


def _scan_spools(root: Path, cursors: Mapping[str, Cursor]) -> tuple[int, list[str]]:
    """Count what waits in the spools and find what is damaged there."""
    records, faults = 0, list[str]()
    directories = sorted(path for path in root.glob("*") if path.is_dir())
    for directory in directories:
        faults += [
            f"spool {directory.name}: damaged bytes are kept in {side.name}"
            for side in sorted(directory.glob("*.damaged"))
        ]
        reader = SpoolReader(directory, cursors.get(directory.name, Cursor()))
        is_moving = True
        while is_moving:
            before = reader.cursor
            for entry, _ in reader:
                records += 1
                if isinstance(entry, SpoolDamage):
                    faults.append(
                        f"spool {directory.name}, segment {entry.number} at {entry.start}: "
                        f"{entry.reason.replace('_', ' ')}"
                    )
            is_moving = reader.cursor != before
    return records, faults


def _name(row: Row) -> str:
    return cast("bytes", row["event_id"]).hex()
