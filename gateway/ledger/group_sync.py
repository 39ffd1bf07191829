"""When a spool is synced: in groups, one sync at a time, the next one shared by all who ask.

Nothing here runs per record but a look at `is_due`. The first record of a group starts a timer;
whoever must wait for the disk brings it forward to the loop's next turn, so that everything that
is appended in this turn shares the sync. What is appended during a sync belongs to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.ledger.spool_files import SpoolFiles
from gateway.ledger.spool_sync import SyncDone, SyncJob, SyncThread


class GroupSync:
    """Decides when to sync, and knows what is durable; used from one event loop.

    Args:
        files: The system calls.
        group_s: Wait between the first unsynced record and its sync.
        collect: What a sync that begins now has to do.
        conclude: Takes the outcome of each sync, before those who wait for it are told.
    """

    def __init__(
        self,
        files: SpoolFiles,
        *,
        group_s: float,
        collect: Callable[[], SyncJob],
        conclude: Callable[[SyncDone], None],
    ) -> None:
        self.position = 0
        """Bytes appended; moved by the writer."""
        self.durable_position = 0
        """Bytes of `position` that are known to be on disk."""
        self.is_due = True
        """Whether nobody needs to call `note`: a sync is coming, or none can be had."""
        self.job: SyncJob | None = None
        """What is being synced now."""
        self._files = files
        self._group_s = group_s
        self._collect = collect
        self._conclude = conclude
        self._thread: SyncThread | None = None
        self._handle: asyncio.Handle | None = None
        self._is_hurried = False
        self._is_halted = False
        self._asked_position = 0
        self._job_position = 0
        self._waiters: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """Begin to sync, with what was appended before; harmless when repeated."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = SyncThread(self._files, loop, self._finish)
            self._go_on()

    def note(self) -> None:
        """Sync within `group_s`; to be called after an append unless `is_due`."""
        self.is_due = True
        self._handle = asyncio.get_running_loop().call_later(self._group_s, self._begin)

    async def wait(self, position: int) -> None:
        """Wait until a sync ends, one that covers the position where possible."""
        self._asked_position = max(self._asked_position, position)
        if self._handle is not None and not self._is_hurried:
            self._handle.cancel()
            self._is_hurried = True
            self._handle = asyncio.get_running_loop().call_soon(self._begin)
        await self._end_of_sync()

    def halt(self) -> None:
        """Sync no more of what comes, and let those go who wait."""
        self._is_halted = self.is_due = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self.job is None:
            self._wake()

    async def stop(self, *, is_sound: bool) -> None:
        """Wait for what is under way, sync the rest when the disk is sound, end the thread."""
        self.start()
        self.halt()
        while self.job is not None:
            await self._end_of_sync()
        if is_sound:
            self._begin()
            await self._end_of_sync()
        assert self._thread is not None, "started above"
        self._thread.stop()

    def _begin(self) -> None:
        self._handle, self._is_hurried = None, False
        self._job_position = self.position
        self.job = self._collect()
        assert self._thread is not None, "nothing is scheduled before the start"
        self._thread.submit(self.job)

    def _finish(self, done: SyncDone) -> None:
        """Take the thread's answer, on the loop."""
        self.job = None
        if done.error is None:
            self.durable_position = self._job_position
        self._conclude(done)
        self._wake()
        self._go_on()

    def _go_on(self) -> None:
        """Begin the next sync at once when somebody waits for it, later when nobody does."""
        if self._is_halted:
            return
        if self._asked_position > self.durable_position:
            self._begin()
        elif self.position > self.durable_position:
            self.note()
        else:
            self.is_due = False

    def _end_of_sync(self) -> asyncio.Future[None]:
        """Done when the next sync ends; a future costs those who wait a third of an event."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():  # whoever waited may have been cancelled
                waiter.set_result(None)
