"""The fault matrix: an upstream that dies at every place of a stream, in every way a wire can.

Real sockets on both sides of a gateway in this process. Each row says what the client's bytes are
and what the ledger's row says: how the attempt ended, how sure its counts are, and the counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gateway.gateway_harness import body, config_text, running_gateway
from tests.gateway.stream_reading import assemble, parse_sse
from tests.support.scripted_upstream import Chat, ScriptedUpstream, Step, Wire

pytestmark = pytest.mark.anyio

SERVER = "{timeouts: {connect_s: 2, first_token_s: 0.35, between_tokens_s: 0.25, total_s: 5}, heartbeat_s: 30}"
ONCE = "routing: {retries: {attempts: 1}}"


def event(delta: dict, reason: str | None = None, **members: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": "c1", "model": "m1", "choices": [choice], **members}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


ROLE = event({"role": "assistant", "content": ""})
WORDS = [event({"content": text}) for text in ("one", " two", " three")]
FINISH = event({}, "stop")
USAGE = b'data: {"id":"c1","model":"m1","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}\n\n'
DONE = b"data: [DONE]\n\n"
EVENTS = [ROLE, *WORDS, FINISH, USAGE, DONE]
CONTENT_AT, FINISH_AT, USAGE_AT = 1, 4, 5
"""The places of the first word, of the finish and of the counts in `EVENTS`."""

CLOSED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
SILENCE = Step(delay_s=3600)


def in_chunks(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the ledger says."""

    status: str
    quality: str
    usage: dict[str, int]


WHOLE = Row(status="ok", quality="exact", usage={"input": 9, "output": 3})
UNCOUNTED = Row(status="interrupted", quality="unknown", usage={})
NOTHING_CAME = Row(status="unknown_billing", quality="unknown", usage={})
REFUSED = Row(status="rejected", quality="exact", usage={})
NOT_SENT = Row(status="not_sent", quality="exact", usage={})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the client got: a status, whole events as they came, and the code of an error."""

    status: int
    events: Sequence[bytes] = ()
    code: str = ""


@asynccontextmanager
async def one_call(
    folder: Path, script: object, *, stream: bool, url: str | None = None, connect_s: float = 2.0
):
    """Ask once; the answer and the ledger's row."""
    async with ScriptedUpstream({"m": [script]}) as up:
        base_url = url or up.base_url
        text = config_text({"a": base_url.replace("PORT", str(up.port))}, server=SERVER, more=ONCE)
        text = text.replace("connect_s: 2,", f"connect_s: {connect_s},")
        async with running_gateway(folder, {"a": base_url}, text=text) as gateway:
            async with asyncio.timeout(8):
                got = await gateway.post(body(stream=stream))
            [(_, settled)] = await gateway.settled()
        yield got, settled


def check_client(got, seen: Seen) -> None:
    """Byte for byte: what came before the fault, then one error, or the end mark."""
    assert got.status_code == seen.status
    if seen.status != 200:
        assert got.json()["error"]["code"] == seen.code
        assert got.headers["content-type"] == "application/json"
        return
    sent = b"".join(seen.events)
    assert got.content.startswith(sent)
    rest = got.content[len(sent) :]
    if not seen.code:
        assert rest == DONE
        return
    [last], comments = parse_sse(rest)
    assert json.loads(last["data"])["error"]["code"] == seen.code
    assert comments == []


def check_row(settled, row: Row) -> None:
    found = Row(status=settled.status, quality=settled.quality, usage=dict(settled.usage))
    assert found == row
    assert bool(settled.cost_pico_usd) is bool(row.usage)
    assert bool(settled.error_code) is (row.status != "ok")


