"""Servers on loopback that note every connection and every byte, and answer as they are told.

Each is some deployment's upstream. None of them is a vendor or a server of one's own by itself: the
configuration says which is what, and a test asks afterwards which of them anything came to. They
answer well by default, whoever asks, so that what reaches the wrong one is not mistaken for a
failure and tried elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

HEAD_END = b"\r\n\r\n"

Course = Literal[
    "well", "429", "500", "503", "cut", "reset", "redirect", "silent", "no http", "400"
]
COURSES: tuple[Course, ...] = (
    "well", "429", "500", "503", "cut", "reset", "redirect", "silent", "no http", "400",
)  # fmt: skip


class Recorder:
    """One server.

    Attributes:
        name: What it is called in answers.
        port: Where it listens on 127.0.0.1.
        course: How it answers from now on.
        elsewhere: Where its redirects lead.
        connections: Connections that were opened to it.
        data: Every byte that came.
        waiting: Connections on which it has not answered, being silent.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.course: Course = "well"
        self.elsewhere = ""
        self.connections = 0
        self.data = bytearray()
        self.waiting: list[asyncio.Transport] = []

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def is_untouched(self) -> bool:
        """Whether nobody connected and nothing came."""
        return not self.connections and not self.data

    @property
    def requests(self) -> int:
        """Requests that came."""
        return self.data.count(b" HTTP/1.1\r\n")

    def forget(self) -> None:
        """Note from here on."""
        self.connections = 0
        self.data.clear()
        self.waiting.clear()

    def answer_waiting(self) -> None:
        """Answer what has waited, in the course of now."""
        for transport in self.waiting:
            transport.write(self.answer(is_stream=False))
        self.waiting.clear()

    def answer(self, *, is_stream: bool) -> bytes:
        """The answer of its course; empty for none, and the end of the connection after it."""
        if self.course == "no http":
            return b"\x16\x03\x01 is no HTTP at all\r\n\r\n"
        if self.course == "redirect":
            return _head(307, "application/json", f"location: {self.elsewhere}") + HEAD_END
        if self.course == "400":
            return _whole(
                400, {"error": {"message": "too long", "code": "context_length_exceeded"}}
            )
        if self.course in ("429", "500", "503"):
            return _whole(int(self.course), {"error": {"message": "not now", "code": "busy"}})
        return self._completion(is_stream=is_stream)

    def _completion(self, *, is_stream: bool) -> bytes:
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        made = {"id": "c1", "created": 1, "model": "m"}
        message = {"role": "assistant", "content": f"{self.name} says hello"}
        if not is_stream:
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return _whole(
                200, {**made, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
        chunk = {**made, "object": "chat.completion.chunk"}
        first = {"choices": [{"index": 0, "delta": message, "finish_reason": None}]}
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        frames = [{**chunk, **one} for one in (first, last, {"choices": [], "usage": usage})]
        texts = [*map(json.dumps, frames), "[DONE]"]
        body = "".join(f"data: {text}\n\n" for text in texts).encode()
        head = _head(200, "text/event-stream", f"content-length: {len(body)}")
        return head + HEAD_END + body


class _Line(asyncio.Protocol):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._unread = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._recorder.connections += 1
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        recorder, unread = self._recorder, self._unread
        recorder.data += data
        unread += data
        while (at := unread.find(HEAD_END)) >= 0:
            head = bytes(unread[:at]).lower()
            _, _, after = head.partition(b"content-length:")
            size = int(after.split(b"\r\n")[0] or b"0")
            if len(unread) < at + len(HEAD_END) + size:
                return
            body = bytes(unread[at + len(HEAD_END) : at + len(HEAD_END) + size])
            del unread[: at + len(HEAD_END) + size]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        recorder, transport = self._recorder, self._transport
        assert isinstance(transport, asyncio.Transport)
        if recorder.course == "silent":
            recorder.waiting.append(transport)
            return
        if recorder.course == "reset":
            transport.abort()
            return
        try:
            is_stream = json.loads(body or b"{}").get("stream") is True
        except (ValueError, AttributeError):
            is_stream = False
        answer = recorder.answer(is_stream=is_stream)
        if recorder.course == "cut":
            answer = answer[: answer.index(HEAD_END) + 100]  # within the first event or object
        transport.write(answer)
        if recorder.course in ("cut", "no http"):
            transport.close()


def _head(status: int, kind: str, *lines: str) -> bytes:
    made = [f"HTTP/1.1 {status} Recorded", f"content-type: {kind}", *lines]
    if not any(line.startswith("content-length") for line in lines):
        made.append("content-length: 0")
    return "\r\n".join(made).encode()


def _whole(status: int, body: object) -> bytes:
    text = json.dumps(body).encode()
    return _head(status, "application/json", f"content-length: {len(text)}") + HEAD_END + text


@asynccontextmanager
async def recording(*names: str) -> AsyncIterator[dict[str, Recorder]]:
    """Servers by name, each of which redirects to the next one."""
    loop = asyncio.get_running_loop()
    made = {name: Recorder(name) for name in names}
    servers: list[asyncio.Server] = []
    for recorder in made.values():
        server = await loop.create_server(_line_of(recorder), "127.0.0.1", 0)
        recorder.port = server.sockets[0].getsockname()[1]
        servers.append(server)
    around = [*made.values()]
    for recorder, following in zip(around, [*around[1:], around[0]], strict=True):
        recorder.elsewhere = f"{following.url}/chat/completions"
    try:
        yield made
    finally:
        for server in servers:
            server.close()


def _line_of(recorder: Recorder) -> Callable[[], asyncio.Protocol]:
    return lambda: _Line(recorder)


class Names:
    """Stands in for the system's resolver and notes what is looked up.

    Args:
        answers: Address by name; every other name has none, and nobody is asked for it.
    """

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self._system = socket.getaddrinfo

    def __call__(self, host, port, *args, **options):
        """As `socket.getaddrinfo`."""
        name = host.decode() if isinstance(host, bytes) else host
        try:
            socket.inet_aton(name or "")
        except OSError:
            self.asked.append(name)
            if name not in self.answers:
                raise socket.gaierror(socket.EAI_NONAME, "no such name") from None
            host = self.answers[name]
        return self._system(host, port, *args, **options)
