"""Whole requests through the relay, over real sockets: who is called, what is sent, what is booked."""

from __future__ import annotations

import json

import anyio
import pytest

from gateway.ledger.spool import Durability
from pricing.usage import Usage
from providers.contract import Finished, UsageReport
from providers.errors import ConnectionLost, ContextTooLong, Overloaded
from tests.gateway.fake_provider import FakeProvider, answer
from tests.gateway.gateway_harness import (
    NOWHERE,
    UPSTREAM_KEY,
    assemble,
    body,
    error_of,
    running_gateway,
)
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio

SSE_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CONTENT = (
    'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
)
STOP = 'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
BUSY = Answer(status=503, body={"error": {"message": "busy"}}, headers={"x-request-id": "P-1"})


def events(*parts: str | Step) -> Wire:
    """An event stream, part by part, then the end of the connection."""
    steps = [part if isinstance(part, Step) else Step(text=part) for part in parts]
    return Wire(steps=(Step(text=SSE_HEAD), *steps, Step(ending="close")))


EMPTY_STREAM = events(STOP, "data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_failing_deployment_is_followed_by_the_next_and_each_attempt_is_booked(
    tmp_path, stream
):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [Chat(text="from b")]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        got = await gateway.post(body(stream=stream))
        assert got.status_code == 200
        assert got.headers["x-fareway-deployment"] == "b/m"
        assert got.headers["x-fareway-attempts"] == "2"
        # GW-045: nothing of the first upstream's answer is in the second one's.
        assert got.headers["x-request-id"] == got.headers["x-fareway-request-id"]
        (lost, refused), (won, settled) = await gateway.settled()
        assert lost.request_id == won.request_id
        assert (lost.attempt, won.attempt) == (1, 2)
        assert (refused.status, refused.quality, refused.cost_pico_usd) == ("rejected", "exact", 0)
        assert (refused.http_status, refused.upstream_request_id) == (503, "P-1")
        assert (settled.status, settled.quality) == ("ok", "exact")
        line = second.bill[0]
        cost = line.prompt_tokens * 1_000_000 + line.completion_tokens * 3_000_000
        assert settled.cost_pico_usd == cost
        assert line.attempt_id == won.event_id.hex()
        ids = [request.headers["x-client-request-id"] for request in first.requests]
        assert ids == [lost.event_id.hex()]


