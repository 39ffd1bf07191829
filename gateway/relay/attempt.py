"""One attempt: journaled, dispatched, relayed, settled exactly once, whatever ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gateway.budgets.holds import Holds
from gateway.clock import Clock
from gateway.dialects.openai_answer import AnswerEncoder, FinalFacts
from gateway.errors import GatewayError, LedgerUnavailable
from gateway.ledger.errors import SpoolError
from gateway.ledger.records import AttemptStatus, Settlement
from gateway.relay.client_stream import JSON_HEADER, ClientStream
from gateway.relay.exposure import Exposures
from gateway.relay.failures import EMPTY_ANSWER_RETRIES, Failure, was_refused
from gateway.relay.frames import StreamFrames
from gateway.relay.held import Held
from gateway.relay.job import Job, RelayLimits
from gateway.relay.journal import Journal, OpenAttempt, Outcome
from gateway.relay.plausible import implausible
from gateway.relay.verdict import final_error
from gateway.relay.whole_answer import WholeParts
from gateway.routing.ranking import Candidate
from gateway.telemetry.metrics import Metrics
from pricing.money import format_usd
from providers.contract import AttemptFacts, Deadlines, OnDisconnect, Provider, UsageReport
from providers.errors import ProviderError, UpstreamFault

logger = logging.getLogger(__name__)

Seen = StreamFrames | WholeParts
"""What came of an upstream's answer."""

