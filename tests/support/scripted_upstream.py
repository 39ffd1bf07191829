"""An OpenAI-compatible upstream on loopback that does what a script says, and keeps its own bill.

Plain asyncio sockets, so that a test decides every byte on the wire: split anywhere, stalled,
reset, closed early, refused with a header, or huge. Three kinds of script:

Chat    a correct chat completion, streamed or not as the client asks, with optional accidents
Answer  one fixed HTTP answer (429 with `Retry-After`, 500, a huge body)
Wire    raw bytes and pauses from the status line on, for everything that is not even HTTP

A model maps to a list of scripts: one per call, the last one for ever after. The model `*` answers
for names that have no list. In a test::

    async with ScriptedUpstream({"m": [Chat(text="Hello there")]}) as upstream:
        ...  # upstream.base_url, upstream.bill, upstream.requests

In a process of its own, which survives the death of the gateway: `with UpstreamProcess(scripts)`,
or `python -m tests.support.scripted_upstream --port 0 --script FILE`, which prints the port.

The bill holds what a vendor would charge: a line appears once something was generated, whether or
not the client ever saw it. Read it with `GET /bill`; `GET /requests` shows what arrived, and
`GET /calls` how many calls are being answered.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.support.upstream_connection import ClientLeft, Connection, answer_bytes, head_bytes
from tests.support.upstream_scripts import (
    Answer,
    BillLine,
    Chat,
    Received,
    Script,
    Scripts,
    Step,
    Wire,
)

__all__ = [
    "Answer",
    "BillLine",
    "Chat",
    "Received",
    "ScriptedUpstream",
    "Step",
    "UpstreamProcess",
    "Wire",
]

REPOSITORY = Path(__file__).resolve().parents[2]


def words_of(body: Mapping[str, Any]) -> int:
    """Words in the messages' text, at least one: this upstream's token count of a prompt."""
    texts = re.findall(r"\S+", json.dumps(body.get("messages", "")))
    return max(1, len(texts))


class ScriptedUpstream:
    """The server; an async context manager.

    Args:
        scripts: Scripts per model; may be changed while the server runs.
        port: Port to bind on 127.0.0.1, 0 for any.
    """

    def __init__(self, scripts: Scripts, *, port: int = 0) -> None:
        self.scripts = {model: list(steps) for model, steps in scripts.items()}
        self.bill: list[BillLine] = []
        self.requests: list[Received] = []
        self.port = port
        self._calls: dict[str, int] = {}
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls_in_play = 0
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """The OpenAI base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(reader, writer)
        try:
            while True:
                request = await connection.request()
                if not await self._answer(connection, request):
                    break
        except ClientLeft:
            writer.transport.abort()
        except asyncio.CancelledError:
            # The server is closing; asyncio would report the cancelled handler as a fault.
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            await connection.close()

    async def _answer(self, connection: Connection, request: Received) -> bool:
        """Answer one request; False when the connection has to end."""
        path = request.path.partition("?")[0]
        shown: Any = None
        if request.method == "GET" and path == "/bill":
            shown = self.bill
        elif request.method == "GET" and path == "/calls":
            shown = {"in_play": self.calls_in_play}
        elif request.method == "GET" and path == "/requests":
            shown = self.requests
        elif request.method == "GET" and path.endswith("/models"):
            shown = {
                "object": "list",
                "data": [{"id": name, "object": "model", "created": 0, "owned_by": "scripted"}
                         for name in self.scripts],
            }  # fmt: skip
        elif request.method != "POST":
            await _send_error(connection, 404, f"no route {request.method} {path}")
            return True
        if shown is not None:
            body = msgspec.json.encode(shown)
            await connection.write(answer_bytes(200, {"content-type": "application/json"}, body))
            return True
        self.requests.append(request)
        model = str(request.json().get("model", ""))
        script = self._next_script(model)
        if script is None:
            await _send_error(connection, 404, f"no script for model {model!r}")
            return True
        self.calls_in_play += 1
        try:
            return await self._play(connection, request, script=script, model=model)
        finally:
            self.calls_in_play -= 1

    def _next_script(self, model: str) -> Script | None:
        steps = self.scripts.get(model) or self.scripts.get("*")
        if not steps:
            return None
        call = self._calls.get(model, 0)
        self._calls[model] = call + 1
        return steps[min(call, len(steps) - 1)]

    async def _play(
        self, connection: Connection, request: Received, *, script: Script, model: str
    ) -> bool:
        if isinstance(script, Answer):
            await connection.pause(script.delay_s)
            body = b" " * script.filler_bytes + json.dumps(script.body).encode()
            headers = {"content-type": "application/json", **script.headers}
            await connection.write(answer_bytes(script.status, headers, body))
            return True
        if isinstance(script, Chat):
            play = _ChatPlay(self, connection, request=request, script=script, model=model)
            return await play.run()
        if script.billed_tokens is not None:
            line = self.open_line(request)
            line.completion_tokens = script.billed_tokens
            line.outcome = "finished"
        for step in script.steps:
            await connection.pause(step.delay_s)
            await connection.write(step.text.encode("latin-1") + step.data)
            if step.ending == "reset":
                connection.reset()
            if step.ending:
                return False
        return True

    def new_id(self) -> str:
        """The next id of a call."""
        return f"chatcmpl-{next(self._ids)}"

    def open_line(
        self, request: Received, *, script: Chat | None = None, call_id: str = ""
    ) -> BillLine:
        """Put a line on the bill: the prompt was processed."""
        body = request.json()
        fixed = None if script is None else script.prompt_tokens
        line = BillLine(
            id=call_id or self.new_id(),
            model=str(body.get("model", "")),
            prompt_tokens=words_of(body) if fixed is None else fixed,
            cached_tokens=0 if script is None else script.cached_tokens,
            completion_tokens=0,
            is_stream=bool(body.get("stream")),
            attempt_id=request.headers.get("x-client-request-id", ""),
        )
        self.bill.append(line)
        return line


