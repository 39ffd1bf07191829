"""The journal in front of the database: what a worker writes before and after each attempt.

`append` hands a record to the kernel before it returns, so that the death of the process loses
nothing. While `run` runs, a thread makes what was appended durable in groups, so that the death of
the machine loses at most the last 20 ms (`group`), or nothing that was dispatched (`strict`). At
most one sync is under way; whoever asks for durability meanwhile shares the next one. The event
loop neither waits for the disk nor wakes up per record: it starts a timer for the first record of
a group. The next segment's file is made by the thread too, before it is needed.

A full disk refuses intents first: a reserve file is given up to make room for the settlements of
attempts that are already under way. After a failed `fdatasync` the kernel may have dropped the
data and would report success next time, so the spool is never trusted again.
Source: Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import anyio

from gateway.clock import Clock
from gateway.ledger import segment, spool_directory
from gateway.ledger.errors import RecordTooLarge, SpoolError, SpoolFull
from gateway.ledger.group_sync import GroupSync
from gateway.ledger.records import Intent, Record, encode
from gateway.ledger.spool_files import KernelFiles, SpoolFiles
from gateway.ledger.spool_sync import SyncDone, SyncJob

_log = logging.getLogger(__name__)

_LOCK_WAIT_S = 2.0
# The loader holds the lock of a dead writer's directory for moments.
_SETTLEMENT_BYTES = 2 * 1024
# More than a settlement with a line on every meter takes.
_DIGEST_STEP_BYTES = 256 * 1024
# The digest may fall so far behind; hashing the rest when the segment is full takes 0.2 ms.
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FILE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# The process or the machine has too much open; the disk is as good as before.


class Durability(StrEnum):
    """When a record is on disk (`storage.durability`)."""

    GROUP = "group"
    """Within 20 ms, overlapping the upstream call."""
    STRICT = "strict"
    """Before the attempt is dispatched."""


class Health(StrEnum):
    """Whether a spool takes records."""

    OK = "ok"
    FULL = "full"
    """Intents are refused until there is room again."""
    GONE = "gone"
    """Its folder or its open file was moved away or deleted; intents are refused until it is back,
    and what is under way is settled where its intent is."""
    FAILED = "failed"
    """Nothing is taken any more; the worker must be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """Sizes and intervals of a spool.

    Attributes:
        segment_bytes: Size at which the next segment starts.
        reserve_bytes: Room kept for settlements; grows with the attempts under way.
        group_s: Wait between the first unsynced record and its sync; with the sync itself, which
            takes milliseconds, a record is on disk within 20 ms.
        retry_full_s: Least time between two tries to get the reserve back.
        look_s: How often the folder is looked for, which may have been moved or deleted.
    """

    segment_bytes: int = segment.SEGMENT_BYTES
    reserve_bytes: int = 4 * 1024 * 1024
    group_s: float = 0.010
    retry_full_s: float = 1.0
    look_s: float = 2.0


