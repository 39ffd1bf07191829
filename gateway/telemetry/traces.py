"""OpenTelemetry spans with the conventions for generative AI; the only module that knows either.

A request is a server span, each attempt a client span below it. A span names who, where to, how
long and how many tokens: no prompt, no answer, no key, no tag. Spans go to an OTLP/HTTP collector
from a thread of their own, over a bounded queue that drops what does not fit; nothing that happens
to a collector reaches a request. Without a configured endpoint nothing here is made.

The conventions change their names from time to time; `Names` has both editions, and the standard
variable `OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental` chooses the later one.

Source: opentelemetry.io, semantic conventions 1.41, and open-telemetry/semantic-conventions-genai,
docs/gen-ai/client-inference.md, 2026-11-30; W3C Trace Context, level 1, for `traceparent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

from gateway.ledger.records import AttemptStatus, Settlement
from pricing.money import format_usd
from pricing.usage import Meter

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

QUEUE_SPANS_MAX = 4_096
BATCH_SPANS_MAX = 512
EXPORT_EVERY_S = 2.0
EXPORT_S = 5.0
"""Longest time for one batch, tries included."""
CLOSE_S = 3.0
"""How long the end of a worker waits for its last spans."""

OPT_IN_VARIABLE = "OTEL_SEMCONV_STABILITY_OPT_IN"
_LATEST = "gen_ai_latest_experimental"
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACEPARENT_BYTES_MAX = 256
_OPERATIONS = {"chat.completions": "chat"}
_PROVIDER_NAMES: Mapping[str, str] = {
    "azure": "azure.ai.inference",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
}
"""Kinds whose name in the conventions is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of attributes that differ between editions of the conventions."""

    cache_write: str = "gen_ai.usage.cache_creation.input_tokens"

    @classmethod
    def chosen(cls, environ: Mapping[str, str]) -> Names:
        """The edition that the environment asks for; 1.41 unless it asks for the latest."""
        wanted = environ.get(OPT_IN_VARIABLE, "").split(",")
        if _LATEST in (one.strip() for one in wanted):
            return cls(cache_write="gen_ai.usage.cache_write.input_tokens")
        return cls()


class Booked(Protocol):
    """Whom a request is booked on, as far as telemetry tells it; the relay's `Booking` is one."""

    @property
    def model(self) -> str:
        """The logical model."""
        ...

    @property
    def team(self) -> str:
        """Team name."""
        ...

    @property
    def project(self) -> str:
        """Project name, empty for none."""
        ...

    @property
    def key_id(self) -> str:
        """Public id of the key."""
        ...

    @property
    def is_stream(self) -> bool:
        """Whether the client asked for a stream."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteParent:
    """Where a client's own trace stands, from its `traceparent`."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(value: bytes | None) -> RemoteParent | None:
    """Read a `traceparent` header; None when there is none, or it is not a valid one.

    Source: W3C Trace Context, section 3.2: version ff and ids of zeros are invalid, and a later
    version may have more fields.
    """
    if value is None or len(value) > _TRACEPARENT_BYTES_MAX:
        return None
    found = _TRACEPARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    is_known = version == b"00"
    if version == b"ff" or (is_known and more is not None):
        return None
    parent = RemoteParent(
        trace_id=int(trace_id, 16), span_id=int(span_id, 16), is_sampled=bool(int(flags, 16) & 1)
    )
    return parent if parent.trace_id and parent.span_id else None


class Traces:
    """Makes spans of requests.

    Args:
        tracer: Makes spans.
        shut_down: Exports what is left and ends the exporter; may block.
        kinds: Each provider's kind, by name.
        names: The edition of the conventions.
    """

    def __init__(
        self,
        tracer: Tracer,
        *,
        shut_down: Callable[[], None],
        kinds: Mapping[str, str],
        names: Names,
    ) -> None:
        self._tracer = tracer
        self._shut_down = shut_down
        self._systems = {name: _PROVIDER_NAMES.get(kind, kind) for name, kind in kinds.items()}
        self._names = names

    def request(self, route: str, *, request_id: str, traceparent: bytes | None) -> RequestSpan:
        """Begin the span of a request.

        Args:
            route: One of our routes, for example `chat.completions`.
            request_id: In hexadecimal.
            traceparent: The client's header, which is checked; None when it sent none, or several.
        """
        from opentelemetry import trace

        path = "/v1/" + route.replace(".", "/")
        span = self._tracer.start_span(
            f"POST {path}",
            _remote_context(parse_traceparent(traceparent)),
            kind=trace.SpanKind.SERVER,
            attributes={
                "http.request.method": "POST",
                "http.route": path,
                "fareway.request.id": request_id,
            },
        )
        return RequestSpan(self, span, route)

    def attempt(
        self, parent: Span, route: str, deployment: str, number: int, is_stream: bool
    ) -> AttemptSpan:
        """Begin the span of an attempt below its request's."""
        from opentelemetry import trace

        provider, _, model = deployment.partition("/")
        operation = _OPERATIONS.get(route, route)
        span = self._tracer.start_span(
            f"{operation} {model}",
            trace.set_span_in_context(parent, _empty_context()),
            kind=trace.SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": self._systems.get(provider, provider),
                "gen_ai.request.model": model,
                "gen_ai.request.stream": is_stream,
                "fareway.deployment": deployment,
                "fareway.attempt": number,
            },
        )
        return AttemptSpan(span, self._names)

    async def close(self, within_s: float) -> None:
        """Export what is left, for so long at most."""
        # A thread of its own: the interpreter would wait for one of a pool.
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._shut_down()
            with contextlib.suppress(RuntimeError):  # the loop was tired of waiting and is closed
                loop.call_soon_threadsafe(is_done.set)

        threading.Thread(target=shut_down, name="spans", daemon=True).start()
        with anyio.move_on_after(within_s):
            await is_done.wait()


