"""One attempt: journaled, dispatched, relayed, settled exactly once, whatever ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.clock import Clock
from gateway.dialects.openai_answer import AnswerEncoder, FinalFacts
from gateway.errors import GatewayError
from gateway.ledger.errors import SpoolError
from gateway.ledger.records import AttemptStatus, Settlement
from gateway.relay.client_stream import JSON_HEADER, ClientStream
from gateway.relay.failures import EMPTY_ANSWER_RETRIES, Failure, was_refused
from gateway.relay.frames import StreamFrames
from gateway.relay.job import Job, RelayLimits
from gateway.relay.journal import Journal, OpenAttempt, Outcome
from gateway.relay.verdict import final_error
from gateway.routing.ranking import Candidate
from gateway.telemetry.metrics import Metrics
from pricing.money import format_usd
from providers.contract import AttemptFacts, Batch, Deadlines, OnDisconnect, Provider
from providers.errors import ProviderError, UpstreamFault

logger = logging.getLogger(__name__)

SETTLE_GRACE_S = 60.0
"""Added to an attempt's total deadline: after it an unsettled intent counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayParts:
    """What of the relay every attempt works with.

    Attributes:
        providers: By name.
        journal: Where attempts are written.
        limits: Deadlines and counts.
        clock: For durations.
        metrics: Counters and histograms.
        status_of: The HTTP status that an error will have, for the ledger's row.
    """

    providers: Mapping[str, Provider]
    journal: Journal
    limits: RelayLimits
    clock: Clock
    metrics: Metrics
    status_of: Callable[[GatewayError], int]


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One call to one deployment, from intent to settlement.

    Attributes:
        relay: What it works with.
        job: The request.
        candidate: The deployment.
        client: The answer on its way.
        failures: Those of the request's attempts before it.
        deadlines: What is left of the request's time.
    """

    relay: RelayParts
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
        job, relay, candidate = self.job, self.relay, self.candidate
        opened = relay.journal.open(
            job.booking,
            attempt=self._number,
            deployment=candidate.deployment,
            reason=candidate.reason,
            price=candidate.price,
            exposure_pico_usd=candidate.exposure_pico_usd,
            lifetime_s=self.deadlines.total_s + SETTLE_GRACE_S,
        )
        trail = job.trail and job.trail.start_attempt(candidate.deployment, self._number)
        facts = AttemptFacts(
            attempt_id=opened.event_id.hex(), traceparent=trail and trail.traceparent
        )
        outcome = Outcome(  # as after a fault of ours; replaced by every other end
            prompt_tokens_estimate=job.prompt_tokens_estimate,
            http_status=500,
            error_code="internal_error",
        )
        provider_name, _, model_id = candidate.deployment.partition("/")
        provider = relay.providers[provider_name]
        frames = StreamFrames(
            make_encoder=lambda: self._encoder(facts),
            wants_usage=job.request.wants_usage,
            is_stream=job.request.is_stream,
            keeps_usage=provider.sends_usage_unasked,
        )
        settlement: Settlement | None = None
        try:
            if relay.limits.is_strict:
                await relay.journal.wait_durable(opened)
            job.head.note_dispatch(relay.clock.monotonic_s())
            self.client.drains = provider.on_disconnect is OnDisconnect.DRAIN
            async with provider.stream(
                model_id, job.request, deadlines=self.deadlines, facts=facts
            ) as batches:
                await self._relay(batches, frames, facts, outcome)
            self._note_end(frames, outcome)
        except ProviderError as error:
            self._note_failure(error, frames, outcome)
            raise
        except asyncio.CancelledError:
            self._note_cut(outcome)
            raise
        except GatewayError as error:
            outcome.http_status = relay.status_of(error)
            outcome.error_code = type(error).__name__
            raise
        finally:
            self.client.drains = False
            # Whatever ended it, a fault of ours too: what was sent is never booked as not sent.
            if not facts.was_sent and outcome.status is not AttemptStatus.OK:
                outcome.status = AttemptStatus.NOT_SENT
            elif outcome.status is AttemptStatus.UNKNOWN_BILLING and frames.has_passed:
                outcome.status = AttemptStatus.INTERRUPTED
            settlement = self._settle(opened, frames, facts, outcome)
            if trail is not None:
                trail.end(settlement)
        await self._finish(frames, facts, settlement)

    @property
    def _number(self) -> int:
        return len(self.failures) + 1

    async def _relay(
        self,
        batches: AsyncIterator[Batch],
        frames: StreamFrames,
        facts: AttemptFacts,
        outcome: Outcome,
    ) -> None:
        is_stream = self.job.request.is_stream
        async for batch in batches:
            data = frames.take(batch)
            if data and is_stream:
                if not self.client.has_content:
                    await self._begin(facts, outcome)
                await self.client.write(data)

    async def _begin(self, facts: AttemptFacts, outcome: Outcome) -> None:
        """The first content: headers go out, and there is no way back."""
        client = self.client
        if not client.is_started:
            await client.start(self._head_lines(facts))
        client.has_content = True
        outcome.ttft_us = self._since_accepted_us()

    def _head_lines(self, facts: AttemptFacts) -> bytes:
        return self.job.head_lines(self.candidate.deployment, self._number, facts.adapted)

    def _note_end(self, frames: StreamFrames, outcome: Outcome) -> None:
        """The upstream's answer is over.

        Raises:
            UpstreamFault: There was nothing in it.
        """
        if not frames.content_events and self._refuses_empty(frames):
            raise UpstreamFault("the answer ended without any content", code="empty_answer")
        if outcome.ttft_us is None:
            # Nothing was streamed: the whole answer is the first content that goes out.
            outcome.ttft_us = self._since_accepted_us()
        outcome.status = AttemptStatus.OK
        outcome.is_usage_final = True
        outcome.http_status, outcome.error_code = 200, ""
        if self.client.has_left:  # the upstream was read to its end for its counts
            self._note_left(outcome)

    def _refuses_empty(self, frames: StreamFrames) -> bool:
        empty_before = sum(f.error.code == "empty_answer" for f in self.failures)
        used = frames.usage.usage.output_tokens if frames.usage else 0
        return not self.job.allows_empty and used == 0 and empty_before < EMPTY_ANSWER_RETRIES

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
            self._note_left(outcome)
            return
        outcome.http_status = 200 if self.client.is_started else 503
        outcome.error_code = "draining"

    def _note_left(self, outcome: Outcome) -> None:
        outcome.status = AttemptStatus.CLIENT_LEFT
        outcome.http_status, outcome.error_code = 499, "client_left"

    def _note_failure(self, error: ProviderError, frames: StreamFrames, outcome: Outcome) -> None:
        failure = final_error(
            [*self.failures, Failure(deployment=self.candidate.deployment, error=error)],
            is_narrowed_by_privacy=self.job.is_narrowed_by_privacy,
        )
        outcome.http_status = 499 if self.client.has_left else self.relay.status_of(failure)
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
        if not self.job.request.is_stream:
            head = self._head_lines(facts)
            if cost_usd is not None:
                head += b"x-fareway-cost-usd: %b\r\n" % cost_usd.encode()
            self.client.has_content = True
            await self.client.send_whole(200, head + JSON_HEADER, frames.whole_answer(cost_usd))
            return
        if not self.client.is_started:
            await self.client.start(self._head_lines(facts))
        final = FinalFacts(
            deployment=self.candidate.deployment,
            attempts=self._number,
            request_id=self.job.booking.request_id.hex(),
        )
        self.client.finish(frames.release() + frames.last_usage(cost_usd, final), is_clean=True)
