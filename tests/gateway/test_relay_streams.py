"""Streams over real sockets: heartbeats, usage, empty answers, one meaning on every wire."""

from __future__ import annotations

import json

import anyio
import pytest

from pricing.usage import Usage
from providers.contract import Finished, UsageReport
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import NOWHERE, body, running_gateway
from tests.gateway.stream_reading import assemble, first_bytes
from tests.gateway.upstream_wires import CONTENT, STOP, events
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step

pytestmark = pytest.mark.anyio


EMPTY_STREAM = events(STOP, "data: [DONE]\n\n")


async def test_headers_go_out_after_the_heartbeat_and_name_the_attempt_in_flight(tmp_path):
    async with (
        ScriptedUpstream({"m": [Answer(status=503, body={}, delay_s=0.02)]}) as first,
        ScriptedUpstream({"m": [Chat(text="late words", think_s=0.5)]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(heartbeat_s=0.15)
        async with gateway.stream(body(stream=True, usage=True)) as got:
            assert got.headers["x-fareway-deployment"] == "b/m"
            assert got.headers["x-fareway-attempts"] == "2"
            assert (await first_bytes(got)).startswith(b": ")
        await gateway.wait_idle()


async def test_a_heartbeat_is_no_first_token_and_stands_between_events(tmp_path):
    script = Chat(text="one two three", think_s=0.2, frame_delay_s=0.12)
    async with (
        ScriptedUpstream({"m": [script]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(heartbeat_s=0.05)
        got = await gateway.post(body(stream=True))
        found = assemble(got.content)
        assert len(found.comments) >= 4
        assert set(found.comments) == {"heartbeat"}
        assert found.texts == {0: "one two three"}
        assert got.content.startswith(b": heartbeat\n\n")
        ((_, settled),) = await gateway.settled()
        assert settled.ttft_us is not None
        assert settled.ttft_us >= 200_000


@pytest.mark.parametrize("text", ["one", "one two"], ids=["the first event", "the second event"])
async def test_an_event_goes_out_while_the_upstream_has_no_other(tmp_path, text):
    script = Chat(text="one two three", stall_after=len(text.split()))
    async with (
        ScriptedUpstream({"m": [script]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
        gateway.stream(body(stream=True)) as got,
    ):
        with anyio.fail_after(5):
            seen = b""
            async for part in got.aiter_bytes():
                seen += part
                if assemble(seen).texts.get(0) == text:
                    break
        assert got.headers["x-fareway-attempts"] == "1"


async def test_a_fallback_is_possible_after_headers_went_out(tmp_path):
    async with (
        ScriptedUpstream({"m": [Answer(status=503, body={}, delay_s=0.3)]}) as first,
        ScriptedUpstream({"m": [Chat(text="from b")]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(heartbeat_s=0.1)
        got = await gateway.post(body(stream=True, usage=True))
        assert got.headers["x-fareway-deployment"] == "a/m"
        found = assemble(got.content)
        assert (found.texts, found.is_done, found.errors) == ({0: "from b"}, True, [])
        assert found.fareway[0]["deployment"] == "b/m"
        assert found.fareway[0]["attempts"] == 2
        assert found.fareway[0]["request_id"] == got.headers["x-fareway-request-id"]


async def test_a_final_failure_after_headers_went_out_is_an_error_event(tmp_path):
    async with (
        ScriptedUpstream({"m": [Answer(status=500, body={}, delay_s=0.2)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(heartbeat_s=0.05, attempts_max=1)
        got = await gateway.post(body(stream=True))
        assert got.status_code == 200
        found = assemble(got.content)
        assert [error["code"] for error in found.errors] == ["upstream_error"]
        assert not found.is_done
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("unknown_billing", "unknown")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_empty_answer_is_retried_once_and_then_taken(tmp_path, stream):
    # GW-049.
    empty = Chat(text="", usage={"prompt_tokens": 7, "completion_tokens": 0})
    async with (
        ScriptedUpstream({"m": [empty]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.hurry()
        got = await gateway.post(body(stream=stream))
        assert got.status_code == 200
        if stream:
            assert assemble(got.content).is_done
        first, second = await gateway.settled()
        assert len(up.requests) == 2
        assert (first[1].error_code, second[1].error_code) == ("empty_answer", "")
        for _, settled in (first, second):
            assert (settled.status, settled.quality, settled.usage) == ("ok", "exact", {"input": 7})


async def test_an_empty_answer_without_counts_is_not_charged_from_an_estimate(tmp_path):
    async with (
        ScriptedUpstream({"m": [EMPTY_STREAM, Chat(text="words")]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.hurry()
        found = assemble((await gateway.post(body(stream=True))).content)
        assert found.texts == {0: "words"}
        (_, empty), (_, settled) = await gateway.settled()
        assert (empty.quality, empty.cost_pico_usd, empty.usage) == ("unknown", 0, {})
        assert settled.quality == "exact"


async def test_an_empty_answer_that_was_asked_for_is_no_failure(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat(text="")]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        got = await gateway.post(body(max_tokens=0))
        assert got.status_code == 200
        assert len(up.requests) == 1


USAGE_CHUNKS = {
    "asked for": (Chat(), True, 1),
    "not asked for": (Chat(), False, 0),
    "not asked for and sent all the same": (Chat(sends_usage="always"), False, 0),
    "asked for and never sent": (Chat(sends_usage="never"), True, 0),
}


@pytest.mark.parametrize(
    ("script", "asked", "count"), USAGE_CHUNKS.values(), ids=USAGE_CHUNKS.keys()
)
async def test_usage_in_a_stream_comes_to_who_asked(tmp_path, script, asked, count):
    async with (
        ScriptedUpstream({"m": [script]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        found = assemble((await gateway.post(body(stream=True, usage=asked))).content)
        assert (len(found.usages), len(found.fareway)) == (count, count)
        assert found.is_done
        assert len(found.ids) == 1
        sent = up.requests[0].json()
        assert sent["stream_options"] == {"include_usage": True}
        ((_, settled),) = await gateway.settled()
        assert settled.quality == ("estimated" if script.sends_usage == "never" else "exact")
        assert settled.cost_pico_usd is not None
        assert settled.cost_pico_usd > 0
        if count:
            assert found.usages[0]["cost_usd"] == usd(settled.cost_pico_usd)


def usd(pico_usd: int) -> str:
    text = f"{pico_usd / 10**12:.12f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


async def test_usage_inside_the_last_content_chunk_is_charged_and_told_once_more_with_its_cost(
    tmp_path,
):
    last = 'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
    async with (
        ScriptedUpstream({"m": [events(CONTENT, last, "data: [DONE]\n\n")]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        found = assemble((await gateway.post(body(stream=True, usage=True))).content)
        assert found.texts == {0: "ab"}
        assert found.ids == {"c1"}
        assert found.usages[-1]["cost_usd"] == "0.000009"
        ((_, settled),) = await gateway.settled()
        assert settled.cost_pico_usd == 9_000_000


async def test_the_usage_after_the_finish_is_waited_for(tmp_path):
    # GW-027.
    usage = (
        'data: {"id":"c1","choices":[],"usage":{"prompt_tokens":1200,"completion_tokens":300}}\n\n'
    )
    script = events(CONTENT, STOP, Step(delay_s=0.1, text=usage), "data: [DONE]\n\n")
    async with (
        ScriptedUpstream({"m": [script]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        await gateway.post(body(stream=True))
        ((_, settled),) = await gateway.settled()
        assert settled.usage == {"input": 1200, "output": 300}


async def test_events_without_frames_stream_and_answer_alike(tmp_path):
    provider = FakeProvider(name="a", scripts=[answer("Hé", "llo ", "you", reason="length")])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": provider}) as gateway:
        whole = json.loads((await gateway.post(body())).content)
        found = assemble((await gateway.post(body(stream=True, usage=True))).content)
        message = whole["choices"][0]["message"]
        assert found.texts == {0: message["content"]} == {0: "Héllo you"}
        assert found.roles == {0: message["role"]}
        assert found.reasons == {0: whole["choices"][0]["finish_reason"]} == {0: "length"}
        assert found.usages == [whole["usage"]]
        assert whole["model"] == found.chunks[0]["model"] == "fake-model"
        (_, first), (_, second) = await gateway.settled()
        # GW-076: the same usage costs the same, streamed or not.
        assert first.cost_pico_usd == second.cost_pico_usd == 10_000_000


async def test_frames_stream_and_answer_alike(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat(text="The same words, 你好😀é", cached_tokens=2)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        whole = json.loads((await gateway.post(body())).content)
        found = assemble((await gateway.post(body(stream=True, usage=True))).content)
        assert found.texts == {0: whole["choices"][0]["message"]["content"]}
        assert found.reasons == {0: whole["choices"][0]["finish_reason"]}
        assert found.usages == [whole["usage"]]
        (_, first), (_, second) = await gateway.settled()
        assert first.cost_pico_usd == second.cost_pico_usd
        assert first.lines == second.lines


async def test_every_split_of_the_upstreams_bytes_gives_the_same_answer(tmp_path):
    # GW-016 and GW-018: characters, line ends and events cut anywhere.
    frames = tuple(
        json.dumps(
            {"id": "c1", "choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False
        )
        for text in ("你好", "😀é", " end")
    )
    scripts = [Chat(frames=frames, cut_bytes=(size,), gap_s=0) for size in (1, 2, 3, 5, 7, 11)]
    async with (
        ScriptedUpstream({"m": scripts}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        for _ in scripts:
            found = assemble((await gateway.post(body(stream=True))).content)
            assert found.texts == {0: "你好😀é end"}
            assert found.is_done


async def test_a_frameless_answer_that_only_finishes_is_empty(tmp_path):
    empty = [[Finished(reason="stop"), UsageReport(usage=Usage(input_tokens=3))]]
    engine = FakeProvider(name="a", scripts=[empty])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        gateway.hurry()
        found = assemble((await gateway.post(body(stream=True, usage=True))).content)
        assert (found.texts, found.reasons, found.is_done) == ({0: ""}, {0: "stop"}, True)
        assert len(engine.calls) == 2
        assert len(found.usages) == 1
