"""One round of loading, start to end, in one thread: read, match, commit, tidy.

The transaction holds everything that a round books, sums and passes; whatever interrupts it, the
next round begins where this one did. A batch that the database refuses is halved until it is known
which records those are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from gateway.clock import Clock
from gateway.ledger import backlog, batches, budget_schema, node, schema, segment
from gateway.ledger.adoption import Adoption, remove_dead
from gateway.ledger.database import Blocking
from gateway.ledger.dialects import POSTGRESQL
from gateway.ledger.faults import explained, is_refusal
from gateway.ledger.spool_reader import Cursor, SpoolDamage, SpoolRecords
from gateway.ledger.store import (
    Applied,
    StaleCursor,
    Store,
    drop_cursor,
    load_cursors,
    move_cursor,
    quarantine,
)
from gateway.ledger.taking import Chunk, Entries, Taken, Taking

_log = logging.getLogger(__name__)
_REFUSALS = (SQLAlchemyError, ArithmeticError, ValueError)
"""What a database says to a row that it will never take, and, of the first, to other things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderLimits:
    """Sizes and intervals of the loader.

    Attributes:
        batch_records: Most records of one transaction; bounds the loader's memory, whatever waits.
        busy_records: From so many records of a round on, the next one waits `gather_s`.
        gather_s: Wait after a busy round, so that the next one has thousands of records.
        poll_s: Wait after any other round that found something.
        poll_s_max: Wait up to which it is doubled by each round that found nothing.
        grace_s: Seconds past its lifetime after which an unsettled intent is lost.
        expiry_s: Least time between two looks for expired intents.
        retry_s: First wait after a failed round; doubled up to `retry_s_max`.
        retry_s_max: Longest wait after a failed round.
    """

    batch_records: int = 16_384
    busy_records: int = 64
    gather_s: float = 0.4
    poll_s: float = 0.1
    poll_s_max: float = 0.4
    grace_s: float = 60.0
    expiry_s: float = 1.0
    retry_s: float = 0.05
    retry_s_max: float = 2.0


@dataclass(slots=True, kw_only=True)
class LoaderStats:
    """What the loader did since it started, and what waits.

    Attributes:
        events: Entries inserted.
        replays: Settlements that were booked before.
        quarantined: Entries that could not be booked.
        lost: Attempts given up, part of `events`.
        failed_rounds: Rounds that the database did not take.
        failure: The last failed round's reason; empty when the last round went well.
        backlog_bytes: Bytes in the spools beyond the cursors, after the last round.
        backlog_records: About how many records that is.
        backlog_age_ms: Since the oldest of them was written.
        news_age_ms: Since keys and budgets were known to be the newest of all machines; 0 where no
            other machine can change them.
        news_fault: Why they are not, empty while they are.
        pool_grants: Slabs of budgets that came out of Redis.
        pool_fault: Why none do, empty while Redis helps or where there is none.
    """

    events: int = 0
    replays: int = 0
    quarantined: int = 0
    lost: int = 0
    failed_rounds: int = 0
    failure: str = ""
    backlog_bytes: int = 0
    backlog_records: int = 0
    backlog_age_ms: int = 0
    checked_at_s: int = 0
    check_findings: int = 0
    news_age_ms: int = 0
    news_fault: str = ""
    pool_grants: int = 0
    pool_fault: str = ""


