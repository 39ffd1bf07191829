"""Moves records from the spools into the database; the only writer of events.

A round reads every directory under the spool root, and in one transaction books what was read,
rolls it up and moves the cursors. A round that fails changes nothing and is tried again: an outage
of the database only lets the backlog grow. A batch that the database refuses is booked record by
record, and what is refused alone goes to quarantine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import anyio
import anyio.to_thread
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.clock import Clock
from gateway.ledger import schema, segment, spool_directory
from gateway.ledger.errors import DatabaseUnavailable, SpoolLocked
from gateway.ledger.spool_reader import Cursor, SpoolReader
from gateway.ledger.store import (
    Applied,
    Item,
    StaleCursor,
    Store,
    drop_cursor,
    load_cursors,
    move_cursor,
    quarantine,
)

_log = logging.getLogger(__name__)
_REFUSALS = (SQLAlchemyError, ArithmeticError, ValueError)
"""What a database says to a row that it will never take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderLimits:
    """Sizes and intervals of the loader.

    Attributes:
        batch_records: Most records of one transaction.
        poll_s: Wait between rounds that found nothing.
        grace_s: Seconds past its lifetime after which an unsettled intent is lost.
        expiry_s: Least time between two looks for expired intents.
        retry_s: First wait after a failed round; doubled up to `retry_s_max`.
        retry_s_max: Longest wait after a failed round.
    """

    batch_records: int = 1_000
    poll_s: float = 0.1
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
    """

    events: int = 0
    replays: int = 0
    quarantined: int = 0
    lost: int = 0
    failed_rounds: int = 0
    failure: str = ""
    backlog_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """What one round took from one directory."""

    directory: Path
    before: Cursor | None
    after: Cursor
    items: list[Item] = field(default_factory=list)
    is_at_end: bool = False
    dead_session: bytes | None = None

    @property
    def name(self) -> str:
        return self.directory.name


class Loader:
    """Loads all spools under a root; several loaders at once are safe, one is enough.

    Args:
        engine: A writing engine; not disposed of here.
        spool_root: Holds one directory per writer.
        clock: Time for expiry and quarantine.
        limits: Sizes and intervals.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        spool_root: Path,
        *,
        clock: Clock,
        limits: LoaderLimits | None = None,
    ) -> None:
        self.stats = LoaderStats()
        self._engine = engine
        self._root = spool_root
        self._clock = clock
        self._limits = limits or LoaderLimits()
        self._store = Store(grace_s=self._limits.grace_s)
        self._cursors: dict[str, Cursor] | None = None
        self._adopted: dict[str, spool_directory.Recovered] = {}
        self._closed_for: dict[str, bytes] = {}
        self._expired_at_s: float | None = None
        self._round_lock = anyio.Lock()
        self._stopping = anyio.Event()
        self._behind: set[str] = set()

    async def run(self) -> None:
        """Load until `stop`, with a growing wait while the database does not take it.

        A round that has begun is finished, also when the task is cancelled: a transaction cut
        short does no harm, but its connection would have to be thrown away.
        """
        wait_s = self._limits.retry_s
        while not self._stopping.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    self._behind = await self.load_round()
            except DatabaseUnavailable as error:
                _log.warning("loading waits %.2f s: %s", wait_s, error)
                pause_s, wait_s = wait_s, min(2 * wait_s, self._limits.retry_s_max)
            else:
                pause_s, wait_s = self._pause_s(), self._limits.retry_s
            # Not past `stop`.
            with anyio.move_on_after(pause_s):
                await self._stopping.wait()

    def stop(self) -> None:
        """Let `run` end after the round that it is in."""
        self._stopping.set()

    def _pause_s(self) -> float:
        return 0 if self._behind else self._limits.poll_s

    async def flush(self) -> None:
        """Load everything that was written before the call.

        Raises:
            DatabaseUnavailable: The database did not take it; nothing is lost.
        """
        behind = await self.load_round()
        while behind:
            behind &= await self.load_round()

    async def load_round(self) -> set[str]:
        """Book one batch.

        Returns:
            Names of the directories whose end, as it was when the round began, is not reached.

        Raises:
            DatabaseUnavailable: The database did not take the batch; it is still in the spool.
        """
        async with self._round_lock:
            try:
                if self._cursors is None:
                    async with self._engine.begin() as connection:
                        self._cursors = await connection.run_sync(load_cursors)
                chunks = await anyio.to_thread.run_sync(self._read, dict(self._cursors))
                await self._book(chunks)
                await self._tidy(chunks)
            except StaleCursor:
                self._store.forget()
                self._cursors = None
                return {path.name for path in self._directories()}
            except OperationalError as error:
                self._store.forget()
                self.stats.failed_rounds += 1
                self.stats.failure = str(error.orig)
                raise DatabaseUnavailable(f"the database did not answer: {error.orig}") from error
            self.stats.failure = ""
            return {chunk.name for chunk in chunks if not chunk.is_at_end}

    async def _book(self, chunks: list[_Chunk]) -> None:
        """Apply the chunks, all at once, or one record at a time when that is refused."""
        is_due = self._is_expiry_due() and all(chunk.is_at_end for chunk in chunks)
        try:
            applied = await self._commit(chunks, is_isolated=False, is_expiry_due=is_due)
        except OperationalError:
            raise
        except _REFUSALS as error:
            self._store.forget()
            _log.warning("the database refused a batch; booking record by record: %s", error)
            applied = await self._commit(chunks, is_isolated=True, is_expiry_due=is_due)
        cursors = self._cursors or {}
        self._cursors = cursors | {chunk.name: chunk.after for chunk in chunks}
        for chunk in chunks:
            if chunk.is_at_end:
                self._closed_for[chunk.name] = chunk.after.session
        if is_due:
            self._expired_at_s = self._clock.monotonic_s()
        self.stats.events += applied.events
        self.stats.replays += applied.replays
        self.stats.quarantined += applied.quarantined
        self.stats.lost += applied.lost

    async def _commit(
        self, chunks: list[_Chunk], *, is_isolated: bool, is_expiry_due: bool
    ) -> Applied:
        async with self._engine.begin() as connection:
            return await connection.run_sync(
                self._transact, chunks, is_isolated=is_isolated, is_expiry_due=is_expiry_due
            )

    def _transact(
        self,
        connection: sa.Connection,
        chunks: list[_Chunk],
        *,
        is_isolated: bool,
        is_expiry_due: bool,
    ) -> Applied:
        """The whole of a round's transaction."""
        now_us = self._clock.wall_us()
        for chunk in chunks:
            if chunk.before != chunk.after:
                move_cursor(connection, chunk.name, before=chunk.before, after=chunk.after)
        items = [item for chunk in chunks for item in chunk.items]
        applied = Applied()
        if items and is_isolated:
            for item in items:
                applied.add(self._apply_alone(connection, item, now_us=now_us))
        elif items:
            applied.add(self._store.apply(connection, items, now_us=now_us))
        for condition in self._lost_conditions(chunks, now_us, is_expiry_due=is_expiry_due):
            applied.add(self._store.close_lost(connection, condition, now_us=now_us))
        return applied

    def _apply_alone(self, connection: sa.Connection, item: Item, *, now_us: int) -> Applied:
        try:
            with connection.begin_nested():
                return self._store.apply(connection, [item], now_us=now_us)
        except OperationalError:
            raise
        except _REFUSALS as error:
            self._store.forget()
            reason = f"refused by the database: {type(error).__name__}"
            _log.error("%s/%d@%d: %s", item.directory, item.entry.number, item.entry.start, reason)
            return Applied(quarantined=quarantine(connection, [(item, reason)], now_us=now_us))

    def _lost_conditions(
        self, chunks: list[_Chunk], now_us: int, *, is_expiry_due: bool
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
                yield sa.and_(table.c.directory == chunk.name, is_over)
        if is_expiry_due:
            yield table.c.expires_at_us < now_us

    def _is_expiry_due(self) -> bool:
        if self._expired_at_s is None:
            return True
        return self._clock.monotonic_s() - self._expired_at_s >= self._limits.expiry_s

    def _directories(self) -> list[Path]:
        if not self._root.is_dir():
            return []
        return sorted(path for path in self._root.iterdir() if path.is_dir())

    def _read(self, cursors: dict[str, Cursor]) -> list[_Chunk]:
        """Take the next records of every directory, an equal share each; in a thread."""
        directories = self._directories()
        share = max(self._limits.batch_records // max(len(directories), 1), 1)
        return [self._read_one(path, cursors.get(path.name), share) for path in directories]

    def _read_one(self, directory: Path, before: Cursor | None, share: int) -> _Chunk:
        dead_session = self._adopt(directory)
        reader = SpoolReader(directory, before or Cursor())
        name = directory.name
        items = [Item(directory=name, entry=entry) for entry, _ in islice(reader, share)]
        return _Chunk(
            directory=directory,
            before=before,
            after=reader.cursor,
            items=items,
            is_at_end=reader.is_at_end,
            dead_session=dead_session,
        )

    def _adopt(self, directory: Path) -> bytes | None:
        """Mend what a dead writer left; its session, or None while a writer lives."""
        try:
            lock = spool_directory.acquire(directory)
        except SpoolLocked:
            self._adopted.pop(directory.name, None)
            return None
        try:
            recovered = self._adopted.get(directory.name)
            if recovered is None or not _is_still_last(directory, recovered):
                recovered = spool_directory.recover(directory)
                self._adopted[directory.name] = recovered
                _log.info("adopted the spool %s of a writer that is gone", directory.name)
        finally:
            lock.release()
        return recovered.last_session

    async def _tidy(self, chunks: list[_Chunk]) -> None:
        """Remove segments and directories that are loaded; measure what waits."""
        removed = await anyio.to_thread.run_sync(self._remove_loaded, chunks)
        for chunk in removed:
            async with self._engine.begin() as connection:
                await connection.run_sync(drop_cursor, chunk.name, at=chunk.after)
            (self._cursors or {}).pop(chunk.name, None)
            self._adopted.pop(chunk.name, None)
            self._closed_for.pop(chunk.name, None)
        self.stats.backlog_bytes = sum(
            backlog_bytes(chunk.directory, chunk.after) for chunk in chunks
        )

    def _remove_loaded(self, chunks: list[_Chunk]) -> list[_Chunk]:
        """Delete loaded segments; the chunks whose directory is gone."""
        removed: list[_Chunk] = []
        for chunk in chunks:
            for number in segment.segment_numbers(chunk.directory):
                if number < chunk.after.number:
                    segment.segment_path(chunk.directory, number).unlink(missing_ok=True)
            if chunk.is_at_end and chunk.dead_session is not None and _remove_dead(chunk):
                removed.append(chunk)
        return removed


def backlog_bytes(directory: Path, cursor: Cursor) -> int:
    """Bytes of a directory's segments beyond a cursor."""
    total = 0
    for number in segment.segment_numbers(directory):
        path = segment.segment_path(directory, number)
        size = path.stat().st_size if path.exists() else 0
        total += size - cursor.offset_bytes if number == cursor.number else size
    return total


def _is_still_last(directory: Path, recovered: spool_directory.Recovered) -> bool:
    """Whether no writer came and died since a directory was mended."""
    last = max(segment.segment_numbers(directory), default=0)
    header = segment.read_header(segment.segment_path(directory, last)) if last else None
    session = header.session if header else segment.NO_SESSION
    return (last, session) == (recovered.last_number, recovered.last_session)


def _remove_dead(chunk: _Chunk) -> bool:
    """Remove a dead writer's directory unless a new writer came or something waits."""
    try:
        lock = spool_directory.acquire(chunk.directory)
    except SpoolLocked:
        return False
    try:
        if backlog_bytes(chunk.directory, chunk.after):
            return False
        return spool_directory.remove(chunk.directory)
    finally:
        lock.release()
