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
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final, cast

import httptools
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.server import ServerState

from gateway.errors import GatewayError, InvalidRequest
from gateway.http.bounds import (
    HEAD_BYTES_MAX,
    HEAD_S_MAX,
    HEADERS_MAX,
    LINGER_BYTES_MAX,
    LOOK_EVERY_S,
    PIPELINED_MAX,
    READ_ON_MAX,
    REST_S_MAX,
    UNREAD_S_MAX,
    Closing,
    Refused,
    head_too_large,
    refusal,
    too_many_headers,
)
from gateway.http.cycle import Cycle, HotApplication, Route
from gateway.http.messages import header_lines
from gateway.http.pieces import (
    EVENTS_FEW,
    EVENTS_MAX,
    FULL_READ_BYTES,
    FULL_READS_MAX,
    PIECE_BYTES,
    HeldFlow,
    divides,
    pieces_of,
)
from gateway.http.turns import Turns
from providers.deadline import Deadline

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_UPGRADE_HEADERS: Final = frozenset({b"connection", b"upgrade", b"http2-settings"})

logger = logging.getLogger(__name__)


class BoundedProtocol(asyncio.Protocol):
    """One connection, in the place of uvicorn's own protocol.

    Heads are bounded in size and time, trailers dropped, few requests taken in advance. What is
    done for every request is done in one function per callback of the parser, without uvicorn's
    layers, and without a timer or an event: a connection has one timer, which is set again only
    when it rings too early, and one task, which waits for the next request of a hot route.
    """

    __slots__ = (
        "_bare_bytes", "_closing", "_deadline", "_full_reads", "_has_moved", "_head_bytes", "_hot",
        "_in_head", "_is_divided", "_is_head_due", "_is_upgrade", "_lingered_bytes", "_loop",
        "_parts_read", "_pieces", "_pipeline", "_read_bytes", "_served", "_state", "_turns",
        "_unread_timer", "cycle", "default_headers", "default_lines", "flow", "headers", "parser",
        "timeout_keep_alive", "transport", "url",
    )  # fmt: skip

    closing: ClassVar[Closing] = Closing()  # of a server that never lets them end; see `HttpServer`
    head_s_max = HEAD_S_MAX
    rest_s_max = REST_S_MAX
    unread_s_max = UNREAD_S_MAX
    look_every_s = LOOK_EVERY_S

    def __init__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, object]
    ) -> None:
        """As uvicorn makes its protocols; needs a running loop.

        Args:
            config: Its application answers.
            server_state: Of all connections of a server.
            app_state: Of the lifespan protocol; not used.
        """
        if not config.loaded:
            config.load()
        self._loop = asyncio.get_running_loop()
        self._state = server_state
        self._closing = self.closing
        app = cast("ASGI3Application", config.loaded_app)
        self._turns = Turns(app, server_state.tasks, loop=self._loop)
        self._hot: Mapping[bytes, Route] = {}
        if isinstance(config.app, HotApplication):
            self._hot = config.app.hot
        self.timeout_keep_alive: float = config.timeout_keep_alive
        self.default_headers: list[tuple[bytes, bytes]] = []
        self.default_lines = b""
        self._begin_parsing()
        self._pipeline: deque[Cycle] = deque()
        self.cycle: Cycle | None = None  # of the newest request
        self._served: Cycle | None = None  # the request being answered, or answered last
        self._in_head = True
        self._is_upgrade = False  # whether the head just read wishes for another protocol
        self._has_moved = False  # whether this read held a part of a body or the start of a head
        self._bare_bytes = 0  # since the last byte of a body, or since a head began
        self._read_bytes = 0  # of the newest read
        self._head_bytes = 0  # of all reads that may hold parts of this head: it is no longer
        self._parts_read = 0  # of bodies, and headers of pipelined requests, by the newest read
        self._pieces: list[bytes] = []  # what is left of a divided read, the next one last
        self._is_divided = False  # whether one of them is being read
        self._full_reads = 0  # that brought as much as a read can
        self._lingered_bytes: int | None = None  # dropped behind the last request; None before
        self._is_head_due = True  # whether it is a head that the deadline is for
        self._deadline = Deadline(self._note_late, loop=self._loop)  # none while it waits for us
        self._unread_timer: asyncio.TimerHandle | None = None

    @staticmethod
    def new_id() -> bytes:
        """The id of a request that no application sees; a server has its own, empty is none."""
        return b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a first request soon."""
        self.transport = cast("asyncio.Transport", transport)
        self.flow: FlowControl = HeldFlow(self.transport)
        cast("set[BoundedProtocol]", self._state.connections).add(self)
        self._deadline.set(self.head_s_max)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, and tell whoever works on an answer for this client."""
        cast("set[BoundedProtocol]", self._state.connections).discard(self)
        self._deadline.cancel()
        self._end_unread()
        if self._served is not None:
            self._served.note_gone()
        self.flow.resume_writing()
        self._turns.end()
        self._pipeline.clear()
        self._pieces.clear()
        # What refers to this protocol goes, or each connection would be left to the collector.
        self.cycle = self._served = None
        del self.parser

    def shutdown(self) -> None:
        """Let the connection end, at once or after its answer; uvicorn's server asks for it."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def begin_closing(self) -> None:
        """Let this connection end: after its next answer, or when nothing is asked for a while.

        An answer whose head is out already has promised that the connection stays, and its client
        may send the next request at any moment; so that one is answered and told.
        """
        assert self._closing.idle_s is not None, "the server's connections shall end"
        self.timeout_keep_alive = self._closing.idle_s
        if self.cycle is not None and not self.cycle.response_started:
            self._tell_last()
        elif self._deadline.at_s != inf and not self._is_head_due:
            self._deadline.set(self._closing.idle_s)

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered, or not at all."""
        self.flow.pause_writing()
        self._end_unread()
        self._begin_unread()

    def resume_writing(self) -> None:
        """The client has read."""
        self._end_unread()
        self.flow.resume_writing()
        if self.transport.is_closing():
            self._bound_flush()

    def data_received(self, data: bytes) -> None:
        """Pass what came to the parser, unless there is too much of it that is no body."""
        if self._lingered_bytes is not None:
            self._drop(len(data))
            return
        if len(data) > PIECE_BYTES and self._divide(data):
            return
        self._has_moved = False
        self._parts_read = 0
        self._read_bytes = size = len(data)
        self._head_bytes += size
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as wish:
            self._go_on_without_upgrade(data[cast("int", wish.args[0]) :])
            return
        except httptools.HttpParserError as fault:
            self._refuse_unread(fault)
            return
        # Of a read in which a head begins nobody knows yet which part is head.
        if not self._has_moved:
            self._bare_bytes += size
            if self._bare_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self._refuse(head_too_large())
                return
        if self.url and self._in_head and not self._is_head_due:  # the rest is still to come
            self._is_head_due = True
            self._deadline.set(self.head_s_max)

    def on_url(self, url: bytes) -> None:
        """A part of a request's target, behind the request's first bytes."""
        if self.url:
            self.url += url
            return
        self.url = url
        self._has_moved, self._bare_bytes = True, 0
        self._head_bytes = self._read_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: those come after the headers have been acted upon."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole: begin to answer, or put the request behind others."""
        if len(self.headers) > HEADERS_MAX:
            raise Refused(too_many_headers())
        if self._head_bytes > HEAD_BYTES_MAX and self._head_size() > HEAD_BYTES_MAX:
            raise Refused(head_too_large())
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._is_upgrade = True  # `data_received` starts it again, without the wish
            return
        if self._pipeline and len(self._pipeline) >= PIPELINED_MAX:
            raise Refused(
                InvalidRequest(f"over {PIPELINED_MAX} requests sent before the first was answered")
            )
        default_headers = self._state.default_headers
        if default_headers is not self.default_headers:  # uvicorn renews the date each second
            self.default_headers = default_headers
            self.default_lines = header_lines(default_headers)
        before = self.cycle
        cycle = Cycle(self)
        self.headers = []  # for trailers, which nobody reads
        if cycle.method == b"POST":
            cycle.route = self._hot.get(self.url)
        if cycle.route is None:
            cycle.prepare_asgi()  # may refuse the target; until here it is a head that is read
        self.cycle = cycle
        self._in_head = self._is_head_due = False
        self._deadline.at_s = inf
        if before is None or before.response_complete:
            self._served = cycle
            self._turns.start(cycle)
        else:
            self._pipeline.appendleft(cycle)
            self._parts_read += len(cycle.headers)
            if len(self._pipeline) >= READ_ON_MAX:
                self._read_no_further()
        if self._closing.idle_s is not None:
            self._tell_last()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._has_moved, self._bare_bytes = True, 0
        self._parts_read += 1
        cycle = self.cycle
        assert cycle is not None, "a body follows its head"
        if cycle.response_complete:
            return
        if cycle.is_buffered or cycle.part or len(body) > HIGH_WATER_LIMIT:
            cycle.add_part(body)
            if self._pipeline and self.flow.read_paused:
                self._read_no_further()
        else:
            cycle.part = body

    def on_message_complete(self) -> None:
        """What comes next is a head again."""
        if self._is_upgrade:
            return
        self._in_head = self._has_moved = True
        self._bare_bytes = 0
        self._head_bytes = self._read_bytes
        self.url = b""
        if self.headers:
            self.headers = []
        cycle = self.cycle
        assert cycle is not None, "a request ends after its head"
        if cycle.response_complete:
            self._deadline.set(self.timeout_keep_alive)
            return
        cycle.more_body = False
        if cycle.wake is not None:
            cycle.wake.set()

    def on_response_complete(self) -> None:
        """The answer is out: close, begin with the next one, or wait for it."""
        self._state.total_requests += 1
        cycle = self._served
        assert cycle is not None, "what is answered was asked"
        if self.transport.is_closing():
            self._bound_flush()
            return
        if not cycle.keep_alive:
            self._end(is_client_done=not cycle.more_body)
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self._pipeline:
            self._served = following = self._pipeline.pop()
            self._turns.start(following)
            if self._is_head_due:
                # Of a head that has begun the rest may not have been read while others waited.
                self._deadline.set(self.head_s_max)
            return
        if not self._in_head:  # what is left of the request's body serves nobody
            wait_s = min(self.rest_s_max, self.timeout_keep_alive)
        else:
            wait_s = self.head_s_max if self._is_head_due else self.timeout_keep_alive
        self._deadline.set(wait_s)

    def _divide(self, data: bytes) -> bool:
        """Take a long read apart, if it is to be."""
        if not divides(data):
            if len(data) >= FULL_READ_BYTES:
                self._full_reads += 1
                if self._full_reads % FULL_READS_MAX == 0 and not self._is_divided:
                    cast("HeldFlow", self.flow).hold()
                    self._loop.call_soon(self._read_pieces)
            return False
        self._pieces.extend(reversed(list(pieces_of(data))))
        if not self._is_divided:  # else it is what a piece turned out to mean
            self._read_pieces()
        return True

    def _read_pieces(self) -> None:
        """Read on in what is held, until it held so much that others get their turn."""
        pieces, transport, flow = self._pieces, self.transport, cast("HeldFlow", self.flow)
        events = 0
        self._is_divided = True
        while pieces and events <= EVENTS_MAX:
            if transport.is_closing():
                pieces.clear()
                break
            self.data_received(pieces.pop())
            events += self._parts_read + len(self.headers)
        self._is_divided = False
        if pieces or events > EVENTS_FEW:
            flow.hold()
            self._loop.call_soon(self._read_pieces)
        elif not transport.is_closing():
            flow.let_go()

    def _tell_last(self) -> None:
        """Close after the newest request; closing before it would lose it."""
        for cycle in self._pipeline:
            cycle.keep_alive = not cycle.is_old
        if self._served is not None and not self._served.response_started:
            self._served.keep_alive = not self._served.is_old
        assert self.cycle is not None, "a request was read"
        self.cycle.keep_alive = False

    def _begin_parsing(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.parser = httptools.HttpRequestParser(self)
        # As uvicorn does: what comes behind a request that asked to close is not read as a fault.
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        if not self._is_upgrade:
            assert self.cycle is not None, "the request was read"
            self.cycle.keep_alive = False  # CONNECT; what follows is no request
            self._lingered_bytes = 0
            return
        head = self._head_without_upgrade()
        self._is_upgrade = False
        self._begin_parsing()
        self.data_received(head + rest)

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

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_unread(self, fault: httptools.HttpParserError) -> None:
        logger.debug("what came is refused unread", exc_info=fault)
        cause = fault.__context__
        self._refuse(
            cause.error
            if isinstance(cause, Refused)
            else InvalidRequest("what came is no valid HTTP/1.1 request")
        )

    def _refuse(self, error: GatewayError) -> None:
        # Where another request waits for its answer, or is given one, nothing can be said.
        cycle = self._served
        is_of_this = cycle is self.cycle and not self._in_head
        if cycle is None or cycle.response_complete or (is_of_this and not cycle.response_started):
            self.transport.write(refusal(error, self.new_id()))
            if cycle is not None:
                cycle.note_gone()
            self._end(is_client_done=False)
        else:
            self._close()

    def _end(self, *, is_client_done: bool) -> None:
        """Close behind the last answer.

        To close on a client that still sends resets its connection, which can take the answer away
        before it is read. So such a client sees the end at once, and is read on for a while.
        """
        self._pipeline.clear()
        if is_client_done:
            self._close()
            return
        self._lingered_bytes = 0
        self._is_head_due = False
        self.flow.resume_reading()
        self.transport.write_eof()
        self._deadline.set(self.rest_s_max)

    def _drop(self, size: int) -> None:
        assert self._lingered_bytes is not None, "what comes is no request"
        self._lingered_bytes += size
        if self._lingered_bytes > LINGER_BYTES_MAX and not self.transport.is_closing():
            self._close()

    def _read_no_further(self) -> None:
        """Read the next requests later; whether the client is still there is looked after."""
        self.flow.pause_reading()
        self._deadline.set(self.look_every_s)

    def _has_left(self) -> bool:
        """Whether the client closed its side, as far as one knows without reading on."""
        poll = select.poll()
        wire = cast("socket.socket", self.transport.get_extra_info("socket"))
        poll.register(wire.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _note_late(self) -> None:
        """The deadline is over."""
        served = self._served
        if served is None or served.response_complete or served.disconnected:
            if self._is_head_due:
                self.transport.abort()
            else:  # nothing more was asked for a while, or what is left of a body did not come
                self._close()
        elif self._pipeline and self.flow.read_paused:
            if self._has_left():
                self.transport.abort()
            else:
                self._deadline.set(self.look_every_s)
        # Every other answer in play has bounds of its own.

    def _close(self) -> None:
        """Close, once the client has read what was written, and at the latest when that is over."""
        self.transport.close()
        self._bound_flush()

    def _bound_flush(self) -> None:
        """A transport closes when the client has read; of little unread it says nothing before."""
        if self._unread_timer is None and self.transport.get_write_buffer_size():
            self._begin_unread()

    def _begin_unread(self) -> None:
        abort: Callable[[], None] = self.transport.abort
        self._unread_timer = self._loop.call_later(self.unread_s_max, abort)

    def _end_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
