"""Spans of real requests: right parents, right figures, no content."""

from __future__ import annotations

import json

import anyio
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway.telemetry import traces
from gateway.telemetry.traces import otlp_exporter
from gateway.telemetry.trail import Trails
from tests.gateway.gateway_harness import KEY, UPSTREAM_KEY, body, running_gateway
from tests.gateway.telemetry.test_traces import trails
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio

CANARY = "canary-prompt-7f3a"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MESSAGES = [{"role": "user", "content": CANARY}]


async def spans_of(gateway, made: Trails, exporter):
    """The request's span and its attempts, once everything is exported."""
    await gateway.wait_idle()
    await made.close()
    finished = exporter.get_finished_spans()
    (request,) = [span for span in finished if span.kind is SpanKind.SERVER]
    attempts = [span for span in finished if span.kind is SpanKind.CLIENT]
    return request, sorted(attempts, key=lambda span: span.attributes["fareway.attempt"])


async def test_a_request_and_its_attempts_hang_below_the_clients_span(tmp_path):
    exporter = InMemorySpanExporter()
    made = trails(exporter)
    scripts = {"m": [Answer(status=503, body={"error": {"message": CANARY}}), Chat(text=CANARY)]}
    async with (
        ScriptedUpstream(scripts) as up,
        running_gateway(tmp_path, {"a": up.base_url, "b": up.base_url}) as gateway,
    ):
        gateway.service.trails = made
        answer = await gateway.post(
            body(stream=True, messages=MESSAGES), traceparent=f"00-{TRACE}-{SPAN}-01"
        )
        assert answer.status_code == 200
        request, attempts = await spans_of(gateway, made, exporter)
        received = [dict(one.headers) for one in up.requests]
    assert f"{request.parent.span_id:016x}" == SPAN
    assert {f"{span.context.trace_id:032x}" for span in (request, *attempts)} == {TRACE}
    assert {span.parent.span_id for span in attempts} == {request.context.span_id}
    assert [one["traceparent"] for one in received] == [
        f"00-{TRACE}-{span.context.span_id:016x}-01" for span in attempts
    ]
    assert request.name == "POST /v1/chat/completions"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["fareway.request.id"] == answer.headers["x-fareway-request-id"]
    assert request.attributes["fareway.attempts"] == 2
    assert request.attributes["fareway.team"] == "apps"
    assert request.status.status_code is StatusCode.UNSET
    failed, done = attempts
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"]
    assert failed.attributes["fareway.status"] == "rejected"
    assert done.name == "chat m"
    assert done.status.status_code is StatusCode.UNSET
    assert done.attributes["gen_ai.operation.name"] == "chat"
    assert done.attributes["gen_ai.request.model"] == "m"
    assert done.attributes["gen_ai.request.stream"] is True
    assert done.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert done.attributes["gen_ai.usage.output_tokens"] > 0
    assert done.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert float(done.attributes["fareway.cost_usd"]) > 0
    assert done.resource.attributes["service.name"] == "fareway-test"


async def test_spans_hold_no_content_no_key_and_no_tag(tmp_path):
    exporter = InMemorySpanExporter()
    made = trails(exporter)
    async with (
        ScriptedUpstream({"m": [Chat(text=CANARY)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.service.trails = made
        await gateway.post(
            body(stream=True, messages=MESSAGES, user=CANARY),
            x_fareway_cost_tags=f"feature={CANARY}",
            tracestate=f"vendor={CANARY}",
            baggage=f"k={CANARY}",
        )
        await spans_of(gateway, made, exporter)
        sent = json.dumps([dict(one.headers) for one in up.requests])
    assert "tracestate" not in sent
    assert "baggage" not in sent
    told = "".join(span.to_json() for span in exporter.get_finished_spans())
    for secret in (CANARY, KEY, UPSTREAM_KEY):
        assert secret not in told


SINKS_TEXT = """
providers:
  a: {{kind: openai_compatible, base_url: "{url}"}}
models: {{chat: {{deployments: [{{deployment: a/m, price: {{input_usd_per_mtok: 1}}}}]}}}}
teams: {{apps: {{keys: [{{name: app, value_env: APP_KEY}}]}}}}
privacy: {{tags: {{shown: {{}}, hidden: {{deny: {denies}}}}}, sinks: {{traces: [shown]}}}}
"""
KEPT_OUT = {
    "without tags": ("", "false", True),
    "with a tag that may": ("shown", "false", True),
    "with one that may not": ("shown,hidden", "false", False),
    "refused for its tag": ("hidden", "true", False),
}


@pytest.mark.parametrize(("tags", "denies", "is_traced"), KEPT_OUT.values(), ids=KEPT_OUT.keys())
async def test_tags_keep_a_request_out_of_traces(tmp_path, tags, denies, is_traced):
    exporter = InMemorySpanExporter()
    made = trails(exporter)
    async with ScriptedUpstream({"m": [Chat(text="hi")]}) as up:
        text = SINKS_TEXT.format(url=up.base_url, denies=denies)
        async with running_gateway(tmp_path, {}, text=text) as gateway:
            gateway.service.trails = made
            got = await gateway.post(body(), **({"x_fareway_tags": tags} if tags else {}))
            await gateway.wait_idle()
            await made.close()
    assert got.status_code == (403 if denies == "true" else 200), got.text
    assert bool(exporter.get_finished_spans()) is is_traced
    told = ["traceparent" in {name.lower() for name in dict(one.headers)} for one in up.requests]
    assert told == ([] if denies == "true" else [is_traced])


PARENTS = {
    "an invalid header": f"00-{TRACE}-{SPAN}-0",
    "no header": None,
}


@pytest.mark.parametrize("parent", PARENTS.values(), ids=PARENTS.keys())
async def test_without_a_valid_parent_a_trace_begins_here(tmp_path, parent):
    exporter = InMemorySpanExporter()
    made = trails(exporter)
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.service.trails = made
        await gateway.post(body(), **({} if parent is None else {"traceparent": parent}))
        request, _ = await spans_of(gateway, made, exporter)
    assert request.parent is None
    assert f"{request.context.trace_id:032x}" != TRACE


async def test_a_client_that_is_not_sampled_is_not_traced_and_its_trace_goes_on(tmp_path):
    exporter = InMemorySpanExporter()
    made = trails(exporter)
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.service.trails = made
        await gateway.post(body(), traceparent=f"00-{TRACE}-{SPAN}-00")
        await gateway.wait_idle()
        await made.close()
        (received,) = up.requests
    assert exporter.get_finished_spans() == ()
    assert dict(received.headers)["traceparent"].startswith(f"00-{TRACE}-")
    assert dict(received.headers)["traceparent"].endswith("-00")


async def test_with_tracing_off_no_header_goes_upstream(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        await gateway.post(body(), traceparent=f"00-{TRACE}-{SPAN}-01")
        (received,) = up.requests
    assert "traceparent" not in {name.lower() for name in dict(received.headers)}


async def test_a_collector_that_is_not_there_leaves_requests_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "EXPORT_S", 0.2)  # the exporter's thread ends soon after us
    made = trails(otlp_exporter("http://127.0.0.1:9", None))
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.service.trails = made
        assert (await gateway.post(body())).status_code == 200
        await gateway.wait_idle()
        with anyio.fail_after(5):
            await made.close(0.3)
