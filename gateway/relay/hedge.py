"""When a late request gets a second attempt beside its first, and which of the two counts; pure.

A hedge is an attempt like any other: drawn from the same frozen candidates, journaled before it is
sent, settled once. It starts when the first attempt has shown no content for longer than most of
that deployment's recent attempts took, goes to the best deployment of another failure domain that
this request has not asked, and pays from that domain's retry budget, so that a slow day does not
double the bill. The first of the two to show content is the answer; the other one is cancelled and
settled with what it may cost.

The relay does not race yet: `routing.hedge.enabled` is refused at start.

Source: Dean and Barroso, "The Tail at Scale" (2013), hedged requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.relay.failures import Failure
from gateway.relay.retry_budget import RetryBudget

SAMPLES_MIN = 20
"""Fewer recent attempts say nothing about how late is late."""

DELAY_S_MIN = 0.05
"""Sooner than this a hedge only doubles the load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge:
    """A second attempt to start unless content comes first.

    Attributes:
        candidate: Index into the decision's candidates.
        start_s: Seconds after the first attempt's start.
    """

    candidate: int
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgePolicy:
    """What hedges are planned with.

    Attributes:
        after_percentile: Of the first deployment's times to first content, above 0 and below 100.
        budget: Bounds hedges together with retries.
        domain_of: The failure domain of a deployment.
    """

    after_percentile: float
    budget: RetryBudget
    domain_of: Callable[[str], str]

    def delay_s(self, ttfts_s: Sequence[float]) -> float | None:
        """After how long without content an attempt is late; None when too little is known.

        Args:
            ttfts_s: Times to first content of recent attempts at the deployment, in any order.
        """
        if len(ttfts_s) < SAMPLES_MIN:
            return None
        rank = math.ceil(self.after_percentile / 100.0 * len(ttfts_s))
        return max(sorted(ttfts_s)[rank - 1], DELAY_S_MIN)

    def plan(
        self,
        candidates: Sequence[str],
        *,
        running: int,
        failures: Sequence[Failure],
        ttfts_s: Sequence[float],
        left_s: float,
    ) -> Hedge | None:
        """The hedge of an attempt that is about to start, None for none.

        Args:
            candidates: Deployments in the decision's order; nothing else is ever named.
            running: Index of the attempt's deployment.
            failures: Of this request so far.
            ttfts_s: As `delay_s`, of the attempt's deployment.
            left_s: Of the request's deadline.
        """
        start_s = self.delay_s(ttfts_s)
        if start_s is None or start_s >= left_s:
            return None
        seen = {self.domain_of(failure.deployment) for failure in failures}
        seen.add(self.domain_of(candidates[running]))
        for index, deployment in enumerate(candidates):
            if self.domain_of(deployment) not in seen:
                return Hedge(candidate=index, start_s=start_s)
        return None

    def may_start(self, deployment: str) -> bool:
        """Whether the budget has room for a hedge that is due, which it is then charged for."""
        domain = self.domain_of(deployment)
        if not self.budget.has_room(domain):
            return False
        self.budget.spend(domain)
        return True


class Race:
    """Which of a request's attempts may write to the client: the first that has content."""

    def __init__(self) -> None:
        """Start with nobody ahead."""
        self._winner: int | None = None

    @property
    def winner(self) -> int | None:
        """Number of the attempt that won, None while no content came."""
        return self._winner

    def claim(self, attempt: int) -> bool:
        """Ask, with content in hand, whether this attempt is the answer.

        Args:
            attempt: Its number in the request, from 1.

        Returns:
            False when another one was first; then this one ends without a byte for the client.
        """
        if self._winner is None:
            self._winner = attempt
        return self._winner == attempt
