"""One request on a connection: uvicorn's ASGI cycle, and beside it a shorter way to answer.

Hot routes hand over a finished block of headers and bytes that are written at once; what ASGI asks
for besides (a scope, messages as dicts, two regular expressions per header, an await per part, an
event) costs more than the rest of a small answer, and is made for those alone who ask for it. A
write never waits; `drain` does.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, cast

import anyio.to_thread
import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle
from uvicorn.protocols.utils import get_local_addr, get_remote_addr

from gateway.errors import BodyTooSlow
from gateway.http.messages import ClientGone, check_length

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveEvent, ASGISendEvent, HTTPScope

CYCLE: Final = "fareway.cycle"
"""Key of an ASGI scope under which the application finds the connection's `Cycle`."""

_SMALL_BYTES: Final = 4 * 1024
"""Parts below this are put together as they come: kept apart, two bytes would cost fifty."""

_JOINED_BYTES_MAX: Final = 64 * 1024

_JOINED_HERE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A longer body is put together on a thread: 64 MiB take 25 ms."""


class Connection(Protocol):
    """What a request needs of its connection.

    Attributes:
        transport: Where answers are written.
        flow: Whether either side waits for the other.
        parser: At the end of this request's head.
        url: The request's target.
        headers: Its headers, names in lower case.
        default_headers: Of every answer.
        default_lines: The same as lines.
    """

    transport: asyncio.Transport
    flow: FlowControl
    parser: httptools.HttpRequestParser
    url: bytes
    headers: list[tuple[bytes, bytes]]
    default_headers: list[tuple[bytes, bytes]]
    default_lines: bytes

    def on_response_complete(self) -> None:
        """The answer is out."""
        ...


Route = Callable[["Cycle"], Awaitable[None]]
"""What answers a request, without ASGI."""


class HotApplication:
    """An application that answers some requests without ASGI.

    Attributes:
        hot: What answers a POST to exactly this target; everything else comes through ASGI.
    """

    hot: Mapping[bytes, Route]


class Cycle(RequestResponseCycle):
    """A request and its answer.

    Attributes:
        headers: Of the request, names in lower case.
        method: Of the request.
        part: Of its body, what came first.
        is_buffered: Whether parts of its body have to go through `add_part`.
        wake: Set when something of the body came, or nothing more will; None when nobody waits.
        route: What answers it; None is ASGI.
        task: Which one answers it, None where that is not known.
        on_gone: Called once when the client leaves before its answer is whole; None when nobody
            wants to know.
    """

    # What of uvicorn's own state only ASGI needs; see `prepare_asgi`.
    logger = logging.getLogger("uvicorn.error")
    access_log = False
    expected_content_length = 0
    chunked_encoding = None
    waiting_for_100_continue = False
    task: asyncio.Task[None] | None = None
    # What only bodies need that come in several parts.
    wake: asyncio.Event | None = None
    _is_body_wanted = False  # whether somebody reads it, so that a client that asked was told
    _parts: list[bytes | bytearray] | None = None  # of a body that is being gathered
    _gathered_bytes = 0
    _bytes_max = 0
    _moved_at = 0.0

    def __init__(self, connection: Connection) -> None:
        """Take over a head that was just read."""
        parser = connection.parser
        self._connection = connection
        self.transport = connection.transport
        self.flow = connection.flow
        self.headers = connection.headers
        self.method = parser.get_method()
        self.is_old = parser.get_http_version() == "1.0"
        self.keep_alive = parser.should_keep_alive() and not self.is_old
        self._default_lines = connection.default_lines
        self.part = b""
        self.more_body = True
        self.is_buffered = False
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self.route: Route | None = None
        self.on_gone: Callable[[], None] | None = None

    def prepare_asgi(self) -> None:
        """Get ready for an ASGI application, while the connection still holds this head.

        Raises:
            httptools.HttpParserInvalidURLError: The target is none.
        """
        connection = self._connection
        url = httptools.parse_url(connection.url)
        raw_path = url.path or b"/"  # of `http://host` (RFC 9112, section 3.2.2)
        path = raw_path.decode("ascii")
        scope: dict[str, object] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": connection.parser.get_http_version(),
            "method": self.method.decode("ascii"),
            "scheme": "http",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "root_path": "",
            "headers": self.headers,
            "server": get_local_addr(self.transport),
            "client": get_remote_addr(self.transport),
            "state": {},
            CYCLE: self,
        }
        self.scope = cast("HTTPScope", cast("object", scope))
        self.default_headers = connection.default_headers
        self.on_response = connection.on_response_complete
        self.message_event = self.wake = asyncio.Event()
        self.waiting_for_100_continue = self._wants_100_continue()
        self.body = bytearray()
        self.is_buffered = True

    async def run_asgi(self, app: ASGI3Application) -> None:
        """As uvicorn's; afterwards the scope lets go of this request, which holds it."""
        try:
            await super().run_asgi(app)
        finally:
            del cast("dict[str, object]", cast("object", self.scope))[CYCLE]

    def note_gone(self) -> None:
        """The connection is lost; whoever works on this request is told."""
        if self.response_complete:
            return
        self.disconnected = True
        if self.wake is not None:
            self.wake.set()
        if self.on_gone is not None:
            self.on_gone()

    def take_whole_body(self) -> bytes | None:
        """The request's body, None when some of it is still to come.

        A small body comes with its head in one read, so that nobody has to wait for it.
        """
        if self.more_body or self.disconnected:
            return None
        # Reading stops behind 64 KiB of a body; whoever does not read sees nobody leave.
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.is_buffered:
            return bytes(self._take_buffered())
        body, self.part = self.part, b""
        return body

    def add_part(self, part: bytes) -> None:
        """Take a part of the body that is not the first, or not a small one, or waited for."""
        if self._parts is not None:
            self._gather(part, self._parts)
            return
        if not self.is_buffered:
            self.body = bytearray(self.part)
            self.part = b""
            self.is_buffered = True
        self.body += part
        if len(self.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if self.wake is not None:
            self.wake.set()

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
        if self.more_body and self._wants_100_continue() and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        self._is_body_wanted = True
        parts: list[bytes | bytearray] = [self._take_buffered()]
        self._gathered_bytes, self._bytes_max = len(parts[0]), max_bytes
        self._moved_at = asyncio.get_running_loop().time()
        self._parts, self.is_buffered = parts, True
        if self.wake is None:
            self.wake = asyncio.Event()
        self.flow.resume_reading()
        try:
            while True:
                if self.disconnected:
                    raise ClientGone
                check_length(self._gathered_bytes, max_bytes)
                if not self.more_body:
                    if self._gathered_bytes > _JOINED_HERE_BYTES_MAX:
                        return await anyio.to_thread.run_sync(_joined, parts)
                    return b"".join(parts)
                await self._wait_for_more(self.wake, stall_s)
        finally:
            self._parts = None
            self.body = bytearray()

    def _take_buffered(self) -> bytes | bytearray:
        if self.is_buffered:
            body, self.body = self.body, bytearray()
            return body
        part, self.part = self.part, b""
        return part

    def _gather(self, part: bytes, parts: list[bytes | bytearray]) -> None:
        last = parts[-1]
        if len(part) >= _SMALL_BYTES:
            parts.append(part)
        elif isinstance(last, bytearray) and len(last) < _JOINED_BYTES_MAX:
            last += part
        else:
            parts.append(bytearray(part))
        self._gathered_bytes += len(part)
        self._moved_at = asyncio.get_running_loop().time()
        if self._gathered_bytes > self._bytes_max:
            self.flow.pause_reading()
            assert self.wake is not None, "a body is gathered for somebody who waits"
            self.wake.set()

    async def _wait_for_more(self, wake: asyncio.Event, stall_s: float) -> None:
        wake.clear()
        moved_at = self._moved_at
        try:
            async with asyncio.timeout_at(moved_at + stall_s):
                await wake.wait()
        except TimeoutError:
            if self._moved_at == moved_at:
                raise BodyTooSlow(f"nothing of the body came for {stall_s:g} s") from None

    def _wants_100_continue(self) -> bool:
        # HTTP/1.0 knows no interim answers (RFC 9110, section 10.1.1).
        return not self.is_old and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )

    def _end_behind_unwanted_body(self) -> None:
        """Close behind the answer if its client asked whether to send the body and was not told.

        Such a client may leave the body away, or may not: its next request could be read as the
        body, and the body as a request (RFC 9110, section 10.1.1; RFC 9112, section 9.3).
        """
        if not self._is_body_wanted and any(name == b"expect" for name, _ in self.headers):
            self.keep_alive = False

    async def receive(self) -> ASGIReceiveEvent:
        """A part of the body, for an ASGI application; tells a client that asked to go on."""
        self._is_body_wanted = True
        return await super().receive()

    async def send(self, message: ASGISendEvent) -> None:
        """Write what an ASGI application answers."""
        if self.more_body and not self.response_started:
            self._end_behind_unwanted_body()
        await super().send(message)

    def send_whole(self, status: int, headers: bytes, body: bytes) -> None:
        """Write a complete answer.

        Args:
            status: The status.
            headers: Header lines, each with its line end; they are trusted to be well-formed.
            body: All of it; left out where the client asked for the head alone.
        """
        if self.disconnected:
            return
        if self.more_body:
            self._end_behind_unwanted_body()
        self.response_started = self.response_complete = True
        length = b"content-length: %d\r\n" % len(body)
        connection = b"" if self.keep_alive else b"connection: close\r\n"
        shown = b"" if self.method == b"HEAD" else body
        head = (STATUS_LINE[status], self._default_lines, headers, length, connection, b"\r\n")
        self.transport.write(b"".join((*head, shown)))
        self._connection.on_response_complete()

    def start(self, status: int, headers: bytes, first: bytes = b"") -> None:
        """Write the head of an answer whose length is not known yet, and a first part of its body.

        Both in one write, which is a system call and may wake the client.

        Args:
            status: The status.
            headers: As `send_whole`.
            first: Empty when there is none yet.
        """
        if self.disconnected:
            return
        if self.more_body:
            self._end_behind_unwanted_body()
        self.response_started = True
        # HTTP/1.0 knows no chunks: the end of the connection is the end of the answer.
        self.chunked_encoding = not self.is_old
        framing = b"" if self.is_old else b"transfer-encoding: chunked\r\n"
        connection = b"" if self.keep_alive else b"connection: close\r\n"
        body = b"%x\r\n%b\r\n" % (len(first), first) if first and not self.is_old else first
        head = (STATUS_LINE[status], self._default_lines, headers, framing, connection, b"\r\n")
        self.transport.write(b"".join((*head, body)))

    def write(self, data: bytes) -> None:
        """Write a part of the body."""
        if self.disconnected or not data:
            return
        self.transport.write(data if self.is_old else b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self, data: bytes) -> None:
        """Write the last part, and end the answer."""
        if self.disconnected:
            return
        self.response_complete = True
        if not self.is_old:
            last = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
            self.transport.write(last)
        elif data:
            self.transport.write(data)
        self._connection.on_response_complete()

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


def _joined(parts: list[bytes | bytearray]) -> bytes:
    """All of a body; frees its parts, here rather than on the loop.

    Python lets others run meanwhile only where all parts are immutable.
    """
    whole = b"".join([bytes(part) for part in parts])
    parts.clear()
    return whole
