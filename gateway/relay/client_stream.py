"""The client's side of an answer: headers once, then bytes, over ASGI's `send`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from gateway.dialects.openai_answer import DONE, HEARTBEAT

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
HeaderPairs = Sequence[tuple[bytes, bytes]]

EVENT_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    # nginx in front of us must not collect the stream.
    (b"x-accel-buffering", b"no"),
)


class ClientStream:
    """One answer on its way to one client.

    Attributes:
        is_started: Whether headers are out; from then on failures are events, not statuses.
        is_finished: Whether the answer is whole, or given up.
        has_content: Whether a content event was sent; from then on there is no fallback.
        is_cut: Whether this process had to end the answer; an answer that was cancelled without it
            has lost its client.
        attempt: Deployment and number of the attempt in flight, for headers that go out early.
        last_sent_s: Monotonic instant of the last bytes, for heartbeats.
    """

    def __init__(self, send: Send, monotonic_s: Callable[[], float]) -> None:
        """Wrap ASGI's `send`.

        Args:
            send: ASGI's.
            monotonic_s: Clock for `last_sent_s`.
        """
        self._send = send
        self._monotonic_s = monotonic_s
        self.is_started = False
        self.is_finished = False
        self.has_content = False
        self.is_cut = False
        self.attempt: tuple[str, int] = ("", 0)
        self.last_sent_s = monotonic_s()

    async def send_whole(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        """Send a complete answer."""
        assert not self.is_started, "an answer starts once"
        self.is_started = True
        self.is_finished = True
        length = (b"content-length", str(len(body)).encode())
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, length]}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def start(self, headers: HeaderPairs) -> None:
        """Send the headers of an event stream."""
        assert not self.is_started, "an answer starts once"
        self.is_started = True
        start: Mapping[str, Any] = {
            "type": "http.response.start",
            "status": 200,
            "headers": [*EVENT_STREAM_HEADERS, *headers],
        }
        await self._send(dict(start))
        self.last_sent_s = self._monotonic_s()

    async def write(self, data: bytes) -> None:
        """Send whole events; returns when the client's socket has room again."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.last_sent_s = self._monotonic_s()

    async def heartbeat(self) -> None:
        """Send a comment, which every client ignores."""
        await self.write(HEARTBEAT)

    async def finish(self, *, is_clean: bool) -> None:
        """End the stream; only a clean end carries `[DONE]`."""
        self.is_finished = True
        body = DONE if is_clean else b""
        await self._send({"type": "http.response.body", "body": body})
