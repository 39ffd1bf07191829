"""Measures how late the event loop runs its timers: what any request had to wait behind others.

Under load a loop is late because many requests are ready at once, or because one piece of work took
long, or because another process had the processor. The time that the loop's own thread computed
meanwhile bounds the first two; what is left is the third.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

INTERVAL_S = 0.02
IDLE_INTERVAL_S = 0.25
"""To wake an idle process 50 times a second takes 0.4 % of a core; nobody waits there."""

TURN_INTERVAL_S = 0.001
"""Loops run no timer sooner, and each timer once a turn: so every turn that takes longer is seen.
With nothing at all, a loop without work would turn for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at the loop found.

    Attributes:
        late_s: How late the look itself was.
        late_computed_s: How much of that the loop's own thread computed, at most.
        turn_s: How long the newest turn of the loop lasted, at most; exact where it was longer than
            the time between looks.
        turn_computed_s: How much of that the loop's own thread computed, at most.
    """

    late_s: float
    late_computed_s: float
    turn_s: float
    turn_computed_s: float


class LoopWatchdog:
    """A timer that looks at the clock 50 times a second while there is work.

    Args:
        note: Told what a look found.
        is_busy: Whether there is work.
        is_close: Whether each turn of the loop is to be looked at.
        monotonic_s: The clock.
        thread_s: Processor time of the calling thread.
    """

    def __init__(
        self,
        note: Callable[[Look], None],
        *,
        is_busy: Callable[[], bool],
        is_close: Callable[[], bool],
        monotonic_s: Callable[[], float],
        thread_s: Callable[[], float],
    ) -> None:
        self._note = note
        self._is_busy = is_busy
        self._is_close = is_close
        self._monotonic_s = monotonic_s
        self._thread_s = thread_s
        self._interval_s = 0.0
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
        if self._is_close():
            interval_s = TURN_INTERVAL_S
        else:
            interval_s = INTERVAL_S if self._is_busy() else IDLE_INTERVAL_S
        self._interval_s = interval_s
        self._due_s = self._monotonic_s() + interval_s
        self._computed_s = self._thread_s()
        self._timer = loop.call_later(interval_s, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        # Loops count timers in whole milliseconds and may be a little early.
        late_s = max(0.0, self._monotonic_s() - self._due_s)
        computed_s = self._thread_s() - self._computed_s
        # Many turns fit into the time of an idle loop; one that lasted longer made the look late.
        turn_s = late_s + min(self._interval_s, INTERVAL_S)
        try:
            self._note(
                Look(
                    late_s=late_s,
                    late_computed_s=min(late_s, computed_s),
                    turn_s=turn_s,
                    turn_computed_s=min(turn_s, computed_s),
                )
            )
        finally:
            self._arm(loop)  # without looks an overload would never end