async def test_only_the_decisions_deployments_are_called(tmp_path):
    async with (
        ScriptedUpstream({"m": [BUSY]}) as first,
        ScriptedUpstream({"m": [BUSY]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(attempts_max=5, within_s=0.3)
        got = await gateway.post(body(model="a/m"))
        assert got.status_code == 503
        assert error_of(got)["code"] == "no_healthy_deployment"
        assert len(first.requests) >= 1
        assert second.requests == []


ENDS_AT_ONCE = {
    "a malformed request": (
        Answer(status=400, body={"error": {"message": "no such tool", "param": "tools"}}),
        400,
    ),
    "an error event before any content (GW-029)": (
        events(
            ": hb\n\n",
            'event: error\ndata: {"error":{"message":"invalid","type":"invalid_request_error","code":400}}\n\n',
        ),
        400,
    ),
}


@pytest.mark.parametrize(("script", "status"), ENDS_AT_ONCE.values(), ids=ENDS_AT_ONCE.keys())
async def test_a_callers_fault_is_shown_and_nobody_else_is_asked(tmp_path, script, status):
    async with (
        ScriptedUpstream({"m": [script]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        got = await gateway.post(body(stream=True))
        assert got.status_code == status
        assert got.headers["content-type"] == "application/json"
        assert error_of(got)["type"] == "invalid_request_error"
        assert second.requests == []
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.cost_pico_usd) == ("rejected", 0)


BREAKS = {
    "a reset": Chat(end_after=2, ending="reset"),
    "an early end": Chat(end_after=2, ending="close"),
    "an error event": Chat(end_after=2, ending="error"),
    "garbage": events(CONTENT, CONTENT, "data: {broken\n\n"),
    "a stall": Chat(stall_after=2, stall_s=60),
}


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS.keys())
async def test_after_content_there_is_one_error_event_no_end_mark_and_no_fallback(tmp_path, script):
    async with (
        ScriptedUpstream({"m": [script]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        gateway.set_limits(between_tokens_s=0.3)
        got = await gateway.post(body(stream=True, usage=True))
        assert got.status_code == 200
        found = assemble(got.content)
        assert found.texts[0] in ("Hello there,", "aa")
        assert not found.is_done
        assert [error["code"] for error in found.errors] in (
            ["upstream_error"],
            ["upstream_timeout"],
        )
        assert "a/m" in found.errors[0]["message"]
        assert UPSTREAM_KEY not in got.text
        assert second.requests == []
        ((_, settled),) = await gateway.settled()
        # GW-065: nothing is charged from a guess.
        assert (settled.status, settled.quality) == ("interrupted", "unknown")
        assert settled.cost_pico_usd == 0
        assert settled.ttft_us is not None


async def test_counts_of_a_stream_that_broke_are_kept(tmp_path):
    # GW-084.
    counted = CONTENT.replace("}]}", '}],"usage":{"prompt_tokens":50,"completion_tokens":1}}')
    async with (
        ScriptedUpstream({"m": [events(counted)]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        found = assemble((await gateway.post(body(stream=True))).content)
        assert len(found.errors) == 1
        ((_, settled),) = await gateway.settled()
        assert settled.usage == {"input": 50, "output": 1}
        assert (settled.status, settled.quality) == ("interrupted", "estimated")
        assert settled.cost_pico_usd == 52_000_000


async def test_role_chunks_and_metadata_do_not_commit_an_attempt(tmp_path):
    preamble = (
        'data: {"id":"","choices":[],"prompt_filter_results":[]}\n\n'
        'data: {"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    )
    async with (
        ScriptedUpstream({"m": [events(": hi\n\n", preamble, Step(delay_s=0.05))]}) as first,
        ScriptedUpstream({"m": [Chat(text="from b")]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        got = await gateway.post(body(stream=True))
        found = assemble(got.content)
        assert got.headers["x-fareway-deployment"] == "b/m"
        assert (found.texts, found.is_done) == ({0: "from b"}, True)
        assert all("prompt_filter_results" not in chunk for chunk in found.chunks)
        (_, lost), _ = await gateway.settled()
        assert lost.status == "unknown_billing"
        assert lost.ttft_us is None


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
            assert (await gateway_first_bytes(got)).startswith(b": ")
        await gateway.wait_idle()


async def gateway_first_bytes(answer) -> bytes:
    async for part in answer.aiter_raw():
        return part
    raise AssertionError("the answer is empty")


async def test_a_heartbeat_is_no_first_token_and_stands_between_events(tmp_path):
    script = Chat(text="one two three", think_s=0.35, frame_delay_s=0.25)
    async with (
        ScriptedUpstream({"m": [script]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(heartbeat_s=0.1)
        got = await gateway.post(body(stream=True))
        found = assemble(got.content)
        assert len(found.comments) >= 4
        assert set(found.comments) == {"heartbeat"}
        assert found.texts == {0: "one two three"}
        assert got.content.startswith(b": heartbeat\n\n")
        ((_, settled),) = await gateway.settled()
        assert settled.ttft_us is not None
        assert settled.ttft_us >= 350_000


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


async def test_a_quota_pauses_a_deployment_for_the_requests_that_follow(tmp_path):
    # GW-053 (the client's side is in test_http_chat), GW-051.
    limited = Answer(status=429, headers={"retry-after": "30"}, body={"error": {"message": "slow"}})
    async with (
        ScriptedUpstream({"m": [limited]}) as first,
        ScriptedUpstream({"m": [Chat()]}) as second,
        running_gateway(tmp_path, {"a": first.base_url, "b": second.base_url}) as gateway,
    ):
        for _ in range(3):
            assert (await gateway.post(body())).headers["x-fareway-deployment"] == "b/m"
        assert len(first.requests) == 1
        gateway.service.admission.health.pause("a/m", 1.0)
        assert gateway.service.admission.health.is_paused("a/m")
        # Where it is the only one it is still asked: that is how its return is found out.
        assert (await gateway.post(body(model="a/m"))).status_code == 429
        assert len(first.requests) == 2


async def test_nothing_is_dispatched_when_the_spool_takes_nothing(tmp_path):
    async with (
        ScriptedUpstream({"m": [Chat()]}) as up,
        running_gateway(tmp_path, {"a": up.base_url, "b": up.base_url}) as gateway,
    ):
        await gateway.service.relay.journal.spool.close()
        got = await gateway.post(body())
        assert got.status_code == 503
        assert error_of(got)["code"] == "ledger_unavailable"
        assert got.headers["retry-after"] == "5"
        assert up.requests == []


async def test_strict_intents_are_on_disk_before_dispatch(tmp_path):
    provider = FakeProvider(name="a", scripts=[answer("x")])
    async with running_gateway(
        tmp_path, {"a": NOWHERE}, providers={"a": provider}, durability=Durability.STRICT
    ) as gateway:
        gateway.set_limits(is_strict=True)
        spool = gateway.service.relay.journal.spool
        positions = []
        inner = provider._play

        async def look(script):
            positions.append((spool.durable_position, spool.position))
            async for batch in inner(script):
                yield batch

        provider._play = look
        assert (await gateway.post(body())).status_code == 200
        ((durable, written),) = positions
        assert durable == written > 0


async def test_a_spool_that_fails_under_way_costs_neither_the_answer_nor_the_intent(tmp_path):
    provider = FakeProvider(name="a", scripts=[answer("x", "y")])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": provider}) as gateway:
        spool = gateway.service.relay.journal.spool
        inner = provider._play

        async def close_first(script):
            await spool.close()
            async for batch in inner(script):
                yield batch

        provider._play = close_first
        got = await gateway.post(body())
        assert got.status_code == 200
        assert json.loads(got.content)["choices"][0]["message"]["content"] == "xy"
        assert "x-fareway-cost-usd" not in got.headers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_fault_of_ours_after_dispatch_is_not_booked_as_free(tmp_path, stream, caplog):
    provider = FakeProvider(name="a", scripts=[[KeyError("canary-prompt")]])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": provider}) as gateway:
        got = await gateway.post(body(stream=stream))
        assert got.status_code == 500
        error = error_of(got)
        assert error["code"] == "internal_error"
        assert got.headers["x-fareway-request-id"] in error["message"]
        assert "canary" not in got.text
        assert "Traceback" not in got.text
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("unknown_billing", "unknown")
        assert (settled.http_status, settled.error_code) == (500, "internal_error")
        assert "Traceback" in caplog.text


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


FRAMELESS_FAILURES = {
    "before content: the next one": ([Overloaded("full", retry_after_s=1)], "b", None),
    "before content, outcome unknown: the next one": ([ConnectionLost("died")], "b", None),
    "a prompt too long for it: the next one": ([ContextTooLong("too long")], "b", None),
    "after content: an error event": ([*answer("x")[:1], ConnectionLost("died")], None, "x"),
}


@pytest.mark.parametrize(
    ("script", "served_by", "text"), FRAMELESS_FAILURES.values(), ids=FRAMELESS_FAILURES.keys()
)
async def test_a_failing_engine(tmp_path, script, served_by, text):
    engine = FakeProvider(name="a", scripts=[script])
    other = FakeProvider(name="b", scripts=[answer("from b")])
    async with running_gateway(
        tmp_path, {"a": NOWHERE, "b": NOWHERE}, providers={"a": engine, "b": other}
    ) as gateway:
        got = await gateway.post(body(stream=True))
        found = assemble(got.content)
        if served_by:
            assert (found.texts, found.is_done) == ({0: "from b"}, True)
        else:
            assert (found.texts, found.is_done, len(found.errors)) == ({0: text}, False, 1)
        assert engine.left == len(engine.calls) == 1


async def test_what_an_engine_counted_until_an_abort_is_charged(tmp_path):
    closing = UsageReport(usage=Usage(input_tokens=4, output_tokens=2))
    engine = FakeProvider(name="a", scripts=[[*answer("x", "y")[:2], 30.0]], closing_usage=closing)
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        async with gateway.stream(body(stream=True)) as got:
            await gateway_first_bytes(got)
        ((_, settled),) = await gateway.settled()
        assert (settled.status, settled.quality) == ("client_left", "exact")
        assert settled.usage == {"input": 4, "output": 2}
        assert engine.left == 1


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
        with anyio.move_on_after(0.5):
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
            await anyio.sleep(1.0)
            generated = up.bill[0].completion_tokens
            assert generated < count, "the upstream ran ahead of a client that reads nothing"
            await anyio.sleep(0.5)
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
        gateway.set_limits(total_s=0.3, flush_s=0.2)
        async with gateway.stream(body(stream=True)) as got:
            assert got.status_code == 200
            ((_, settled),) = await gateway.settled()
            assert settled.status == "client_left"
            assert up.bill[0].completion_tokens < 600
            with anyio.fail_after(5):
                while up.open_connections:
                    await anyio.sleep(0.01)


async def test_after_many_failures_of_every_kind_no_socket_and_no_request_is_left(tmp_path):
    # GW-059.
    scripts = [
        Answer(status=429, filler_bytes=300_000, body={"error": {"message": "x"}}),
        Chat(end_after=1, ending="reset"),
        events(CONTENT, "data: {broken\n\n"),
        Answer(status=500, body={}),
    ] * 5
    async with (
        ScriptedUpstream({"m": [*scripts, Chat(text="still here")]}) as up,
        running_gateway(tmp_path, {"a": up.base_url}) as gateway,
    ):
        gateway.set_limits(attempts_max=1)
        for _ in scripts:
            await gateway.post(body(stream=True))
        got = await gateway.post(body(stream=True))
        assert assemble(got.content).texts == {0: "still here"}
        assert len(await gateway.settled()) == len(scripts) + 1
        assert up.open_connections <= 2
        assert gateway.service.in_flight == 0


async def test_a_frameless_answer_that_only_finishes_is_empty(tmp_path):
    empty = [[Finished(reason="stop"), UsageReport(usage=Usage(input_tokens=3))]]
    engine = FakeProvider(name="a", scripts=[empty])
    async with running_gateway(tmp_path, {"a": NOWHERE}, providers={"a": engine}) as gateway:
        found = assemble((await gateway.post(body(stream=True, usage=True))).content)
        assert (found.texts, found.reasons, found.is_done) == ({0: ""}, {0: "stop"}, True)
        assert len(engine.calls) == 2
        assert len(found.usages) == 1