_OPEN_ENDS = frozenset({AttemptStatus.UNKNOWN_BILLING.value, AttemptStatus.INTERRUPTED.value})
"""After these an upstream may have used more tokens than it told."""

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
        holds: What may be spent.
        exposures: What attempts may cost.
    """

    providers: Mapping[str, Provider]
    journal: Journal
    limits: RelayLimits
    clock: Clock
    metrics: Metrics
    status_of: Callable[[GatewayError], int]
    holds: Holds
    exposures: Exposures


class Attempt(msgspec.Struct, kw_only=True, eq=False):
    """One call to one deployment, from intent to settlement.

    Attributes:
        relay: What it works with.
        job: The request.
        held: The deployment, and what is held for it.
        client: The answer on its way.
        failures: Those of the request's attempts before it.
        deadlines: What is left of the request's time.
        started_s: Monotonic instant at which its intent was written, None before.
        ttft_us: From the request's acceptance to the first content that went out, None before.
    """

    relay: RelayParts
    job: Job
    held: Held
    client: ClientStream
    failures: Sequence[Failure]
    deadlines: Deadlines
    started_s: float | None = None
    ttft_us: int | None = None

    @property
    def candidate(self) -> Candidate:
        """The deployment."""
        return self.held.candidate

    async def run(self) -> None:
        """Dispatch, relay, settle.

        Raises:
            ProviderError: The attempt failed; it is settled.
            LedgerUnavailable: It could not be journaled and was not dispatched.
        """
        job, relay, client = self.job, self.relay, self.client
        deployment, number = self.held.candidate.deployment, len(self.failures) + 1
        opened = self._open(number)
        self.started_s = opened.started_s
        trail = job.trail and job.trail.start_attempt(deployment, number)
        facts = AttemptFacts(
            attempt_id=opened.event_id.hex(), traceparent=trail and trail.traceparent
        )
        provider_name, _, model_id = deployment.partition("/")
        provider = relay.providers[provider_name]
        seen = self._stream_frames(provider, facts) if job.request.is_stream else WholeParts()
        outcome: Outcome | None = None
        try:
            if relay.limits.is_strict:
                await relay.journal.wait_durable(opened)
                job.head.note_dispatch(relay.clock.monotonic_s())
            else:
                job.head.note_dispatch(opened.started_s)  # the journal has just asked the clock
            client.drains = provider.on_disconnect is OnDisconnect.DRAIN
            async with provider.stream(
                model_id,
                job.request,
                permit=job.egress(),
                deadlines=self.deadlines,
                facts=facts,
            ) as batches:
                if isinstance(seen, WholeParts):
                    async for batch in batches:
                        if seen.take(batch):
                            break
                else:
                    head = self._head_lines(facts)  # while the upstream thinks
                    async for batch in batches:
                        data = seen.take(batch)
                        if data and not client.has_content:
                            await self._begin(head, data)
                        elif data and client.put(data):
                            await client.drain()
            outcome = self._ended(seen, facts)
        except ProviderError as error:
            outcome = self._failed(error, seen, facts)
            raise
        except asyncio.CancelledError:
            outcome = self._cut(seen, facts)
            raise
        except GatewayError as error:
            outcome = self._outcome(
                seen, facts, http_status=relay.status_of(error), error_code=type(error).__name__
            )
            raise
        finally:
            client.drains = False
            settlement = self._settle(opened, outcome or self._outcome(seen, facts))
            if trail is not None:
                trail.end(settlement)
        if isinstance(seen, WholeParts):
            await client.send_whole(200, *self._whole_answer(seen, facts, settlement))
        else:
            await self._finish(seen, facts, settlement)

    def _open(self, number: int) -> OpenAttempt:
        relay, held = self.relay, self.held
        try:
            return relay.journal.open(
                self.job.booking,
                attempt=number,
                deployment=held.candidate.deployment,
                reason=held.candidate.reason,
                price=held.candidate.price,
                exposure_pico_usd=held.exposure_pico_usd,
                lifetime_s=self.deadlines.total_s + SETTLE_GRACE_S,
                hold=held.hold,
            )
        except LedgerUnavailable:
            relay.holds.undo(held.hold)  # it is in no journal, so nobody else will
            raise

    def _stream_frames(self, provider: Provider, facts: AttemptFacts) -> StreamFrames:
        return StreamFrames(
            make_encoder=lambda: self._encoder(facts),
            wants_usage=self.job.request.wants_usage,
            keeps_usage=provider.sends_usage_unasked,
        )

    async def _begin(self, head: bytes, first: bytes) -> None:
        """The first content goes out, and there is no way back."""
        client = self.client
        is_full = await client.start(head, first)
        client.has_content = True
        self.ttft_us = self._since_accepted_us()
        if is_full:
            await client.drain()

    def _head_lines(self, facts: AttemptFacts) -> bytes:
        return self.job.head_lines(self.candidate.deployment, len(self.failures) + 1, facts.adapted)

    def _since_accepted_us(self) -> int:
        return round((self.relay.clock.monotonic_s() - self.job.accepted_s) * 1_000_000)

    def _encoder(self, facts: AttemptFacts) -> AnswerEncoder:
        return AnswerEncoder(
            answer_id="chatcmpl-" + self.job.booking.request_id.hex(),
            created=self.relay.clock.wall_us() // 1_000_000,
            model=facts.upstream_model or self.candidate.deployment.partition("/")[2],
        )

    def _ended(self, seen: Seen, facts: AttemptFacts) -> Outcome:
        """The upstream's answer is over.

        Raises:
            UpstreamFault: There was nothing in it.
        """
        if not seen.content_events and self._refuses_empty(seen):
            raise UpstreamFault("the answer ended without any content", code="empty_answer")
        if self.ttft_us is None:
            # Nothing was streamed: the whole answer is the first content that goes out.
            self.ttft_us = self._since_accepted_us()
        if self.client.has_left:  # the upstream was read to its end for its counts
            return self._left(seen, facts, is_usage_final=True)
        return self._outcome(
            seen, facts, AttemptStatus.OK, http_status=200, error_code="", is_usage_final=True
        )

    def _refuses_empty(self, seen: Seen) -> bool:
        empty_before = sum(f.error.code == "empty_answer" for f in self.failures)
        used = seen.usage.usage.output_tokens if seen.usage else 0
        return not self.job.allows_empty and used == 0 and empty_before < EMPTY_ANSWER_RETRIES

    def _cut(self, seen: Seen, facts: AttemptFacts) -> Outcome:
        """Who ended the attempt: the client, or this process that had to shut down."""
        if not self.client.is_cut:
            return self._left(seen, facts)
        return self._outcome(
            seen,
            facts,
            http_status=200 if self.client.is_started else 503,
            error_code="draining",
        )

    def _left(self, seen: Seen, facts: AttemptFacts, *, is_usage_final: bool = False) -> Outcome:
        return self._outcome(
            seen,
            facts,
            AttemptStatus.CLIENT_LEFT,
            http_status=499,
            error_code="client_left",
            is_usage_final=is_usage_final,
        )

    def _failed(self, error: ProviderError, seen: Seen, facts: AttemptFacts) -> Outcome:
        failure = final_error(
            [*self.failures, Failure(deployment=self.candidate.deployment, error=error)],
            is_narrowed_by_privacy=self.job.is_narrowed_by_privacy,
        )
        status = AttemptStatus.UNKNOWN_BILLING
        is_empty = error.code == "empty_answer"
        if was_refused(error) and not seen.has_passed:
            status = AttemptStatus.REJECTED
        elif is_empty:
            status = AttemptStatus.OK
        return self._outcome(
            seen,
            facts,
            status,
            http_status=499 if self.client.has_left else self.relay.status_of(failure),
            error_code=error.code or type(error).__name__,
            is_usage_final=status is AttemptStatus.OK,
            upstream_request_id=error.upstream_request_id or "",
        )

    def _outcome(
        self,
        seen: Seen,
        facts: AttemptFacts,
        status: AttemptStatus = AttemptStatus.UNKNOWN_BILLING,
        *,
        http_status: int = 500,
        error_code: str = "internal_error",
        is_usage_final: bool = False,
        upstream_request_id: str = "",
    ) -> Outcome:
        """What is known at the end; what is not said is as after a fault of ours."""
        if status is not AttemptStatus.OK:
            # Whatever ended it, a fault of ours too: what was sent is never booked as not sent.
            if not facts.was_sent:
                status = AttemptStatus.NOT_SENT
            elif status is AttemptStatus.UNKNOWN_BILLING and seen.has_passed:
                status = AttemptStatus.INTERRUPTED
        usage = facts.closing_usage or seen.usage
        if usage is not None and (claim := self._implausible(usage)):
            usage, error_code = None, claim
        return Outcome(
            status=status,
            usage=usage,
            is_usage_final=usage is not None
            and (is_usage_final or facts.closing_usage is not None),
            output_tokens_estimate=seen.output_tokens_estimate if usage is None else 0,
            prompt_tokens_estimate=self.job.prompt_tokens_estimate,
            http_status=http_status,
            error_code=error_code,
            upstream_request_id=facts.upstream_request_id or upstream_request_id,
            finish_reason=seen.finish_reason,
            ttft_us=self.ttft_us,
        )

    def _implausible(self, report: UsageReport) -> str:
        """What of an upstream's counts cannot be, empty where they are possible."""
        provider_name, _, model_id = self.candidate.deployment.partition("/")
        able = self.relay.providers[provider_name].capabilities(model_id)
        claim = implausible(
            report.usage,
            window_tokens=able.context_window_tokens,
            choices=self.job.asked.choices,
        )
        if claim:
            logger.warning("%s claims what cannot be: %s", self.candidate.deployment, claim)
        return claim

    def _settle(self, opened: OpenAttempt, outcome: Outcome) -> Settlement | None:
        try:
            settlement = self.relay.journal.settle(opened, outcome)
        except SpoolError:
            # The intent is on disk: the loader will book it as unknown and keep its exposure.
            logger.exception("attempt %s could not be settled", opened.event_id.hex())
            if self.job.permit is not None:
                self.job.permit.note({}, is_final=False)
            return None
        if outcome.status is AttemptStatus.OK and self.job.asked.max_output_tokens is None:
            self._learn(outcome)
        if self.job.permit is not None:
            is_final = settlement.status not in _OPEN_ENDS
            self.job.permit.note(settlement.usage, is_final=is_final)
        decode_s = None
        if self.job.request.is_stream and outcome.ttft_us is not None:
            decode_s = (self._since_accepted_us() - outcome.ttft_us) / 1_000_000
        self.relay.metrics.note_attempt(
            self.candidate.deployment, self.job.booking.team, settlement, decode_s
        )
        return settlement

    def _learn(self, outcome: Outcome) -> None:
        """How long an answer became that its client did not bound."""
        if outcome.usage is not None and outcome.usage.is_consistent:
            used = outcome.usage.usage
            self.relay.exposures.lengths.note(
                self.job.booking.model,
                self.candidate.deployment,
                used.output_tokens + used.reasoning_tokens,
                self.job.asked.choices,
            )

    def _whole_answer(
        self, parts: WholeParts, facts: AttemptFacts, settlement: Settlement | None
    ) -> tuple[bytes, bytes]:
        """Head and body of an answer that is not a stream; from here on there is no way back."""
        self.client.has_content = True
        lines, cost_usd = JSON_HEADER, None
        if settlement is not None and settlement.cost_pico_usd is not None:
            cost_usd = format_usd(settlement.cost_pico_usd).encode()
            lines = b"x-fareway-cost-usd: %b\r\n%b" % (cost_usd, JSON_HEADER)
        body = parts.body(cost_usd)
        if body is None:
            body = parts.encoded(self._encoder(facts), cost_usd)
        head = self.job.head_lines(
            self.candidate.deployment, len(self.failures) + 1, facts.adapted, lines
        )
        return head, body

    async def _finish(
        self, frames: StreamFrames, facts: AttemptFacts, settlement: Settlement | None
    ) -> None:
        if not self.client.is_started:
            await self.client.start(self._head_lines(facts))
        last = frames.release()
        if frames.shows_usage:
            cost = settlement.cost_pico_usd if settlement else None
            final = FinalFacts(
                deployment=self.candidate.deployment,
                attempts=len(self.failures) + 1,
                request_id=self.job.booking.request_id.hex(),
            )
            last += frames.last_usage(None if cost is None else format_usd(cost), final)
        self.client.finish(last, is_clean=True)
