"""What is kept of one request for its trace and its line in the access log.

Made only where one of the two is switched on: elsewhere a request costs a test for None. Nothing
here raises, and nothing here holds content, a key's secret or a tag.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from gateway.ledger.records import Settlement
from gateway.telemetry.logs import log_fields
from gateway.telemetry.traces import CLOSE_S, AttemptSpan, Booked, RequestSpan, Traces
from pricing.money import PicoUsd, format_usd
from pricing.usage import Meter

access_logger = logging.getLogger("gateway.access")

_INPUT = (Meter.INPUT.value, Meter.CACHE_READ.value, Meter.CACHE_WRITE.value)
_OUTPUT = (Meter.OUTPUT.value, Meter.REASONING.value)
_TRACEPARENT = b"traceparent"


class Trails:
    """Begins trails.

    Args:
        traces: Makes spans, None for none.
        has_access_log: Whether each request leaves a line.
        monotonic_s: The clock.
    """

    def __init__(
        self, *, traces: Traces | None, has_access_log: bool, monotonic_s: Callable[[], float]
    ) -> None:
        self._traces = traces
        self._has_access_log = has_access_log
        self._monotonic_s = monotonic_s
        if has_access_log:
            # Asked for, so also where the process tells only warnings.
            access_logger.setLevel(logging.INFO)

    def start(
        self, request_id: bytes, route: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> RequestTrail:
        """Begin one.

        Args:
            request_id: 16 bytes.
            route: One of our routes.
            headers: The request's, names in lower case.
        """
        span = None
        if self._traces is not None:
            parents = [value for name, value in headers if name == _TRACEPARENT]
            span = self._traces.request(
                route,
                request_id=request_id.hex(),
                traceparent=parents[0] if len(parents) == 1 else None,
            )
        return RequestTrail(
            request_id,
            route,
            span,
            has_access_log=self._has_access_log,
            monotonic_s=self._monotonic_s,
        )

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Export the last spans, for so long at most."""
        if self._traces is not None:
            await self._traces.close(within_s)


class RequestTrail:
    """One request, from accepted to over."""

    __slots__ = (
        "_attempts", "_booking", "_has_access_log", "_monotonic_s", "_request_id", "_route",
        "_span", "_started_s",
    )  # fmt: skip

    def __init__(
        self,
        request_id: bytes,
        route: str,
        span: RequestSpan | None,
        *,
        has_access_log: bool,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._request_id = request_id
        self._route = route
        self._span = span
        self._has_access_log = has_access_log
        self._monotonic_s = monotonic_s
        self._started_s = monotonic_s()
        self._booking: Booked | None = None
        self._attempts: list[AttemptTrail] = []

    def admit(self, booking: Booked) -> None:
        """Note whom the request is booked on."""
        self._booking = booking
        if self._span is not None:
            self._span.admit(booking)

    def forgo_trace(self) -> None:
        """Leave no span, and begin none upstream: the request's tags keep it out of traces."""
        self._span = None

    def start_attempt(self, deployment: str, number: int) -> AttemptTrail:
        """Note that an attempt begins; its `end` must follow.

        Args:
            deployment: `provider/model-id`.
            number: 1 for the first.
        """
        span = None if self._span is None else self._span.attempt(deployment, number)
        attempt = AttemptTrail(
            deployment, span, begun_after_s=self._monotonic_s() - self._started_s
        )
        self._attempts.append(attempt)
        return attempt

    def end(self, status: int, overhead_s: float | None) -> None:
        """Note that the request is over; to be called once.

        Args:
            status: What the client got; 499 when it had left.
            overhead_s: As told in `x-fareway-overhead-ms`, None when there was no telling.
        """
        if self._span is not None:
            self._span.end(status, overhead_s=overhead_s, attempts=len(self._attempts))
        if self._has_access_log:
            log_fields(access_logger, "request", self._line(status, overhead_s))

    def _line(self, status: int, overhead_s: float | None) -> dict[str, object]:
        booking = self._booking
        settled = [one.settlement for one in self._attempts if one.settlement is not None]
        last = settled[-1] if settled else None
        return {
            "request_id": self._request_id.hex(),
            "trace_id": None if self._span is None else self._span.trace_id,
            "route": self._route,
            "status": status,
            "team": booking and booking.team,
            "project": booking and booking.project,
            "key_id": booking and booking.key_id,
            "model": booking and booking.model,
            "is_stream": booking and booking.is_stream,
            "deployment": self._attempts[-1].deployment if self._attempts else None,
            "attempts": len(self._attempts),
            "attempt_status": last and last.status,
            "error_code": last and last.error_code,
            "input_tokens": _tokens(settled, _INPUT),
            "output_tokens": _tokens(settled, _OUTPUT),
            "cost_usd": _cost_usd([one.cost_pico_usd for one in settled]),
            "ttft_ms": _ms(None if last is None or last.ttft_us is None else last.ttft_us / 1e6),
            "overhead_ms": _ms(overhead_s),
            "duration_ms": _ms(self._monotonic_s() - self._started_s),
        }


class AttemptTrail:
    """One attempt of a request.

    Attributes:
        deployment: `provider/model-id`.
        settlement: What was booked, None until then.
    """

    __slots__ = ("_begun_after_s", "_span", "deployment", "settlement")

    def __init__(self, deployment: str, span: AttemptSpan | None, *, begun_after_s: float) -> None:
        self.deployment = deployment
        self.settlement: Settlement | None = None
        self._span = span
        self._begun_after_s = begun_after_s

    @property
    def traceparent(self) -> str | None:
        """The header for the upstream, None when nothing is traced."""
        return None if self._span is None else self._span.traceparent

    def end(self, settlement: Settlement | None) -> None:
        """Note how it ended; None when that could not be written down."""
        self.settlement = settlement
        if self._span is not None:
            ttft_s = None
            if settlement is not None and settlement.ttft_us is not None:
                ttft_s = max(0.0, settlement.ttft_us / 1_000_000 - self._begun_after_s)
            self._span.end(settlement, ttft_s=ttft_s)


def _tokens(settled: Iterable[Settlement], meters: Iterable[str]) -> int:
    return sum(one.usage.get(meter, 0) for one in settled for meter in meters)


def _cost_usd(costs: Sequence[int | None]) -> str | None:
    """The sum as a decimal; None when there is nothing to sum, or some of it has no price."""
    known = [cost for cost in costs if cost is not None]
    return format_usd(PicoUsd(sum(known))) if known and len(known) == len(costs) else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
