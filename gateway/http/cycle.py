"""One request on a connection: uvicorn's ASGI cycle, and beside it a shorter way to answer.

Hot routes hand over a finished block of headers and bytes that are written at once; what ASGI's
`send` does for each answer besides (messages as dicts, two regular expressions per header, an await
per part) costs more than the rest of a small answer. Both ways share the state, so that either may
follow an error of the other's. A write never waits; `drain` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.errors import BodyTooSlow
from gateway.http.messages import ClientGone, check_length

_SMALL_BYTES: Final = 4 * 1024
"""Parts below this are put together as they come: kept apart, two bytes would cost fifty."""

_JOINED_BYTES_MAX: Final = 64 * 1024


class Cycle(RequestResponseCycle):
    """A request and its answer.

    Attributes:
        on_gone: Called once when the client leaves before its answer is whole; None when nobody
            wants to know.
    """

    on_gone: Callable[[], None] | None = None
    _parts: list[bytes | bytearray] | None = None  # of a body that is being gathered
    _gathered_bytes = 0
    _bytes_max = 0
    _moved_at = 0.0

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
        # uvicorn stops reading behind 64 KiB of a body; whoever does not read sees nobody leave.
        self.flow.resume_reading()
        return body

    def add_part(self, part: bytes) -> bool:
        """Take a part of the body for `gather_body`; False when nobody is gathering."""
        if self._parts is None:
            return False
        last = self._parts[-1]
        if len(part) >= _SMALL_BYTES:
            self._parts.append(part)
        elif isinstance(last, bytearray) and len(last) < _JOINED_BYTES_MAX:
            last += part
        else:
            self._parts.append(bytearray(part))
        self._gathered_bytes += len(part)
        self._moved_at = asyncio.get_running_loop().time()
        if self._gathered_bytes > self._bytes_max:
            self.flow.pause_reading()
            self.message_event.set()
        return True

    async def gather_body(self, *, max_bytes: int, stall_s: float) -> bytes:
        """Wait for the rest of the body: one wake-up for all of it, and one copy.

        Args:
            max_bytes: The bound; not a byte more than one read brings is kept beyond it.
            stall_s: Longest silence.

        Raises:
            BodyTooLarge: It is longer.
            BodyTooSlow: The client fell silent.
            ClientGone: The client left.
        """
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        parts: list[bytes | bytearray] = [self.body]
        self._parts = parts
        self._gathered_bytes, self._bytes_max = len(parts[0]), max_bytes
        self._moved_at = asyncio.get_running_loop().time()
        self.body = bytearray()
        self.flow.resume_reading()
        try:
            while True:
                if self.disconnected:
                    raise ClientGone
                check_length(self._gathered_bytes, max_bytes)
                if not self.more_body:
                    return b"".join(parts)
                await self._wait_for_more(stall_s)
        finally:
            self._parts = None

    async def _wait_for_more(self, stall_s: float) -> None:
        self.message_event.clear()
        moved_at = self._moved_at
        try:
            async with asyncio.timeout_at(moved_at + stall_s):
                await self.message_event.wait()
        except TimeoutError:
            if self._moved_at == moved_at:
                raise BodyTooSlow(f"nothing of the body came for {stall_s:g} s") from None

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
        return b"".join((STATUS_LINE[status], defaults, headers, framing, connection, b"\r\n"))

    def _complete(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
