"""The step thread by itself."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from local_engine.engine import Job, Output
from local_engine.protocol import Done, Refused
from local_engine.sampling import SamplingParameters
from local_engine.step_loop import StepLoop
from tests.local_engine.core_harness import Harness


def job(key: int, **changes) -> Job:
    options = {
        "key": key,
        "request_id": str(key),
        "namespace": b"a",
        "prompt": [1, 2, 3],
        "output_tokens_max": 4,
        "sampling": SamplingParameters(seed=1, temperature=0.0),
        "end_ids": frozenset(),
        "stops": (),
        "received_ns": 0,
    }
    return Job(**{**options, **changes})


class Running:
    """A step loop on a thread of its own."""

    def __init__(self, *, cancelled: frozenset[int] = frozenset(), **limits) -> None:
        self.outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.fault: BaseException | None = None
        self.engine = Harness(**limits).engine
        self.loop = StepLoop(
            self.engine,
            deliver=lambda outputs: [self.outputs.put(each) for each in outputs],
            is_cancelled=cancelled.__contains__,
            clock_ns=time.monotonic_ns,
        )
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.loop.run()
        except AssertionError as fault:
            self.fault = fault

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.loop.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def last_of(self, key: int) -> Done | Refused:
        while True:
            output = self.outputs.get(timeout=10)
            if output.key == key and isinstance(output.message, Done | Refused):
                return output.message


def test_a_job_cancelled_on_its_way_is_aborted_before_it_computes() -> None:
    with Running(cancelled=frozenset({1})) as running:
        running.loop.submit(job(1))
        done = running.last_of(1)
        assert (done.finish_reason, done.usage.output_tokens, done.busy_s) == ("abort", 0, 0.0)


def test_a_job_beyond_the_queue_is_refused_by_message() -> None:
    running = Running(queued_requests_max=1, tenant_share_max=1.0)
    running.loop.submit(job(1))
    running.loop.submit(job(2))
    with running:
        refused = running.last_of(2)
        assert refused.code == "engine_busy"
        assert refused.retry_after_s >= 1


def test_aborting_all_ends_everything_with_the_reason() -> None:
    running = Running()
    for key in range(6):
        running.loop.submit(job(key, output_tokens_max=150))
    running.loop.abort_all(error="over")
    with running:
        for key in range(6):
            assert running.last_of(key).error == "over"


def test_it_sleeps_while_idle_and_counts_that_as_idle_time() -> None:
    with Running() as running:
        running.loop.submit(job(1))
        running.last_of(1)
        time.sleep(0.05)
        stats = running.loop.stats()
        assert stats.idle_s > 0.04
        assert stats.steps <= 5
        assert stats.busy_s + stats.idle_s == pytest.approx(stats.wall_s)


def test_a_broken_invariant_ends_the_thread() -> None:
    with Running() as running:
        # A block that nobody holds but that is not free either: as a leak would leave it.
        running.engine.scheduler._pool.allocate(1)
        running.loop.submit(job(1))
        running.thread.join(10)
        assert not running.thread.is_alive()
    assert "reference counts" in str(running.fault)
