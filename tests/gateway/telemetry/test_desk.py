"""One scrape tells everybody's numbers, and no sum ever falls."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from gateway.channel import Channel, RemoteError, method, socket_pair
from gateway.ledger.rounds import LoaderStats
from gateway.telemetry import desk as desk_module
from gateway.telemetry.desk import MetricsDesk
from gateway.telemetry.families import ENGINE_FAMILIES, LEDGER_FAMILIES
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.scrape import ScrapeFailed, Scraper
from gateway.telemetry.snapshot import Series
from gateway.telemetry.sources import wire_fault_series
from local_engine.api import EngineStats

pytestmark = pytest.mark.anyio

REASON = "Overloaded"
RETRIES = ("fareway_retries_total", (REASON,))
IN_FLIGHT = ("fareway_requests_in_flight", ())


class Worker:
    """A worker's end of the channel, with numbers of its own."""

    def __init__(self, source: str) -> None:
        self.metrics = Metrics(source)
        self.metrics.add_source(lambda: [Series("fareway_requests_in_flight", (), [1])])
        self.is_silent = False

    async def snapshot(self, _params, _fds):
        if self.is_silent:
            raise RemoteError("invalid_state", "not now")
        return self.metrics.snapshot()


class Machine:
    """Some workers and a desk, over real sockets."""

    def __init__(self, tasks) -> None:
        self._tasks = tasks
        self.channels: dict[str, Channel] = {}
        self._ends: list[Channel] = []
        self.ledger: dict[str, object] = {}
        self.engines: dict[str, EngineStats] = {}
        self.pids = {"supervisor": os.getpid()}
        self.desk = MetricsDesk(
            workers=lambda: list(self.channels.values()),
            pids=lambda: self.pids,
            ledger_stats=self.ledger_stats,
            budget_reports=self.budget_reports,
            engine_stats=lambda: self.engines,
        )

    async def ledger_stats(self):
        return self.ledger

    async def budget_reports(self):
        return []

    def start(self, source: str) -> Worker:
        worker = Worker(source)
        ours, theirs = socket_pair()
        channel = Channel(ours, {}, name=source)
        end = Channel(theirs, {"snapshot": method(type(None), worker.snapshot)}, name="supervisor")
        for one in (channel, end):
            self._tasks.start_soon(one.run)
        self.channels[source] = channel
        self._ends.append(end)
        return worker

    def end(self, source: str) -> None:
        self.channels.pop(source).close()

    def close(self) -> None:
        for channel in (*self.channels.values(), *self._ends):
            channel.close()

    async def scrape(self) -> dict[tuple[str, tuple[str, ...]], list[float]]:
        return {(one.family, one.labels): one.values for one in await self.desk.collect()}


@asynccontextmanager
async def machine():
    async with anyio.create_task_group() as tasks:
        made = Machine(tasks)
        yield made
        made.close()


async def test_all_workers_are_summed():
    async with machine() as here:
        workers = [here.start(source) for source in "abc"]
        for number, worker in enumerate(workers, 1):
            for _ in range(number):
                worker.metrics.note_retry(REASON, False)
        found = await here.scrape()
        assert found[RETRIES] == [6]
        assert found[IN_FLIGHT] == [3]


async def test_what_an_ended_worker_counted_stays_and_its_gauges_go():
    async with machine() as here:
        first, second = here.start("a"), here.start("b")
        first.metrics.note_retry(REASON, False)
        second.metrics.note_retry(REASON, False)
        assert (await here.scrape())[RETRIES] == [2]
        here.end("a")
        found = await here.scrape()
        assert found[RETRIES] == [2]
        assert found[IN_FLIGHT] == [1]
        here.start("c").metrics.note_retry(REASON, False)
        assert (await here.scrape())[RETRIES] == [3]


async def test_a_worker_that_does_not_answer_counts_with_what_it_told_last():
    async with machine() as here:
        worker = here.start("a")
        worker.metrics.note_retry(REASON, False)
        await here.scrape()
        worker.metrics.note_retry(REASON, False)
        worker.is_silent = True
        found = await here.scrape()
        assert found[RETRIES] == [1]
        assert IN_FLIGHT not in found
        worker.is_silent = False
        assert (await here.scrape())[RETRIES] == [2]


async def test_last_numbers_told_at_the_end_replace_those_of_the_last_scrape():
    async with machine() as here:
        worker = here.start("a")
        worker.metrics.note_retry(REASON, False)
        await here.scrape()
        worker.metrics.note_retry(REASON, False)
        here.desk.take_last(worker.metrics.snapshot())
        here.end("a")
        for _ in range(2):
            assert (await here.scrape())[RETRIES] == [2]
        # It may be told late, after the worker was counted as ended.
        worker.metrics.note_retry(REASON, False)
        here.desk.take_last(worker.metrics.snapshot())
        assert (await here.scrape())[RETRIES] == [3]


