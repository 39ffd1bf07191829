"""What the relay is given: one admitted request, and the limits that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gateway.limits.limiter import Permit
from gateway.relay.exposure import Asked
from gateway.relay.journal import Booking
from gateway.relay.request_head import RequestHead, attempt_lines, header_text
from gateway.routing.ranking import Candidate
from gateway.telemetry.trail import RequestTrail
from providers.contract import ChatRequest, Deadlines, EgressPermit


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request that has been admitted and decided.

    Attributes:
        booking: Whom it is booked on.
        candidates: The frozen set, in order; nothing else is ever called.
        renew: What a later attempt at one of them is now, with the price in force; None where the
            request may not reach it any more.
        egress: Where it may be sent at the moment of the call, by a second reading of the policy;
            asked at each dispatch.
        request: The checked request.
        asked: What of it bounds its cost.
        prompt_tokens_estimate: For a booking without counts.
        allows_empty: Whether an answer without content is what was asked for (`max_tokens: 0`).
        accepted_s: Monotonic instant at which the request was accepted.
        head: The part of the answer's head that does not depend on the attempt.
        adapted: Changes to the request that were made before any attempt.
        permit: What it took of its rate limits, None when it has none; whoever took it closes it.
        trail: For traces and the access log, None when both are off.
        is_narrowed_by_privacy: Whether tags kept deployments of the model out of the candidates.
    """

    booking: Booking
    candidates: Sequence[Candidate]
    renew: Callable[[Candidate], Candidate | None]
    egress: Callable[[], EgressPermit]
    request: ChatRequest
    asked: Asked
    prompt_tokens_estimate: int
    allows_empty: bool
    accepted_s: float
    head: RequestHead
    adapted: Sequence[str] = ()
    permit: Permit | None = None
    trail: RequestTrail | None = None

    is_narrowed_by_privacy: bool = False

    def head_lines(
        self, deployment: str, attempts: int, adapted: Sequence[str], more: bytes = b""
    ) -> bytes:
        """Response header lines: the request's, and those that name an attempt.

        Args:
            deployment: Its deployment.
            attempts: Its number.
            adapted: Changes to the request that were made for it.
            more: Lines that follow.
        """
        if self.adapted or adapted:
            changes = header_text(", ".join([*self.adapted, *adapted]))
            more = b"x-fareway-adapted: %b\r\n%b" % (changes, more)
        return self.head.lines(attempt_lines(deployment, attempts), more)


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
        drain_s: How long an upstream is read to its end for a client that has left, where the
            vendor bills to the end anyway.
    """

    deadlines: Deadlines
    attempts_max: int
    within_s: float
    heartbeat_s: float
    is_strict: bool
    flush_s: float = 60.0
    drain_s: float = 60.0

    @property
    def patience_s(self) -> float:
        """The longest that a request may take, its client's reading included."""
        return self.deadlines.total_s + self.flush_s
