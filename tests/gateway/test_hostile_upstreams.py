"""Upstreams that send what no upstream should: the client gets an answer or a clear error, the
attempt is settled, another deployment is tried, nobody else waits."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.gateway.gateway_harness import Gateway, body, error_of, running_gateway
from tests.gateway.upstream_wires import CONTENT, SSE_HEAD, STOP, events
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step, Wire
from tests.support.upstream_scripts import Script

pytestmark = pytest.mark.anyio

DEEP = "[" * 100_000 + "]" * 100_000
LOOP_GAP_S_MAX = 2.0
"""Far above what a busy machine adds, far below what these answers took without bounds."""


def whole(content: bytes, *headers: bytes) -> Wire:
    lines = [b"HTTP/1.1 200 OK", b"content-type: application/json", b"connection: close", *headers]
    return Wire(steps=(Step(data=b"\r\n".join(lines) + b"\r\n\r\n" + content, ending="close"),))


def sse(*parts: bytes) -> Wire:
    steps = [Step(data=b"data: " + part + b"\n\n") for part in parts]
    return Wire(steps=(Step(text=SSE_HEAD), *steps, Step(ending="close")))


@asynccontextmanager
async def in_front_of(folder: Path, *scripts: Script) -> AsyncIterator[Gateway]:
    """A gateway with a deployment per script, `a/m` first, for the model `chat`."""
    async with AsyncExitStack() as stack:
        urls = {
            name: (await stack.enter_async_context(ScriptedUpstream({"m": [script]}))).base_url
            for name, script in zip("abc", scripts, strict=False)
        }
        yield await stack.enter_async_context(running_gateway(folder, urls))


UNREADABLE = {
    "a whole answer that is nested too deeply": whole(b'{"choices":[{"x":%s}]}' % DEEP.encode()),
    "an event that is nested too deeply": sse(b'{"choices":[],"x":%s}' % DEEP.encode()),
    "an error that is nested too deeply": Wire(
        steps=(
            Step(text="HTTP/1.1 500 X\r\nconnection: close\r\n\r\n"),
            Step(text='{"error":' + DEEP + "}"),
            Step(ending="close"),
        )
    ),
    "a model's name that is no UTF-8": sse(b'{"model":"\xff","choices":[]}'),
    "a tool call that is no UTF-8": sse(
        b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"\xff"}]}}]}'
    ),
    "thousands of objects in one event": sse(b'{"choices":[]}' * 100_000),
}


@pytest.mark.parametrize("script", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_answer_that_cannot_be_read_lets_another_deployment_serve(tmp_path, script):
    async with in_front_of(tmp_path, script, Chat()) as gateway:
        got = await gateway.post(body(stream="event-stream" in script.steps[0].text))
        assert (got.status_code, got.headers["x-fareway-deployment"]) == (200, "b/m")
        assert len(await gateway.settled()) == 2


NAMES = {
    "bytes that are no UTF-8": b"x-request-id: \xff\xfe",
    "a text outside ASCII": b"x-request-id: \xc3\xa9",
    "a sentence": b"x-request-id: the prompt was: my password is",
}


@pytest.mark.parametrize("header", NAMES.values(), ids=NAMES.keys())
async def test_a_request_id_that_is_no_identifier_is_not_kept_and_loses_nothing(tmp_path, header):
    message = {"role": "assistant", "content": "hi"}
    answer = {
        "choices": [{"index": 0, "message": message, "finish_reason": "my password is"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    script = whole(json.dumps(answer).encode(), header)
    async with in_front_of(tmp_path, script) as gateway:
        assert (await gateway.post(body())).status_code == 200
        [(_, settlement)] = await gateway.settled()
        assert settlement.status == "ok"
        assert settlement.cost_pico_usd == 7_000_000
        assert settlement.upstream_request_id == "unnamed"
        assert settlement.finish_reason == "unnamed"


async def test_an_error_code_that_is_a_sentence_is_not_kept(tmp_path):
    script = Answer(status=400, body={"error": {"message": "no", "code": "my password is"}})
    async with in_front_of(tmp_path, script) as gateway:
        assert error_of(await gateway.post(body()))["code"] == "my password is"
        [(_, settlement)] = await gateway.settled()
        assert settlement.error_code == "unnamed"


@pytest.mark.ci
@pytest.mark.slow
async def test_frames_without_content_do_not_pile_up(tmp_path):
    role = 'data: {"id":"c1","choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'
    script = events(*[role * 20_000] * 40, CONTENT, STOP)
    async with in_front_of(tmp_path, script) as gateway:
        gateway.set_limits(attempts_max=1)
        got = await gateway.post(body(stream=True))
        assert "holds no content" in error_of(got)["message"]


SWOLLEN = gzip.compress(b": x\n" * 8_000_000)
LARGE = {
    "an error with a message of megabytes": sse(
        b'{"error":{"message":"%s"}}' % (b"context " * 1_900_000)
    ),
    "millions of objects in one event": sse(b"{}" * 4_000_000),
    "millions of comments in a few compressed bytes": Wire(
        steps=(
            Step(text=SSE_HEAD.replace("connection", "content-encoding: gzip\r\nconnection")),
            Step(data=SWOLLEN, ending="close"),
        )
    ),
}


@pytest.mark.parametrize("script", LARGE.values(), ids=LARGE.keys())
@pytest.mark.slow
async def test_a_huge_answer_does_not_hold_up_others(tmp_path, script):
    async with in_front_of(tmp_path, script) as gateway:
        # On a busy machine reading it takes longer than the default silence before a heartbeat,
        # after which the error would come in the stream.
        gateway.set_limits(attempts_max=1, heartbeat_s=600.0, first_token_s=600.0)
        gaps: list[float] = []

        async def beat():
            while True:
                before = time.monotonic()
                await anyio.sleep(0.002)
                gaps.append(time.monotonic() - before)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beat)
            assert (await gateway.post(body(stream=True))).status_code == 502
            tasks.cancel_scope.cancel()
        assert max(gaps) < LOOP_GAP_S_MAX
