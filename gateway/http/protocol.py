"""uvicorn's HTTP/1.1 protocol with bounds on everything that is not a body.

httptools collects request lines, headers and trailers without a limit of its own, in size or in
time, and uvicorn queues pipelined requests without one; a client without a key could fill the
memory with any of them, or hold sockets by sending nothing, or half a body, for ever.

A wish to upgrade is ignored (RFC 9110, section 7.8). httptools takes no body from such a request:
what the body holds would be lost, or be taken for the next request. Java's own client wishes for
HTTP/2 in the first request of every connection.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.errors import GatewayError, HeadersTooLarge, InvalidRequest
from gateway.http.cycle import Cycle
from gateway.http.errors import openai_body, row_of
from gateway.http.messages import request_id_lines

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

HEAD_BYTES_MAX: Final = 64 * 1024
"""Longest request line with headers."""

HEAD_S_MAX: Final = 30.0
"""Longest time from a connection, or from a request's first byte, to the end of its headers."""

PIPELINED_MAX: Final = 64
"""Most requests of a connection that wait behind the one being answered."""

READ_ON_MAX: Final = 8
"""While fewer requests wait, reading goes on: a client that leaves is noticed only by reading."""

REST_S_MAX: Final = 10.0
"""Longest time that a client may go on sending a body after its answer. Not zero: closing on a
client that still sends can take away the answer that it has not read yet."""


UNREAD_S_MAX: Final = 1000.0
"""Longest time that a client may leave an answer unread. Above the relay's patience with a stream
at the default deadlines; closing alone would wait for the client to read, and keep the socket."""

PARTS_MAX: Final = 1000
"""Parts of bodies in one read behind which others get their turn. A part of two bytes costs as much
as one of two thousand, and uvloop would go on reading from this connection 32 times."""

CYCLE: Final = "fareway.cycle"
"""Key of an ASGI scope under which hot routes find the connection's `Cycle`."""

_UPGRADE_HEADERS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})

logger = logging.getLogger(__name__)


