"""Ends a request's task from outside: its client left, its time is up, or the process shuts down.

A task group with a watching task beside every request would cost more than its parsing, and so
would a timer for each: there is one for all of them, since the oldest request's time is up first.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from math import inf

from gateway.http.cycle import Cycle
from gateway.relay.client_stream import ClientStream
from gateway.relay.job import RelayLimits
from providers.deadline import Deadline


class Ending(Enum):
    """Why a request was ended from outside."""

    CLIENT_LEFT = auto()
    OUT_OF_TIME = auto()
    """The client took too long to read its answer."""
    CUT = auto()
    """This process has to end."""


class RequestGuard:
    """Cancels one task at the most once, and says why.

    Attributes:
        ending: Why the task was cancelled, None when it was not.
        ends_s: When its time is up, on the loop's clock.
        cycle: The connection's side of the request.
        draining: Ends an attempt that goes on for a client that has left.
    """

    __slots__ = ("_client", "_drain_s", "_task", "cycle", "draining", "ending", "ends_s")

    def __init__(
        self,
        task: asyncio.Task[None],
        client: ClientStream,
        *,
        cycle: Cycle,
        ends_s: float,
        drain_s: float,
    ) -> None:
        """Watch over a task.

        Args:
            task: The one that serves the request.
            client: Its answer.
            cycle: The connection's side of it.
            ends_s: When its time is up, on the loop's clock.
            drain_s: The longest that an attempt may go on for a client that has left.
        """
        self._task = task
        self._client = client
        self.cycle = cycle
        self._drain_s = drain_s
        self.draining: asyncio.TimerHandle | None = None
        self.ends_s = ends_s
        self.ending: Ending | None = None
        cycle.on_gone = self.client_left

    def end(self, ending: Ending) -> None:
        """Cancel the task; a second reason changes nothing."""
        if self.ending is None:
            self.ending = ending
            self._task.cancel()

    def client_left(self) -> None:
        """End it because there is nobody to answer, at once or after the upstream's last word."""
        self._client.has_left = True
        if self._client.drains:
            self.ends_s = inf
            loop = asyncio.get_running_loop()
            self.draining = loop.call_later(self._drain_s, self.end, Ending.CLIENT_LEFT)
        else:
            self.end(Ending.CLIENT_LEFT)

    def cut(self) -> None:
        """End it because this process has to."""
        self._client.is_cut = True
        self.end(Ending.CUT)

    def took_over(self) -> bool:
        """Whether a cancellation that the task caught was this guard's; if so it is over now."""
        if self.ending is None:
            return False
        self._task.uncancel()
        return True


class Guards:
    """Every answer that is being relayed, with what ends it."""

    __slots__ = ("_deadline", "_guards", "_limits", "_loop", "_patience_s")

    def __init__(self) -> None:
        """Begin with none."""
        self._guards: dict[RequestGuard, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: Deadline | None = None  # of the oldest
        self._limits: RelayLimits | None = None
        self._patience_s = 0.0  # of these limits

    def __len__(self) -> int:
        return len(self._guards)

    def add(self, cycle: Cycle, client: ClientStream, *, limits: RelayLimits) -> RequestGuard:
        """Watch over the current task, until `remove`.

        Args:
            cycle: The connection's side of its request.
            client: Its answer.
            limits: How long it may take.
        """
        task = cycle.task or asyncio.current_task()  # to ask for it is a system call
        assert task is not None, "a request is served by a task"
        if limits is not self._limits:
            self._limits, self._patience_s = limits, limits.patience_s
        loop, deadline = self._loop, self._deadline
        if loop is None or deadline is None:
            self._loop = loop = asyncio.get_running_loop()
            self._deadline = deadline = Deadline(self._end_late, loop=loop)
        ends_s = loop.time() + self._patience_s
        if ends_s < deadline.at_s:
            deadline.move(ends_s)
        guard = RequestGuard(task, client, cycle=cycle, ends_s=ends_s, drain_s=limits.drain_s)
        self._guards[guard] = None
        return guard

    def remove(self, guard: RequestGuard) -> None:
        """Watch no more over a task."""
        del self._guards[guard]
        guard.cycle.on_gone = None
        if guard.draining is not None:
            guard.draining.cancel()

    def cut(self) -> None:
        """End them all."""
        for guard in self._guards:
            guard.cut()

    def _end_late(self) -> None:
        """End those whose time is up, and come back for the next one."""
        assert self._loop is not None, "somebody was added"
        assert self._deadline is not None, "somebody was added"
        now_s = self._loop.time()
        next_s = inf
        for guard in self._guards:
            if guard.ends_s <= now_s:
                guard.end(Ending.OUT_OF_TIME)
            else:
                next_s = min(next_s, guard.ends_s)
        self._deadline.move(next_s)
