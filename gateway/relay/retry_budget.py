"""Keeps retries from turning an outage into a bigger one: they may be only a share of the traffic.

A bucket of tokens per failure domain. The first attempt of a request in a domain puts in a share of
a token, each further one there takes out a whole one, and a floor flows in with time, so that quiet
deployments can be retried at all. Asking another domain is a fallback and costs nothing: a standby
that takes over has earned no budget, and needs none.

The buckets belong to one worker and are not shared; the share is of this worker's own traffic, so
the sum over workers keeps to the same share, and the floor counts once per worker.

Source: the retry budgets of Finagle (`RetryBudget`, 2015) and the retry throttling of gRPC (A6).
"""

from __future__ import annotations

from collections.abc import Callable

FLOOR_PER_S = 1.0
"""Retries per second that are allowed whatever the traffic."""

BURST = 10.0
"""Retries that a new or idle domain has in hand."""

TOKENS_MAX = 100.0
"""The most that good times save up for bad ones."""


class _Bucket:
    """One domain's tokens at an instant."""

    __slots__ = ("at_s", "tokens")

    def __init__(self, at_s: float) -> None:
        self.tokens = BURST
        self.at_s = at_s


class RetryBudget:
    """Decides whether a domain may be asked once more."""

    def __init__(self, *, share_ratio: float, monotonic_s: Callable[[], float]) -> None:
        """Start with a burst in each domain.

        Args:
            share_ratio: Retries per first attempt that are allowed in the long run, 0..1.
            monotonic_s: The clock.
        """
        self._share_ratio = share_ratio
        self._monotonic_s = monotonic_s
        self._buckets: dict[str, _Bucket] = {}

    def note_first(self, domain: str) -> None:
        """Count the first attempt of a request in a domain."""
        bucket = self._buckets.get(domain)
        if bucket is None:
            bucket = self._buckets[domain] = _Bucket(self._monotonic_s())
        bucket.tokens = min(bucket.tokens + self._share_ratio, TOKENS_MAX)

    def has_room(self, domain: str) -> bool:
        """Whether a retry may be spent there now."""
        return self._filled(domain).tokens >= 1.0

    def spend(self, domain: str) -> None:
        """Take out a retry that begins; only after `has_room`, with no await between."""
        bucket = self._filled(domain)
        assert bucket.tokens >= 1.0, "a retry begins only where there is room for it"
        bucket.tokens -= 1.0

    def _filled(self, domain: str) -> _Bucket:
        now_s = self._monotonic_s()
        bucket = self._buckets.setdefault(domain, _Bucket(now_s))
        floor = (now_s - bucket.at_s) * FLOOR_PER_S
        bucket.at_s = now_s
        # The floor fills up to a burst and no further: only traffic saves up more.
        bucket.tokens = max(bucket.tokens, min(bucket.tokens + floor, BURST))
        return bucket
