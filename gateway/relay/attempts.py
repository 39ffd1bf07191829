"""Runs a decision: attempts in order, four deadlines, fallback until the first content, settlement.

Policy stays out of here: the decision's candidates are the only deployments that can be reached.
Each attempt is journaled before it is dispatched and settled exactly once, whatever ends it.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field, replace

import anyio

from gateway.errors import GatewayError
from gateway.health import HealthBoard
from gateway.relay.attempt import Attempt, RelayParts
from gateway.relay.client_stream import ClientStream
from gateway.relay.course import Course, Next, Planner
from gateway.relay.failures import Failure
from gateway.relay.heartbeat import Heartbeat
from gateway.relay.held import held_for, narrowed
from gateway.relay.job import Job
from gateway.relay.retry_budget import RetryBudget
from gateway.relay.retry_policy import RetryPolicy
from gateway.relay.verdict import final_error
from gateway.routing.ranking import Candidate
from providers.errors import CapacityError, NotPermitted, ProviderError, RateLimited

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay(RelayParts):
    """Runs jobs.

    Attributes:
        rng: For jitter.
        health: Told who lacks capacity, and who served.
        budget: Bounds repeated attempts over all requests.
        planner: What all requests plan their course with after a failure; made of the others.
    """

    rng: random.Random
    health: HealthBoard
    budget: RetryBudget
    planner: Planner = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the planner, so that no failing request has to."""
        limits = self.limits
        planner = Planner(
            policy=RetryPolicy(
                attempts_max=limits.attempts_max,
                within_s=min(limits.within_s, limits.deadlines.total_s),
                rng=self.rng,
            ),
            budget=self.budget,
            domain_of=self.health.domain_of,
            on_refused=self.metrics.note_retry_refused,
        )
        object.__setattr__(self, "planner", planner)  # it is frozen for everybody else

    async def run(self, job: Job, client: ClientStream) -> None:
        """Answer the client.

        Raises:
            BudgetExceeded: A budget has no room for an attempt.
            GatewayError: Every attempt failed. When `client.is_started`, headers are out and the
                caller ends the stream with an error event.
        """
        if not self.holds.is_free:
            job = narrowed(self.holds, job)
        is_stream = job.request.is_stream
        heartbeat = self._heartbeat(job, client) if is_stream else None
        candidate, deadlines = job.candidates[0], self.limits.deadlines
        failures: tuple[Failure, ...] = ()
        course: Course | None = None
        first_s: float | None = None
        try:
            while True:
                held = await held_for(self.holds, self.exposures, job, candidate, failures)
                candidate = held.candidate
                if not failures:
                    self.budget.note_first(self.health.domain_of(candidate.deployment))
                attempt = Attempt(
                    relay=self,
                    job=job,
                    held=held,
                    client=client,
                    failures=failures,
                    deadlines=deadlines,
                )
                if is_stream:
                    client.attempt = (candidate.deployment, len(failures) + 1)
                try:
                    await attempt.run()
                except ProviderError as error:
                    _forget_frames(error)
                    if client.has_left:
                        return  # there is nobody to try another one for
                    course = course or self._course(job)
                    first_s = attempt.started_s if first_s is None else first_s
                    assert first_s is not None, "what was journaled has begun"
                    step = self._after(course, candidate, error, client, first_s)
                else:
                    self.health.note_success(candidate.deployment)
                    return
                if step is None:
                    raise self._failure(job, course, candidate, first_s)
                following = job.candidates[step.candidate]
                self.metrics.note_retry(
                    type(course.failures[-1].error).__name__,
                    following.deployment != candidate.deployment,
                )
                await anyio.sleep(step.pause_s)
                renewed = job.renew(following)
                if renewed is None:
                    raise self._failure(job, course, candidate, first_s)
                candidate, failures = renewed, tuple(course.failures)
                left_s = self.limits.deadlines.total_s - (self.clock.monotonic_s() - first_s)
                deadlines = replace(self.limits.deadlines, total_s=max(left_s, 0.0))
        finally:
            if heartbeat is not None:
                heartbeat.stop()

    def _heartbeat(self, job: Job, client: ClientStream) -> Heartbeat:
        return Heartbeat(
            client,
            period_s=self.limits.heartbeat_s,
            monotonic_s=self.clock.monotonic_s,
            headers=lambda: job.head_lines(*client.attempt, ()),
        )

    def _course(self, job: Job) -> Course:
        """What follows failures; made at the first one, since most requests have none."""
        return Course(
            planner=self.planner,
            candidates=[candidate.deployment for candidate in job.candidates],
        )

    def _after(
        self,
        course: Course,
        candidate: Candidate,
        error: ProviderError,
        client: ClientStream,
        first_s: float,
    ) -> Next | None:
        """Write a failure down, and what follows it; nothing once content went out."""
        paused_s = None
        if isinstance(error, NotPermitted):
            # The evaluator has let through what the second reading of the policy has not.
            self.metrics.note_egress_refusal("permit")
            logger.error("the egress guard stopped a request to %s", candidate.deployment)
        if isinstance(error, CapacityError):
            paused_s = self.health.note_lack(
                candidate.deployment,
                asked_s=error.retry_after_s,
                is_quota=isinstance(error, RateLimited),
            )
        elapsed_s = self.clock.monotonic_s() - first_s
        course.note(candidate.deployment, error, elapsed_s=elapsed_s, paused_s=paused_s)
        return None if client.has_content else course.next(elapsed_s)

    def _failure(
        self, job: Job, course: Course, candidate: Candidate, first_s: float
    ) -> GatewayError:
        failure = final_error(
            course.failures,
            elapsed_s=self.clock.monotonic_s() - first_s,
            total_s=self.limits.deadlines.total_s,
            is_narrowed_by_privacy=job.is_narrowed_by_privacy,
        )
        failure.deployment, failure.attempts = candidate.deployment, len(course.failures)
        return failure


def _forget_frames(error: ProviderError) -> None:
    """Let go of the frames that a failure came through, which nobody looks at any more.

    They hold all that came of the answer, and ours, which keeps the failure, is among them: a
    cycle, which the collector finds late. Ten broken answers of 10 MB cost 600 MB.
    """
    error.__traceback__ = error.__cause__ = error.__context__ = None
