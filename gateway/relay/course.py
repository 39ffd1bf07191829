"""Which deployment follows a failed one, after which pause, and when it is over; pure but for time.

Every candidate once, in the decision's order, then again from the first, until the attempts, the
seconds or the retry budget are used up. A deployment that is asked again gets a pause: what it
asked for, else a growing one; others that did not ask for one come before it. What may not be asked
again, and how often, stands in `failures.RULES`. Deployments of one quota group wait together: the
quota that one of them met is the others' too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.relay.failures import (
    Failure,
    Rule,
    may_repeat,
    refuses_account,
    rule_of,
)
from gateway.relay.retry_budget import RetryBudget
from gateway.relay.retry_policy import RetryPolicy
from providers.errors import ProviderError, RateLimited


class End(StrEnum):
    """Why nothing follows a failure."""

    AT_FAULT = "the request itself is at fault"
    NOBODY_LEFT = "no deployment may be asked again"
    ATTEMPTS = "the attempts are used up"
    TIME = "the time for new attempts is over"
    BUDGET = "the retry budget is used up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What to do after a failure.

    Attributes:
        candidate: Index into the decision's candidates.
        pause_s: Seconds to wait first.
        is_repeat: Whether this request has been in that failure domain before, so that the retry
            budget pays for it.
    """

    candidate: int
    pause_s: float
    is_repeat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """What a request's course is planned with.

    Attributes:
        policy: Attempts, seconds and pauses.
        budget: Bounds retries over all requests.
        domain_of: The failure domain of a deployment: its quota group, else itself.
        on_refused: Told the provider of each retry that the budget had no room for.
    """

    policy: RetryPolicy
    budget: RetryBudget
    domain_of: Callable[[str], str]
    on_refused: Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Course:
    """One request's failures, and what follows them.

    Attributes:
        planner: What it is planned with.
        candidates: Deployments in the decision's order; nothing else is ever named.
        failures: In the order of their attempts.
        end: Why nothing follows the last one, None while something does.
    """

    planner: Planner
    candidates: Sequence[str]
    failures: list[Failure] = field(default_factory=list[Failure])
    end: End | None = None

    def note(
        self,
        deployment: str,
        error: ProviderError,
        *,
        elapsed_s: float,
        paused_s: float | None = None,
    ) -> None:
        """Write down a failure.

        Args:
            deployment: Whose.
            error: How.
            elapsed_s: Since the first attempt began.
            paused_s: For how long all requests avoid the deployment, None when they do not.
        """
        self.failures.append(
            Failure(deployment=deployment, error=error, ended_s=elapsed_s, paused_s=paused_s)
        )

    def next(self, elapsed_s: float) -> Next | None:
        """What follows the last failure; None when the request has failed, and `end` says why.

        The budget is charged for what is returned: the caller makes that attempt.

        Args:
            elapsed_s: Since the first attempt began.
        """
        rule = rule_of(self.failures[-1].error)
        if rule.ends_request:
            self.end = End.AT_FAULT
            return None
        policy, budget, domain_of = self.planner.policy, self.planner.budget, self.planner.domain_of
        ends = [End.NOBODY_LEFT]
        for way in self._ways(rule, elapsed_s):
            if not policy.may_start(
                attempts=len(self.failures), elapsed_s=elapsed_s, pause_s=way.pause_s
            ):
                is_out = len(self.failures) >= policy.attempts_max
                ends.append(End.ATTEMPTS if is_out else End.TIME)
                continue
            domain = domain_of(self.candidates[way.candidate])
            if way.is_repeat and not budget.has_room(domain):
                ends.append(End.BUDGET)
                self.planner.on_refused(_provider(self.candidates[way.candidate]))
                continue
            if way.is_repeat:
                budget.spend(domain)
            else:
                budget.note_first(domain)
            return way
        self.end = ends[-1]
        return None

    def _ways(self, rule: Rule, elapsed_s: float) -> list[Next]:
        """Every candidate that may be asked, the best first, whatever the policy says about it."""
        domain_of = self.planner.domain_of
        seen = {domain_of(failure.deployment) for failure in self.failures}
        bad_accounts = {
            _provider(failure.deployment)
            for failure in self.failures
            if refuses_account(failure.error)
        }
        last = self.failures[-1].deployment
        ranked: list[tuple[tuple[float, ...], Next]] = []
        for index, deployment in enumerate(self.candidates):
            own = [failure for failure in self.failures if failure.deployment == deployment]
            if not may_repeat(own) or _provider(deployment) in bad_accounts:
                continue
            asked_s, pause_s = self._waits(deployment, own, elapsed_s)
            again = sum(rule_of(failure.error).is_repeated_at_once for failure in own)
            if rule.is_repeated_at_once and deployment == last and again == 1:
                # Before all others: that a connection was stale says nothing about its deployment.
                ranked.append(((-1.0,), Next(candidate=index, pause_s=asked_s, is_repeat=True)))
                continue
            way = Next(candidate=index, pause_s=pause_s, is_repeat=domain_of(deployment) in seen)
            # Who asked for no wait comes first, then who was asked less often, then who needs no
            # pause: of those alike in that, the decision's order holds.
            place = (float(asked_s > 0.0), len(own), float(pause_s > 0.0), asked_s, index)
            ranked.append((place, way))
        return [way for _, way in sorted(ranked, key=lambda pair: pair[0])]

    def _waits(
        self, deployment: str, own: Sequence[Failure], elapsed_s: float
    ) -> tuple[float, float]:
        """What is left of the wait asked for, and the pause; zeros for one that did not fail."""
        domain = self.planner.domain_of(deployment)
        met = [
            failure
            for failure in self.failures
            if failure.deployment == deployment
            or (
                isinstance(failure.error, RateLimited)
                and self.planner.domain_of(failure.deployment) == domain
            )
        ]
        if not met:
            return 0.0, 0.0
        asked_s = max((one.asked_left_s(elapsed_s) or 0.0 for one in met), default=0.0)
        pause_s = self.planner.policy.pause_s(
            met[-1].error, failures=max(len(own), 1), asked_s=asked_s
        )
        return asked_s, pause_s


def _provider(deployment: str) -> str:
    return deployment.partition("/")[0]
