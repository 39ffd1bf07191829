"""The deadlines of a connection's attempts: one loop timer, moved by assignment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf


class Expired(Exception):
    """The fault of a connection whose attempt took longer than its deadline."""


class Watch:
    """The deadline of what goes on on one connection.

    The timer outlives an attempt: setting one and cancelling it costs more than all the rest of a
    deadline. One that fires too early for the attempt of then is set anew, if there is one.

    Attributes:
        expires_at: The deadline by the loop's clock, infinite when nothing goes on. To set it is to
            assign it, and where it is before `fires_at`, to call `arm`.
        fires_at: When the loop's timer fires.
    """

    __slots__ = ("_handle", "_loop", "_tell", "expires_at", "fires_at")

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[Exception], None]) -> None:
        self._loop = loop
        self._tell: Callable[[Exception], None] | None = tell
        self._handle: asyncio.TimerHandle | None = None
        self.fires_at = inf
        self.expires_at = inf

    def stop(self) -> None:
        """Forget everything: the connection is closed."""
        self._tell = None
        self.expires_at = self.fires_at = inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def arm(self) -> None:
        """Set the loop's timer to the deadline."""
        if self._handle is not None:
            self._handle.cancel()
        self.fires_at = self.expires_at
        self._handle = self._loop.call_at(self.expires_at, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self.fires_at = inf
        if self._loop.time() < self.expires_at:
            if self.expires_at < inf:
                self.arm()
        elif self._tell is not None:
            self._tell(Expired())