class _ChatPlay:
    """One call of a `Chat` script."""

    def __init__(
        self,
        upstream: ScriptedUpstream,
        connection: Connection,
        *,
        request: Received,
        script: Chat,
        model: str,
    ) -> None:
        self._upstream = upstream
        self._connection = connection
        self._request = request
        self._body = request.json()
        self._script = script
        self._model = model
        self._id = upstream.new_id()
        sizes = script.cut_bytes
        self._cuts = itertools.chain(sizes, itertools.repeat(sizes[-1])) if sizes else None
        self._frames = list(script.frames) or [
            self._chunk({"content": piece}) for piece in re.findall(r"\s*\S+", script.text)
        ]
        self._has_client = True

    async def run(self) -> bool:
        """Play; False when the connection has to end."""
        await self._rest(self._script.think_s)
        line = self._upstream.open_line(self._request, script=self._script, call_id=self._id)
        try:
            keeps = await (self._stream(line) if line.is_stream else self._whole(line))
        except ClientLeft:
            line.outcome = "client_left"
            raise
        if line.outcome == "running":
            line.outcome = "finished" if self._has_client else "client_left"
        return keeps and self._has_client

    async def _rest(self, seconds_s: float) -> None:
        """Wait; a client that leaves stops the generation, unless the script runs on."""
        try:
            if self._has_client:
                await self._connection.pause(seconds_s)
            else:
                await asyncio.sleep(seconds_s)
        except ClientLeft:
            if not self._script.runs_on:
                raise
            self._has_client = False
            await asyncio.sleep(seconds_s)

    async def _send(self, data: bytes) -> None:
        try:
            if self._has_client:
                await self._connection.write(data, cuts=self._cuts, gap_s=self._script.gap_s)
        except ClientLeft:
            if not self._script.runs_on:
                raise
            self._has_client = False

    async def _event(self, payload: str) -> None:
        data = f"data: {payload}\n\n".encode()
        if self._script.framing == "chunked":
            data = b"%x\r\n%s\r\n" % (len(data), data)
        await self._send(data)

    async def _whole(self, line: BillLine) -> bool:
        line.completion_tokens = self._completion_tokens(len(self._frames))
        message = {"role": "assistant", "content": self._script.text}
        choice = {"index": 0, "message": message, "finish_reason": self._script.finish_reason}
        body = json.dumps(
            {
                **self._envelope("chat.completion"),
                "choices": [choice],
                "usage": self._usage(line),
            }
        ).encode()
        data = answer_bytes(200, self._headers("application/json"), body)
        if self._script.end_after is None:
            await self._send(data)
            return True
        # An answer that ends early ends in the middle of its body.
        line.outcome = self._script.ending
        await self._send(data[: len(data) - len(body) // 2])
        return await self._end()

    async def _stream(self, line: BillLine) -> bool:
        script = self._script
        framing = (
            {"transfer-encoding": "chunked"}
            if script.framing == "chunked"
            else {"connection": "close"}
        )
        await self._send(head_bytes(200, {**self._headers("text/event-stream"), **framing}))
        await self._event(self._chunk({"role": "assistant", "content": ""}))
        for count, frame in enumerate(self._frames):
            if script.stall_after == count:
                await self._rest(script.stall_s)
            if script.end_after == count:
                line.outcome = script.ending
                return await self._end()
            if count:
                await self._rest(script.frame_delay_s)
            # Generated first, sent second: what dies on the way is billed all the same.
            line.completion_tokens = self._completion_tokens(count + 1)
            await self._event(frame)
        await self._event(self._chunk({}, finish_reason=script.finish_reason))
        if self._reports_usage():
            report = {**self._envelope("chat.completion.chunk"), "choices": []}
            await self._event(json.dumps({**report, "usage": self._usage(line)}))
        await self._event("[DONE]")
        if script.framing == "chunked":
            await self._send(b"0\r\n\r\n")
        return script.framing == "chunked"

    async def _end(self) -> bool:
        if self._script.ending == "error":
            fault = {"message": "scripted fault", "type": "server_error", "code": "scripted"}
            await self._event(json.dumps({"error": fault}))
        if self._script.ending == "reset":
            # RST overtakes what the client has not read yet; let the content arrive first.
            await self._rest(0.02)
            self._connection.reset()
        return False

    def _completion_tokens(self, frames: int) -> int:
        whole = self._script.completion_tokens
        if whole is None:
            return frames
        return whole * frames // len(self._frames)

    def _reports_usage(self) -> bool:
        if self._script.sends_usage != "asked":
            return self._script.sends_usage == "always"
        return bool((self._body.get("stream_options") or {}).get("include_usage"))

    def _usage(self, line: BillLine) -> dict[str, Any]:
        if self._script.usage is not None:
            return self._script.usage
        return {
            "prompt_tokens": line.prompt_tokens,
            "completion_tokens": line.completion_tokens,
            "total_tokens": line.prompt_tokens + line.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": line.cached_tokens},
        }

    def _headers(self, content_type: str) -> dict[str, str]:
        return {"content-type": content_type, "x-request-id": self._id, **self._script.headers}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": 1_700_000_000, "model": self._model}

    def _chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return json.dumps({**self._envelope("chat.completion.chunk"), "choices": [choice]})


async def _send_error(connection: Connection, status: int, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "code": "scripted_404"}
    body = json.dumps({"error": error}).encode()
    await connection.write(answer_bytes(status, {"content-type": "application/json"}, body))


class UpstreamProcess:
    """The upstream in a process of its own, for tests that kill the gateway; a context manager.

    Args:
        scripts: Scripts per model.
        folder: Where the script file is written.
    """

    def __init__(self, scripts: Scripts, *, folder: Path) -> None:
        self._file = folder / "upstream-scripts.json"
        self._file.write_bytes(msgspec.json.encode(dict(scripts)))
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def base_url(self) -> str:
        """The OpenAI base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "--port", "0", "--script", str(self._file)],
            cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=10)

    def bill(self) -> list[BillLine]:
        """The bill as it is now."""
        return msgspec.json.decode(self._get("/bill"), type=list[BillLine])

    def calls_in_play(self) -> int:
        """Calls that are being answered; one whose client left counts no more."""
        return json.loads(self._get("/calls"))["in_play"]

    def requests(self) -> list[Received]:
        """Every request that arrived."""
        return msgspec.json.decode(self._get("/requests"), type=list[Received])

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read()


async def _serve_until_terminated(scripts: Scripts, *, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ScriptedUpstream(scripts, port=port) as upstream:
        print(upstream.port, flush=True)
        await stop.wait()


def main() -> None:
    """Serve the scripts of a JSON file: a map from model to a list of scripts."""
    parser = argparse.ArgumentParser(description="Serve scripted chat completions on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path, required=True)
    options = parser.parse_args()
    scripts = msgspec.json.decode(options.script.read_bytes(), type=dict[str, list[Script]])
    asyncio.run(_serve_until_terminated(scripts, port=options.port))


if __name__ == "__main__":
    main()