async def test_a_worker_that_ends_a_thousand_times_loses_nothing_and_keeps_no_memory():
    async with machine() as here:
        for number in range(desk_module.ENDED_MAX * 3):
            metrics = Metrics(str(number))
            metrics.note_retry(REASON, False)
            here.desk.take_last(metrics.snapshot())
        assert (await here.scrape())[RETRIES] == [desk_module.ENDED_MAX * 3]
        assert len(here.desk._last) == desk_module.ENDED_MAX
        assert (await here.scrape())[RETRIES] == [desk_module.ENDED_MAX * 3]


async def test_scrapes_at_the_same_time_agree():
    async with machine() as here:
        for source in "ab":
            here.start(source).metrics.note_retry(REASON, False)
        here.end("a")
        here.desk.take_last(Metrics("gone").snapshot())
        found = []

        async def scrape():
            found.append((await here.scrape())[RETRIES])

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(scrape)
        assert found == [[1]] * 5


async def test_the_ledger_the_engines_and_the_processes_are_in_it():
    async with machine() as here:
        stats = LoaderStats(
            events=12, backlog_bytes=345, backlog_records=2, backlog_age_ms=1_500, failure="x"
        )
        here.ledger = msgspec.to_builtins(stats)
        here.engines = {
            "local/m": EngineStats(
                state="ready", running=2, waiting=1, free_blocks=25, usable_blocks=100,
                computed_tokens=70, cached_tokens=30, busy_s=1.5, failed=4,
            )
        }  # fmt: skip
        found = await here.scrape()
        assert found["fareway_ledger_events_total", ()] == [12]
        assert found["fareway_spool_backlog_bytes", ()] == [345]
        assert found["fareway_spool_oldest_seconds", ()] == [1.5]
        assert set(LEDGER_FAMILIES) <= {family for family, _ in found}
        assert set(ENGINE_FAMILIES) <= {family for family, _ in found}
        assert found["fareway_engine_running", ("local/m",)] == [2]
        assert found["fareway_engine_kv_used_ratio", ("local/m",)] == [0.75]
        assert found["fareway_engine_prompt_tokens_total", ("local/m", "cached")] == [30]
        assert found["fareway_engine_requests_total", ("local/m", "failed")] == [4]
        memory = found["fareway_process_resident_memory_bytes", ("supervisor",)][0]
        assert 10 * 2**20 < memory < 4 * 2**30
        assert found["fareway_process_open_fds", ("supervisor",)][0] >= 3
        assert found["fareway_process_cpu_seconds_total", ("supervisor",)][0] > 0


def test_wire_faults_are_told_by_those_who_count_them():
    class Counting:
        wire_faults = {"tool_call": 3, "no_done": 1}

    found = list(wire_fault_series({"up": Counting(), "local": object()}))
    assert found == [
        Series("fareway_wire_faults_total", ("up", "tool_call"), [3]),
        Series("fareway_wire_faults_total", ("up", "no_done"), [1]),
    ]


async def test_a_process_that_is_gone_and_a_ledger_that_is_away_leave_the_rest():
    async with machine() as here:
        here.start("a").metrics.note_retry(REASON, False)
        here.pids = {"worker-0": 2**22 + 1}

        async def away():
            raise RemoteError("ledger_unavailable", "it is being started again")

        here.desk.ledger_stats = away
        found = await here.scrape()
        assert found[RETRIES] == [1]
        assert not [family for family, _ in found if "process" in family or "ledger" in family]


async def test_a_worker_asks_the_supervisor_and_fails_the_scrape_without_it():
    ours, theirs = socket_pair()
    text = b'fareway_retries_total{reason="Overloaded"} 41.0\n'

    async def collect(_params, _fds):
        return text

    worker = Channel(ours, {}, name="supervisor")
    supervisor = Channel(theirs, {"metrics": method(type(None), collect)}, name="worker")
    scraper = Scraper(metrics=Metrics(), supervisor=worker)
    async with anyio.create_task_group() as tasks:
        for one in (worker, supervisor):
            tasks.start_soon(one.run)
        assert await scraper.text() == text
        supervisor.close()
        with pytest.raises(ScrapeFailed, match="supervisor"):
            await scraper.text()
        worker.close()


async def test_the_supervisor_writes_the_text():
    async with machine() as here:
        here.start("a").metrics.note_retry(REASON, False)
        assert b'fareway_retries_total{reason="Overloaded"} 1.0\n' in await here.desk.text()
