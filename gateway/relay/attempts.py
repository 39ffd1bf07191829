"""Runs a decision: attempts in order, four deadlines, fallback until the first content, settlement.

Policy stays out of here: the decision's candidates are the only deployments that can be reached.
Each attempt is journaled before it is dispatched and settled exactly once, whatever ends it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import anyio
import msgspec

from gateway.clock import Clock
from gateway.dialects.openai_answer import AnswerEncoder, FinalFacts
from gateway.errors import GatewayError
from gateway.health import HealthBoard
from gateway.ledger.errors import SpoolError
from gateway.ledger.records import AttemptStatus, Settlement
from gateway.relay.client_stream import JSON_HEADER, ClientStream
from gateway.relay.course import Course, Next, Planner
from gateway.relay.failures import EMPTY_ANSWER_RETRIES, Failure, was_refused
from gateway.relay.frames import StreamFrames
from gateway.relay.heartbeat import Heartbeat
from gateway.relay.journal import Booking, Journal, OpenAttempt, Outcome
from gateway.relay.request_head import RequestHead, header_text
from gateway.relay.retry_budget import RetryBudget
from gateway.relay.retry_policy import RetryPolicy
from gateway.relay.verdict import final_error
from gateway.routing.ranking import Candidate
from gateway.telemetry.metrics import Metrics
from pricing.money import format_usd
from providers.contract import AttemptFacts, ChatRequest, Deadlines, Provider
from providers.errors import CapacityError, ProviderError, RateLimited, UpstreamFault

logger = logging.getLogger(__name__)

SETTLE_GRACE_S = 60.0
"""Added to an attempt's total deadline: after it an unsettled intent counts as lost."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request that has been admitted and decided.

    Attributes:
        booking: Whom it is booked on.
        candidates: The frozen set, in order; nothing else is ever called.
        request: The checked request.
        prompt_tokens_estimate: For a booking without counts.
        allows_empty: Whether an answer without content is what was asked for (`max_tokens: 0`).
        accepted_s: Monotonic instant at which the request was accepted.
        head: The part of the answer's head that does not depend on the attempt.
        adapted: Changes to the request that were made before any attempt.
        is_narrowed_by_privacy: Whether tags kept deployments of the model out of the candidates.
    """

    booking: Booking
    candidates: Sequence[Candidate]
    request: ChatRequest
    prompt_tokens_estimate: int
    allows_empty: bool
    accepted_s: float
    head: RequestHead
    adapted: Sequence[str] = ()
    is_narrowed_by_privacy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """The relay's settings.

    Attributes:
        deadlines: Of each attempt; the total one is the whole request's.
        attempts_max: Attempts per request.
        within_s: No attempt starts later than this after the first.
        heartbeat_s: Silence after which a stream gets a comment.
        is_strict: Whether an intent is on disk before dispatch.
        flush_s: How long after the total deadline a client may take to read its answer.
    """

    deadlines: Deadlines
    attempts_max: int
    within_s: float
    heartbeat_s: float
    is_strict: bool
    flush_s: float = 60.0

    @property
    def patience_s(self) -> float:
        """The longest that a request may take, its client's reading included."""
        return self.deadlines.total_s + self.flush_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Runs jobs.

    Attributes:
        providers: By name.
        journal: Where attempts are written.
        limits: Deadlines and counts.
        clock: For durations.
        rng: For jitter.
        metrics: Counters and histograms.
        health: Told who lacks capacity, and who served.
        budget: Bounds repeated attempts over all requests.
        status_of: The HTTP status that an error will have, for the ledger's row.
    """

    providers: Mapping[str, Provider]
    journal: Journal
    limits: RelayLimits
    clock: Clock
    rng: random.Random
    metrics: Metrics
    health: HealthBoard
    budget: RetryBudget
    status_of: Callable[[GatewayError], int]

    async def run(self, job: Job, client: ClientStream) -> None:
        """Answer the client.

        Raises:
            GatewayError: Every attempt failed. When `client.is_started`, headers are out and the
                caller ends the stream with an error event.
        """
        heartbeat = None
        if job.request.is_stream:
            heartbeat = Heartbeat(
                client,
                period_s=self.limits.heartbeat_s,
                monotonic_s=self.clock.monotonic_s,
                headers=lambda: self.head(job, *client.attempt, []),
            )
        try:
            await self._run_attempts(job, client)
        finally:
            if heartbeat is not None:
                heartbeat.stop()

    async def _run_attempts(self, job: Job, client: ClientStream) -> None:
        first_s = self.clock.monotonic_s()
        candidate = job.candidates[0]
        deadlines = self.limits.deadlines
        course: Course | None = None
        self.budget.note_first(self.health.domain_of(candidate.deployment))
        while True:
            failures = () if course is None else tuple(course.failures)
            attempt = _Attempt(
                relay=self,
                job=job,
                candidate=candidate,
                client=client,
                failures=failures,
                deadlines=deadlines,
            )
            client.attempt = (candidate.deployment, len(failures) + 1)
            try:
                await attempt.run()
            except ProviderError as error:
                course = course or self._course(job)
                step = self._after(course, candidate, error, client, first_s)
            else:
                self.health.note_success(candidate.deployment)
                return
            if step is None:
                raise self._failure(job, course, candidate, first_s)
            following = job.candidates[step.candidate]
            self.metrics.note_retry(
                type(course.failures[-1].error).__name__, following is not candidate
            )
            await anyio.sleep(step.pause_s)
            candidate = following
            left_s = self.limits.deadlines.total_s - (self.clock.monotonic_s() - first_s)
            deadlines = replace(self.limits.deadlines, total_s=max(left_s, 0.0))

    def _course(self, job: Job) -> Course:
        """What follows failures; made at the first one, since most requests have none."""
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
        return Course(
            planner=planner, candidates=[candidate.deployment for candidate in job.candidates]
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

    def head(self, job: Job, deployment: str, attempts: int, adapted: Sequence[str]) -> bytes:
        """Response header lines that name the attempt."""
        lines = b"%bx-fareway-deployment: %b\r\nx-fareway-attempts: %d\r\n" % (
            job.head.lines(),
            header_text(deployment),
            attempts,
        )
        if job.adapted or adapted:
            changes = header_text(", ".join([*job.adapted, *adapted]))
            lines += b"x-fareway-adapted: %b\r\n" % changes
        return lines


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One call to one deployment, from intent to settlement."""

    relay: Relay
    job: Job
    candidate: Candidate
    client: ClientStream
    failures: Sequence[Failure]
    deadlines: Deadlines

    async def run(self) -> None:
        """Dispatch, relay, settle.

        Raises:
            ProviderError: The attempt failed; it is settled.
            LedgerUnavailable: It could not be journaled and was not dispatched.
        """
        job, relay = self.job, self.relay
        opened = relay.journal.open(
            job.booking,
            attempt=self._number,
            deployment=self.candidate.deployment,
            reason=self.candidate.reason,
            price=self.candidate.price,
            exposure_pico_usd=self.candidate.exposure_pico_usd,
            lifetime_s=self.deadlines.total_s + SETTLE_GRACE_S,
        )
        facts = AttemptFacts(attempt_id=opened.event_id.hex())
        outcome = Outcome(  # as after a fault of ours; replaced by every other end
            prompt_tokens_estimate=job.prompt_tokens_estimate,
            http_status=500,
            error_code="internal_error",
        )
        frames = StreamFrames(
            make_encoder=lambda: self._encoder(facts),
            wants_usage=job.request.wants_usage,
            is_stream=job.request.is_stream,
        )
        settlement: Settlement | None = None
        try:
            if relay.limits.is_strict:
                await relay.journal.wait_durable(opened)
            job.head.note_dispatch(relay.clock.monotonic_s())
            await self._relay(frames, facts, outcome)
            if outcome.ttft_us is None:
                # Nothing was streamed: the whole answer is the first content that goes out.
                outcome.ttft_us = self._since_accepted_us()
            outcome.status = AttemptStatus.OK
            outcome.is_usage_final = True
            outcome.http_status, outcome.error_code = 200, ""
        except ProviderError as error:
            self._note_failure(error, frames, facts, outcome)
            raise
        except asyncio.CancelledError:
            self._note_cut(outcome)
            raise
        except GatewayError as error:
            outcome.http_status = relay.status_of(error)
            outcome.error_code = type(error).__name__
            raise
        finally:
            # Whatever ended it, a fault of ours too: what was sent is never booked as not sent.
            if not facts.was_sent and outcome.status is not AttemptStatus.OK:
                outcome.status = AttemptStatus.NOT_SENT
            elif outcome.status is AttemptStatus.UNKNOWN_BILLING and frames.has_passed:
                outcome.status = AttemptStatus.INTERRUPTED
            settlement = self._settle(opened, frames, facts, outcome)
        await self._finish(frames, facts, settlement)

    @property
    def _number(self) -> int:
        return len(self.failures) + 1

    async def _relay(self, frames: StreamFrames, facts: AttemptFacts, outcome: Outcome) -> None:
        provider_name, _, model_id = self.candidate.deployment.partition("/")
        provider = self.relay.providers[provider_name]
        async with provider.stream(
            model_id, self.job.request, deadlines=self.deadlines, facts=facts
        ) as batches:
            async for batch in batches:
                data = frames.take(batch)
                if data and self.job.request.is_stream:
                    await self._send(data, facts, outcome)
        if not frames.content_events and self._refuses_empty(frames):
            raise UpstreamFault("the answer ended without any content", code="empty_answer")

    def _refuses_empty(self, frames: StreamFrames) -> bool:
        empty_before = sum(f.error.code == "empty_answer" for f in self.failures)
        used = frames.usage.usage.output_tokens if frames.usage else 0
        return not self.job.allows_empty and used == 0 and empty_before < EMPTY_ANSWER_RETRIES

    async def _send(self, data: bytes, facts: AttemptFacts, outcome: Outcome) -> None:
        client = self.client
        if not client.is_started:
            await client.start(
                self.relay.head(self.job, self.candidate.deployment, self._number, facts.adapted)
            )
        if not client.has_content:
            client.has_content = True
            outcome.ttft_us = self._since_accepted_us()
        await client.write(data)

    def _since_accepted_us(self) -> int:
        return round((self.relay.clock.monotonic_s() - self.job.accepted_s) * 1_000_000)

    def _encoder(self, facts: AttemptFacts) -> AnswerEncoder:
        return AnswerEncoder(
            answer_id="chatcmpl-" + self.job.booking.request_id.hex(),
            created=self.relay.clock.wall_us() // 1_000_000,
            model=facts.upstream_model or self.candidate.deployment.partition("/")[2],
        )

    def _note_cut(self, outcome: Outcome) -> None:
        """Who ended the attempt: the client, or this process that had to shut down."""
        if not self.client.is_cut:
            outcome.status = AttemptStatus.CLIENT_LEFT
            outcome.http_status, outcome.error_code = 499, "client_left"
            return
        outcome.http_status = 200 if self.client.is_started else 503
        outcome.error_code = "draining"

    def _note_failure(
        self, error: ProviderError, frames: StreamFrames, facts: AttemptFacts, outcome: Outcome
    ) -> None:
        failure = final_error(
            [*self.failures, Failure(deployment=self.candidate.deployment, error=error)],
            is_narrowed_by_privacy=self.job.is_narrowed_by_privacy,
        )
        outcome.http_status = self.relay.status_of(failure)
        outcome.error_code = error.code or type(error).__name__
        outcome.upstream_request_id = error.upstream_request_id or ""
        if was_refused(error) and not frames.has_passed:
            outcome.status = AttemptStatus.REJECTED
        elif error.code == "empty_answer":
            outcome.status = AttemptStatus.OK
            outcome.is_usage_final = True

    def _settle(
        self, opened: OpenAttempt, frames: StreamFrames, facts: AttemptFacts, outcome: Outcome
    ) -> Settlement | None:
        if facts.closing_usage is not None:
            outcome.usage = facts.closing_usage
            outcome.is_usage_final = True
        else:
            outcome.usage = frames.usage
        outcome.output_tokens_estimate = frames.output_tokens_estimate
        outcome.finish_reason = next(iter(frames.reasons.values()), "")
        outcome.upstream_request_id = facts.upstream_request_id or outcome.upstream_request_id
        try:
            settlement = self.relay.journal.settle(opened, outcome)
        except SpoolError:
            # The intent is on disk: the loader will book it as unknown and keep its exposure.
            logger.exception("attempt %s could not be settled", opened.event_id.hex())
            return None
        decode_s = None
        if self.job.request.is_stream and outcome.ttft_us is not None:
            decode_s = (self._since_accepted_us() - outcome.ttft_us) / 1_000_000
        self.relay.metrics.note_attempt(
            self.candidate.deployment, self.job.booking.team, settlement, decode_s
        )
        return settlement

    async def _finish(
        self, frames: StreamFrames, facts: AttemptFacts, settlement: Settlement | None
    ) -> None:
        cost = settlement.cost_pico_usd if settlement else None
        cost_usd = None if cost is None else format_usd(cost)
        head = self.relay.head(self.job, self.candidate.deployment, self._number, facts.adapted)
        if not self.job.request.is_stream:
            if cost_usd is not None:
                head += b"x-fareway-cost-usd: %b\r\n" % cost_usd.encode()
            self.client.has_content = True
            await self.client.send_whole(200, head + JSON_HEADER, frames.whole_answer(cost_usd))
            return
        if not self.client.is_started:
            await self.client.start(head)
        final = FinalFacts(
            deployment=self.candidate.deployment,
            attempts=self._number,
            request_id=self.job.booking.request_id.hex(),
        )
        self.client.finish(frames.release() + frames.last_usage(cost_usd, final), is_clean=True)
