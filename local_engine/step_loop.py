"""The step thread: the only one that touches the core.

Others leave jobs and aborts in the inbox, which is read between steps only; messages go out through
a callback after each step. While nothing is to do the thread sleeps on the inbox.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from local_engine.engine import Engine, Job, Output
from local_engine.errors import EngineBusy
from local_engine.protocol import EngineStats, Refused

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abort:
    key: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _AbortAll:
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    pass


class StepLoop:
    """Runs an engine on the thread that calls `run`; the other methods may be called from any.

    Args:
        engine: Touched by the running thread alone.
        deliver: Called on the running thread with messages in order; must not block.
        is_cancelled: Whether a job was cancelled before it came here.
        clock_ns: Monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        deliver: Callable[[list[Output]], None],
        is_cancelled: Callable[[int], bool],
        clock_ns: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._is_cancelled = is_cancelled
        self._clock_ns = clock_ns
        # Bounded by the caller, which counts the requests in flight before it submits one.
        self._inbox: queue.SimpleQueue[Job | _Abort | _AbortAll | _Stop] = queue.SimpleQueue()
        self._is_stopped = False
        self._step_started_ns: int | None = None
        self._snapshot = (engine.stats(), clock_ns())

    def submit(self, job: Job) -> None:
        """Hand a job over; a refusal comes as a message."""
        self._inbox.put(job)

    def abort(self, key: int, *, error: str | None = None) -> None:
        """End a job before the next step; harmless when it has ended."""
        self._inbox.put(_Abort(key=key, error=error))

    def abort_all(self, *, error: str) -> None:
        """End every job before the next step."""
        self._inbox.put(_AbortAll(error=error))

    def stop(self) -> None:
        """Let `run` return after the step in progress."""
        self._inbox.put(_Stop())

    def stats(self) -> EngineStats:
        """The last snapshot, with idle time and the age of the step in progress up to now."""
        stats, taken_ns = self._snapshot
        started_ns = self._step_started_ns
        now_ns = self._clock_ns()
        if started_ns is not None:
            return _with(stats, step_age_s=(now_ns - started_ns) / _NS_PER_S)
        idle_s = (now_ns - taken_ns) / _NS_PER_S
        return _with(stats, idle_s=stats.idle_s + idle_s, wall_s=stats.wall_s + idle_s)

    def run(self) -> None:
        """Serve until stopped.

        Raises:
            AssertionError: an invariant of the core broke; the process must not go on.
        """
        while not self._is_stopped:
            self._read_inbox()
            if self._is_stopped:
                return
            self._step_started_ns = self._clock_ns()
            self._engine.step()
            self._step_started_ns = None
            self._publish()
            if not self._engine.has_work:
                self._engine.check_integrity()

    def _read_inbox(self) -> None:
        """Apply everything that waits; sleep for the first when there is no work."""
        must_wait = not self._engine.has_work
        while True:
            try:
                item = self._inbox.get(block=must_wait)
            except queue.Empty:
                return
            must_wait = False
            match item:
                case Job():
                    self._start(item)
                case _Abort(key=key, error=error):
                    self._engine.abort(key, error=error)
                case _AbortAll(error=error):
                    self._engine.abort_all(error=error)
                case _Stop():
                    self._is_stopped = True
                    return

    def _start(self, job: Job) -> None:
        try:
            self._engine.submit(job)
        except EngineBusy as busy:
            refused = Refused(
                id=job.request_id,
                code="engine_busy",
                message=str(busy),
                retry_after_s=busy.retry_after_s,
            )
            self._deliver([Output(key=job.key, message=refused)])
            return
        # An abort may have overtaken its job on the way here.
        if self._is_cancelled(job.key):
            self._engine.abort(job.key)

    def _publish(self) -> None:
        outputs = self._engine.take_outputs()
        self._snapshot = (self._engine.stats(), self._clock_ns())
        if outputs:
            self._deliver(outputs)


def _with(stats: EngineStats, **changes: float) -> EngineStats:
    return msgspec.structs.replace(stats, **changes)