class Rounds:
    """Loads the spools under a root, a round at a time; called from any thread, one at a time.

    Args:
        database: A writing one; `load` is called by its `run`.
        spool_root: Holds one directory per writer.
        clock: Time for expiry and quarantine.
        limits: Sizes and intervals.
    """

    def __init__(
        self, database: Blocking, spool_root: Path, *, clock: Clock, limits: LoaderLimits
    ) -> None:
        self.stats = LoaderStats()
        self.found_records = 0
        """How many records the last round took."""
        self._database = database
        self._engine = database.engine
        self._root = spool_root
        self._clock = clock
        self._limits = limits
        self._node = ""
        self._store = Store(grace_s=limits.grace_s)
        self._cursors: dict[str, Cursor] | None = None
        self._ahead: Taken | None = None
        self._adoption = Adoption()
        self._closed_for: dict[str, bytes] = {}
        self._expired_at_s: float | None = None
        self._loaded_bytes = 0
        self._loaded_records = 0

    def load(self) -> set[str]:
        """Book one batch.

        Returns:
            Names of the directories whose end, as it was when the round began, is not reached.

        Raises:
            DatabaseUnavailable: The database did not take the batch; it is still in the spool.
        """
        try:
            if self._cursors is None:
                if self._engine.dialect.name == POSTGRESQL:
                    self._node = self._store.node = node.make(self._root)
                with self._engine.begin() as connection:
                    self._cursors = load_cursors(connection, self._node)
            taken = self._ahead or self._take(self._cursors).finish()
            assert taken is not None, "no step has failed"
            self._ahead = None
            self._cursors = self._book_and_read(taken, self._cursors)
            self._tidy(taken.chunks, self._cursors)
        except StaleCursor:
            self._store.forget()
            self._cursors = None
            return {path.name for path in self._directories()}
        except SQLAlchemyError as error:
            told = explained(error)
            self._store.forget()
            self.stats.failed_rounds += 1
            self.stats.failure = str(told)
            self._measure(self._cursors or {})
            raise told from error
        self.stats.failure = ""
        if taken.is_ahead:
            # Where the ends are was seen before the round began: look again.
            return {path.name for path in self._directories()}
        return {chunk.name for chunk in taken.chunks if not chunk.is_at_end}

    def _book_and_read(self, taken: Taken, cursors: dict[str, Cursor]) -> dict[str, Cursor]:
        """Book a round; with a backlog and a server to wait for, take the next one meanwhile."""
        is_behind = not all(chunk.is_at_end for chunk in taken.chunks)
        if not (is_behind and self._engine.dialect.name == POSTGRESQL):
            return self._book(taken, cursors)
        after = cursors | {chunk.name: chunk.after for chunk in taken.chunks}
        taking = self._take(after, is_ahead=True)
        try:
            self._database.alongside(taking)
            booked = self._book(taken, cursors)
            self._ahead = taking.finish()
        finally:
            taking.close()
        return booked

    def _book(self, taken: Taken, cursors: dict[str, Cursor]) -> dict[str, Cursor]:
        """Apply what was taken, all at once, or in ever smaller parts when that is refused.

        Returns:
            The cursors after it.
        """
        chunks = taken.chunks
        is_at_end = all(chunk.is_at_end for chunk in chunks)
        is_due = is_at_end and not taken.is_ahead and self._is_expiry_due()
        try:
            applied = self._commit(taken, is_expiry_due=is_due)
        except _REFUSALS as error:
            if not is_refusal(error):
                raise
            self._store.forget()
            _log.warning("the database refused a batch; booking it in parts: %s", error)
            applied = self._commit(taken, is_expiry_due=is_due, is_in_parts=True)
        for chunk in chunks:
            if chunk.is_at_end:
                self._closed_for[chunk.name] = chunk.after.session
        if is_due:
            self._expired_at_s = self._clock.monotonic_s()
        self.stats.events += applied.events
        self.stats.replays += applied.replays
        self.stats.quarantined += applied.quarantined
        self.stats.lost += applied.lost
        self._count(taken.entries)
        return cursors | {chunk.name: chunk.after for chunk in chunks}

    def _count(self, entries: Entries) -> None:
        """Note how many records a round took, and how large they are."""
        count = 0
        for entry in entries:
            if isinstance(entry, SpoolRecords):
                count += len(entry.payloads)
                self._loaded_bytes += entry.end - entry.starts[0]
        self._loaded_records += count
        self.found_records = count

    def _commit(self, taken: Taken, *, is_expiry_due: bool, is_in_parts: bool = False) -> Applied:
        """The whole of a round's transaction; none at all when nothing changes."""
        now_us = self._clock.wall_us()
        conditions = [*self._lost_conditions(taken.chunks, now_us, is_expiry_due=is_expiry_due)]
        is_moved = any(chunk.before != chunk.after for chunk in taken.chunks)
        applied = Applied()
        if not (is_moved or conditions):
            return applied
        with self._engine.begin() as connection:
            self._move_cursors(connection, taken.chunks)
            if is_in_parts:
                applied.add(self._apply_parts(connection, taken.entries, now_us=now_us))
            elif not taken.batch.is_empty:
                applied.add(self._store.apply(connection, taken.batch, now_us=now_us))
            for condition in conditions:
                applied.add(self._store.close_lost(connection, condition, now_us=now_us))
            leases = [*self._lease_conditions(taken.chunks, now_us, is_expiry_due=is_expiry_due)]
            self._store.release_leases(connection, leases)
        return applied

    def _move_cursors(self, connection: sa.Connection, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            if chunk.before != chunk.after:
                directory = self._node + chunk.name
                move_cursor(connection, directory, before=chunk.before, after=chunk.after)

    def _apply_parts(self, connection: sa.Connection, entries: Entries, *, now_us: int) -> Applied:
        try:
            with connection.begin_nested():
                batch = batches.prepare(entries)
                return self._store.apply(connection, batch, now_us=now_us)
        except _REFUSALS as error:
            if not is_refusal(error):
                raise
            self._store.forget()
            halves = _halves(entries)
            if not halves:
                return self._refuse(connection, entries[0], error, now_us=now_us)
        applied = Applied()
        for half in halves:
            applied.add(self._apply_parts(connection, half, now_us=now_us))
        return applied

    def _refuse(
        self,
        connection: sa.Connection,
        entry: SpoolRecords | SpoolDamage,
        error: Exception,
        *,
        now_us: int,
    ) -> Applied:
        """Keep one record aside that the database does not take."""
        alone = entry[0] if isinstance(entry, SpoolRecords) else entry
        reason = f"refused by the database: {type(error).__name__}"
        _log.error("%s/%d@%d: %s", alone.directory, alone.number, alone.start, reason)
        refused = [(alone, reason)]
        count = quarantine(connection, refused, now_us=now_us, node=self._node)
        return Applied(quarantined=count)

    def _lost_conditions(
        self, chunks: list[Chunk], now_us: int, *, is_expiry_due: bool
    ) -> Iterator[sa.ColumnElement[bool]]:
        """Which open intents nobody will settle.

        A writer's intents are lost when its session is over and everything it wrote is loaded:
        a later session writes in its directory, or its lock was free before the last read.
        """
        table = schema.attempt_intent
        for chunk in chunks:
            session = chunk.after.session
            is_new = self._closed_for.get(chunk.name) != session
            if chunk.is_at_end and (is_new or chunk.dead_session is not None):
                is_over = table.c.session != session
                if chunk.dead_session is not None:
                    is_over |= table.c.session == chunk.dead_session
                yield sa.and_(table.c.directory == self._node + chunk.name, is_over)
        if is_expiry_due:
            yield table.c.expires_at_us < now_us

    def _lease_conditions(
        self, chunks: list[Chunk], now_us: int, *, is_expiry_due: bool
    ) -> Iterator[sa.ColumnElement[bool]]:
        """Which leases nobody will spend, and everything that was spent from them is booked.

        Where a writer may live, its own leases must stay although it has not written yet: so those
        are over that were granted before the newest session began, and those long not renewed.
        """
        table = budget_schema.budget_lease
        for chunk in chunks:
            if not chunk.is_at_end:
                continue
            if chunk.dead_session is not None:
                yield table.c.directory == self._node + chunk.name
                continue
            header = segment.read_header(segment.segment_path(chunk.directory, chunk.after.number))
            began_us = 0 if header is None else header.created_at_us
            is_over = (table.c.granted_at_us < began_us) | (table.c.expires_at_us <= now_us)
            yield sa.and_(
                table.c.directory == self._node + chunk.name,
                table.c.session != chunk.after.session,
                is_over,
            )
        if is_expiry_due:
            # Nobody can spend them any more, and their spool may be gone for good.
            yield sa.and_(table.c.expires_at_us <= now_us, table.c.window_end_us <= now_us)

    def _is_expiry_due(self) -> bool:
        if self._expired_at_s is None:
            return True
        return self._clock.monotonic_s() - self._expired_at_s >= self._limits.expiry_s

    def _directories(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        return sorted(path for path in self._root.iterdir() if path.is_dir())

    def _take(self, cursors: dict[str, Cursor], *, is_ahead: bool = False) -> Taking:
        return Taking(
            self._directories(),
            cursors,
            self._adoption,
            records_max=self._limits.batch_records,
            is_ahead=is_ahead,
        )

    def _tidy(self, chunks: list[Chunk], cursors: dict[str, Cursor]) -> None:
        """Remove segments and directories that are loaded; measure what waits."""
        for chunk in self._remove_loaded(chunks):
            with self._engine.begin() as connection:
                drop_cursor(connection, self._node + chunk.name, at=chunk.after)
            cursors.pop(chunk.name, None)
            self._ahead = None  # it may have found the directory there
            self._adoption.forget(chunk.name)
            self._closed_for.pop(chunk.name, None)
        self._measure(cursors)

    def _measure(self, cursors: dict[str, Cursor]) -> None:
        """Note what waits, also while the database takes nothing."""
        records = self._loaded_records
        found = backlog.measure(
            self._directories(),
            cursors,
            now_us=self._clock.wall_us(),
            frame_bytes=self._loaded_bytes / records if records else None,
        )
        self.stats.backlog_bytes = found.bytes
        self.stats.backlog_records = found.records
        self.stats.backlog_age_ms = found.age_ms

    def _remove_loaded(self, chunks: list[Chunk]) -> list[Chunk]:
        """Delete loaded segments; the chunks whose directory is gone."""
        removed: list[Chunk] = []
        for chunk in chunks:
            for number in segment.segment_numbers(chunk.directory):
                if number < chunk.after.number:
                    segment.segment_path(chunk.directory, number).unlink(missing_ok=True)
            is_over = chunk.is_at_end and chunk.dead_session is not None
            if is_over and remove_dead(chunk.directory, chunk.after):
                removed.append(chunk)
        return removed


def _halves(entries: Entries) -> list[Entries]:
    """Two shorter lists of the same records; none of a single record."""
    if len(entries) > 1:
        middle = len(entries) // 2
        return [entries[:middle], entries[middle:]]
    (entry,) = entries
    if not isinstance(entry, SpoolRecords) or len(entry.payloads) == 1:
        return []
    count = len(entry.payloads)
    return [[entry.part(0, count // 2)], [entry.part(count // 2, count)]]
