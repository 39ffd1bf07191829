"""Measures how late the event loop runs its timers: what any request had to wait behind others.

Under load a loop is late because many requests are ready at once, or because one piece of work took
long, or because another process had the processor. The time that the loop's own thread computed
meanwhile bounds the first two; what is left is the third.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.02
IDLE_INTERVAL_S = 0.25
"""To wake an idle process 50 times a second takes 0.4 % of a core; nobody waits there."""


class LoopWatchdog:
    """A timer that looks at the clock 50 times a second while there is work.

    Args:
        note: Told the lateness and the processor time in it, in seconds.
        is_busy: Whether there is work.
        monotonic_s: The clock.
        thread_s: Processor time of the calling thread.
    """

    def __init__(
        self,
        note: Callable[[float, float], None],
        *,
        is_busy: Callable[[], bool],
        monotonic_s: Callable[[], float],
        thread_s: Callable[[], float],
    ) -> None:
        self._note = note
        self._is_busy = is_busy
        self._monotonic_s = monotonic_s
        self._thread_s = thread_s
        self._due_s = 0.0
        self._computed_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to look; on this loop's thread."""
        self._arm(loop)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        interval_s = INTERVAL_S if self._is_busy() else IDLE_INTERVAL_S
        self._due_s = self._monotonic_s() + interval_s
        self._computed_s = self._thread_s()
        self._timer = loop.call_later(interval_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # Loops count timers in whole milliseconds and may be a little early.
        late_s = max(0.0, self._monotonic_s() - self._due_s)
        self._note(late_s, min(late_s, self._thread_s() - self._computed_s))
        self._arm(loop)
