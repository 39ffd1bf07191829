"""The deadlines of a connection's attempts: one loop timer, moved by assignment."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol


class Expired(Exception):
    """Put into whatever an attempt waits for when its deadline passes."""


class Waits(Protocol):
    """What can be told that it waits in vain: a connection's protocol, then a body's reader."""

    def set_exception(self, exc: BaseException, /) -> None:
        """End the wait with an error."""


class Watch:
    """The deadline of what goes on on one connection.

    The timer outlives an attempt: setting one and cancelling it costs more than all the rest of a
    deadline. One that fires too early for the attempt of then is set anew, if there is one.

    Attributes:
        expires_at: The deadline by the loop's clock, infinite when nothing goes on; a later one
            than before is simply assigned.
    """

    __slots__ = ("_fires_at", "_handle", "_loop", "_target", "expires_at")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._target: Waits | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._fires_at = inf
        self.expires_at = inf

    def move(self, expires_at: float, target: Waits) -> None:
        """Set the deadline; only an earlier one than the timer's touches the loop.

        Args:
            expires_at: When it passes.
            target: Who is told.
        """
        self._target = target
        self.expires_at = expires_at
        if expires_at < self._fires_at:
            self._arm()

    def rest(self) -> None:
        """Nothing goes on until the next `move`."""
        self._target = None
        self.expires_at = inf

    def stop(self) -> None:
        """Forget everything: the connection is closed."""
        self.rest()
        self._fires_at = inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._fires_at = self.expires_at
        self._handle = self._loop.call_at(self.expires_at, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._fires_at = inf
        if self._loop.time() < self.expires_at:
            if self.expires_at < inf:
                self._arm()
        elif self._target is not None:
            self._target.set_exception(Expired())
