"""Ends a request's task from outside: its client left, its time is up, or the process shuts down.

A task group with a watching task beside every request would cost more than its parsing.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from gateway.relay.client_stream import ClientStream


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
    """

    __slots__ = ("_client", "_drain_s", "_loop", "_patience", "_task", "ending")

    def __init__(
        self,
        task: asyncio.Task[None],
        client: ClientStream,
        *,
        patience_s: float,
        drain_s: float,
    ) -> None:
        """Watch over a task; needs a running loop.

        Args:
            task: The one that serves the request.
            client: Its answer.
            patience_s: The longest that it may take, its client's reading included.
            drain_s: The longest that an attempt may go on for a client that has left.
        """
        self._task = task
        self._client = client
        self._drain_s = drain_s
        self._loop = asyncio.get_running_loop()
        self._patience = self._loop.call_later(patience_s, self.end, Ending.OUT_OF_TIME)
        self.ending: Ending | None = None

    def end(self, ending: Ending) -> None:
        """Cancel the task; a second reason changes nothing."""
        if self.ending is None:
            self.ending = ending
            self._task.cancel()

    def client_left(self) -> None:
        """End it because there is nobody to answer, at once or after the upstream's last word."""
        self._client.has_left = True
        if self._client.drains:
            self._patience.cancel()
            self._patience = self._loop.call_later(self._drain_s, self.end, Ending.CLIENT_LEFT)
        else:
            self.end(Ending.CLIENT_LEFT)

    def stop(self) -> None:
        """Watch no more."""
        self._patience.cancel()

    def took_over(self) -> bool:
        """Whether a cancellation that the task caught was this guard's; if so it is over now."""
        if self.ending is None:
            return False
        self._task.uncancel()
        return True
