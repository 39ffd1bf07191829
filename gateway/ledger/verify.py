"""`ledger verify`: recomputes everything that can be recomputed, and lists what does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import check_plan, cost_tags, day_checks, node, partitions, periods, schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.booking import Row
from gateway.ledger.budget_checks import budget_faults
from gateway.ledger.day_checks import cell_faults, stored_cells
from gateway.ledger.dialects import is_postgresql
from gateway.ledger.entry_checks import entry_faults
from gateway.ledger.meter_sums import MeterSums
from gateway.ledger.meters import meter_faults
from gateway.ledger.month_digest import close_faults
from gateway.ledger.roll_ups import ROLL_UPS, Cells, RollUps, RollUpTable, whole
from gateway.ledger.spool_reader import Cursor, SpoolDamage, SpoolReader
from gateway.ledger.store import load_cursors

FAULTS_MAX = 100
"""Faults listed one by one; the rest is counted."""
_BATCH_ROWS = 1_000


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
    found = _verification(connection, spool_root, faults)
    return msgspec.structs.replace(
        found, events=checker.events, cost_pico_usd=checker.cost_pico_usd
    )


class Since(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification rests on that did not look at everything.

    Attributes:
        checked_at_us: When the last daily check began; what has not changed since held then.
        days: How many days were looked at again, as they changed since, or as they did not hold.
    """

    checked_at_us: int
    days: int


def verify_since(
    connection: sa.Connection, spool_root: Path, month: str, *, now_us: int
) -> tuple[Verification, Since | None]:
    """Check what the last daily check does not speak for, as far as it matters to a month.

    That is: days of the month that have had new entries since, entries, sums and all; days and
    closed months that did not hold then; closed months that have had new entries; all of the audit
    log; and what `verify` asks of intents, partitions, quarantine and spools. What somebody changed
    by hand in days without new entries, and what budgets hold, only `verify` finds.

    Args:
        connection: In a transaction.
        spool_root: The spools.
        month: `YYYY-MM`.
        now_us: Now.

    Returns:
        What was found, and what it rests on: None where no check is recorded, so that everything
        was verified.
    """
    state = check_plan.load_state(connection)
    if not state.began_at_us:
        return verify(connection, spool_root), None
    changed = check_plan.changed_days(connection, now_us=now_us)
    start_us, end_us = periods.month_bounds_us(month)
    days = [
        day_us for day_us in changed if start_us <= day_us < end_us or day_us in state.faulty_days
    ]
    months = {periods.month_of(day_us) for day_us in changed} | set(state.faulty_months)
    faults = [
        *(fault for day_us in days for fault in _day_faults(connection, day_us)),
        *_settled_intent_faults(connection),
        *partitions.default_faults(connection),
        *audit_faults(connection),
        *close_faults(connection, only=months),
    ]
    since = Since(checked_at_us=state.began_at_us, days=len(days))
    return _verification(connection, spool_root, faults), since


def _day_faults(connection: sa.Connection, day_us: int) -> Iterator[str]:
    """What the daily check asks of a day."""
    for start_us in day_checks.quarters_in_use(connection, day_us):
        yield from day_checks.quarter_faults(connection, start_us)
    yield from day_checks.day_faults(connection, day_us)


def _verification(
    connection: sa.Connection, spool_root: Path, found: Sequence[str]
) -> Verification:
    """Faults with those of quarantine and spools, and what waits; entries are not counted here."""
    quarantined = _quarantine_faults(connection)
    prefix = node.load(spool_root) if is_postgresql(connection) else ""
    backlog_records, spool_faults = _scan_spools(spool_root, load_cursors(connection, prefix))
    faults = [*found, *quarantined, *spool_faults]
    count = sa.select(sa.func.count()).select_from(schema.attempt_intent)
    hidden = len(faults) - FAULTS_MAX
    if hidden > 0:
        faults = [*faults[:FAULTS_MAX], f"and {hidden} more faults"]
    return Verification(
        faults=tuple(faults),
        events=0,
        cost_pico_usd=0,
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
            yield from entry_faults(row, previous)
            self._count(row, previous)
            previous = row

    def _count(self, row: Row, previous: Row | None) -> None:
        """Let an event's highest entry stand for it."""
        self._add(row)
        self.cost_pico_usd += whole(row, "cost_pico_usd")
        if previous is not None and previous["event_id"] == row["event_id"]:
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
