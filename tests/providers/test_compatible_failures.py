"""How an attempt at an OpenAI-compatible upstream may fail, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import gzip

import pytest
import uvloop

from providers.contract import (
    CONTENT_EVENTS,
)
from providers.errors import (
    BadRequest,
    BadWire,
    ConnectionLost,
    CredentialError,
    FirstTokenTimeout,
    NotSent,
    Overloaded,
    ProviderError,
    RateLimited,
    StreamStalled,
    TotalTimeout,
    Unavailable,
    UpstreamFault,
)
from providers.transport import TransportOptions
from tests.providers.compatible_harness import (
    CHUNKED_HEAD,
    CONTENT,
    END,
    FINISH,
    KEY,
    USAGE,
    WHOLE,
    Outcome,
    call,
    chat,
    chunk,
    deadlines,
    json_wire,
    provider_at,
    running,
    wire,
)
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio


async def test_refusals_give_their_connection_back() -> None:
    # GW-059: unread error bodies must not use the pool up.
    refusal = Answer(
        status=429,
        headers={"retry-after": "7"},
        body={"error": {"message": "slow", "code": "rate_limit_exceeded"}},
    )
    options = TransportOptions(connections_max=10)
    async with running(*[refusal] * 50, Chat(text="ok"), options=options) as (provider, upstream):
        refused = await call(provider)
        await asyncio.gather(*[call(provider, chat(stream=False)) for _ in range(49)])
        assert (await call(provider)).text == "ok"
        assert upstream.open_connections <= 10
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


BROKEN_REFUSALS = {
    "a reset within it": Step(delay_s=0.02, ending="reset"),
    "an end before its length": END,
    "silence within it": Step(delay_s=30),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("end", BROKEN_REFUSALS.values(), ids=BROKEN_REFUSALS.keys())
async def test_a_refusal_whose_body_breaks_keeps_its_status(end: Step, stream: bool) -> None:
    head = "HTTP/1.1 429 Busy\r\nretry-after: 7\r\ncontent-length: 1000\r\n\r\n"
    script = Wire(steps=(Step(text=head + '{"error":{"message":"slow"'), end))
    async with running(script, Chat(text="ok")) as (provider, _):
        refused = await call(provider, chat(stream=stream))
        assert (await call(provider)).text == "ok"
    assert isinstance(refused.error, RateLimited)
    assert (refused.error.status, refused.error.retry_after_s) == (429, 7)
    assert refused.took_s < 2


async def test_a_refusal_that_is_compressed_otherwise_than_it_says_keeps_its_status() -> None:
    head = "HTTP/1.1 503 Busy\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nplain"
    async with running(Wire(steps=(Step(text=head),))) as (provider, _):
        refused = await call(provider)
    assert isinstance(refused.error, Unavailable)


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
    "JSON that calls itself a stream": (
        wire(' {"error":{"message":"no","code":400}}', END),
        BadRequest,
        [],
    ),
    "finish and end without the end mark": (wire(CONTENT, FINISH, USAGE, END), None, ["OpaqueDelta", "Finished", "UsageReport"]),
    "a reset after the finish": (wire(CONTENT, FINISH, Step(delay_s=0.02, ending="reset")), None, ["OpaqueDelta", "Finished"]),
    "silence after the finish": (wire(CONTENT, FINISH, Step(delay_s=30)), None, ["OpaqueDelta", "Finished"]),
    "a reset after the finish of a body in chunks": (
        wire(chunk(CONTENT + FINISH), Step(delay_s=0.02, ending="reset"), head=CHUNKED_HEAD),
        None,
        ["OpaqueDelta", "Finished"],
    ),
    "an error event in plain words": (
        wire("event: error\ndata: we are overloaded\n\n", END),
        Overloaded,
        [],
    ),
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


async def test_connections_that_break_leave_nothing_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripts = [Chat(text="a b", end_after=1, ending="reset"), Chat(text="ok"), Wire(steps=(END,))]
    async with running(*scripts, Chat(text="ok")) as (provider, _):
        for _ in range(4):
            await call(provider)
    # The last connection is reset while it idles in the pool.
    await asyncio.sleep(0.02)
    gc.collect()
    assert caplog.records == []


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
    "no head in time": (Chat(text="a", think_s=30), {"first_token_s": 0.08}, FirstTokenTimeout),
    "no content in time": (Chat(text="a", stall_after=0), {"first_token_s": 0.08}, FirstTokenTimeout),
    "keep-alives are no content": (wire(*[Step(delay_s=0.03, text=": ping\n\n")] * 100), {"first_token_s": 0.1}, FirstTokenTimeout),
    "silence amid content": (Chat(text="a b c", stall_after=1), {"between_tokens_s": 0.08}, StreamStalled),
    "a total limit amid steady content": (Chat(text="a " * 500, frame_delay_s=0.02), {"total_s": 0.15}, TotalTimeout),
    "a total limit before the head": (Chat(text="a", think_s=30), {"total_s": 0.08}, TotalTimeout),
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
    assert 0.07 < outcome.took_s < 2


async def test_a_whole_answer_has_the_first_token_deadline_as_a_whole() -> None:
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(WHOLE)}\r\n\r\n"
    )
    script = Wire(
        steps=(Step(text=head), Step(data=WHOLE[:10]), *[Step(delay_s=0.03, data=b" ")] * 100)
    )
    async with running(script) as (provider, _):
        outcome = await call(provider, chat(stream=False), limits=deadlines(first_token_s=0.1))
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
    assert KEY not in repr(provider_at("http://127.0.0.1:1")._upstream.account)


async def test_refusal_of_a_credential_is_told_apart() -> None:
    async with running(
        Answer(status=401, body={"error": {"message": "no", "code": "invalid_api_key"}})
    ) as (provider, _):
        outcome = await call(provider)
    assert isinstance(outcome.error, CredentialError)
