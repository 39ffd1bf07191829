"""What one load does to the database, inside one transaction.

The rule of exactly once: an event id has one entry 0. It is the settlement, or, when the writer
died or the intent expired first, a lost entry with nothing booked and the exposure kept. Should a
settlement still come after a lost entry, it becomes entry 1, once, and takes the lost one's place
in every sum. Everything else with a known event id is a replay and changes nothing. Loaders of
several machines may book at once: rows that both would touch are taken before they are looked at.

What needs no database is in `batches`: taking a batch apart and matching settlements to intents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa

from gateway.ledger import (
    batches,
    booking,
    budget_alerts,
    budget_buckets,
    budget_leases,
    budgets,
    check_plan,
    cost_tags,
    periods,
    schema,
    statements,
)
from gateway.ledger.batches import Batch, Changes, Refused
from gateway.ledger.booking import DimensionIds, Values
from gateway.ledger.budget_buckets import StoredBudget
from gateway.ledger.budget_deltas import BudgetDeltas, BudgetMatcher, Owner, owner_of
from gateway.ledger.cells import add_cells, add_meter_cells
from gateway.ledger.dialects import add_rows, insert_into, is_postgresql
from gateway.ledger.dimensions import Dimensions
from gateway.ledger.errors import LedgerError
from gateway.ledger.meter_sums import MeterRate
from gateway.ledger.partitions import Partitions
from gateway.ledger.records import Intent, decode
from gateway.ledger.roll_ups import RollUps
from gateway.ledger.spool_reader import Cursor

_AT_US = booking.EVENT_COLUMNS.index("at_us")


class StaleCursor(LedgerError):
    """Another loader moved the cursor; read again from where it now stands."""


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


class Store:
    """The statements of the loader.

    Args:
        grace_s: Seconds past its lifetime after which an unsettled intent is lost.
    """

    def __init__(self, *, grace_s: float) -> None:
        self.node = ""
        """Stands before the names of directories, see `node`."""
        self._grace_s = grace_s
        self._dimensions = Dimensions()
        self._partitions = Partitions()
        self._budgets: dict[int, StoredBudget] = {}
        self._matcher = BudgetMatcher()
        self._budgets_revision = 0

    def forget(self) -> None:
        """Drop what a rollback took back; to be called after each."""
        self._dimensions.forget()
        self._partitions.forget()

    def _load_budgets(self, connection: sa.Connection) -> BudgetMatcher:
        """The budgets in force, which stay so until the transaction ends."""
        budget_buckets.lock_rules(connection, is_exclusive=False)
        revision = budgets.load_revision(connection)
        if revision != self._budgets_revision:
            self._budgets = budgets.load_budgets(connection)
            self._matcher = BudgetMatcher([budget.rule for budget in self._budgets.values()])
            self._budgets_revision = revision
        return self._matcher

    def apply(self, connection: sa.Connection, batch: Batch, *, now_us: int) -> Applied:
        """Book a batch; entries that cannot be booked go to quarantine with the reason."""
        batch.matcher = self._load_budgets(connection)
        self._look_up(connection, batch)
        changes = batches.book(batch, grace_s=self._grace_s, node=self.node)
        # Before the lock of the sums: who interns a name that another loader just interns waits.
        rate_ids = self._dimensions.rate_ids(connection, changes.meters.rates())
        budget_buckets.ensure(connection, self._budgets, changes.budgets.windows)
        applied = self._write(connection, changes, rate_ids, now_us=now_us)
        self._book_budgets(connection, changes.budgets, now_us=now_us)
        return applied

    def _book_budgets(
        self, connection: sa.Connection, deltas: BudgetDeltas, *, now_us: int
    ) -> None:
        """Count what was booked; in the transaction that books it, so exactly once like it."""
        if not deltas.is_empty:
            changed = budget_leases.book(connection, deltas)
            budget_alerts.note(connection, self._budgets, changed, now_us=now_us)

    def release_leases(
        self, connection: sa.Connection, conditions: Iterable[sa.ColumnElement[bool]]
    ) -> None:
        """Release the leases of writers that are gone and whose records are all booked."""
        for condition in conditions:
            budget_leases.release(connection, condition)

    def _look_up(self, connection: sa.Connection, batch: Batch) -> None:
        """Add to a batch what the database knows of its events, and the ids of its names."""
        self._dimensions.list_cost_tags(cost_tags.load_listed(connection))
        settled_ids = batch.settled_ids()
        # Whatever becomes of a settlement, its attempt is open no longer. First, because another
        # machine's loader may just be giving it up: this waits for it, and then sees its entry.
        taken = _take_intents(connection, settled_ids)
        at_us = batch.instants_us()
        at_us |= {intent.event_id: intent.at_us for intent in taken}
        batch.known = _known_entries(connection, batch.intents.keys() | settled_ids, at_us)
        batch.lost_tags = self._tags_of_entries(connection, batch.known.values())
        for intent in taken:
            batch.add_stored(intent)
        for name in batch.names.values():
            name.found(self._dimensions.of_intent(connection, name.intent))
        if batch.matcher.rules:
            batch.owners = _owners(connection, batch.known.keys() & settled_ids)

    def _tags_of_entries(
        self, connection: sa.Connection, entries: Iterable[list[Values]]
    ) -> dict[int, tuple[int, ...]]:
        """Listed cost tags by the set of cost tags of each event's first entry."""
        set_ids = {cast("int", rows[0][batches.COST_TAGS_ID]) for rows in entries}
        return {
            set_id: self._dimensions.cost_tag_ids(connection, tags)
            for set_id, tags in cost_tags.load_pairs(connection, set_ids)
        }

    def close_lost(
        self, connection: sa.Connection, condition: sa.ColumnElement[bool], *, now_us: int
    ) -> Applied:
        """Give up the open intents that match: nothing booked, exposure kept.

        They are taken a few at a time: a worker that died under load leaves thousands.
        """
        closed = Applied()
        matcher = self._load_budgets(connection)
        self._dimensions.list_cost_tags(cost_tags.load_listed(connection))
        while intents := _open_intents(connection, condition):
            ids = {intent.event_id for intent in intents}
            at_us = {intent.event_id: intent.at_us for intent in intents}
            known = _known_entries(connection, ids, at_us)
            rows: list[Values] = []
            roll_ups = RollUps()
            deltas = BudgetDeltas(matcher)
            for intent in intents:
                if intent.event_id not in known:
                    dimensions = self._dimensions.of_intent(connection, intent)
                    rows.append(_lost_row(intent, dimensions, now_us=now_us))
                    roll_ups.add(booking.row_of(rows[-1]), dimensions.cost_tag_ids)
                    exposure = booking.exposure_of(intent) or 0
                    deltas.add(
                        owner_of(intent),
                        intent.at_us,
                        spent_pico_usd=0,
                        exposed_pico_usd=exposure,
                    )
                    deltas.release(intent)
            budget_buckets.ensure(connection, self._budgets, deltas.windows)
            self._insert_events(connection, rows, roll_ups, now_us=now_us)
            self._book_budgets(connection, deltas, now_us=now_us)
            _take_intents(connection, ids)
            closed.add(Applied(events=len(rows), lost=len(rows)))
        return closed

    def _write(
        self,
        connection: sa.Connection,
        changes: Changes,
        rate_ids: Mapping[MeterRate, int],
        *,
        now_us: int,
    ) -> Applied:
        """Insert, open attempts, keep aside what was refused, and roll up."""
        if changes.opened:
            intents = statements.insert_intents(connection.dialect.name)
            connection.exec_driver_sql(intents, changes.opened)
        quarantined = quarantine(connection, changes.refused, now_us=now_us, node=self.node)
        self._insert_events(connection, changes.rows, changes.roll_ups, now_us=now_us)
        add_meter_cells(connection, changes.meters, rate_ids)
        return Applied(events=len(changes.rows), replays=changes.replays, quarantined=quarantined)

    def _insert_events(
        self, connection: sa.Connection, rows: list[Values], roll_ups: RollUps, *, now_us: int
    ) -> None:
        """Insert new entries and add what they sum up to; none of them is known."""
        if not rows:
            return
        instants_us = cast("list[int]", [row[_AT_US] for row in rows])
        self._partitions.ensure(connection, instants_us)
        dialect = connection.dialect.name
        add_rows(
            connection,
            statements.insert_events(dialect),
            schema.spend_event,
            booking.EVENT_COLUMNS,
            rows,
        )
        add_cells(connection, roll_ups)
        check_plan.note_touched(connection, instants_us, now_us=now_us)
        periods.note_late(connection, rows, now_us=now_us)


