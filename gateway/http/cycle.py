"""One request on a connection: uvicorn's ASGI cycle, and beside it a shorter way to answer.

Hot routes hand over a finished block of headers and bytes that are written at once; what ASGI's
`send` does for each answer besides (messages as dicts, two regular expressions per header, an await
per part) costs more than the rest of a small answer. Both ways share the state, so that either may
follow an error of the other's. A write never waits; `drain` does.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Cycle(RequestResponseCycle):
    """A request and its answer.

    Attributes:
        on_gone: Called once when the client leaves before its answer is whole; None when nobody
            wants to know.
    """

    on_gone: Callable[[], None] | None = None

    def note_gone(self) -> None:
        """The connection is lost; whoever works on this request is told."""
        if self.response_complete:
            return
        self.disconnected = True
        self.message_event.set()
        if self.on_gone is not None:
            self.on_gone()

    def take_whole_body(self) -> bytes | None:
        """The request's body, None when some of it is still to come or was asked to be sent.

        A small body comes with its head in one read, so that nobody has to wait for it.
        """
        if self.more_body or self.waiting_for_100_continue or self.disconnected:
            return None
        body = bytes(self.body)
        self.body = bytearray()
        self.message_event.clear()
        return body

    def send_whole(self, status: int, headers: bytes, body: bytes) -> None:
        """Write a complete answer.

        Args:
            status: The status.
            headers: Header lines, each with its line end; they are trusted to be well-formed.
            body: All of it; left out where the client asked for the head alone.
        """
        if self.disconnected:
            return
        self.chunked_encoding = False
        head = self._head(status, headers, b"content-length: %d\r\n" % len(body))
        self.transport.write(head if self.scope["method"] == "HEAD" else head + body)
        self._complete()

    def start(self, status: int, headers: bytes) -> None:
        """Write the head of an answer whose length is not known yet; headers as `send_whole`."""
        if self.disconnected:
            return
        # HTTP/1.0 knows no chunks: the end of the connection is the end of the answer.
        self.chunked_encoding = self.scope["http_version"] != "1.0"
        framing = b"transfer-encoding: chunked\r\n" if self.chunked_encoding else b""
        self.transport.write(self._head(status, headers, framing))

    def write(self, data: bytes) -> None:
        """Write a part of the body."""
        if self.disconnected or not data:
            return
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked_encoding else data)

    def finish(self, data: bytes) -> None:
        """Write the last part, and end the answer."""
        if self.disconnected:
            return
        if self.chunked_encoding:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self.transport.write(last)
        elif data:
            self.transport.write(data)
        self._complete()

    @property
    def is_blocked(self) -> bool:
        """Whether the client has yet to take much of what was written."""
        return self.flow.write_paused and not self.disconnected

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written."""
        await self.flow.drain()

    def abort(self) -> None:
        """Give the answer up: what was not sent yet is not sent."""
        self.disconnected = True
        self.transport.abort()

    def _head(self, status: int, headers: bytes, framing: bytes) -> bytes:
        self.response_started = True
        self.waiting_for_100_continue = False
        defaults = b"".join([b"%b: %b\r\n" % pair for pair in self.default_headers])
        connection = b"" if self.keep_alive else b"connection: close\r\n"
        return b"".join((_STATUS_LINES[status], defaults, headers, framing, connection, b"\r\n"))

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
