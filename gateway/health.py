"""What is up now and how fast it is: the part of the fleet that changes while requests run.

Nothing here decides anything. Health never enters the allowed set; it only takes candidates out of
a decision until they can serve again, or behind the others while they are paused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pricing.quote import MeasuredSpeed

PAUSE_S_MAX = 300.0
"""The longest pause that an upstream can ask for; then it is tried again."""

OWN_PAUSE_S = 1.0
"""The first pause of a deployment that did not say how long it wants one; each next one doubles."""

OWN_QUOTA_PAUSE_S_MAX = 60.0
"""The longest own pause after a quota: most are counted per minute."""

OWN_LOAD_PAUSE_S_MAX = 8.0
"""The longest own pause after an overload: one that is over must be found out soon."""

FORGET_S = 300.0
"""So long after a pause nothing is known of the failures before it."""

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


@dataclass(slots=True)
class _Pause:
    """Why and until when something is avoided.

    Attributes:
        until_s: Monotonic instant at which it ends.
        own_s: Length of the last pause that nobody asked for, zero when there was none.
    """

    until_s: float
    own_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class HealthBoard:
    """Availability and speed per deployment, as one worker sees it.

    Attributes:
        monotonic_s: The clock.
        quota_groups: Quota group by provider, for providers that share one account's quota.
        epoch: Counts whatever may change a decision: faults that come and go, and with them what an
            engine of ours can do; a speed that was not known before. Neither pauses, which only
            change the order afterwards, nor a known speed that changes, which a decision looks up.
        has_pauses: Whether anything may be paused.
    """

    monotonic_s: Callable[[], float]
    quota_groups: Mapping[str, str] = field(default_factory=dict[str, str])
    epoch: int = field(default=0, init=False)
    has_pauses: bool = field(default=False, init=False)
    _faults: dict[str, str] = field(default_factory=dict[str, str])
    _pauses: dict[str, _Pause] = field(default_factory=dict[str, _Pause])
    _prefill_tps: dict[str, float] = field(default_factory=dict[str, float])
    _decode_tps: dict[str, float] = field(default_factory=dict[str, float])

    def set_fault(self, deployment: str, reason: str | None) -> None:
        """Note that a deployment of ours is not there; None when it is again."""
        self.epoch += 1
        if reason is None:
            self._faults.pop(deployment, None)
        else:
            self._faults[deployment] = reason

    def domain_of(self, deployment: str) -> str:
        """The failure domain of a deployment: its quota group, else itself."""
        if not self.quota_groups:
            return deployment  # asked for each request
        group = self.quota_groups.get(deployment.partition("/")[0])
        return deployment if group is None else f"quota group {group}"

    def note_lack(self, deployment: str, *, asked_s: float | None, is_quota: bool) -> float:
        """Note that a deployment could not serve for want of capacity.

        A quota pauses every deployment of its group. Where the upstream did not say for how long,
        the pause is one of ours that doubles from failure to failure; failures of requests that
        were under way when it began do not count. Of two pauses the later end counts.

        Args:
            deployment: Which one.
            asked_s: Seconds that the upstream asked for, None when it did not say.
            is_quota: Whether a quota ran out, rather than the upstream's own capacity.

        Returns:
            For how long, in seconds, it is paused from now.
        """
        key = self.domain_of(deployment) if is_quota else deployment
        if asked_s:
            return self._pause(key, asked_s)
        longest_s = OWN_QUOTA_PAUSE_S_MAX if is_quota else OWN_LOAD_PAUSE_S_MAX
        now_s = self.monotonic_s()
        known = self._pauses.get(key)
        own_s = 0.0 if known is None or now_s > known.until_s + FORGET_S else known.own_s
        if known is None or known.until_s <= now_s or not own_s:
            own_s = min(max(2.0 * own_s, OWN_PAUSE_S), longest_s)
        self._pause(key, own_s)
        self._pauses[key].own_s = own_s
        return own_s

    def note_success(self, deployment: str) -> None:
        """Note that a deployment served, so that its next own pause is a short one again.

        A pause that still lasts goes on: the success may be of a request from before it.
        """
        if self.has_pauses:
            for key in {deployment, self.domain_of(deployment)}:
                if (known := self._pauses.get(key)) is not None:
                    known.own_s = 0.0

    def _pause(self, key: str, seconds: float) -> float:
        seconds = min(seconds, PAUSE_S_MAX)
        until_s = self.monotonic_s() + seconds
        known = self._pauses.setdefault(key, _Pause(until_s))
        self.has_pauses = True
        known.until_s = max(known.until_s, until_s)
        return seconds

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
        if not self.has_pauses:
            return False
        now_s = self.monotonic_s()
        return any(
            self._lasts(key, now_s=now_s) for key in {deployment, self.domain_of(deployment)}
        )

    def _lasts(self, key: str, *, now_s: float) -> bool:
        known = self._pauses.get(key)
        if known is None:
            return False
        if known.until_s <= now_s and not known.own_s:
            del self._pauses[key]
            self.has_pauses = bool(self._pauses)
        return known.until_s > now_s

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
        was_known = self._is_measured(deployment)
        _blend(self._prefill_tps, deployment, prefill_tps)
        _blend(self._decode_tps, deployment, decode_tps)
        if not was_known and self._is_measured(deployment):
            self.epoch += 1

    def _is_measured(self, deployment: str) -> bool:
        return deployment in self._prefill_tps and deployment in self._decode_tps


def _blend(speeds: dict[str, float], deployment: str, measured_tps: float | None) -> None:
    if measured_tps is not None:
        known_tps = speeds.get(deployment, measured_tps)
        speeds[deployment] = known_tps + _SPEED_WEIGHT * (measured_tps - known_tps)
