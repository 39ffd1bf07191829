"""The supervisor's part of a scrape: one sum over workers, ledger process, engines and processes.

Any worker may get the scrape; it asks here, and here every worker is asked. A worker that does not
answer in time, or that has ended, counts with what it told last, so that no sum goes backwards. A
worker that ends in good order tells its last numbers by itself; one that is killed takes with it
what it counted since the last scrape (the ledger has every attempt in any case).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from gateway.budgets.messages import BudgetReport
from gateway.channel import Channel, ChannelError
from gateway.telemetry.exposition import render
from gateway.telemetry.snapshot import Series, Snapshot, Totals
from gateway.telemetry.sources import budget_series, engine_series, ledger_series, process_series
from local_engine.api import EngineStats

logger = logging.getLogger(__name__)

ANSWER_S = 2.0
"""Longest wait for one process; Prometheus gives a whole scrape 10 s."""

ENDED_MAX = 64
"""Ended workers that are remembered one by one; the numbers of earlier ones are one sum."""


@dataclass(slots=True, kw_only=True)
class MetricsDesk:
    """Collects every process's numbers.

    Attributes:
        workers: The channels of the workers that serve or drain now.
        pids: Process ids by role, the supervisor's own included.
        ledger_stats: Asks the ledger process.
        budget_reports: Asks the ledger process where budgets stand.
        engine_stats: By deployment, of the engines that run.
        machine_series: Of machines of our own.
    """

    workers: Callable[[], Iterable[Channel]]
    pids: Callable[[], Mapping[str, int]]
    ledger_stats: Callable[[], Awaitable[Mapping[str, object]]]
    budget_reports: Callable[[], Awaitable[Sequence[BudgetReport]]]
    engine_stats: Callable[[], Mapping[str, EngineStats]]
    machine_series: Callable[[], Iterable[Series]] = lambda: ()
    _last: dict[str, Snapshot] = field(default_factory=dict[str, Snapshot])
    _earlier: Totals = field(default_factory=Totals)
    _lock: anyio.Lock = field(default_factory=anyio.Lock)

    def take_last(self, snapshot: Snapshot) -> None:
        """Keep what a worker counted; it is about to end."""
        # Taken out first, so that the newest are at the end.
        self._last.pop(snapshot.source, None)
        self._last[snapshot.source] = snapshot

    async def text(self) -> bytes:
        """Prometheus' text of everything; made here, for workers have requests to serve."""
        series = await self.collect()
        return await anyio.to_thread.run_sync(render, series)

    async def collect(self) -> list[Series]:
        """Everything, as one scrape shows it."""
        async with self._lock:  # two scrapes at once would count an ended worker twice
            answered: set[str] = set()
            others: list[Series] = []
            async with anyio.create_task_group() as tasks:
                for channel in self.workers():
                    tasks.start_soon(self._ask_worker, channel, answered)
                tasks.start_soon(self._ask_ledger, others)
                tasks.start_soon(self._look_at_processes, others)
            self._forget_the_oldest(answered)
            totals = Totals()
            totals.add(self._earlier.series())
            for source, snapshot in self._last.items():
                totals.add(snapshot.series, is_alive=source in answered)
        for deployment, stats in self.engine_stats().items():
            totals.add(engine_series(deployment, stats))
        totals.add(self.machine_series())
        totals.add(others)
        return totals.series()

    async def _ask_worker(self, channel: Channel, answered: set[str]) -> None:
        try:
            snapshot = await channel.call(
                "snapshot", None, result_type=Snapshot, timeout_s=ANSWER_S
            )
        except ChannelError as error:
            logger.warning("a worker did not tell its metrics: %s", error)
            return
        self.take_last(snapshot)
        answered.add(snapshot.source)

    async def _ask_ledger(self, found: list[Series]) -> None:
        try:
            with anyio.fail_after(ANSWER_S):
                found += ledger_series(await self.ledger_stats())
                found += budget_series(await self.budget_reports())
        except (ChannelError, TimeoutError) as error:
            logger.warning("the ledger process did not tell its metrics: %s", error)

    async def _look_at_processes(self, found: list[Series]) -> None:
        found += await anyio.to_thread.run_sync(process_series, self.pids())

    def _forget_the_oldest(self, answered: set[str]) -> None:
        ended = [source for source in self._last if source not in answered]
        for source in ended[: max(0, len(ended) - ENDED_MAX)]:
            self._earlier.add(self._last.pop(source).series, is_alive=False)