class _Refused(Exception):
    """Ends the parsing of a read: what came is HTTP, and this error of ours is the answer."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(str(error))
        self.error = error


class Closing:
    """Whether a server lets its connections end, and how; shared by all of them."""

    __slots__ = ("idle_s",)

    def __init__(self) -> None:
        """Not yet."""
        self.idle_s: float | None = None

    def begin(self, idle_s: float) -> None:
        """From now on answers carry `connection: close`.

        Args:
            idle_s: How long a connection may ask nothing before it is closed untold.
        """
        self.idle_s = idle_s


class BoundedProtocol(HttpToolsProtocol):
    """One connection: heads bounded in size and time, trailers dropped, few requests in advance."""

    closing: ClassVar[Closing] = Closing()  # of a server that never lets them end; see `HttpServer`
    head_s_max = HEAD_S_MAX
    rest_s_max = REST_S_MAX
    unread_s_max = UNREAD_S_MAX
    _bare_bytes = 0  # since the last byte of a body, or since a head began
    _read_bytes = 0  # of the newest read
    _head_bytes = 0  # of all reads that may hold parts of this head: it is no longer than that
    _parts_read = 0  # of bodies, by the newest read
    _served: Cycle | None = None  # the request being answered, or answered last
    _is_in_head = True
    _is_upgrade = False  # whether the head that was just read wishes for another protocol
    _has_moved = False  # whether this read held a part of a body or the start of a head
    _head_timer: asyncio.TimerHandle | None = None
    _rest_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    @staticmethod
    def new_id() -> bytes:
        """The id of a request that no application sees; a server has its own, empty is none."""
        return b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Expect a first request soon."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, and tell whoever works on an answer for this client."""
        self._end_head()
        self._end_rest()
        self._end_unread()
        super().connection_lost(exc)
        # uvicorn tells the request that came last, which may wait behind the one being answered.
        if self._served is not None:
            self._served.note_gone()

    def begin_closing(self) -> None:
        """Let this connection end: after its next answer, or when nothing is asked for a while.

        An answer whose head is out already has promised that the connection stays, and its client
        may send the next request at any moment; so that one is answered and told.
        """
        assert self.closing.idle_s is not None, "the server's connections shall end"
        self.timeout_keep_alive = self.closing.idle_s
        cycle = cast("Cycle | None", self.cycle)  # None before a first request
        if cycle is not None and not cycle.response_started:
            self._tell_last()
        elif self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.closing.idle_s, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered, or not at all."""
        super().pause_writing()
        self._end_unread()
        abort: Callable[[], None] = self.transport.abort
        self._unread_timer = self.loop.call_later(self.unread_s_max, abort)

    def resume_writing(self) -> None:
        """The client has read."""
        self._end_unread()
        super().resume_writing()
        if self.transport.is_closing():
            self._bound_flush()

    def data_received(self, data: bytes) -> None:
        """Pass what came to the parser, unless there is too much of it that is no body."""
        self._has_moved = False
        self._parts_read = 0
        self._read_bytes = len(data)
        self._head_bytes += len(data)
        self._feed(data)
        # Of a read in which a head begins nobody knows yet which part is head.
        if not self._has_moved:
            self._bare_bytes += len(data)
            if self._bare_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self._refuse(_head_too_large())
        if self._parts_read > PARTS_MAX and not self.flow.read_paused:
            self.flow.pause_reading()
            self.loop.call_soon(self.flow.resume_reading)

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._expect_head()
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers are none, and come after the headers have been acted upon."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self._head_bytes > HEAD_BYTES_MAX and self._head_size() > HEAD_BYTES_MAX:
            raise _Refused(_head_too_large())
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._is_upgrade = True  # `_feed` starts it again, without the wish
            return
        if len(self.pipeline) >= PIPELINED_MAX:
            raise _Refused(
                InvalidRequest(f"over {PIPELINED_MAX} requests sent before the first was answered")
            )
        self._is_in_head = False
        self._end_head()
        self._begin()
        if self.closing.idle_s is not None:
            self._tell_last()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._has_moved, self._bare_bytes = True, 0
        self._parts_read += 1
        if not cast("Cycle", self.cycle).add_part(body):
            super().on_body(body)

    def on_message_complete(self) -> None:
        """What comes next is a head again."""
        if self._is_upgrade:
            return
        self._expect_head()
        self._end_rest()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is out; what is left of the request's body serves nobody."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._bound_flush()
        if self._head_timer is not None and not self.transport.is_closing():
            # Of a head that has begun the rest may not have been read while others waited.
            self._end_head()
            self._await_head()
        if not self._is_in_head and not self.pipeline and self._rest_timer is None:
            close = self.timeout_keep_alive_handler
            self._rest_timer = self.loop.call_later(self.rest_s_max, close)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing more was asked for a while, or the rest of a body did not come."""
        super().timeout_keep_alive_handler()
        self._bound_flush()

    def _tell_last(self) -> None:
        """Close after the newest request; closing before it would lose it."""
        for cycle, _ in self.pipeline:
            cycle.keep_alive = True
        if self._served is not None and not self._served.response_started:
            self._served.keep_alive = True
        self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cast("Cycle", cycle)
        super()._start_asgi_task(cycle, app)

    def _begin(self) -> None:
        """What uvicorn does when a head is complete, with a cycle of ours."""
        http_version = self.parser.get_http_version()
        scope = cast("dict[str, object]", self.scope)
        scope["method"] = self.parser.get_method().decode("ascii")
        if http_version != "1.1":
            scope["http_version"] = http_version
        url = httptools.parse_url(self.url)
        raw_path = url.path
        path = raw_path.decode("ascii")
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["raw_path"] = raw_path
        scope["query_string"] = url.query or b""
        before = cast("Cycle | None", self.cycle)  # None before a first request
        self.cycle = cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope[CYCLE] = cycle
        app = cast("ASGI3Application", self.app)
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, app)
        else:
            self.pipeline.appendleft((cycle, app))
            if len(self.pipeline) >= READ_ON_MAX:
                self.flow.pause_reading()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            if not self._is_upgrade:
                self.cycle.keep_alive = False  # CONNECT; what follows is no request
                return
            rest = data[cast("int", wish.args[0]) :]
            head = self._head_without_upgrade()
            self._is_upgrade = False
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self._feed(head + rest)
        except httptools.HttpParserError as fault:
            logger.debug("what came is refused unread", exc_info=True)
            cause = fault.__context__
            self._refuse(
                cause.error
                if isinstance(cause, _Refused)
                else InvalidRequest("what came is no valid HTTP/1.1 request")
            )

    def _head_without_upgrade(self) -> bytes:
        parser = self.parser
        method, version = parser.get_method(), parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection" and b"close" in value.lower():
                lines.append(b"connection: close")
            elif name not in _UPGRADE_HEADERS:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join((*lines, b"", b""))

    def _expect_head(self) -> None:
        self._is_in_head, self._has_moved, self._bare_bytes = True, True, 0
        self._head_bytes = self._read_bytes

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse(self, error: GatewayError) -> None:
        # Where another request waits for its answer, or is given one, nothing can be said.
        cycle = self._served
        is_of_this = cycle is self.cycle and not self._is_in_head
        if cycle is None or cycle.response_complete or (is_of_this and not cycle.response_started):
            self.transport.write(_refusal(error, self.new_id()))
        self.transport.close()
        self._bound_flush()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s_max, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._served is None or self._served.response_complete:
            self.transport.abort()
        else:
            self._await_head()  # the answer in play has bounds of its own

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _bound_flush(self) -> None:
        """A transport closes when the client has read; of little unread it says nothing before."""
        if self._unread_timer is None and self.transport.get_write_buffer_size():
            abort: Callable[[], None] = self.transport.abort
            self._unread_timer = self.loop.call_later(self.unread_s_max, abort)

    def _end_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _end_rest(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None


def _head_too_large() -> HeadersTooLarge:
    return HeadersTooLarge(f"request line and headers are over {HEAD_BYTES_MAX // 1024} KiB")


def _refusal(error: GatewayError, request_id: bytes) -> bytes:
    status, body = row_of(error).status, openai_body(error)
    return (
        b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    ) % (STATUS_LINE[status], request_id_lines(request_id) if request_id else b"", len(body), body)
