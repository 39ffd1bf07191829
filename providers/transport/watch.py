"""The deadline of an attempt: one loop timer, moved by assignment."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Expired(Exception):
    """Put into whatever an attempt waits for when its deadline passes."""


class Waits(Protocol):
    """What can be told that it waits in vain: a connection's protocol, then a body's reader."""

    def set_exception(self, exc: BaseException, /) -> None:
        """End the wait with an error."""


class Watch:
    """One loop timer for the waits of one attempt.

    Attributes:
        target: Whom to tell; assigned when the head has come.
        expires_at: The deadline by the loop's clock; a later one than the timer's is simply
            assigned.
    """

    __slots__ = ("_fires_at", "_handle", "_loop", "expires_at", "target")

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Waits, expires_at: float) -> None:
        self._loop = loop
        self.target = target
        self.expires_at = self._fires_at = expires_at
        self._handle = loop.call_at(expires_at, self._fire)

    def move(self, expires_at: float) -> None:
        """Set the deadline; only an earlier one than the timer's touches the loop."""
        self.expires_at = expires_at
        if expires_at < self._fires_at:
            self._handle.cancel()
            self._arm()

    def stop(self) -> None:
        """Forget the deadline."""
        self._handle.cancel()

    def _fire(self) -> None:
        if self._loop.time() < self.expires_at:
            self._arm()
        else:
            self.target.set_exception(Expired())

    def _arm(self) -> None:
        self._fires_at = self.expires_at
        self._handle = self._loop.call_at(self.expires_at, self._fire)
