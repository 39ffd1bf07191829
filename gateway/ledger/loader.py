"""Moves records from the spools into the database; the only writer of events.

A round reads every directory under the spool root, and in one transaction books what was read,
rolls it up and moves the cursors. A round that fails changes nothing and is tried again: an outage
of the database only lets the backlog grow. A batch that the database refuses is booked record by
record, and what is refused alone goes to quarantine.

Under load a round waits until thousands of records have gathered: what a transaction costs by
itself, two `fsync`s among it, is then paid once for all of them. Spools at rest are looked at ever
more seldom: the next record is loaded within `poll_s_max`, and whoever must see everything calls
`flush`, which does not wait.
"""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.clock import Clock
from gateway.ledger.database import blocking_twin
from gateway.ledger.errors import DatabaseUnavailable, UnusableDatabase
from gateway.ledger.rounds import LoaderLimits, LoaderStats, Rounds

_log = logging.getLogger(__name__)


class Loader:
    """Loads all spools under a root; several loaders at once are safe, one is enough.

    Args:
        engine: A writing engine; the loader's own connection is closed when it is disposed of.
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
        self.turn = anyio.Lock()
        """Held during a round; other writers of this process take it to come in between."""
        self._limits = limits or LoaderLimits()
        self._database = blocking_twin(engine)
        self._rounds = Rounds(self._database, spool_root, clock=clock, limits=self._limits)
        self._stopping = anyio.Event()
        self._rest_s = self._limits.poll_s

    @property
    def stats(self) -> LoaderStats:
        """What was loaded and what waits."""
        return self._rounds.stats

    async def run(self) -> None:
        """Load until `stop`, with a growing wait while the database does not take it."""
        wait_s = self._limits.retry_s
        while not self._stopping.is_set():
            try:
                behind = await self.load_round()
            except (DatabaseUnavailable, UnusableDatabase) as error:
                # Also what only an administrator can mend: meanwhile requests go on.
                _log.warning("loading waits %.2f s: %s", wait_s, error)
                pause_s, wait_s = wait_s, min(2 * wait_s, self._limits.retry_s_max)
            else:
                pause_s = 0 if behind else self._pause_s()
                wait_s = self._limits.retry_s
            # Not past `stop`.
            with anyio.move_on_after(pause_s):
                await self._stopping.wait()

    def stop(self) -> None:
        """Let `run` end after the round that it is in."""
        self._stopping.set()

    def _pause_s(self) -> float:
        """How long to wait after a round that has left nothing."""
        limits, found = self._limits, self._rounds.found_records
        if found:
            self._rest_s = limits.poll_s
            return limits.gather_s if found >= limits.busy_records else limits.poll_s
        pause_s = self._rest_s
        self._rest_s = max(min(2 * pause_s, limits.poll_s_max), limits.poll_s)
        return pause_s

    async def flush(self) -> None:
        """Load everything that was written before the call.

        Raises:
            DatabaseUnavailable: The database did not take it; nothing is lost.
        """
        behind = await self.load_round()
        while behind:
            behind &= await self.load_round()

    async def load_round(self) -> set[str]:
        """Book one batch, in a thread; a round that has begun is finished, cancelled or not.

        Returns:
            Names of the directories whose end, as it was when the round began, is not reached.

        Raises:
            DatabaseUnavailable: The database did not take the batch; it is still in the spool.
            UnusableDatabase: Nor will it, until somebody mends it.
        """
        async with self.turn:
            return await anyio.to_thread.run_sync(self._database.run, self._rounds.load)
