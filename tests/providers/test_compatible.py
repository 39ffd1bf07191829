"""The whole way to an OpenAI-compatible upstream and back, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import pytest
import uvloop

from providers.compatible import Account, OpenAiCompatibleProvider, chat_url, load_catalog
from providers.contract import (
    CONTENT_EVENTS,
    AttemptFacts,
    Capabilities,
    ChatRequest,
    Deadlines,
    Event,
    Finished,
    OpaqueDelta,
    ToolCallDelta,
    UsageReport,
    WholeAnswer,
)
from providers.errors import (
    BadRequest,
    BadWire,
    ConnectionLost,
    CredentialError,
    FirstTokenTimeout,
    NotSent,
    ProviderError,
    RateLimited,
    StreamStalled,
    TotalTimeout,
    UpstreamFault,
)
from providers.transport import TransportOptions
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio

KEY = "sk-canary-0123456789abcdef"
ROW = load_catalog()["openai_compatible"]
QUICK = TransportOptions(finish_grace_s=0.1, end_grace_s=0.05)
SSE_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CONTENT = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FINISH = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":511}}\n\n'


def deadlines(**limits: float) -> Deadlines:
    return Deadlines(
        **{
            "connect_s": 2.0,
            "first_token_s": 5.0,
            "between_tokens_s": 5.0,
            "total_s": 10.0,
            **limits,
        }
    )


def chat(*, stream: bool = True, **fields: str) -> ChatRequest:
    raw = {
        name: msgspec.Raw(value.encode())
        for name, value in {"messages": '[{"role":"user","content":"hi"}]', **fields}.items()
    }
    return ChatRequest(
        fields=raw, is_stream=stream, wants_usage=False, namespace=bytes(16), request_id="r1"
    )


def provider_at(
    base_url: str, *, options: TransportOptions = QUICK, **members: object
) -> OpenAiCompatibleProvider:
    account = Account(name="up", base_url=base_url, **{"api_key": KEY, **members})
    return OpenAiCompatibleProvider(
        account, ROW, clock=lambda: datetime(2026, 11, 30, tzinfo=UTC), transport_options=options
    )


@dataclass
class Outcome:
    events: list[Event] = field(default_factory=list)
    batches: int = 0
    error: ProviderError | None = None
    facts: AttemptFacts = field(default_factory=AttemptFacts)
    took_s: float = 0.0

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    @property
    def text(self) -> str:
        raws = [json.loads(event.raw) for event in self.events if isinstance(event, OpaqueDelta)]
        return "".join(raw["choices"][0]["delta"]["content"] for raw in raws)

    @property
    def usage(self) -> UsageReport | None:
        return next(
            (event for event in reversed(self.events) if isinstance(event, UsageReport)), None
        )


async def call(
    provider: OpenAiCompatibleProvider,
    request: ChatRequest | None = None,
    *,
    model: str = "m",
    limits: Deadlines | None = None,
    pause_s: float = 0.0,
) -> Outcome:
    outcome = Outcome()
    start = time.monotonic()
    try:
        async with provider.stream(
            model, request or chat(), deadlines=limits or deadlines(), facts=outcome.facts
        ) as batches:
            async for batch in batches:
                outcome.batches += 1
                outcome.events += batch
                await asyncio.sleep(pause_s)
    except ProviderError as error:
        outcome.error = error
    outcome.took_s = time.monotonic() - start
    return outcome


@asynccontextmanager
async def running(
    *scripts: Answer | Chat | Wire, **members: object
) -> AsyncIterator[tuple[OpenAiCompatibleProvider, ScriptedUpstream]]:
    async with ScriptedUpstream({"m": list(scripts)}) as upstream:
        provider = provider_at(upstream.base_url, **members)
        try:
            yield provider, upstream
        finally:
            await provider.close()


def wire(*steps: Step | str, head: str = SSE_HEAD) -> Wire:
    return Wire(
        steps=(
            Step(text=head),
            *(step if isinstance(step, Step) else Step(text=step) for step in steps),
        )
    )


END = Step(ending="close")


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


async def test_refusals_give_their_connection_back() -> None:
    # GW-059: unread error bodies must not use the pool up.
    refusal = Answer(
        status=429,
        headers={"retry-after": "7"},
        body={"error": {"message": "slow", "code": "rate_limit_exceeded"}},
    )
    async with running(*[refusal] * 50, Chat(text="ok")) as (provider, upstream):
        refused = await call(provider)
        await asyncio.gather(*[call(provider, chat(stream=False)) for _ in range(49)])
        assert (await call(provider)).text == "ok"
        assert upstream.open_connections <= 50
    assert isinstance(refused.error, RateLimited)
    assert (refused.error.retry_after_s, refused.error.status, refused.facts.status) == (
        7,
        429,
        429,
    )


async def test_a_huge_refusal_is_cut_and_its_connection_closed() -> None:
    async with running(
        Answer(status=500, filler_bytes=8_000_000, body={"error": "x"}), Chat(text="ok")
    ) as (provider, _):
        refused = await call(provider)
        assert (await call(provider)).text == "ok"
    assert isinstance(refused.error, UpstreamFault)


async def test_leaving_closes_the_upstreams_socket_at_once() -> None:
    async with running(Chat(text="a " * 200, frame_delay_s=0.01)) as (provider, upstream):
        async with provider.stream(
            "m", chat(), deadlines=deadlines(), facts=AttemptFacts()
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


ENDINGS = {
    "a reset before anything": (Wire(steps=(Step(ending="reset"),)), ConnectionLost, []),
    "a close before anything": (Wire(steps=(END,)), ConnectionLost, []),
    "a reset after content (GW-031)": (Chat(text="a b c", end_after=2, ending="reset"), ConnectionLost, ["Preamble", "OpaqueDelta", "OpaqueDelta"]),
    "a close after content": (Chat(text="a b c", end_after=1, ending="close"), ConnectionLost, ["Preamble", "OpaqueDelta"]),
    "a close that looks like a good end": (Chat(text="a b c", end_after=1, framing="close"), ConnectionLost, ["Preamble", "OpaqueDelta"]),
    "an error event after content": (Chat(text="a b c", end_after=1, ending="error"), UpstreamFault, ["Preamble", "OpaqueDelta"]),
    "an error event first (GW-029)": (wire(": hb\n\n", 'event: error\ndata: {"error":{"message":"no","type":"invalid_request","code":400}}\n\n', END), BadRequest, []),
    "a broken event": (wire(CONTENT, 'data: {"id": "broken\n\n', CONTENT, END), BadWire, ["OpaqueDelta"]),
    "no answer at all (GW-049)": (wire("data: [DONE]\n\n", END), BadWire, []),
    "an empty body": (wire(END), ConnectionLost, []),
    "finish and end without the end mark": (wire(CONTENT, FINISH, USAGE, END), None, ["OpaqueDelta", "Finished", "UsageReport"]),
    "a reset after the finish": (wire(CONTENT, FINISH, Step(delay_s=0.02, ending="reset")), None, ["OpaqueDelta", "Finished"]),
    "silence after the finish": (wire(CONTENT, FINISH, Step(delay_s=30)), None, ["OpaqueDelta", "Finished"]),
    "usage some time after the finish (GW-027)": (wire(CONTENT, FINISH, Step(delay_s=0.03, text=USAGE), "data: [DONE]\n\n", END), None, ["OpaqueDelta", "Finished", "UsageReport"]),
    "a last event without its blank line": (wire(CONTENT, FINISH.rstrip("\n"), END), None, ["OpaqueDelta", "Finished"]),
    "not HTTP": (Wire(steps=(Step(text="SSH-2.0-OpenSSH\r\n", ending="close"),)), BadWire, []),
    "a header without end": (wire(head="HTTP/1.1 200 OK\r\nx: " + "y" * 40_000 + "\r\n\r\n"), BadWire, []),
    "more headers than there can be": (wire(head="HTTP/1.1 200 OK\r\n" + "x: y\r\n" * 500 + "\r\n"), BadWire, []),
    "chunks that are none": (wire("zz\r\nfoo", END, head="HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"), (BadWire, ConnectionLost), []),
}  # fmt: skip


@pytest.mark.parametrize(("script", "kind", "kinds"), ENDINGS.values(), ids=ENDINGS.keys())
async def test_how_a_stream_may_end(
    script: Chat | Wire, kind: type[ProviderError] | None, kinds: list[str]
) -> None:
    async with running(script) as (provider, _):
        outcome = await call(provider)
    assert outcome.kinds == kinds
    if kind is None:
        assert outcome.error is None
    else:
        assert isinstance(outcome.error, kind)
        assert outcome.facts.was_sent


@pytest.mark.parametrize("usage", [True, False])
async def test_usage_seen_before_a_break_is_reported(usage: bool) -> None:
    # GW-084
    beside = (
        CONTENT.replace("}\n\n", ',"usage":{"prompt_tokens":50,"completion_tokens":1}}\n\n')
        if usage
        else CONTENT
    )
    async with running(wire(beside, Step(delay_s=0.02, ending="reset"))) as (provider, _):
        outcome = await call(provider)
    assert isinstance(outcome.error, ConnectionLost)
    assert (outcome.usage is not None) is usage


def json_wire(body: bytes, **headers: str) -> Wire:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    return Wire(steps=(Step(text=head), Step(data=body)))


WHOLE = json.dumps(
    {
        "model": "m1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ok" * 1000},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
).encode()


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
    assert upstream.requests[0].headers["accept-encoding"] == "gzip, deflate"


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


COMPRESSED = {
    "a body that is not what it says": json_wire(WHOLE, content_encoding="gzip"),
    "a compression that nobody asked for": json_wire(WHOLE, content_encoding="br"),
    "a body cut short": json_wire(gzip.compress(WHOLE)[:60], content_encoding="gzip"),
}


@pytest.mark.parametrize("script", COMPRESSED.values(), ids=COMPRESSED.keys())
async def test_broken_compression_is_a_broken_wire(script: Wire) -> None:
    async with running(script) as (provider, _):
        outcome = await call(provider, chat(stream=False))
    assert isinstance(outcome.error, BadWire | ConnectionLost)


async def test_an_answer_that_ends_early_is_lost() -> None:
    async with running(Chat(text="a b c", end_after=0, ending="close")) as (provider, _):
        outcome = await call(provider, chat(stream=False))
    assert isinstance(outcome.error, ConnectionLost)


async def test_a_whole_answer_to_a_request_for_a_stream_becomes_one() -> None:
    async with running(json_wire(WHOLE)) as (provider, _):
        outcome = await call(provider)
    assert outcome.error is None
    assert outcome.kinds == ["OpaqueDelta", "Finished", "UsageReport"]
    assert outcome.text == "ok" * 1000


NO_STREAM = {
    "an error": (b'{"error":{"message":"no","code":"context_length_exceeded"}}', ProviderError),
    "a flat error": (
        b'{"object":"error","message":"bad","type":"BadRequestError","code":400}',
        BadRequest,
    ),
    "torn JSON": (b'{"id": "chatcmpl-1", "object": "chat.comp', BadWire),
    "nothing": (b"", BadWire),
    "an answer without choices": (b'{"choices":[]}', BadWire),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("body", "kind"), NO_STREAM.values(), ids=NO_STREAM.keys())
async def test_json_that_is_no_answer(body: bytes, kind: type[ProviderError], stream: bool) -> None:
    async with running(json_wire(body)) as (provider, _):
        outcome = await call(provider, chat(stream=stream))
    assert isinstance(outcome.error, kind)
    assert not [event for event in outcome.events if isinstance(event, CONTENT_EVENTS)]


TIMEOUTS = {
    "no head in time": (Chat(text="a", think_s=30), {"first_token_s": 0.15}, FirstTokenTimeout),
    "no content in time": (Chat(text="a", stall_after=0), {"first_token_s": 0.15}, FirstTokenTimeout),
    "keep-alives are no content": (wire(*[Step(delay_s=0.03, text=": ping\n\n")] * 100), {"first_token_s": 0.2}, FirstTokenTimeout),
    "silence amid content": (Chat(text="a b c", stall_after=1), {"between_tokens_s": 0.15}, StreamStalled),
    "a total limit amid steady content": (Chat(text="a " * 500, frame_delay_s=0.02), {"total_s": 0.25}, TotalTimeout),
    "a total limit before the head": (Chat(text="a", think_s=30), {"total_s": 0.15}, TotalTimeout),
}  # fmt: skip


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("script", "limits", "kind"), TIMEOUTS.values(), ids=TIMEOUTS.keys())
def test_deadlines(
    script: Chat | Wire, limits: dict[str, float], kind: type[ProviderError], loop: str
) -> None:
    async def scenario() -> Outcome:
        async with running(script) as (provider, _):
            return await call(provider, limits=deadlines(**limits))

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        outcome = runner.run(scenario())
    assert type(outcome.error) is kind
    assert 0.1 < outcome.took_s < 2


async def test_a_whole_answer_has_the_first_token_deadline_as_a_whole() -> None:
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(WHOLE)}\r\n\r\n"
    )
    script = Wire(
        steps=(Step(text=head), Step(data=WHOLE[:10]), *[Step(delay_s=0.03, data=b" ")] * 100)
    )
    async with running(script) as (provider, _):
        outcome = await call(provider, chat(stream=False), limits=deadlines(first_token_s=0.2))
    assert isinstance(outcome.error, FirstTokenTimeout)


async def test_steady_content_outlives_every_deadline_but_the_total() -> None:
    async with running(Chat(text="a " * 12, frame_delay_s=0.04)) as (provider, _):
        outcome = await call(provider, limits=deadlines(first_token_s=0.2, between_tokens_s=0.2))
    assert outcome.error is None
    assert outcome.took_s > 0.4


async def test_a_slow_reader_is_no_silence_of_the_upstream() -> None:
    async with running(Chat(text="a b c", frame_delay_s=0.01)) as (provider, _):
        outcome = await call(provider, limits=deadlines(between_tokens_s=0.1), pause_s=0.25)
    assert outcome.error is None
    assert outcome.text == "a b c"


async def test_a_refused_connection_sent_nothing() -> None:
    async with ScriptedUpstream({}) as upstream:
        base_url = upstream.base_url
    provider = provider_at(base_url)
    outcome = await call(provider)
    await provider.close()
    assert isinstance(outcome.error, NotSent)
    assert not outcome.facts.was_sent


async def test_a_full_pool_sends_nothing_and_says_so() -> None:
    options = TransportOptions(connections_max=1)
    async with running(Chat(text="a", think_s=0.4), options=options) as (provider, upstream):
        first = asyncio.create_task(call(provider))
        while not upstream.requests:
            await asyncio.sleep(0.01)
        second = await call(provider, limits=deadlines(connect_s=0.1))
        assert isinstance(second.error, NotSent)
        assert not second.facts.was_sent
        assert (await first).error is None


async def test_an_unknown_name_sent_nothing() -> None:
    provider = provider_at("http://nowhere.invalid/v1")
    outcome = await call(provider)
    await provider.close()
    assert isinstance(outcome.error, NotSent)


async def test_a_key_that_the_upstream_echoes_is_masked() -> None:
    # GW-115
    echo = Answer(
        status=400, body={"error": {"message": f"bad key {KEY} for https://h/v1?key={KEY}"}}
    )
    async with running(echo) as (provider, _):
        outcome = await call(provider)
    assert outcome.error is not None
    assert KEY not in f"{outcome.error!r} {outcome.error.message}"
    assert KEY not in repr(provider_at("http://127.0.0.1:1")._account)


async def test_repairs_are_counted_and_reach_the_client() -> None:
    call_frame = 'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}}]}\n\n'
    async with running(wire(call_frame, FINISH, END)) as (provider, _):
        outcome = await call(provider)
        assert provider.wire_faults == {"tool_call": 1}
    [event] = [event for event in outcome.events if isinstance(event, ToolCallDelta)]
    part = json.loads(event.raw)["choices"][0]["delta"]["tool_calls"][0]
    assert (part["id"], part["type"]) == ("call_r1_0_0", "function")


async def test_two_megabytes_in_one_event_pass() -> None:
    big = 'data: {"choices":[{"index":0,"delta":{"content":"' + "B" * 2_000_000 + '"}}]}\n\n'
    async with running(wire(big, FINISH, "data: [DONE]\n\n", END)) as (provider, _):
        outcome = await call(provider)
    assert len(outcome.text) == 2_000_000


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


async def test_refusal_of_a_credential_is_told_apart() -> None:
    async with running(
        Answer(status=401, body={"error": {"message": "no", "code": "invalid_api_key"}})
    ) as (provider, _):
        outcome = await call(provider)
    assert isinstance(outcome.error, CredentialError)