class RequestSpan:
    """The span of one request."""

    __slots__ = ("_is_stream", "_route", "_span", "_traces")

    def __init__(self, traces: Traces, span: Span, route: str) -> None:
        self._traces = traces
        self._span = span
        self._route = route
        self._is_stream = False

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def admit(self, booking: Booked) -> None:
        """Note whom the request is booked on."""
        self._is_stream = booking.is_stream
        self._span.set_attributes(
            {
                "fareway.team": booking.team,
                "fareway.project": booking.project,
                "fareway.key.id": booking.key_id,
                "fareway.model": booking.model,
            }
        )

    def attempt(self, deployment: str, number: int) -> AttemptSpan:
        """Begin an attempt's span."""
        return self._traces.attempt(self._span, self._route, deployment, number, self._is_stream)

    def end(self, status: int, *, overhead_s: float | None, attempts: int) -> None:
        """End it with what the client got."""
        span = self._span
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("fareway.attempts", attempts)
        if overhead_s is not None:
            span.set_attribute("fareway.overhead_ms", overhead_s * 1000)
        if status >= 500:
            _set_error(span, str(status))
        span.end()


class AttemptSpan:
    """The span of one attempt."""

    __slots__ = ("_names", "_span")

    def __init__(self, span: Span, names: Names) -> None:
        self._span = span
        self._names = names

    @property
    def traceparent(self) -> str:
        """The header that lets the upstream's spans hang below this one."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def end(self, settlement: Settlement | None, *, ttft_s: float | None) -> None:
        """End it.

        Args:
            settlement: What was booked, None when it could not be.
            ttft_s: Attempt begun to first content event sent, of a stream.
        """
        span = self._span
        if settlement is None:
            _set_error(span, "not_settled")
            span.end()
            return
        if span.is_recording():
            span.set_attributes(self._usage(settlement.usage))
            span.set_attribute("fareway.event.id", settlement.event_id.hex())
            span.set_attribute("fareway.status", settlement.status)
            if settlement.cost_pico_usd is not None:
                span.set_attribute("fareway.cost_usd", format_usd(settlement.cost_pico_usd))
            if settlement.finish_reason:
                span.set_attribute("gen_ai.response.finish_reasons", [settlement.finish_reason])
            if ttft_s is not None:
                span.set_attribute("gen_ai.response.time_to_first_chunk", ttft_s)
            if settlement.status != AttemptStatus.OK.value:
                _set_error(span, settlement.error_code or settlement.status)
        span.end()

    def _usage(self, usage: Mapping[str, int]) -> Mapping[str, int]:
        """Counts in the conventions' sense: cache and reasoning are parts of input and output."""
        read, written = usage.get(Meter.CACHE_READ.value, 0), usage.get(Meter.CACHE_WRITE.value, 0)
        reasoning = usage.get(Meter.REASONING.value, 0)
        counts = {
            "gen_ai.usage.input_tokens": usage.get(Meter.INPUT.value, 0) + read + written,
            "gen_ai.usage.output_tokens": usage.get(Meter.OUTPUT.value, 0) + reasoning,
            "gen_ai.usage.cache_read.input_tokens": read,
            self._names.cache_write: written,
            "gen_ai.usage.reasoning.output_tokens": reasoning,
        }
        return {name: count for name, count in counts.items() if count}


def otlp_exporter(endpoint: str, authorization: str | None) -> SpanExporter:
    """Make the exporter to an OTLP/HTTP collector.

    Args:
        endpoint: Its base URL.
        authorization: Value of the `Authorization` header, None for none.
    """
    import requests
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    session = requests.Session()
    session.trust_env = False  # no proxy and no netrc that the configuration does not name
    return OTLPSpanExporter(
        endpoint=f"{endpoint}/v1/traces",
        headers={} if authorization is None else {"authorization": authorization},
        timeout=EXPORT_S,
        session=session,
    )


def make_traces(
    exporter: SpanExporter,
    *,
    service_name: str,
    sample_ratio: float,
    kinds: Mapping[str, str],
    environ: Mapping[str, str],
) -> Traces:
    """Put the road of spans together, from sampler to exporter.

    Args:
        exporter: Called from a thread of its own.
        service_name: What spans call this service.
        sample_ratio: Of requests whose client did not decide.
        kinds: Each provider's kind, by name.
        environ: For the edition of the conventions.
    """
    from importlib.metadata import version

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    release = version("fareway")
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
        resource=Resource({"service.name": service_name, "service.version": release}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=QUEUE_SPANS_MAX,
            schedule_delay_millis=EXPORT_EVERY_S * 1000,
            max_export_batch_size=BATCH_SPANS_MAX,
            export_timeout_millis=EXPORT_S * 1000,
        )
    )
    return Traces(
        provider.get_tracer("fareway", release),
        shut_down=provider.shutdown,
        kinds=kinds,
        names=Names.chosen(environ),
    )


def _set_error(span: Span, kind: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def _empty_context() -> Context:
    from opentelemetry.context import Context

    return Context()


def _remote_context(parent: RemoteParent | None) -> Context:
    """A context below the client's span; never what happens to be current in this process."""
    if parent is None:
        return _empty_context()
    from opentelemetry import trace

    remote = trace.SpanContext(
        trace_id=parent.trace_id,
        span_id=parent.span_id,
        is_remote=True,
        trace_flags=trace.TraceFlags(parent.is_sampled),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), _empty_context())
