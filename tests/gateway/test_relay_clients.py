"""Clients that leave, that read slowly or not at all."""

from __future__ import annotations

import asyncio
import json

import anyio
import pytest

from pricing.usage import Usage
from providers.contract import OnDisconnect, UsageReport
from providers.errors import UpstreamFault
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import NOWHERE, body, request_bytes, running_gateway
from tests.gateway.stream_reading import first_bytes
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream

pytestmark = pytest.mark.anyio


async def test_what_an_engine_counted_until_an_abort_is_charged(tmp_path):
    closing = UsageReport(usage=Usage(input_tokens=4, output_tokens=2))
    engine = FakeProvider(name="a", scripts=[[*answer("x", "y")[:2], 30.0]], closing_usage=closing)
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        async with gateway.stream(body(stream=True)) as got:
            await first_bytes(got)
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("client_left", "exact")
        assert settled.usage == {"input": 4, "output": 2}
        assert engine.left == 1


def draining(*script) -> FakeProvider:
    return FakeProvider(name="a", scripts=[script], on_disconnect=OnDisconnect.DRAIN)


async def test_a_vendor_that_bills_to_the_end_is_read_to_the_end_for_its_counts(tmp_path):
    # GW-061
    first, *rest = answer("one", "two", "three")
    engine = draining(first, 0.3, *rest)
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        async with gateway.stream(body(stream=True)) as got:
            await first_bytes(got)
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("client_left", "exact")
        assert (settled.http_status, settled.error_code) == (499, "client_left")
        assert settled.usage == {"input": 4, "output": 3}
        counted = gateway.service.metrics.render().decode()
        assert 'fareway_requests_total{route="chat.completions",status="499"} 1' in counted


async def test_a_whole_answer_is_waited_for_too_where_it_is_billed_anyway(tmp_path):
    engine = draining(0.3, *answer("one", "two"))
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        with anyio.move_on_after(0.1):
            await gateway.post(body())
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.usage["output"]) == ("client_left", 2)


async def test_reading_on_for_a_client_that_left_has_an_end(tmp_path):
    engine = draining(answer("one")[0], 30.0)
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        gateway.set_limits(drain_s=0.05)
        async with gateway.stream(body(stream=True)) as got:
            await first_bytes(got)
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("client_left", "estimated")
        assert engine.left == 1


async def test_a_failure_while_reading_on_is_no_reason_to_ask_another_one(tmp_path):
    engine = draining(0.3, UpstreamFault("broken"))
    providers = {"a": engine, "b": FakeProvider(name="b", scripts=[answer("b")])}
    upstreams = dict.fromkeys(providers, NOWHERE)
    async with running_gateway(tmp_path, upstreams, providers=providers) as gateway:
        with anyio.move_on_after(0.1):
            await gateway.post(body())
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.http_status) == ("unknown_billing", 499)
        assert not providers["b"].calls


async def test_a_process_that_ends_does_not_wait_for_what_nobody_reads(tmp_path):
    engine = draining(answer("one")[0], 30.0)
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        async with gateway.stream(body(stream=True)) as got:
            await first_bytes(got)
        await anyio.sleep(0.05)
        assert gateway.service.in_flight
        await gateway.service.cut()
        ((_, settled),) = await gateway.settled()
        assert settled.error_code == "draining"


async def test_a_client_that_leaves_takes_the_request_behind_it_along(tmp_path):
    # Of requests in a pipeline only the last is told by the server library that its client left.
    engine = FakeProvider(name="a", scripts=[[answer("one")[0], 30.0]])
    content = json.dumps(body()).encode()
    request = request_bytes(content, is_last=False)
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(request * 2)
        await writer.drain()
        with anyio.fail_after(5):
            while not engine.calls:
                await anyio.sleep(0.001)
        writer.close()
        await gateway.wait_idle()
        ((_, settled),) = gateway.attempts()
        assert settled.status == "client_left"


