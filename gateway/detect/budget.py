"""How long the detectors may look at one request.

Processor time of the looking thread is what counts: it does not run out because the machine is busy
with something else, and as all that is done takes time linear in the text, it bounds the wait.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.detect.errors import OutOfTime

CANDIDATES_PER_LOOK = 16
"""Candidates between two looks at the clock; each takes 2 to 60 microseconds."""


class Budget:
    """What is left of a request's time.

    It begins with the first look at the clock, which takes a tenth of what a small request does:
    one in which there is nothing to look at never gets to it.

    Args:
        cpu_s: Processor time of this thread in seconds; `time.thread_time`.
        limit_s: How much of it may be used.
    """

    __slots__ = ("_cpu_s", "_end_s", "_left", "_limit_s", "candidates")

    def __init__(self, cpu_s: Callable[[], float], limit_s: float) -> None:
        self._cpu_s = cpu_s
        self._limit_s = limit_s
        self._end_s: float | None = None
        self._left = 1
        self.candidates = 0

    def note_candidate(self) -> None:
        """Count something that was looked at by itself.

        Raises:
            OutOfTime: There is no time left.
        """
        self.candidates += 1
        self._left -= 1
        if not self._left:
            self._left = CANDIDATES_PER_LOOK
            self.check()

    def check(self) -> None:
        """Go on only while there is time.

        Raises:
            OutOfTime: There is none left.
        """
        now_s = self._cpu_s()
        if self._end_s is None:
            self._end_s = now_s + self._limit_s
        if now_s >= self._end_s:
            raise OutOfTime("looking took longer than timeout_ms")
