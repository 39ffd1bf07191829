"""A deadline that moves with every request and costs no timer each time.

Both sides of the gateway have one per connection: its clients' and its upstreams'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class Deadline:
    """Calls a function when its time has come.

    The loop's timer is left standing while the deadline moves on, and set again when it rings too
    early: making and cancelling one costs about as much as parsing a request's head.

    Attributes:
        at_s: The deadline on the loop's clock, infinite when there is none. `move` sets it; where a
            call is too much, a later one is set by assignment alone, an earlier one than
            `timer_at_s` needs `start`.
        timer_at_s: When the timer rings, infinite when there is none.
    """

    __slots__ = ("_loop", "_ring", "_timer", "at_s", "timer_at_s")

    def __init__(self, ring: Callable[[], None], *, loop: asyncio.AbstractEventLoop) -> None:
        """Begin without a deadline.

        Args:
            ring: Called once for each deadline that was not moved in time.
            loop: Whose timer and clock.
        """
        self._ring: Callable[[], None] | None = ring
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.at_s = inf
        self.timer_at_s = inf

    def set(self, wait_s: float) -> None:
        """Move it to so many seconds from now."""
        self.move(self._loop.time() + wait_s)

    def move(self, at_s: float) -> None:
        """Move it to an instant on the loop's clock, infinite for none."""
        self.at_s = at_s
        if at_s < self.timer_at_s:
            self.start()

    def start(self) -> None:
        """Set the timer to the deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at_s = self.at_s
        self._timer = self._loop.call_at(self.at_s, self._look)

    def cancel(self) -> None:
        """Forget it, and whom to call, for good: nothing is left that refers to its owner."""
        self._ring = None
        self.at_s = self.timer_at_s = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer, self.timer_at_s = None, inf
        if self._loop.time() >= self.at_s:
            self.at_s = inf
            if self._ring is not None:
                self._ring()
        elif self.at_s != inf:
            self.start()
