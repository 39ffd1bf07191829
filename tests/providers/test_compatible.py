"""The whole way to an OpenAI-compatible upstream and back, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest

from providers.compatible import chat_url
from providers.contract import (
    AttemptFacts,
    Capabilities,
    Finished,
    ToolCallDelta,
    WholeAnswer,
)
from providers.transport import TransportOptions
from tests.providers.compatible_harness import (
    CHUNKED_HEAD,
    CONTENT,
    END,
    FINISH,
    KEY,
    ROW,
    SSE_HEAD,
    WHOLE,
    WHOLE_STREAM,
    call,
    chat,
    chunk,
    deadlines,
    json_wire,
    provider_at,
    running,
    wire,
)
from tests.providers.permits import permit_of
from tests.support.scripted_upstream import Chat, Step, Wire

pytestmark = pytest.mark.anyio


async def test_a_stream_arrives_with_its_usage_and_facts() -> None:
    async with running(Chat(text="Hello there you", prompt_tokens=12, cached_tokens=8)) as (
        provider,
        upstream,
    ):
        outcome = await call(provider)
    assert outcome.error is None
    assert outcome.text == "Hello there you"
    assert outcome.kinds == [
        "Preamble",
        "OpaqueDelta",
        "OpaqueDelta",
        "OpaqueDelta",
        "Finished",
        "UsageReport",
    ]
    assert outcome.usage is not None
    assert (
        outcome.usage.usage.input_tokens,
        outcome.usage.usage.cache_read_tokens,
        outcome.usage.is_alone,
    ) == (4, 8, True)
    facts = outcome.facts
    assert (facts.was_sent, facts.status, facts.upstream_request_id, facts.upstream_model) == (
        True,
        200,
        "chatcmpl-1",
        "m",
    )
    [received] = upstream.requests
    assert received.path == "/v1/chat/completions"
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.json() == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    "cut", [(1,), (2, 7, 3, 31), (1000,)], ids=["byte by byte", "odd pieces", "large pieces"]
)
async def test_any_cut_of_the_wire_gives_the_same_events(cut: tuple[int, ...]) -> None:
    async with running(
        Chat(text="你好 😀 é"),
        Chat(text="你好 😀 é", cut_bytes=cut, gap_s=0.0),
        options=TransportOptions(),
    ) as (provider, _):
        whole, pieces = await call(provider), await call(provider)
    assert pieces.kinds == whole.kinds
    assert pieces.text == whole.text == "你好 😀 é"


async def test_a_whole_answer_arrives() -> None:
    async with running(Chat(text="Hello there", prompt_tokens=3)) as (provider, upstream):
        outcome = await call(provider, chat(stream=False, temperature="0.5"))
    [answer] = outcome.events
    assert isinstance(answer, WholeAnswer)
    assert json.loads(answer.raw)["choices"][0]["message"]["content"] == "Hello there"
    assert answer.usage is not None
    assert answer.usage.usage.input_tokens == 3
    assert "stream" not in upstream.requests[0].json()


async def test_stream_and_whole_answer_agree() -> None:
    async with running(Chat(text="one two three", prompt_tokens=3)) as (provider, _):
        streamed, whole = await call(provider), await call(provider, chat(stream=False))
    [answer] = whole.events
    assert isinstance(answer, WholeAnswer)
    assert streamed.text == json.loads(answer.raw)["choices"][0]["message"]["content"]
    assert streamed.usage is not None
    assert answer.usage is not None
    assert streamed.usage.usage == answer.usage.usage
    assert [event.reason for event in streamed.events if isinstance(event, Finished)] == list(
        answer.finish_reasons
    )


async def test_connections_are_kept_and_used_again() -> None:
    async with running(Chat(text="a b")) as (provider, upstream):
        for _ in range(3):
            assert (await call(provider)).error is None
            assert (await call(provider, chat(stream=False))).error is None
        assert upstream.open_connections == 1


TAILS = {
    "the end of HTTP a moment later": ((Step(delay_s=0.01, text="0\r\n\r\n"),), 1),
    "comments after the end mark": (
        (Step(delay_s=0.01, text=chunk(": bye\n\n")), Step(text="0\r\n\r\n")),
        1,
    ),
    "no end of HTTP at all": ((Step(delay_s=5),), 2),
    "bytes without end": ((Step(delay_s=0.01, text=chunk("x" * 200_000)), Step(delay_s=5)), 2),
}


@pytest.mark.parametrize(("tail", "connections"), TAILS.values(), ids=TAILS.keys())
async def test_a_socket_is_kept_when_http_ends_soon_after_the_stream(
    tail: tuple[Step, ...], connections: int
) -> None:
    options = TransportOptions(end_grace_s=0.2)
    script = wire(chunk(WHOLE_STREAM), *tail, head=CHUNKED_HEAD)
    async with running(script, Chat(text="ok"), options=options) as (provider, upstream):
        accepted: set[asyncio.Task[None]] = set()
        for _ in range(2):
            outcome = await call(provider)
            assert outcome.error is None
            assert outcome.took_s < 1
            accepted |= upstream._tasks
        assert len(accepted) == connections


async def test_leaving_closes_the_upstreams_socket_at_once() -> None:
    async with running(Chat(text="a " * 200, frame_delay_s=0.01)) as (provider, upstream):
        async with provider.stream(
            "m", chat(), permit=permit_of(provider), deadlines=deadlines(), facts=AttemptFacts()
        ) as batches:
            async for _ in batches:
                break
        for _ in range(100):
            if upstream.bill[0].outcome == "client_left":
                break
            await asyncio.sleep(0.01)
        assert upstream.bill[0].outcome == "client_left"
        assert upstream.bill[0].completion_tokens < 50


async def test_a_cancelled_attempt_closes_its_socket() -> None:
    async with running(Chat(text="a", think_s=30)) as (provider, upstream):
        task = asyncio.create_task(call(provider))
        while not upstream.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if upstream.open_connections == 0:
                break
            await asyncio.sleep(0.01)
        assert upstream.open_connections == 0


async def test_a_compressed_answer_is_unpacked() -> None:
    # GW-147
    async with running(json_wire(gzip.compress(WHOLE), content_encoding="gzip")) as (
        provider,
        upstream,
    ):
        outcome = await call(provider, chat(stream=False))
    [answer] = outcome.events
    assert isinstance(answer, WholeAnswer)
    assert answer.raw == WHOLE
    assert upstream.requests[0].headers["accept-encoding"] == "identity"


async def test_a_compressed_stream_is_unpacked_though_not_asked_for() -> None:
    body = gzip.compress((CONTENT + FINISH + "data: [DONE]\n\n").encode())
    head = SSE_HEAD.replace("\r\n\r\n", "\r\ncontent-encoding: gzip\r\n\r\n")
    async with running(Wire(steps=(Step(text=head), Step(data=body, ending="close")))) as (
        provider,
        upstream,
    ):
        outcome = await call(provider)
    assert outcome.kinds == ["OpaqueDelta", "Finished"]
    assert upstream.requests[0].headers["accept-encoding"] == "identity"


async def test_a_whole_answer_to_a_request_for_a_stream_becomes_one() -> None:
    async with running(json_wire(WHOLE)) as (provider, _):
        outcome = await call(provider)
    assert outcome.error is None
    assert outcome.kinds == ["OpaqueDelta", "Finished", "UsageReport"]
    assert outcome.text == "ok" * 1000


async def test_repairs_are_counted_and_reach_the_client() -> None:
    call_frame = 'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}}]}\n\n'
    async with running(wire(call_frame, FINISH, END)) as (provider, _):
        outcome = await call(provider)
        assert provider.wire_faults == {"tool_call": 1, "finish_reason": 1}
    [event] = [event for event in outcome.events if isinstance(event, ToolCallDelta)]
    part = json.loads(event.raw)["choices"][0]["delta"]["tool_calls"][0]
    assert (part["id"], part["type"]) == ("call_r1_0_0", "function")


async def test_two_megabytes_in_one_event_pass() -> None:
    big = 'data: {"choices":[{"index":0,"delta":{"content":"' + "B" * 2_000_000 + '"}}]}\n\n'
    async with running(wire(big, FINISH, "data: [DONE]\n\n", END)) as (provider, _):
        outcome = await call(provider)
    assert len(outcome.text) == 2_000_000


async def test_each_attempt_is_sent_with_its_own_id_and_trace() -> None:
    given = [("1" * 32, None), ("2" * 32, "00-a-b-01"), ("", None)]
    async with running(Chat(text="a"), Chat(text="b"), Chat(text="c")) as (provider, upstream):
        for attempt_id, trace in given:
            facts = AttemptFacts(attempt_id=attempt_id, traceparent=trace)
            async with provider.stream(
                "m", chat(), permit=permit_of(provider), deadlines=deadlines(), facts=facts
            ) as batches:
                assert [batch async for batch in batches]
    sent = [request.headers for request in upstream.requests]
    assert [(one.get("x-client-request-id", ""), one.get("traceparent")) for one in sent] == given
    assert {one["authorization"] for one in sent} == {f"Bearer {KEY}"}
    assert {one["accept"] for one in sent} == {"text/event-stream"}


async def test_a_key_that_no_header_can_hold_is_not_sent() -> None:
    async with running(Chat(text="a"), api_key="sk-one\r\nx-two: 3") as (provider, upstream):
        for stream in (True, False):
            with pytest.raises(ValueError, match="line break"):
                await call(provider, chat(stream=stream))
    assert upstream.requests == []


async def test_a_key_may_be_absent_and_headers_added() -> None:
    async with running(Chat(text="a"), api_key=None, extra_headers={"x-team": "blue"}) as (
        provider,
        upstream,
    ):
        await call(provider)
    assert "authorization" not in upstream.requests[0].headers
    assert upstream.requests[0].headers["x-team"] == "blue"


URLS = {
    "a path": ("http://10.0.0.5:8000/v1", "http://10.0.0.5:8000/v1/chat/completions"),
    "a last slash": ("http://10.0.0.5:8000/v1/", "http://10.0.0.5:8000/v1/chat/completions"),
    "no path": ("http://10.0.0.5:8000", "http://10.0.0.5:8000/v1/chat/completions"),
    "only a slash": ("http://10.0.0.5:8000/", "http://10.0.0.5:8000/v1/chat/completions"),
    "a vendor's prefix": (
        "https://api.groq.com/openai/v1",
        "https://api.groq.com/openai/v1/chat/completions",
    ),
    "the chat path itself": (
        "https://h/inference/v1/chat/completions",
        "https://h/inference/v1/chat/completions",
    ),
    "a query": ("https://h/v1?api-version=1", "https://h/v1/chat/completions?api-version=1"),
}


@pytest.mark.parametrize(("base_url", "url"), URLS.values(), ids=URLS.keys())
def test_where_chats_go(base_url: str, url: str) -> None:
    assert str(chat_url(base_url, ROW)) == url


BAD_URLS = {
    "no scheme": "10.0.0.5:8000/v1",
    "another scheme": "ftp://h/v1",
    "credentials": "http://user:pass@h/v1",
    "nothing": "",
    "no host": "http:///v1",
}


@pytest.mark.parametrize("base_url", BAD_URLS.values(), ids=BAD_URLS.keys())
def test_addresses_that_are_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        provider_at(base_url)


async def test_capabilities_are_the_wires_unless_the_model_has_its_own() -> None:
    small = Capabilities(context_window_tokens=4096, multimodal=False)
    provider = provider_at("http://h/v1", model_capabilities={"small": small})
    assert provider.capabilities("small") is small
    assert provider.capabilities("other").is_open
    assert provider.name == "up"
