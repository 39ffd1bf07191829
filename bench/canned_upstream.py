"""The fastest upstream that plain asyncio allows: canned chat answers, streamed or whole.

Run as `python -m bench.canned_upstream`; prints its port. A stream is written in one piece,
so that the upstream's own pace is never what is measured.
"""

from __future__ import annotations

import asyncio
import json
from typing import cast

import uvloop

FRAMES = 16
USAGE = {"prompt_tokens": 20, "completion_tokens": FRAMES, "total_tokens": 20 + FRAMES}
HEAD = {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": "m"}


def chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    """One event of the stream, as an HTTP chunk."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event({**HEAD, "object": "chat.completion.chunk", "choices": [choice]})


def event(payload: object) -> bytes:
    """One event, as an HTTP chunk."""
    text = payload if isinstance(payload, str) else json.dumps(payload, separators=(",", ":"))
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole_answer() -> bytes:
    """A whole HTTP answer to a chat request without a stream."""
    message = {"role": "assistant", "content": " word" * FRAMES}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    data = json.dumps(body).encode()
    head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def stream_answer() -> bytes:
    """A whole HTTP answer to a streamed chat request with usage."""
    usage = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
    parts = [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": " word"}) for _ in range(FRAMES)),
        chunk({}, "stop"),
        event(usage),
        event("[DONE]"),
        b"0\r\n\r\n",
    ]
    return b"".join(parts)


class CannedProtocol(asyncio.Protocol):
    """Answers as soon as a request is whole; understands nothing but lengths."""

    whole = whole_answer()
    stream = stream_answer()

    def __init__(self) -> None:
        self._unread = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer every whole request that has arrived."""
        self._unread += data
        assert self._transport is not None
        while (end := self._unread.find(b"\r\n\r\n")) >= 0:
            head = self._unread[:end].lower()
            _, _, rest = head.partition(b"content-length:")
            size = int(rest.split(b"\r\n", 1)[0]) if rest else 0
            if len(self._unread) < end + 4 + size:
                return
            body = self._unread[end + 4 : end + 4 + size]
            self._unread = self._unread[end + 4 + size :]
            is_stream = b'"stream":true' in body.replace(b" ", b"")
            self._transport.write(self.stream if is_stream else self.whole)


async def serve() -> None:
    """Serve until the process is ended."""
    server = await asyncio.get_running_loop().create_server(CannedProtocol, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