def _lost_row(intent: Intent, ids: DimensionIds, *, now_us: int) -> Values:
    lost = booking.lost_values(now_us=now_us, exposure_pico_usd=booking.exposure_of(intent))
    return (*booking.intent_values(intent, ids), 0, *lost)


def load_cursors(connection: sa.Connection, node: str = "") -> dict[str, Cursor]:
    """How far each directory of a node is loaded, by the directory's name."""
    table = schema.spool_cursor
    rows = connection.execute(
        sa.select(table.c.directory, table.c.number, table.c.offset_bytes, table.c.session).where(
            table.c.directory.startswith(node, autoescape=True)
        )
    )
    stored = cast("Sequence[tuple[str, int, int, bytes]]", rows.all())
    return {
        directory.removeprefix(node): Cursor(
            number=number, offset_bytes=offset_bytes, session=session
        )
        for directory, number, offset_bytes, session in stored
    }


def move_cursor(
    connection: sa.Connection, directory: str, *, before: Cursor | None, after: Cursor
) -> None:
    """Advance a cursor in the transaction that inserts what it passes.

    Args:
        connection: In that transaction.
        directory: With its node.
        before: Where it has to stand, None when there is none yet.
        after: Where it stands then.

    Raises:
        StaleCursor: It does not stand at `before`; the transaction must be rolled back.
    """
    dialect = connection.dialect.name
    to = (after.number, after.offset_bytes, after.session)
    if before is None:
        moved = connection.exec_driver_sql(statements.add_cursor(dialect), (directory, *to))
    else:
        at = (directory, before.number, before.offset_bytes, before.session)
        moved = connection.exec_driver_sql(statements.move_cursor(dialect), (*to, *at))
    is_moved = moved.rowcount == 1
    if not is_moved:
        raise StaleCursor(f"another loader reads {directory}")


