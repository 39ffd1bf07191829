"""What is up now and how fast it is: the part of the fleet that changes while requests run.

Nothing here decides anything. Health never enters the allowed set; it only takes candidates out of
a decision until they can serve again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pricing.quote import MeasuredSpeed

PAUSE_S_MAX = 300.0
"""The longest pause that an upstream can ask for; then it is tried again."""

FAULT_RETRY_S = 5.0
"""When to ask again for a deployment of ours that is starting or being started again."""

_SPEED_WEIGHT = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether an attempt may be sent to a deployment now.

    Attributes:
        is_available: Whether it may.
        reason: Why not, one phrase.
        retry_after_s: Seconds until it may be, None when unknown.
    """

    is_available: bool = True
    reason: str = ""
    retry_after_s: float | None = None


AVAILABLE = Availability()


@dataclass(slots=True, kw_only=True)
class HealthBoard:
    """Availability and speed per deployment, as one worker sees it.

    Attributes:
        monotonic_s: The clock.
    """

    monotonic_s: Callable[[], float]
    _faults: dict[str, str] = field(default_factory=dict[str, str])
    _paused_until_s: dict[str, float] = field(default_factory=dict[str, float])
    _prefill_tps: dict[str, float] = field(default_factory=dict[str, float])
    _decode_tps: dict[str, float] = field(default_factory=dict[str, float])

    def set_fault(self, deployment: str, reason: str | None) -> None:
        """Note that a deployment of ours is not there; None when it is again."""
        if reason is None:
            self._faults.pop(deployment, None)
        else:
            self._faults[deployment] = reason

    def pause(self, deployment: str, seconds: float) -> None:
        """Note that an upstream asked for a pause; a later end wins over an earlier one."""
        until_s = self.monotonic_s() + min(seconds, PAUSE_S_MAX)
        self._paused_until_s[deployment] = max(until_s, self._paused_until_s.get(deployment, 0.0))

    def state(self, deployment: str) -> Availability:
        """Whether an attempt may be sent now."""
        fault = self._faults.get(deployment)
        if fault is None:
            return AVAILABLE
        return Availability(is_available=False, reason=fault, retry_after_s=FAULT_RETRY_S)

    def is_paused(self, deployment: str) -> bool:
        """Whether the pause that the upstream asked for still lasts.

        A paused deployment is tried after all others and never left out: where it is the only one,
        the next request is what finds out that it is back.
        """
        until_s = self._paused_until_s.get(deployment)
        if until_s is None:
            return False
        if until_s > self.monotonic_s():
            return True
        del self._paused_until_s[deployment]
        return False

    def speed(self, deployment: str) -> MeasuredSpeed | None:
        """Measured speed of a machine of ours, None before both its parts were measured."""
        prefill_tps = self._prefill_tps.get(deployment)
        decode_tps = self._decode_tps.get(deployment)
        if prefill_tps is None or decode_tps is None:
            return None
        return MeasuredSpeed(
            prefill_tps=max(1, round(prefill_tps)), decode_tps=max(1, round(decode_tps))
        )

    def note_speed(
        self, deployment: str, *, prefill_tps: float | None, decode_tps: float | None
    ) -> None:
        """Take a measurement into the running average.

        Args:
            deployment: Whose.
            prefill_tps: Prompt tokens per busy second, None when not measured this time.
            decode_tps: Generated tokens per busy second, None when not measured this time.
        """
        _blend(self._prefill_tps, deployment, prefill_tps)
        _blend(self._decode_tps, deployment, decode_tps)


def _blend(speeds: dict[str, float], deployment: str, measured_tps: float | None) -> None:
    if measured_tps is not None:
        known_tps = speeds.get(deployment, measured_tps)
        speeds[deployment] = known_tps + _SPEED_WEIGHT * (measured_tps - known_tps)
