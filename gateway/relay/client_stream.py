"""The client's side of an answer: headers once, then bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gateway.dialects.openai_answer import DONE, HEARTBEAT

EVENT_STREAM_HEADERS: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache, no-transform\r\n"
    # nginx in front of us must not collect the stream.
    b"x-accel-buffering: no\r\n"
)
JSON_HEADER: Final = b"content-type: application/json\r\n"


class Wire(Protocol):
    """A connection on which one answer is written; a write never waits."""

    @property
    def is_blocked(self) -> bool:
        """Whether the client has yet to take much of what was written."""
        ...

    def send_whole(self, status: int, headers: bytes, body: bytes) -> None:
        """Write a complete answer."""
        ...

    def start(self, status: int, headers: bytes, first: bytes = b"") -> None:
        """Write the head of an answer whose length is not known, and what there is of its body."""
        ...

    def write(self, data: bytes) -> None:
        """Write a part of its body."""
        ...

    def finish(self, data: bytes) -> None:
        """Write the last part and end the answer."""
        ...

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""
        ...


class ClientStream:
    """One answer on its way to one client.

    Attributes:
        is_started: Whether headers are out; from then on failures are events, not statuses.
        is_finished: Whether the answer is whole, or given up.
        has_content: Whether a content event was sent; from then on there is no fallback.
        is_cut: Whether this process had to end the answer; an answer that was cancelled without it
            has lost its client.
        has_left: Whether the client is gone; what is written goes nowhere.
        drains: Whether the attempt in flight is read to its end although the client has left.
        attempt: Deployment and number of the attempt in flight, for headers that go out early.
        last_sent_s: Monotonic instant of the last bytes, or since which somebody wants to know; for
            heartbeats.
    """

    __slots__ = (
        "_monotonic_s",
        "_wire",
        "attempt",
        "drains",
        "has_content",
        "has_left",
        "is_cut",
        "is_finished",
        "is_started",
        "last_sent_s",
    )

    def __init__(self, wire: Wire, monotonic_s: Callable[[], float]) -> None:
        """Wrap a connection.

        Args:
            wire: Where the answer goes.
            monotonic_s: Clock for `last_sent_s`.
        """
        self._wire = wire
        self._monotonic_s = monotonic_s
        self.is_started = False
        self.is_finished = False
        self.has_content = False
        self.is_cut = False
        self.has_left = False
        self.drains = False
        self.attempt: tuple[str, int] = ("", 0)
        self.last_sent_s = 0.0  # nobody asks before a heartbeat watches

    async def send_whole(self, status: int, headers: bytes, body: bytes) -> None:
        """Send a complete answer.

        Args:
            status: Its status.
            headers: Header lines, each with its line end.
            body: Its body.
        """
        if self._wire.is_blocked:  # by answers before this one on the same connection
            await self._wire.drain()
        assert not self.is_started, "an answer starts once"
        self.is_started = True
        self.is_finished = True
        self._wire.send_whole(status, headers, body)

    async def start(self, headers: bytes, first: bytes = b"") -> bool:
        """Send the headers of an event stream and its first events, in one write.

        Args:
            headers: Left out where a heartbeat has sent some.
            first: Whole events.

        Returns:
            Whether `drain` must be awaited before more is sent.
        """
        if not self.is_started and self._wire.is_blocked:  # by answers before this one
            await self._wire.drain()
        if self.is_started:
            return self.put(first)
        self._start(headers, first)
        return self._wire.is_blocked

    async def write(self, data: bytes) -> None:
        """Send whole events; returns when the client's socket has room again."""
        if self.put(data):
            await self.drain()

    def put(self, data: bytes) -> bool:
        """Send whole events; whether `drain` must be awaited before more is sent.

        For every part of a busy stream: a call that may wait costs twice as much as one that says
        whether to.
        """
        wire = self._wire
        wire.write(data)
        if wire.is_blocked:
            return True
        self.last_sent_s = self._monotonic_s()
        return False

    async def drain(self) -> None:
        """Return when the client's socket has room again."""
        await self._wire.drain()
        self.last_sent_s = self._monotonic_s()

    def beat(self, headers: Callable[[], bytes]) -> None:
        """Send a comment, which every client ignores, behind the headers if those are not out.

        Nothing is sent to a client that has not taken what was sent before.
        """
        if self._wire.is_blocked:
            return
        if not self.is_started:
            self._start(headers(), HEARTBEAT)
            return
        self._wire.write(HEARTBEAT)
        self.last_sent_s = self._monotonic_s()

    def finish(self, last: bytes, *, is_clean: bool) -> None:
        """End the stream with its last events; only a clean end carries `[DONE]`."""
        self.is_finished = True
        self._wire.finish(last + DONE if is_clean else last)

    def _start(self, headers: bytes, first: bytes) -> None:
        self.is_started = True
        self._wire.start(200, EVENT_STREAM_HEADERS + headers, first)
        self.last_sent_s = self._monotonic_s()
