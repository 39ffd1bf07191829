"""The scripted upstream does what it is told, byte for byte, and its bill tells the truth."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import httpx
import pytest

from tests.support.scripted_upstream import (
    Answer,
    Chat,
    ScriptedUpstream,
    Step,
    UpstreamProcess,
    Wire,
)

pytestmark = pytest.mark.anyio

ASK = {"model": "m", "messages": [{"role": "user", "content": "one two three"}]}
STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}


def frames_of(body: str) -> list[str]:
    return [event.removeprefix("data: ") for event in body.split("\n\n") if event]


async def raw_exchange(upstream: ScriptedUpstream, body: dict) -> list[bytes]:
    """Send one request and return what arrived, one entry per socket read."""
    payload = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(payload)}\r\n\r\n"
    reads = []
    async with await anyio.connect_tcp("127.0.0.1", upstream.port) as stream:
        await stream.send(head.encode() + payload)
        while not b"".join(reads).endswith(b"0\r\n\r\n"):
            reads.append(await stream.receive())
    return reads


async def test_a_whole_answer_carries_its_usage_and_is_billed_once() -> None:
    script = Chat(text="Hello out there", prompt_tokens=9, cached_tokens=4)
    async with ScriptedUpstream({"m": [script]}) as upstream, httpx.AsyncClient() as client:
        answer = await client.post(f"{upstream.base_url}/chat/completions", json=ASK)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello out there"
    assert answer.json()["usage"]["completion_tokens"] == 3
    [line] = upstream.bill
    assert (line.prompt_tokens, line.cached_tokens, line.completion_tokens) == (9, 4, 3)
    assert line.outcome == "finished"
    assert line.id == answer.json()["id"] == answer.headers["x-request-id"]


async def test_a_stream_ends_with_usage_and_done_when_usage_was_asked_for() -> None:
    async with (
        ScriptedUpstream({"*": [Chat(text="a b c")]}) as upstream,
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(f"{upstream.base_url}/chat/completions", json=STREAM)
    *chunks, usage, done = frames_of(answer.text)
    texts = [json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "a b c"
    assert json.loads(usage)["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_cutting_the_answer_changes_the_reads_and_not_the_bytes(size: int) -> None:
    async with ScriptedUpstream({"m": [Chat(text="é ü")]}) as upstream:
        whole = await raw_exchange(upstream, STREAM)
    script = Chat(text="é ü", cut_bytes=(size,), gap_s=0)
    async with ScriptedUpstream({"m": [script]}) as upstream:
        pieces = await raw_exchange(upstream, STREAM)
    assert b"".join(pieces) == b"".join(whole)
    assert len(pieces) > len(whole)


async def test_scripts_of_a_model_follow_one_another_and_the_last_one_stays() -> None:
    refusal = Answer(status=429, headers={"retry-after": "2"}, body={"error": {"message": "no"}})
    async with (
        ScriptedUpstream({"m": [refusal, Chat()]}) as upstream,
        httpx.AsyncClient(base_url=upstream.base_url) as client,
    ):
        answers = [await client.post("/chat/completions", json=ASK) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 200, 200]
    assert answers[0].headers["retry-after"] == "2"
    assert len(upstream.bill) == 2


async def test_a_reset_reaches_the_client_as_a_reset_and_bills_what_was_generated() -> None:
    script = Chat(text="a b c d", end_after=2, ending="reset")
    async with ScriptedUpstream({"m": [script]}) as upstream, httpx.AsyncClient() as client:
        with pytest.raises(httpx.ReadError):
            await client.post(f"{upstream.base_url}/chat/completions", json=STREAM)
    [line] = upstream.bill
    assert (line.completion_tokens, line.outcome) == (2, "reset")


async def test_an_early_close_leaves_the_chunked_body_unfinished() -> None:
    script = Chat(text="a b c d", end_after=2)
    async with ScriptedUpstream({"m": [script]}) as upstream, httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(f"{upstream.base_url}/chat/completions", json=STREAM)


async def test_a_client_that_leaves_stops_the_bill_at_what_was_generated() -> None:
    script = Chat(text="a b c d e f", stall_after=2)
    async with (
        ScriptedUpstream({"m": [script]}) as upstream,
        httpx.AsyncClient() as client,
    ):
        url = f"{upstream.base_url}/chat/completions"
        async with client.stream("POST", url, json=STREAM) as answer:
            async for line in answer.aiter_lines():
                if '" b"' in line:
                    break
        with anyio.fail_after(5):
            while upstream.bill[0].outcome == "running":
                await anyio.sleep(0.005)
    assert (upstream.bill[0].completion_tokens, upstream.bill[0].outcome) == (2, "client_left")


async def test_an_upstream_that_runs_on_bills_the_whole_answer() -> None:
    script = Chat(text="a b c d e f", frame_delay_s=0.01, runs_on=True)
    async with (
        ScriptedUpstream({"m": [script]}) as upstream,
        httpx.AsyncClient() as client,
    ):
        url = f"{upstream.base_url}/chat/completions"
        async with client.stream("POST", url, json=STREAM):
            pass
        with anyio.fail_after(5):
            while upstream.bill[0].outcome == "running":
                await anyio.sleep(0.005)
    assert (upstream.bill[0].completion_tokens, upstream.bill[0].outcome) == (6, "client_left")


async def test_wire_steps_are_sent_as_they_are() -> None:
    steps = (Step(text="HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"), Step(data=b"\xff\x00ab"))
    async with (
        ScriptedUpstream({"m": [Wire(steps=steps)]}) as upstream,
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(f"{upstream.base_url}/chat/completions", json=ASK)
    assert answer.content == b"\xff\x00ab"


async def test_a_huge_answer_is_as_huge_as_it_says() -> None:
    script = Answer(body={"ok": True}, filler_bytes=3_000_000)
    async with ScriptedUpstream({"m": [script]}) as upstream, httpx.AsyncClient() as client:
        answer = await client.post(f"{upstream.base_url}/chat/completions", json=ASK)
    assert len(answer.content) > 3_000_000
    assert answer.json() == {"ok": True}


@pytest.mark.slow
def test_the_process_keeps_its_bill_when_a_client_is_killed(tmp_path: Path) -> None:
    caller = "import sys, urllib.request as u; u.urlopen(sys.argv[1], sys.argv[2].encode()).read()"
    with UpstreamProcess({"m": [Chat(text="a b", stall_after=1)]}, folder=tmp_path) as upstream:
        arguments = [f"{upstream.base_url}/chat/completions", json.dumps(STREAM)]
        client = subprocess.Popen([sys.executable, "-c", caller, *arguments])
        while not (upstream.bill() and upstream.bill()[0].completion_tokens):
            assert client.poll() is None
        os.kill(client.pid, signal.SIGKILL)
        client.wait()
        while upstream.bill()[0].outcome == "running":
            pass
        assert upstream.bill()[0].completion_tokens == 1
        assert upstream.requests()[0].json() == STREAM
        port = upstream.port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
