"""Pauses between restarts of a child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST_S = 0.1
MAX_S = 30.0
CALM_AFTER_S = 60.0


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Doubles from `FIRST_S` to `MAX_S`; a child that lived for `CALM_AFTER_S` starts it anew.

    Attributes:
        monotonic_s: The clock.
    """

    monotonic_s: Callable[[], float]
    _pause_s: float = FIRST_S
    _last_s: float | None = None

    def next_s(self) -> float:
        """Seconds to wait before the next start."""
        now_s = self.monotonic_s()
        if self._last_s is not None and now_s - self._last_s > CALM_AFTER_S:
            self._pause_s = FIRST_S
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, MAX_S)
        self._last_s = now_s
        return pause_s