def drop_cursor(connection: sa.Connection, directory: str, *, at: Cursor) -> None:
    """Forget a directory that was removed, unless its name is in use again."""
    connection.execute(sa.delete(schema.spool_cursor).where(_stands_at(directory, at)))


def quarantine(
    connection: sa.Connection, refused: Iterable[Refused], *, now_us: int, node: str = ""
) -> int:
    """Keep what cannot be booked, as it lay in the spool; a replay adds nothing."""
    rows = [
        {
            "at_us": now_us,
            "directory": node + entry.directory,
            "session": entry.session,
            "number": entry.number,
            "offset_bytes": entry.start,
            "reason": reason,
            "payload": entry.payload,
        }
        for entry, reason in refused
    ]
    if rows:
        insert = insert_into(connection.dialect.name, schema.quarantine)
        connection.execute(insert.on_conflict_do_nothing(), rows)
    return len(rows)


def _stands_at(directory: str, cursor: Cursor) -> sa.ColumnElement[bool]:
    table = schema.spool_cursor
    return sa.and_(
        table.c.directory == directory,
        table.c.number == cursor.number,
        table.c.offset_bytes == cursor.offset_bytes,
        table.c.session == cursor.session,
    )


def _known_entries(
    connection: sa.Connection, event_ids: AbstractSet[bytes], at_us: Mapping[bytes, int]
) -> dict[bytes, list[Values]]:
    """Entries that events have already, lowest first, columns as in `booking.EVENT_COLUMNS`.

    Args:
        connection: In the loader's transaction.
        event_ids: Of these events.
        at_us: When they began, as far as that is known: the months to look into on PostgreSQL.
    """
    dialect = connection.dialect.name
    known: dict[bytes, list[Values]] = {}
    if is_postgresql(connection):
        dated = sorted(at_us.keys() & event_ids)
        if dated:
            instants = [at_us[event_id] for event_id in dated]
            bounds = (statements.id_array(dated), min(instants), max(instants))
            found = connection.exec_driver_sql(statements.select_entries_between(), bounds)
            _note(known, found)
        event_ids = event_ids - at_us.keys()
    for ids in statements.id_lists(dialect, event_ids):
        found = connection.exec_driver_sql(statements.select_entries(dialect, len(ids)), ids)
        _note(known, found)
    return known


def _note(known: dict[bytes, list[Values]], found: sa.CursorResult[Any]) -> None:
    for row in cast("Sequence[Values]", found.all()):
        known.setdefault(cast("bytes", row[0]), []).append(tuple(row))


def _owners(connection: sa.Connection, event_ids: Iterable[bytes]) -> dict[bytes, Owner]:
    """Whose booked events are, by name; few are asked for, as attempts are seldom lost."""
    event, team, project = schema.spend_event, schema.team, schema.project
    key, tags = schema.api_key_name, schema.tag_set
    owners: dict[bytes, Owner] = {}
    for ids in statements.some_at_once(event_ids):
        found = connection.execute(
            sa.select(event.c.event_id, team.c.name, project.c.name, key.c.key_id, tags.c.tags)
            .join(team, team.c.id == event.c.team_id)
            .join(project, project.c.id == event.c.project_id)
            .join(key, key.c.id == event.c.key_id)
            .join(tags, tags.c.id == event.c.cost_tags_id)
            .where(event.c.event_id.in_(ids))
        ).all()
        for event_id, team_name, project_name, key_id, pairs in cast("Sequence[_Owned]", found):
            cost_tags = tuple((name, value) for name, value in pairs)
            owners[event_id] = Owner(team_name, project_name, key_id, cost_tags)
    return owners


_Owned = tuple[bytes, str, str, str, Sequence[tuple[str, str]]]


def _take_intents(connection: sa.Connection, event_ids: Iterable[bytes]) -> list[Intent]:
    """Close those of the events that are open in the database, and give what they are."""
    dialect = connection.dialect.name
    return [
        intent
        for ids in statements.id_lists(dialect, event_ids)
        for intent in _decoded(
            connection.exec_driver_sql(statements.take_intents(dialect, len(ids)), ids)
        )
    ]


def _open_intents(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[Intent]:
    """Some open intents that match, oldest first; none that another loader just takes."""
    table = schema.attempt_intent
    statement = sa.select(table.c.payload).where(condition).order_by(table.c.event_id)
    some = statement.limit(statements.IDS_MAX).with_for_update(skip_locked=True)
    return _decoded(connection.execute(some))


def _decoded(found: sa.CursorResult[tuple[object, ...]]) -> list[Intent]:
    # Only intents are stored there.
    payloads = cast("Sequence[bytes]", found.scalars().all())
    return [cast("Intent", decode(payload)) for payload in payloads]
