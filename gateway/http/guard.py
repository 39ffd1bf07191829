"""Ends a request's task from outside: its client left, its time is up, or the process shuts down.

A task group with a watching task beside every request would cost more than its parsing.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto


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

    __slots__ = ("_task", "ending")

    def __init__(self, task: asyncio.Task[None]) -> None:
        """Watch over a task.

        Args:
            task: The one that serves the request.
        """
        self._task = task
        self.ending: Ending | None = None

    def end(self, ending: Ending) -> None:
        """Cancel the task; a second reason changes nothing."""
        if self.ending is None:
            self.ending = ending
            self._task.cancel()

    def client_left(self) -> None:
        """End it because there is nobody to answer."""
        self.end(Ending.CLIENT_LEFT)

    def took_over(self) -> bool:
        """Whether a cancellation that the task caught was this guard's; if so it is over now."""
        if self.ending is None:
            return False
        self._task.uncancel()
        return True