LEAVES = {
    "before the upstream answers, streamed": (Chat(think_s=30), True, 0, "client_left", "unknown"),
    "before the upstream answers, whole": (Chat(think_s=30), False, 0, "client_left", "unknown"),
    "in the middle of a stream": (
        Chat(text="a b c", frame_delay_s=0.02, stall_after=2, stall_s=30), True, 2, "client_left",
        "estimated",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("script", "stream", "words", "status", "quality"), LEAVES.values(), ids=LEAVES.keys()
)
async def test_a_client_that_leaves_ends_the_upstream_and_is_booked_once(
    tmp_path, script, stream, words, status, quality
):
    async with (
        ScriptedUpstream({"m": [script]}) as up,
        running_gateway(tmp_path, {"a": up.base_url, "b": up.base_url}) as gateway,
    ):
        async with gateway.client() as client:
            with anyio.move_on_after(5) as waited:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_read_words, client, stream, words, tasks.cancel_scope)
                    if not words:
                        while not up.requests:
                            await anyio.sleep(0.005)
                        tasks.cancel_scope.cancel()
            assert not waited.cancelled_caught
        ((intent, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == (status, quality)
        assert (settled.http_status, settled.error_code) == (499, "client_left")
        assert settled.usage.get("output", 0) == words
        with anyio.fail_after(5):
            while up.open_connections:
                await anyio.sleep(0.005)
        assert [line.outcome for line in up.bill] in ([], ["client_left"])
        assert intent.attempt == 1


async def _read_words(client, stream, words, scope):
    request = body(stream=stream)
    async with client.stream("POST", "/v1/chat/completions", json=request) as got:
        seen = b""
        async for part in got.aiter_raw():
            seen += part
            if words and seen.count(b'"content": "') > words:  # the role chunk has one too
                scope.cancel()


async def test_a_client_that_leaves_between_attempts_ends_the_request(tmp_path):
    async with (
        ScriptedUpstream({"m": [Answer(status=503, headers={"retry-after": "20"})]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        with anyio.move_on_after(0.25):
            await gateway.post(body())
        settled = await gateway.settled()
        assert len(settled) == len(up.requests) == 1


async def test_a_slow_client_slows_the_upstream_and_is_no_silence_of_it(tmp_path):
    # 600 frames of 32 KiB: far more than all socket buffers between the two ends hold.
    frame = json.dumps({"id": "c1", "choices": [{"index": 0, "delta": {"content": "x" * 32_000}}]})
    count = 600
    async with (
        ScriptedUpstream({"m": [Chat(frames=(frame,) * count)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(between_tokens_s=0.3, first_token_s=0.3, heartbeat_s=0.2)
        size = 0
        async with gateway.stream(body(stream=True)) as got:
            generated = -1
            while generated != up.bill[0].completion_tokens:
                generated = up.bill[0].completion_tokens
                await anyio.sleep(0.2)
            assert generated < count, "the upstream ran ahead of a client that reads nothing"
            await anyio.sleep(0.35)  # longer than the upstream may be silent
            assert up.bill[0].completion_tokens == generated
            rest = b""
            async for part in got.aiter_raw():
                size += len(part)
                rest = (rest + part)[-4096:]
        assert rest.endswith(b"data: [DONE]\n\n"), rest[-300:]
        assert size > count * 32_000
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("ok", "exact")


async def test_a_client_that_never_reads_is_given_up(tmp_path):
    frame = json.dumps({"id": "c1", "choices": [{"index": 0, "delta": {"content": "x" * 32_000}}]})
    async with (
        ScriptedUpstream({"m": [Chat(frames=(frame,) * 600)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(total_s=0.2, flush_s=0.1)
        async with gateway.stream(body(stream=True)) as got:
            assert got.status_code == 200
            ((_, settled),) = await gateway.settled()
            assert settled.status == "client_left"
            assert up.bill[0].completion_tokens < 600
            with anyio.fail_after(5):
                while up.open_connections:
                    await anyio.sleep(0.01)
