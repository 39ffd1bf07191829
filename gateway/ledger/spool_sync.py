"""The thread that makes a spool durable, so that the event loop never waits for a disk.

It lives as long as its writer: handing a job to it costs one futex and its answer one byte in the
loop's own wake-up pipe, where a pool of threads would cost three times as much per sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import msgspec

from gateway.ledger.segment import OpenSegment
from gateway.ledger.spool_files import SpoolFiles


class SyncJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to make durable.

    Attributes:
        descriptors: Synced in this order.
        finished: Full segments among them, closed afterwards.
        growing: The segment whose digest has fallen behind, None while it has not.
        growing_bytes: How much of it the digest shall cover.
        next_path: A file to make for the next segment, with its name made durable; None for none.
        directory: Descriptor of the folder of `next_path`.
    """

    descriptors: tuple[int, ...]
    finished: tuple[int, ...]
    growing: OpenSegment | None
    growing_bytes: int
    next_path: Path | None
    directory: int


class SyncDone(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job.

    Attributes:
        error: Why it is not durable, None when it is.
        next_descriptor: The next segment's file, None when none was asked for or there is no room.
    """

    error: OSError | None
    next_descriptor: int | None


class SyncThread:
    """Does one job at a time; ends with `stop`.

    Args:
        files: The system calls.
        loop: Where `on_done` is called.
        on_done: Takes each job's outcome.
    """

    def __init__(
        self,
        files: SpoolFiles,
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[SyncDone], None],
    ) -> None:
        self._files = files
        self._loop = loop
        self._on_done = on_done
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        thread = threading.Thread(target=self._work, name="spool-sync", daemon=True)
        thread.start()

    def submit(self, job: SyncJob) -> None:
        """Begin a job; the one before has been answered."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after what it does."""
        self._jobs.put(None)

    def _work(self) -> None:
        for job in iter(self._jobs.get, None):
            done = self._do(job)
            # A loop that was closed under us has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_done, done)

    def _do(self, job: SyncJob) -> SyncDone:
        next_descriptor = None
        try:
            for descriptor in job.descriptors:
                self._files.sync(descriptor)
            next_descriptor = self._make_next(job)
            if next_descriptor is not None:
                self._files.sync(job.directory)
            if job.growing is not None:
                job.growing.read_on(job.growing_bytes)
        except OSError as error:
            return SyncDone(error=error, next_descriptor=next_descriptor)
        finally:
            for descriptor in job.finished:
                os.close(descriptor)
        return SyncDone(error=None, next_descriptor=next_descriptor)

    def _make_next(self, job: SyncJob) -> int | None:
        """Make the next segment's file; the writer tries, and tells, when it needs it."""
        if job.next_path is not None:
            with contextlib.suppress(OSError):
                return self._files.create(job.next_path)
        return None