def deaths() -> dict[str, tuple[Wire, Seen, Row]]:
    """Before, within and after each event of a stream; by every way to die and both framings."""
    names = ["the role", *(f"word {n + 1}" for n in range(len(WORDS))), "the finish", "the counts", "the end mark"]  # fmt: skip
    found: dict[str, tuple[Wire, Seen, Row]] = {}
    for at, name in enumerate(names):
        for place, part in (("before", b""), ("within", EVENTS[at][: len(EVENTS[at]) // 2])):
            for way in ("a close", "a reset", "silence"):
                for framing in ("closed", "chunked"):
                    sentence = f"{way} {place} {name}, {framing}"
                    found[sentence] = death(at, part, way=way, framing=framing)
    for way in ("a close", "a reset", "silence"):
        found[f"{way} after the end mark, closed"] = death(7, b"", way=way, framing="closed")
    return found


def death(at: int, part: bytes, *, way: str, framing: str) -> tuple[Wire, Seen, Row]:
    """The script that sends `at` events and a part of the next, and what follows from it."""
    data = b"".join(EVENTS[:at])
    head, told = (CLOSED, data + part)
    if framing == "chunked":
        head, told = CHUNKED, in_chunks(data) + in_chunks(part)
    end = {
        "a close": Step(ending="close"),
        # RST overtakes what was not read yet.
        "a reset": Step(delay_s=0.1, ending="reset"),
        "silence": SILENCE,
    }[way]
    script = Wire(steps=(Step(data=head), Step(data=told), end))
    if at > USAGE_AT:
        return script, Seen(status=200, events=EVENTS[:USAGE_AT]), WHOLE
    if at > FINISH_AT:
        # Whole for the client; the prompt is counted by the gateway, the output by its events.
        return script, Seen(status=200, events=EVENTS[:USAGE_AT]), estimated(output=len(WORDS))
    is_late = way == "silence"
    code = "upstream_timeout" if is_late else "upstream_error"
    if at > CONTENT_AT:
        return script, Seen(status=200, events=EVENTS[:at], code=code), UNCOUNTED
    return script, Seen(status=504 if is_late else 502, code=code), NOTHING_CAME


def estimated(*, output: int) -> Row:
    return Row(status="ok", quality="estimated", usage={"output": output})


DEATHS = deaths()
QUICK = [
    "a close before word 1, closed", "a reset within word 2, chunked", "a close before the counts, chunked",
    "a reset before the end mark, closed",
]  # fmt: skip


TURNS_MAX = 5
STOOD_STILL_S = 0.1
"""The deadlines here are a few times that: a machine that is busier measures itself."""


async def undisturbed(folder: Path, check: Callable[[Path], Awaitable[None]]) -> None:
    """Check, again where the loop stood still for long and the upstream, which is in it, with it."""
    for turn in range(TURNS_MAX):
        latest_s = 0.0

        async def watch() -> None:
            nonlocal latest_s
            loop = asyncio.get_running_loop()
            while True:
                due_s = loop.time() + 0.01
                await asyncio.sleep(0.01)
                latest_s = max(latest_s, loop.time() - due_s)

        watching = asyncio.create_task(watch())
        try:
            await check(folder / str(turn))
        except AssertionError:
            if latest_s < STOOD_STILL_S or turn == TURNS_MAX - 1:
                raise
        else:
            return
        finally:
            watching.cancel()


async def check_death(folder: Path, sentence: str) -> None:
    script, seen, row = DEATHS[sentence]
    folder.mkdir()
    async with one_call(folder, script, stream=True) as (got, settled):
        check_client(got, seen)
        if row.quality == "estimated":
            assert settled.usage["input"] > 0
            assert settled.usage.pop("input") < 20
        check_row(settled, row)


@pytest.mark.parametrize("sentence", QUICK)
async def test_a_stream_that_dies(tmp_path: Path, sentence: str) -> None:
    await undisturbed(tmp_path, lambda folder: check_death(folder, sentence))


@pytest.mark.slow
@pytest.mark.parametrize("sentence", [name for name in DEATHS if name not in QUICK])
async def test_a_stream_that_dies_anywhere(tmp_path: Path, sentence: str) -> None:
    await undisturbed(tmp_path, lambda folder: check_death(folder, sentence))


HTML = b"<!doctype html><html><title>504</title><p>data: {}</html>"


def html(**headers: str) -> Wire:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(HTML)}\r\n{lines}\r\n".encode()
    return Wire(steps=(Step(data=head + HTML),))


def sized(size_bytes: int, data: bytes, *ends: Step, kind: str = "text/event-stream") -> Wire:
    """An answer that says how long it is, rightly or not."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {size_bytes}\r\n\r\n"
    return Wire(steps=(Step(data=head.encode() + data), *ends))


def after(head: bytes, *parts: bytes, gap_s: float = 0.0, end: str = "close") -> Wire:
    steps = [Step(data=part, delay_s=gap_s) for part in parts]
    return Wire(steps=(Step(data=head), *steps, Step(ending=end)))


def short(size_bytes: int) -> Wire:
    """A stream longer than it says, the surplus some time after the rest."""
    surplus = Step(data=STREAM[size_bytes:], delay_s=0.1, ending="close")
    return sized(size_bytes, STREAM[:size_bytes], surplus)


STREAM = b"".join(EVENTS)
UP_TO_WORD_2 = b"".join(EVENTS[:3])
BAD = Seen(status=502, code="upstream_error")
LATE = Seen(status=504, code="upstream_timeout")
CUT = Seen(status=200, events=EVENTS[:3], code="upstream_error")
COMPLETE = Seen(status=200, events=EVENTS[:USAGE_AT])
ERROR = b'data: {"error":{"message":"db-7.internal: pool exhausted","type":"server_error","code":"e7"}}\n\n'

STREAMS = {
    "slow, but within every deadline": (after(CLOSED, *EVENTS, gap_s=0.1), COMPLETE, WHOLE),
    "a byte at a time": (Wire(steps=(Step(data=CLOSED), *(Step(data=STREAM[at : at + 1]) for at in range(len(STREAM))), Step(ending="close"))), COMPLETE, WHOLE),
    "half-open from the request on": (Wire(steps=(SILENCE,)), LATE, NOTHING_CAME),
    "half-open from the head on": (Wire(steps=(Step(data=CLOSED), SILENCE)), LATE, NOTHING_CAME),
    "comments without end": (after(CLOSED, *[b": busy\n\n"] * 30, gap_s=0.05), LATE, NOTHING_CAME),
    "roles without end": (after(CLOSED, *[ROLE] * 30, gap_s=0.05), LATE, NOTHING_CAME),
    "a reset before the head": (Wire(steps=(Step(delay_s=0.05, ending="reset"),)), BAD, NOTHING_CAME),
    "a close before the head": (Wire(steps=(Step(ending="close"),)), BAD, NOTHING_CAME),
    "a torn head": (Wire(steps=(Step(data=b"HTTP/1.1 200 OK\r\ncontent-ty", ending="close"),)), BAD, NOTHING_CAME),
    "no HTTP": (Wire(steps=(Step(data=b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ending="close"),)), BAD, NOTHING_CAME),
    "a length that is short, at the end of an event": (short(len(UP_TO_WORD_2)), CUT, UNCOUNTED),
    "a length that is short, within an event": (short(len(UP_TO_WORD_2) + 20), CUT, UNCOUNTED),
    "a length that is short by the end mark": (short(len(STREAM) - len(DONE)), COMPLETE, WHOLE),
    "a length that is short, all at once": (sized(len(UP_TO_WORD_2), STREAM, Step(ending="close")), BAD, NOTHING_CAME),
    "a length that is long": (sized(len(STREAM) + 99, STREAM, Step(ending="close")), COMPLETE, WHOLE),
    "a length that is long, and no end mark": (sized(9999, UP_TO_WORD_2, Step(delay_s=0.05, ending="close")), CUT, UNCOUNTED),
    "a length that is long, and silence": (sized(9999, UP_TO_WORD_2, SILENCE), Seen(status=200, events=EVENTS[:3], code="upstream_timeout"), UNCOUNTED),
    "a length that is no number": (Wire(steps=(Step(data=b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n" + STREAM, ending="close"),)), BAD, NOTHING_CAME),
    "two lengths that differ": (Wire(steps=(Step(data=b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 9\r\n\r\n" + STREAM, ending="close"),)), BAD, NOTHING_CAME),
    "garbage for the first chunk's size": (after(CHUNKED, b"zz\r\n" + STREAM), BAD, NOTHING_CAME),
    "garbage for a later chunk's size": (Wire(steps=(Step(data=CHUNKED + in_chunks(UP_TO_WORD_2)), Step(data=b"zz\r\n\r\n", delay_s=0.1), SILENCE)), CUT, UNCOUNTED),
    "a chunk longer than its size": (Wire(steps=(Step(data=CHUNKED + in_chunks(UP_TO_WORD_2)), Step(data=b"5\r\ndata: {}\n\n\r\n", delay_s=0.1), SILENCE)), CUT, UNCOUNTED),
    "garbage behind the end mark": (after(CHUNKED, in_chunks(STREAM), b"zz\r\n"), COMPLETE, WHOLE),
    "HTML that says so": (html(content_type="text/html"), BAD, NOTHING_CAME),
    "HTML that says it is a stream": (html(content_type="text/event-stream"), BAD, NOTHING_CAME),
    "HTML that says it is JSON": (html(content_type="application/json"), BAD, NOTHING_CAME),
    "nothing at all": (sized(0, b""), BAD, NOTHING_CAME),
    "nothing but the end mark": (after(CLOSED, DONE), BAD, NOTHING_CAME),
    "a broken event": (after(CLOSED, UP_TO_WORD_2, b'data: {"id": "broken\n\n', *WORDS), CUT, UNCOUNTED),
    "an event that is no chunk": (after(CLOSED, UP_TO_WORD_2, b'data: {"choices":{"index":0}}\n\n', *WORDS), CUT, UNCOUNTED),
    "an error event behind content": (after(CLOSED, UP_TO_WORD_2, ERROR, DONE), CUT, UNCOUNTED),
    "an error event behind the role": (after(CLOSED, ROLE, ERROR), BAD, NOTHING_CAME),
    "an end mark before the finish": (after(CLOSED, UP_TO_WORD_2, DONE), Seen(status=200, events=EVENTS[:3]), estimated(output=2)),
    "bytes that claim to be compressed": (Wire(steps=(Step(data=b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n" + STREAM, ending="close"),)), BAD, NOTHING_CAME),
    "a redirect": (Wire(steps=(Step(data=b"HTTP/1.1 307 Go\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"),)), BAD, REFUSED),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("script", "seen", "row"), STREAMS.values(), ids=STREAMS.keys())
async def test_a_stream_with_a_fault(tmp_path: Path, script: Wire, seen: Seen, row: Row) -> None:
    async with one_call(tmp_path, script, stream=True) as (got, settled):
        assert b"db-7" not in got.content
        check_client(got, seen)
        if row.quality == "estimated":
            assert settled.usage.pop("input") > 0
        check_row(settled, row)


ANSWER = json.dumps(
    {
        "id": "c1",
        "model": "m1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3},
    }
).encode()  # fmt: skip
JSON = "application/json"
ANSWERS = {
    "slow, but within every deadline": (sized(len(ANSWER), ANSWER[:40], Step(data=ANSWER[40:], delay_s=0.2), kind=JSON), 200, WHOLE),
    "half-open within the body": (sized(len(ANSWER), ANSWER[:40], SILENCE, kind=JSON), 504, NOTHING_CAME),
    "a reset within the body": (sized(len(ANSWER), ANSWER[:40], Step(delay_s=0.1, ending="reset"), kind=JSON), 502, NOTHING_CAME),
    "a close within the body": (sized(len(ANSWER), ANSWER[:40], Step(ending="close"), kind=JSON), 502, NOTHING_CAME),
    "a length that is short": (sized(len(ANSWER) - 9, ANSWER, Step(ending="close"), kind=JSON), 502, NOTHING_CAME),
    "a length that is long": (sized(len(ANSWER) + 9, ANSWER, Step(delay_s=0.05, ending="close"), kind=JSON), 502, NOTHING_CAME),
    "garbage for a chunk's size": (after(CHUNKED, b"zz\r\n" + ANSWER), 502, NOTHING_CAME),
    "HTML": (html(content_type="text/html"), 502, NOTHING_CAME),
    "nothing at all": (sized(0, b"", kind=JSON), 502, NOTHING_CAME),
    "no choices": (sized(14, b'{"choices":[]}', kind=JSON), 502, NOTHING_CAME),
    "an error for an answer": (sized(24, b'{"error":{"code":"e7"}} ', kind=JSON), 502, NOTHING_CAME),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("script", "status", "row"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_a_whole_answer_with_a_fault(
    tmp_path: Path, script: Wire, status: int, row: Row
) -> None:
    async with one_call(tmp_path, script, stream=False) as (got, settled):
        assert got.status_code == status
        if status == 200:
            assert got.json()["choices"] == json.loads(ANSWER)["choices"]
        else:
            assert got.json()["error"]["code"] in {"upstream_error", "upstream_timeout"}
        check_row(settled, row)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_upstream_that_does_not_speak_tls_costs_nothing(
    tmp_path: Path, stream: bool
) -> None:
    url = "https://127.0.0.1:PORT/v1"
    async with one_call(tmp_path, Chat(), stream=stream, url=url, connect_s=0.2) as (got, settled):
        check_client(got, BAD)
        check_row(settled, NOT_SENT)


BREAKS = {
    "silence": (SILENCE, "upstream_timeout"),
    "a reset": (Step(delay_s=0.1, ending="reset"), "upstream_error"),
}


@pytest.mark.parametrize(("end", "code"), BREAKS.values(), ids=BREAKS.keys())
async def test_a_stream_that_broke_is_not_continued_elsewhere(
    tmp_path: Path, end: Step, code: str
) -> None:
    # GW-040: the client learns how its own stream ended, and the next deployment is left alone.
    first = Wire(steps=(Step(data=CLOSED + UP_TO_WORD_2), end))
    async with ScriptedUpstream({"m": [first]}) as a, ScriptedUpstream({"m": [Chat()]}) as b:
        urls = {"a": a.base_url, "b": b.base_url}
        text = config_text(urls, server=SERVER)
        async with running_gateway(tmp_path, urls, text=text) as gateway:
            got = await gateway.post(body(stream=True))
            [(_, settled)] = await gateway.settled()
        assert b.requests == []
    check_client(got, Seen(status=200, events=EVENTS[:3], code=code))
    check_row(settled, UNCOUNTED)


async def test_a_long_silence_within_the_deadline_is_bridged(tmp_path: Path) -> None:
    # GW-034: the model is at work on a large call; nobody on the way may give up meanwhile.
    part = {"index": 0, "id": "t1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    rest = {"index": 0, "function": {"arguments": "}"}}
    script = Wire(
        steps=(
            Step(data=CLOSED + event({"tool_calls": [part]})),
            Step(data=event({"tool_calls": [rest]}), delay_s=0.15),
            Step(data=event({}, "tool_calls") + DONE, ending="close"),
        )
    )
    server = SERVER.replace("heartbeat_s: 30", "heartbeat_s: 0.02")
    async with ScriptedUpstream({"m": [script]}) as up:
        text = config_text({"a": up.base_url}, server=server, more=ONCE)
        async with running_gateway(tmp_path, {"a": up.base_url}, text=text) as gateway:
            got = await gateway.post(body(stream=True))
            [(_, settled)] = await gateway.settled()
    found = assemble(got.content)
    assert (found.tool_arguments, found.reasons, found.is_done) == (
        {(0, 0): "{}"},
        {0: "tool_calls"},
        True,
    )
    assert len(found.comments) >= 3
    assert settled.status == "ok"
