"""What one load does to the database, inside one transaction.

The rule of exactly once: an event id has one entry 0. It is the settlement, or, when the writer
died or the intent expired first, a lost entry with nothing booked and the exposure kept. Should a
settlement still come after a lost entry, it becomes entry 1, once, and takes the lost one's place
in every sum. Everything else with a known event id is a replay and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from gateway.ledger import booking, schema
from gateway.ledger.booking import RollUps, Row
from gateway.ledger.dimensions import Dimensions
from gateway.ledger.errors import LedgerError
from gateway.ledger.records import Intent, Settlement, decode
from gateway.ledger.spool_reader import Cursor, SpoolDamage, SpoolEntry, SpoolRecord

_IN_MAX = 500
"""Most values in one IN list."""


class StaleCursor(LedgerError):
    """Another loader moved the cursor; read again from where it now stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One entry of a spool and the directory it lies in."""

    directory: str
    entry: SpoolEntry


@dataclass(slots=True, kw_only=True)
class Applied:
    """What a transaction did.

    Attributes:
        events: Entries inserted into `spend_event`.
        replays: Settlements that were booked before.
        quarantined: Entries that could not be booked.
        lost: Intents given up, part of `events`.
    """

    events: int = 0
    replays: int = 0
    quarantined: int = 0
    lost: int = 0

    def add(self, other: Applied) -> None:
        """Count another step of the same transaction."""
        self.events += other.events
        self.replays += other.replays
        self.quarantined += other.quarantined
        self.lost += other.lost


@dataclass(slots=True)
class _Sorted:
    """A batch taken apart."""

    intents: dict[bytes, tuple[Intent, Item]] = field(default_factory=dict)
    settlements: list[tuple[Settlement, Item]] = field(default_factory=list)
    rejected: list[tuple[Item, str]] = field(default_factory=list)


class Store:
    """The statements of the loader.

    Args:
        grace_s: Seconds past its lifetime after which an unsettled intent is lost.
    """

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._dimensions = Dimensions()

    def forget(self) -> None:
        """Drop what a rollback took back; to be called after each."""
        self._dimensions.forget()

    def apply(self, connection: sa.Connection, items: Sequence[Item], *, now_us: int) -> Applied:
        """Book a batch; entries that cannot be booked go to quarantine with the reason."""
        batch = _sort(items)
        settled_ids = {settlement.event_id for settlement, _ in batch.settlements}
        known = _known_entries(connection, batch.intents.keys() | settled_ids)
        opened = {event_id: intent for event_id, (intent, _) in batch.intents.items()}
        opened |= _intents_of(connection, settled_ids - opened.keys())
        rows: list[Row] = []
        replaced: dict[bytes, Row] = {}
        applied = Applied()
        taken: set[bytes] = set()
        for settlement, item in batch.settlements:
            event_id = settlement.event_id
            entries = known.get(event_id, [])
            if event_id in taken or len(entries) > 1 or (entries and not entries[0]["is_lost"]):
                applied.replays += 1
            elif entries:
                taken.add(event_id)
                replaced[event_id] = entries[0]
                rows.append(_late_row(entries[0], settlement))
            elif event_id in opened:
                taken.add(event_id)
                rows.append(self._settled_row(connection, opened[event_id], settlement))
            else:
                batch.rejected.append((item, "settled without an intent"))
        applied.events = _insert_events(connection, rows, replaced)
        _delete_intents(connection, settled_ids & (taken | known.keys()))
        unsettled = batch.intents.keys() - taken - known.keys()
        self._insert_intents(connection, [batch.intents[event_id] for event_id in unsettled])
        applied.quarantined = quarantine(connection, batch.rejected, now_us=now_us)
        return applied

    def close_lost(
        self, connection: sa.Connection, condition: sa.ColumnElement[bool], *, now_us: int
    ) -> Applied:
        """Give up the open intents that match: nothing booked, exposure kept."""
        intents = _open_intents(connection, condition)
        rows = [
            {
                **booking.intent_columns(intent, self._dimensions.of_intent(connection, intent)),
                **booking.lost_columns(now_us=now_us, exposure_pico_usd=intent.exposure_pico_usd),
                "entry": 0,
            }
            for intent in intents
        ]
        count = _insert_events(connection, rows, {})
        _delete_intents(connection, {intent.event_id for intent in intents})
        return Applied(events=count, lost=count)

    def _settled_row(
        self, connection: sa.Connection, intent: Intent, settlement: Settlement
    ) -> Row:
        ids = self._dimensions.of_intent(connection, intent)
        settled = booking.settled_columns(settlement, exposure_pico_usd=intent.exposure_pico_usd)
        return {**booking.intent_columns(intent, ids), **settled, "entry": 0}

    def _insert_intents(
        self, connection: sa.Connection, opened: Sequence[tuple[Intent, Item]]
    ) -> None:
        rows = [
            {
                "event_id": intent.event_id,
                "directory": item.directory,
                "session": item.entry.session,
                "at_us": intent.at_us,
                "expires_at_us": booking.expires_at_us(intent, grace_s=self._grace_s),
                "payload": item.entry.payload,
            }
            for intent, item in opened
        ]
        if rows:
            connection.execute(insert(schema.attempt_intent).on_conflict_do_nothing(), rows)


def load_cursors(connection: sa.Connection) -> dict[str, Cursor]:
    """How far each directory is loaded."""
    table = schema.spool_cursor
    rows = connection.execute(
        sa.select(table.c.directory, table.c.number, table.c.offset_bytes, table.c.session)
    )
    stored = cast("Sequence[tuple[str, int, int, bytes]]", rows.all())
    return {
        directory: Cursor(number=number, offset_bytes=offset_bytes, session=session)
        for directory, number, offset_bytes, session in stored
    }


def move_cursor(
    connection: sa.Connection, directory: str, *, before: Cursor | None, after: Cursor
) -> None:
    """Advance a cursor in the transaction that inserts what it passes.

    Raises:
        StaleCursor: It does not stand at `before`; the transaction must be rolled back.
    """
    table = schema.spool_cursor
    values = {
        "number": after.number,
        "offset_bytes": after.offset_bytes,
        "session": after.session,
    }
    if before is None:
        added = connection.execute(
            insert(table).values(directory=directory, **values).on_conflict_do_nothing()
        )
        is_moved = added.rowcount == 1
    else:
        moved = connection.execute(
            sa.update(table).where(_stands_at(directory, before)).values(**values)
        )
        is_moved = moved.rowcount == 1
    if not is_moved:
        raise StaleCursor(f"another loader reads {directory}")


def drop_cursor(connection: sa.Connection, directory: str, *, at: Cursor) -> None:
    """Forget a directory that was removed, unless its name is in use again."""
    connection.execute(sa.delete(schema.spool_cursor).where(_stands_at(directory, at)))


def quarantine(
    connection: sa.Connection, rejected: Iterable[tuple[Item, str]], *, now_us: int
) -> int:
    """Keep what cannot be booked, as it lay in the spool; a replay adds nothing."""
    rows = [
        {
            "at_us": now_us,
            "directory": item.directory,
            "session": item.entry.session,
            "number": item.entry.number,
            "offset_bytes": item.entry.start,
            "reason": reason,
            "payload": item.entry.payload,
        }
        for item, reason in rejected
    ]
    if rows:
        connection.execute(insert(schema.quarantine).on_conflict_do_nothing(), rows)
    return len(rows)


def _stands_at(directory: str, cursor: Cursor) -> sa.ColumnElement[bool]:
    table = schema.spool_cursor
    return sa.and_(
        table.c.directory == directory,
        table.c.number == cursor.number,
        table.c.offset_bytes == cursor.offset_bytes,
        table.c.session == cursor.session,
    )


def _sort(items: Sequence[Item]) -> _Sorted:
    batch = _Sorted()
    for item in items:
        record, reason = _read(item.entry)
        if record is None:
            batch.rejected.append((item, reason))
        elif isinstance(record, Intent):
            batch.intents.setdefault(record.event_id, (record, item))
        else:
            batch.settlements.append((record, item))
    return batch


def _read(entry: SpoolRecord | SpoolDamage) -> tuple[Intent | Settlement | None, str]:
    """The record, or None and the reason why it is none."""
    if isinstance(entry, SpoolDamage):
        return None, entry.reason
    try:
        record = decode(entry.payload)
    except msgspec.DecodeError as error:
        return None, f"not a record: {error}"
    reason = booking.fault(record)
    return (None, reason) if reason else (record, "")


def _late_row(lost: Row, settlement: Settlement) -> Row:
    """Entry 1: what the intent said, from the lost entry, and what the settlement says."""
    exposure = cast("int | None", lost["exposure_pico_usd"])
    return {**lost, **booking.settled_columns(settlement, exposure_pico_usd=exposure), "entry": 1}


def _known_entries(connection: sa.Connection, event_ids: Iterable[bytes]) -> dict[bytes, list[Row]]:
    """Entries that events have already, lowest first."""
    table = schema.spend_event
    known: dict[bytes, list[Row]] = {}
    for some in _chunks(event_ids):
        found = connection.execute(
            sa.select(table).where(table.c.event_id.in_(some)).order_by(table.c.entry)
        )
        for row in found.mappings():
            values = cast("Row", dict(row))
            known.setdefault(cast("bytes", values["event_id"]), []).append(values)
    return known


def _intents_of(connection: sa.Connection, event_ids: Iterable[bytes]) -> dict[bytes, Intent]:
    """Those of the events that are open in the database."""
    table = schema.attempt_intent
    return {
        intent.event_id: intent
        for some in _chunks(event_ids)
        for intent in _open_intents(connection, table.c.event_id.in_(some))
    }


def _open_intents(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[Intent]:
    payload = schema.attempt_intent.c.payload
    found = connection.execute(sa.select(payload).where(condition)).scalars().all()
    # Only intents are stored there.
    return [cast("Intent", decode(payload)) for payload in cast("Sequence[bytes]", found)]


def _insert_events(
    connection: sa.Connection, rows: Sequence[Row], replaced: Mapping[bytes, Row]
) -> int:
    """Insert entries and roll up exactly those that were inserted; returns their count."""
    if not rows:
        return 0
    table = schema.spend_event
    inserted = connection.execute(
        insert(table).on_conflict_do_nothing().returning(table.c.event_id), rows
    )
    new_ids = set(inserted.scalars())
    roll_ups = RollUps()
    for row in rows:
        event_id = cast("bytes", row["event_id"])
        if event_id in new_ids:
            roll_ups.add(row)
            if event_id in replaced:
                roll_ups.add(replaced[event_id], sign=-1)
    _upsert_sums(connection, schema.rollup_qh, booking.QH_KEY, roll_ups.quarter_hours)
    _upsert_sums(connection, schema.rollup_day, booking.DAY_KEY, roll_ups.days)
    return len(new_ids)


def _upsert_sums(
    connection: sa.Connection,
    table: sa.Table,
    key: Sequence[str],
    cells: Mapping[tuple[int, ...], Sequence[int]],
) -> None:
    """Add deltas to the cells of a roll-up."""
    rows = [
        dict(zip((*key, *booking.SUM_COLUMNS), (*place, *amounts), strict=True))
        for place, amounts in cells.items()
    ]
    if not rows:
        return
    statement = insert(table)
    added = {name: table.c[name] + statement.excluded[name] for name in booking.SUM_COLUMNS}
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=added), rows)


def _delete_intents(connection: sa.Connection, event_ids: Iterable[bytes]) -> None:
    table = schema.attempt_intent
    for some in _chunks(event_ids):
        connection.execute(sa.delete(table).where(table.c.event_id.in_(some)))


def _chunks(event_ids: Iterable[bytes]) -> Iterable[list[bytes]]:
    """Sorted, in lists of at most `_IN_MAX`."""
    ordered = sorted(event_ids)
    return (ordered[start : start + _IN_MAX] for start in range(0, len(ordered), _IN_MAX))