class SpoolWriter:
    """The only writer of one spool directory; used from one event loop.

    Args:
        directory: Made when missing, locked until `close`.
        durability: What `before_dispatch` waits for.
        clock: Stamps headers, spaces out tries.
        session: 16 random bytes, drawn anew for each writer.
        limits: Sizes and intervals.
        files: The system calls.

    Raises:
        SpoolLocked: A living process writes there.
        SpoolFull: There is no room for a first segment.
    """

    def __init__(
        self,
        directory: Path,
        *,
        durability: Durability,
        clock: Clock,
        session: bytes,
        limits: SpoolLimits | None = None,
        files: SpoolFiles | None = None,
    ) -> None:
        self.directory = directory
        self.durability = durability
        self.session = session
        self._clock = clock
        self._limits = limits or SpoolLimits()
        self._files = files or KernelFiles()
        self._health = Health.OK
        self._failure = ""
        self._full_tried_at_s = clock.monotonic_s()
        self._is_sound = True
        self._open_attempts = 0
        self._reserved_bytes = 0
        self._finished: list[int] = []
        self._next_descriptor: int | None = None
        self._is_name_new = False
        self._is_closed = False
        self._ended = anyio.Event()
        self._released = anyio.Event()
        self._sync = GroupSync(
            self._files,
            group_s=self._limits.group_s,
            collect=self._collect,
            conclude=self._conclude,
        )
        self._lock = spool_directory.acquire(directory, wait_s=_LOCK_WAIT_S)
        self._directory_descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            recovered = spool_directory.recover(directory)
            self._number = recovered.last_number
            self._segment = self._start(recovered.last_digest)
            self._reserve_descriptor = os.open(
                directory / spool_directory.RESERVE_NAME,
                os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                0o600,
            )
            has_room = self._take_reserve(_SETTLEMENT_BYTES)
        except BaseException:
            os.close(self._directory_descriptor)
            self._lock.release()
            raise
        if not has_room:
            self._refuse_intents()

    @property
    def health(self) -> Health:
        """Whether records are taken now."""
        return self._health

    @property
    def health_reason(self) -> str:
        """Why `health` is not `ok`, as a sentence; empty when it is."""
        if self._health is Health.FULL:
            return f"no room for the spool in {self.directory}"
        if self._health is Health.GONE:
            return (
                f"the spool in {self.directory} was moved away or deleted; put it back, or restart"
            )
        return self._failure

    def fault(self) -> str:
        """Why no attempt can be written now, as a sentence; empty when one can.

        A full disk is tried again here too: a worker that is not ready gets no requests, and it is
        requests that would find the room.
        """
        self._look_for_folder()
        if self._health is Health.FULL:
            with contextlib.suppress(SpoolError):
                self._admit_intent()
        return self.health_reason

    @property
    def position(self) -> int:
        """Bytes appended by this writer."""
        return self._sync.position

    @property
    def durable_position(self) -> int:
        """Bytes of `position` that are known to be on disk."""
        return self._sync.durable_position

    def append(self, record: Record) -> int:
        """Hand a record to the kernel, whole or not at all; does not wait for the disk.

        Returns:
            The position to give to `durable` or `before_dispatch`.

        Raises:
            SpoolFull: No room; nothing of the record is in the spool.
            RecordTooLarge: The record is over the frame's cap.
            SpoolError: The spool failed for good.
        """
        is_intent = isinstance(record, Intent)
        if not self._is_sound or (
            is_intent and (self._open_attempts + 1) * _SETTLEMENT_BYTES > self._reserved_bytes
        ):
            self._admit(record)
        payload = encode(record)
        if len(payload) > segment.RECORD_BYTES_MAX:
            raise RecordTooLarge(f"a record of {len(payload)} bytes does not fit a frame")
        frame = segment.encode_frame(payload)
        try:
            self._put(frame)
        except SpoolFull:
            self._put_somewhere(frame, is_intent=is_intent)
        self._open_attempts += 1 if is_intent else -1
        sync = self._sync
        position = sync.position = sync.position + len(frame)
        if not sync.is_due:
            sync.note()
        return position

    async def before_dispatch(self, position: int) -> None:
        """Wait as long as the durability demands before an attempt may be sent.

        Raises:
            SpoolError: The disk failed.
        """
        if self.durability is Durability.STRICT:
            await self.durable(position)

    async def durable(self, position: int) -> None:
        """Wait until everything up to a position is on disk; needs `run` to be running.

        Raises:
            SpoolError: The disk failed, nobody knows what it kept.
        """
        while self._sync.durable_position < position:
            if self._health is Health.FAILED:
                raise SpoolError(self._failure)
            await self._sync.wait(position)

    async def run(self) -> None:
        """Sync in groups until closed or failed; to be run in a task group of the worker."""
        self._sync.start()
        while not self._ended.is_set():
            self._look_for_folder()
            with anyio.move_on_after(self._limits.look_s):
                await self._ended.wait()

    async def close(self) -> None:
        """Sync what is left and let go of the directory; harmless when repeated.

        A failed sync is told by `health`; the records are with the kernel in any case.
        """
        if self._is_closed:
            await self._released.wait()
            return
        self._is_closed = True
        self._is_sound = False
        with anyio.CancelScope(shield=True):
            await self._sync.stop(is_sound=self._health is not Health.FAILED)
        self._release()
        self._ended.set()
        self._released.set()

    def _release(self) -> None:
        """Close what is open; an empty file made for a next segment goes."""
        if self._next_descriptor is not None:
            os.close(self._next_descriptor)
            segment.segment_path(self.directory, self._number + 1).unlink(missing_ok=True)
        for descriptor in (
            self._segment.descriptor,
            self._reserve_descriptor,
            self._directory_descriptor,
            *self._finished,
        ):
            os.close(descriptor)
        self._lock.release()

    def _admit(self, record: Record) -> None:
        """Refuse what must not be tried; called where `_is_sound` and the reserve do not say so."""
        if self._is_closed:
            raise SpoolError(f"the spool in {self.directory} is closed")
        if self._health is Health.FAILED:
            raise SpoolError(self._failure)
        if isinstance(record, Intent):
            if self._health is Health.GONE:
                raise SpoolError(self.health_reason)
            self._admit_intent()

    def _admit_intent(self) -> None:
        """Make room, so that this attempt and those under way can still be settled."""
        if self._health is Health.FULL:
            now_s = self._clock.monotonic_s()
            if now_s - self._full_tried_at_s < self._limits.retry_full_s:
                raise SpoolFull(self.health_reason)
            self._full_tried_at_s = now_s
        needed_bytes = (self._open_attempts + 1) * _SETTLEMENT_BYTES
        try:
            has_room = self._take_reserve(needed_bytes)
            if has_room and self._health is Health.FULL:
                # The reserve may be whole on a full disk: an intent needs room beside it.
                has_room = not spool_directory.is_disk_full(self._directory_descriptor)
        except OSError as error:
            self._fail(error)
            raise SpoolError(self._failure) from error
        if not has_room:
            self._refuse_intents()
            raise SpoolFull(self.health_reason)
        if self._health is Health.FULL:
            self._health = Health.OK
            self._is_sound = not self._is_closed
            _log.info("the spool in %s has room again", self.directory)

    def _put(self, frame: bytes) -> None:
        """Write a frame whole, in the next segment when this one is full."""
        current = self._segment
        if current.size_bytes + len(frame) > self._limits.segment_bytes:
            current = self._segment = self._roll_over(current)
        try:
            done = self._files.write(current.descriptor, frame)
        except OSError as error:
            self._take_back(error, current.descriptor, size_bytes=current.size_bytes)
        if done < len(frame):
            self._write(current.descriptor, frame, done=done, size_bytes=current.size_bytes)
        current.size_bytes += len(frame)

    def _put_somewhere(self, frame: bytes, *, is_intent: bool) -> None:
        """Put a frame that found no room in the next segment, or in the place of the reserve."""
        try:
            self._put_here_or_next(frame)
        except SpoolFull:
            self._refuse_intents()
            if is_intent:
                raise
            os.ftruncate(self._reserve_descriptor, 0)
            self._reserved_bytes = 0
            self._put_here_or_next(frame)

    def _put_here_or_next(self, frame: bytes) -> None:
        try:
            self._put(frame)
        except SpoolFull as full:
            if not isinstance(full.__cause__, OSError) or full.__cause__.errno != errno.EFBIG:
                raise
            # It is this file that may not grow (RLIMIT_FSIZE); the next one takes as much again.
            self._segment = self._roll_over(self._segment)
            self._put(frame)

    def _roll_over(self, current: segment.OpenSegment) -> segment.OpenSegment:
        """The segment that follows a full one; itself while the next file cannot be had."""
        is_making = self._sync.job is not None and self._sync.job.next_path is not None
        is_gone = self._health is Health.GONE
        if is_making or is_gone or current.size_bytes == segment.HEADER_BYTES:
            return current
        try:
            digest = current.digest.follow(current.descriptor, current.size_bytes)
            current.digest = digest
            following = self._start(digest.value())
        except OSError as error:
            if error.errno in _NO_FILE_ERRNOS:
                return current
            self._fail(error)
            raise SpoolError(self._failure) from error
        self._finished.append(current.descriptor)
        return following

    def _start(self, previous_digest: bytes) -> segment.OpenSegment:
        """Open the next segment; nothing is left behind when there is no room for its header."""
        header = segment.encode_header(
            segment.Header(
                number=self._number + 1,
                created_at_us=self._clock.wall_us(),
                session=self.session,
                previous_digest=previous_digest,
            )
        )
        path = segment.segment_path(self.directory, self._number + 1)
        descriptor = -1
        try:
            if self._next_descriptor is None:
                descriptor = self._files.create(path)
                self._is_name_new = True
            else:
                descriptor, self._next_descriptor = self._next_descriptor, None
            self._write(descriptor, header, size_bytes=0)
        except (OSError, SpoolError) as error:
            if descriptor >= 0:
                os.close(descriptor)
                path.unlink()
            if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
                raise SpoolFull(f"no room for a segment in {self.directory}") from error
            raise
        self._number += 1
        return segment.OpenSegment(descriptor, len(header))

    def _write(self, descriptor: int, data: bytes, *, size_bytes: int, done: int = 0) -> None:
        """Write all of `data` but the first `done` bytes at the end, or put the file back."""
        try:
            while done < len(data):
                done += self._files.write(descriptor, data[done:])
        except OSError as error:
            self._take_back(error, descriptor, size_bytes=size_bytes)

    def _take_back(self, error: OSError, descriptor: int, *, size_bytes: int) -> NoReturn:
        """Put a file back to its size after a write that failed, and say why it did."""
        try:
            os.ftruncate(descriptor, size_bytes)
        except OSError as second:
            self._fail(second)
            raise SpoolError(self._failure) from error
        if error.errno in _FULL_ERRNOS:
            raise SpoolFull(f"no room for the spool in {self.directory}") from error
        self._fail(error)
        raise SpoolError(self._failure) from error

    def _collect(self) -> SyncJob:
        """What a sync that begins now has to do; from half of a segment on, the next one's file."""
        finished, self._finished = tuple(self._finished), []
        is_name_new, self._is_name_new = self._is_name_new, False
        current = self._segment
        is_half_full = 2 * current.size_bytes > self._limits.segment_bytes
        is_behind = current.size_bytes - current.digest.size_bytes > _DIGEST_STEP_BYTES
        is_next_needed = is_half_full and self._next_descriptor is None and not self._is_closed
        return SyncJob(
            descriptors=(
                *finished,
                current.descriptor,
                *((self._directory_descriptor,) if is_name_new else ()),
            ),
            finished=finished,
            growing=current if is_behind else None,
            growing_bytes=current.size_bytes,
            next_path=segment.segment_path(self.directory, self._number + 1)
            if is_next_needed
            else None,
            directory=self._directory_descriptor,
        )

    def _conclude(self, done: SyncDone) -> None:
        if done.next_descriptor is not None:
            self._next_descriptor = done.next_descriptor
        if done.error is not None:
            self._fail(done.error)

    def _take_reserve(self, needed_bytes: int) -> bool:
        """Try to have the whole reserve allocated, twice as large as before when too small."""
        size_bytes = max(self._reserved_bytes, self._limits.reserve_bytes)
        while size_bytes < needed_bytes:
            size_bytes *= 2
        try:
            self._files.reserve(self._reserve_descriptor, size_bytes)
        except OSError as error:
            if error.errno not in _FULL_ERRNOS:
                raise
            return False
        self._reserved_bytes = size_bytes
        return True

    def _refuse_intents(self) -> None:
        if self._health is Health.OK:
            self._health = Health.FULL
            self._is_sound = False
            self._full_tried_at_s = self._clock.monotonic_s()
            _log.error("%s: new attempts are refused", self.health_reason)

    def _look_for_folder(self) -> None:
        """Refuse intents while the folder is not where the loader looks for it."""
        if self._is_closed or self._health is Health.FAILED:
            return
        is_there = spool_directory.is_in_place(
            self.directory, folder=self._directory_descriptor, file=self._segment.descriptor
        )
        if is_there and self._health is Health.GONE:
            self._health, self._is_sound = Health.OK, True
            _log.info("the spool in %s is back", self.directory)
        elif not is_there and self._health is not Health.GONE:
            self._health, self._is_sound = Health.GONE, False
            _log.critical("%s: new attempts are refused", self.health_reason)

    def _fail(self, error: OSError) -> None:
        self._health = Health.FAILED
        self._is_sound = False
        self._failure = (
            f"the spool in {self.directory} failed for good: {error.strerror or error}; "
            "what was not yet synced may be lost, the worker must be replaced"
        )
        _log.critical("%s", self._failure)
        self._sync.halt()
        self._ended.set()
