"""Spans: the conventions' names, the way to a collector, and no harm from one that is ill."""

from __future__ import annotations

import http.server
import threading
import time

import anyio
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.telemetry import traces as traces_module
from gateway.telemetry.traces import make_traces, otlp_exporter
from gateway.telemetry.trail import Trails
from tests.gateway.ledger_samples import settlement

pytestmark = pytest.mark.anyio


def trails(exporter, *, sample_ratio: float = 1.0, environ=None) -> Trails:
    made = make_traces(
        exporter,
        service_name="fareway-test",
        sample_ratio=sample_ratio,
        kinds={"a": "openai_compatible", "b": "bedrock"},
        environ=environ or {},
    )
    return Trails(traces=made, has_access_log=False, monotonic_s=time.monotonic)


def test_a_share_of_requests_is_traced():
    exporter = InMemorySpanExporter()
    made = trails(exporter, sample_ratio=0.25)
    for _ in range(400):
        made.start(b"0" * 16, "chat.completions", []).end(200, None)
    assert made._traces is not None
    made._traces._shut_down()
    assert 40 < len(exporter.get_finished_spans()) < 160


USAGE = {"input": 10, "cache_read": 20, "cache_write": 5, "output": 7, "reasoning": 3}
BILLED = {
    "gen_ai.usage.input_tokens": 35,
    "gen_ai.usage.output_tokens": 10,
    "gen_ai.usage.cache_read.input_tokens": 20,
    "gen_ai.usage.reasoning.output_tokens": 3,
}
EDITIONS = {
    "1.41": ({}, "gen_ai.usage.cache_creation.input_tokens", "aws.bedrock"),
    "the latest": (
        {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"},
        "gen_ai.usage.cache_write.input_tokens",
        "aws.bedrock",
    ),
}


@pytest.mark.parametrize(("environ", "written", "system"), EDITIONS.values(), ids=EDITIONS.keys())
def test_counts_and_names_of_an_attempt(environ, written, system):
    exporter = InMemorySpanExporter()
    made = trails(exporter, environ=environ)
    trail = made.start(b"0" * 16, "chat.completions", [])
    trail.start_attempt("b/m", 1).end(settlement(1, usage=USAGE))
    trail.start_attempt("b/m", 2).end(None)
    trail.end(503, 0.0002)
    made._traces._shut_down()
    first, second, request = exporter.get_finished_spans()
    usage = {k: v for k, v in first.attributes.items() if k.startswith("gen_ai.usage.")}
    assert usage == {**BILLED, written: 5}
    assert first.attributes["gen_ai.provider.name"] == system
    assert second.attributes["error.type"] == "not_settled"
    assert request.attributes["error.type"] == "503"
    assert request.attributes["fareway.overhead_ms"] == pytest.approx(0.2)


class Collector:
    """An OTLP/HTTP receiver on loopback."""

    def __init__(self, *, stalls: bool = False) -> None:
        collector = self
        self.received: list[tuple[str, str | None, bytes]] = []
        self.released = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["content-length"]))
                if stalls:
                    collector.released.wait(10)
                collector.received.append((self.path, self.headers["authorization"], data))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


async def test_spans_reach_a_collector():
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with Collector() as collector:
        made = trails(otlp_exporter(collector.url, "Bearer collector-token"))
        trail = made.start(b"0" * 16, "chat.completions", [])
        trail.start_attempt("a/m", 1).end(settlement(1))
        trail.end(200, 0.0002)
        await made.close()
        ((path, authorization, data),) = collector.received
    assert path == "/v1/traces"
    assert authorization == "Bearer collector-token"
    sent = ExportTraceServiceRequest.FromString(data)
    spans = [s for one in sent.resource_spans for scope in one.scope_spans for s in scope.spans]
    assert {span.name for span in spans} == {"POST /v1/chat/completions", "chat m"}
    (resource,) = [one.resource for one in sent.resource_spans]
    told = {one.key: one.value.string_value for one in resource.attributes}
    assert told["service.name"] == "fareway-test"


async def test_a_collector_that_hangs_holds_no_request_and_no_memory(monkeypatch):
    monkeypatch.setattr(traces_module, "EXPORT_S", 0.2)  # the exporter's thread ends soon after us
    with Collector(stalls=True) as collector:
        made = trails(otlp_exporter(collector.url, None))
        begun = time.monotonic()
        for _ in range(traces_module.QUEUE_SPANS_MAX * 2):
            made.start(b"0" * 16, "chat.completions", []).end(200, None)
        assert time.monotonic() - begun < 10
        processor = made._traces._tracer.span_processor._span_processors[0]
        assert len(processor._batch_processor._queue) <= traces_module.QUEUE_SPANS_MAX
        with anyio.fail_after(5):
            await made.close(0.2)
