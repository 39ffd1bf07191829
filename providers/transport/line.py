"""One open connection to an upstream: its protocol, and what the pool knows of it.

The parser is httptools' (llhttp). It calls back with each part of an answer; the parts of a body
it appends to a list itself, from which whoever reads takes them. There is one object per connection
and one parser for all its answers: made anew for each are a table of headers and the future that is
waited on.
"""

from __future__ import annotations

import asyncio
import re
import select
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from ssl import SSLObject
from typing import cast

import httptools

from providers.deadline import Deadline
from providers.transport.options import TransportOptions
from providers.transport.tls import ResumingContext
from providers.transport.upload import Upload

_INTERIM_MAX = 256
"""Two a second, which say that the upstream still thinks, for as long as a first token may take."""

_HEADS_MAX_BYTES = 64 * 1024
"""Most of an answer's head that may have come without its end, interim answers included."""

_HELD_MAX_BYTES = 128 * 1024
"""Of a body that nobody reads so much is taken from the socket, and what one more read brings."""

_LATE_S = 0.01
"""How much longer a deadline waits for what is there already: a turn of the loop, or two."""

_KEEP_ALIVE_MARGIN_S = 1
_ANNOUNCED = re.compile(r"\btimeout=(\d{1,6})")
_SWITCHING_PROTOCOLS = 101


class Malformed(Exception):
    """What came is not the HTTP that was due."""


class Expired(Exception):
    """What was waited for on a connection took longer than its deadline."""


class _Unasked(Exception):
    """Stops the parser at an answer that nobody asked for."""


class Line(asyncio.Protocol):
    """An open connection.

    Attributes:
        transport: Its socket, or TLS over it.
        deadline: Of what goes on on it.
        is_awaiting: Whether a request went out whose answer's head has not come.
        status: The answer's status.
        headers: The answer's headers as they came, names in lower case, of repeated ones the first.
        parts: What has come of the body and was not taken; only to be changed by `take`.
        is_complete: Whether the whole answer has come.
        fault: Why it will not be: an `Expired`, a `Malformed`, or the socket's.
        head_bytes: How much came before the head had come whole.
        has_unasked: Whether something came that answers nothing which was asked.
        closes: Whether no request may follow on this connection.
        upload: The large body that is being sent, None when there is none.
        is_writing_paused: Whether the socket takes no more of it for now.
        waiter: Who waits for the head or the body; told at each read of the socket.
        on_lost: Told when the connection has ended.
        idle_at: When it was last given back, by the loop's clock.
        keep_alive_s: How long it may be idle.
        expires_at: When it is too old to be used again.
        was_used: Whether an answer came on it.
        is_idle: Whether it lies in the pool.
        is_forgiven: Whether a deadline was let pass because the loop was late, not the upstream.
    """

    __slots__ = (
        "_close", "_field_count", "_fields", "_has_ended", "_held_bytes", "_interim_count",
        "_is_reading_paused", "_is_until_eof", "_options", "_parser", "_poll", "closes", "deadline",
        "expires_at", "fault", "has_unasked", "head_bytes", "headers", "idle_at", "is_awaiting",
        "is_complete", "is_forgiven", "is_idle", "is_writing_paused", "keep_alive_s", "on_body",
        "on_lost", "parts", "status", "transport", "upload", "waiter", "was_used",
    )  # fmt: skip

    def __init__(
        self,
        transport: asyncio.Transport,
        options: TransportOptions,
        *,
        loop: asyncio.AbstractEventLoop,
        keep_alive_s: float,
        expires_at: float,
        close: Callable[[], None],
    ) -> None:
        """Take over a connection that was opened.

        Args:
            transport: Its socket; the protocol of it is this from now on.
            options: The limits of what is read.
            loop: The running loop.
            keep_alive_s: How long it may be idle.
            expires_at: When it is too old to be used again, by the loop's clock.
            close: Tells whoever opened it that it is closed.
        """
        self.transport = transport
        self.keep_alive_s = keep_alive_s
        self.expires_at = expires_at
        self.deadline = Deadline(self._expire, loop=loop)
        self.parts: list[bytes] = []
        self.on_body = self.parts.append  # the parser calls it without a frame of ours
        self.headers: dict[bytes, bytes] = {}
        self.status = 0
        self.is_awaiting = False
        self.is_complete = True
        self.is_idle = False
        self.is_forgiven = False
        self.is_writing_paused = False
        self.was_used = False
        self.has_unasked = False
        self.closes = False
        self.idle_at = 0.0
        self.fault: Exception | None = None
        self.upload: Upload | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self._options = options
        self._close = close
        self._fields: dict[bytes, bytes] = {}
        self._field_count = self._interim_count = self.head_bytes = self._held_bytes = 0
        self._has_ended = self._is_reading_paused = self._is_until_eof = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        # Neither lets a body be framed in two ways, and both are found in the wild.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._poll = _poll_for(transport)
        transport.set_protocol(self)

    def is_usable(self, now: float) -> bool:
        """Whether a request may go out on it: open, rested not too long, and nothing left over.

        An upstream, or a proxy before it, that answers a request twice would otherwise give one
        tenant's answer to another. The kernel is asked each time, be it for the end: what has come
        while the loop was busy is not with the parser yet.
        """
        return not (
            now - self.idle_at > self.keep_alive_s
            or self.closes
            or self.transport.is_closing()
            or self._poll.poll(0)
        )

    def ask(self, expires_at: float) -> None:
        """Expect the answer to a request that goes out now.

        Args:
            expires_at: When to give its head up, by the loop's clock.
        """
        self.is_awaiting = True
        self.is_complete = self.is_forgiven = False
        self._field_count = self._interim_count = self.head_bytes = self._held_bytes = 0
        self.deadline.move(expires_at)

    def take(self, max_bytes: int) -> bytes:
        """What has come of the body and was not taken, empty when nothing has.

        Args:
            max_bytes: Limit on its size; the rest stays.
        """
        parts = self.parts
        part = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if len(part) > max_bytes:
            parts.append(part[max_bytes:])
            self._held_bytes = len(part) - max_bytes
            return part[:max_bytes]
        self._held_bytes = 0
        if self._is_reading_paused:
            self._is_reading_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        return part

    def fail(self, fault: Exception) -> None:
        """End what is waited for; what has come can still be taken."""
        if self.fault is None:
            # Without its frames: ours are among them, which would keep all that came.
            self.fault = fault.with_traceback(None)
        self._wake()

    def has_unsent(self) -> bool:
        """Whether a request was answered before all of it was sent."""
        upload = self.upload
        if upload is None:
            return False
        self.upload = None
        return not upload.is_done or self.transport.get_write_buffer_size() > 0

    def stop_upload(self) -> None:
        """Send nothing more of a body that the upstream has refused."""
        if self.upload is not None:
            self.upload.stop()
            self.closes = True

    def note_first(self, now: float) -> None:
        """Learn from the first answer: how long the upstream waits, and its TLS session.

        Args:
            now: By the loop's clock, roughly.
        """
        self.was_used = True
        announced = _ANNOUNCED.search(self.headers.get(b"keep-alive", b"").decode("latin-1"))
        if announced is not None:
            self.keep_alive_s = min(self.keep_alive_s, int(announced[1]) - _KEEP_ALIVE_MARGIN_S)
        tls = cast("SSLObject | None", self.transport.get_extra_info("ssl_object"))
        if tls is not None and isinstance(tls.context, ResumingContext):
            tls.context.remember(tls, now)

    def abort(self) -> None:
        """Close at once; what was not sent yet is not waited for."""
        self.on_lost = self.upload = None
        self.deadline.cancel()
        self.transport.abort()
        self._close()

    # What the loop calls.

    def data_received(self, data: bytes) -> None:
        """Parse what came, and wake who waits for it."""
        parser = self._parser
        if parser is None:
            return
        was_awaiting = self.is_awaiting
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as stop:
            self._note_stop(stop, is_first_read=was_awaiting)
        if self.is_awaiting:
            self.head_bytes += len(data)
            if self.head_bytes > _HEADS_MAX_BYTES:
                self.fail(Malformed("The head of the upstream's answer is too long."))
            return
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_MAX_BYTES and not self.is_complete:
            self._hold()
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def eof_received(self) -> None:
        """End: what is written after it is not waited for."""
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was going on, then tell the pool."""
        self._end(exc)
        self._parser = None
        if self.on_lost is not None:
            self.on_lost()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        """Go on with a body that the upstream was too slow for."""
        self.is_writing_paused = False
        if self.upload is not None:
            self.upload.push()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Something begins that is not a blank line; nobody may have asked for it."""
        if not self.is_awaiting:
            self.has_unasked = self.closes = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers come here too, and are dropped with the next answer."""
        options = self._options
        self._field_count += 1
        if (
            self._field_count > options.headers_max
            or len(name) + len(value) > options.header_bytes_max
        ):
            raise Malformed
        self._fields.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        """A head has come: an interim one (1xx), or the answer's own."""
        parser = self._parser
        assert parser is not None
        if not self.is_awaiting:
            raise _Unasked  # before its body, which would be taken for that of the answer before it
        status = parser.get_status_code()
        fields = self._fields
        self._fields = {}
        if 100 <= status < 200 and status != _SWITCHING_PROTOCOLS:
            self._field_count = 0
            self._interim_count += 1
            if self._interim_count > _INTERIM_MAX:
                what = f"The upstream sent more than {_INTERIM_MAX} interim answers."
                self.fail(Malformed(what))
                raise Malformed
            return
        self.status = status
        self.headers = fields
        self.is_awaiting = False
        if not parser.should_keep_alive():
            self.closes = True
            self._is_until_eof = not (b"content-length" in fields or b"transfer-encoding" in fields)

    def on_message_complete(self) -> None:
        """An answer has come whole, unless it was an interim one."""
        if not self.is_awaiting:
            self.is_complete = True
            if self._fields:
                self._fields = {}

    def _note_stop(self, stop: Exception, *, is_first_read: bool) -> None:
        """The parser goes no further, nor does the connection.

        Args:
            stop: The parser's.
            is_first_read: Whether the answer's head came with what it stopped in.
        """
        self.closes = True
        if self.is_complete:
            # Another protocol follows a 101, whose status is the answer.
            is_over = self.status == _SWITCHING_PROTOCOLS
            # A whole head behind an answer is another one's. Else it is longer than it says, which
            # is no matter when it was read by then, and had better be nothing when it was not.
            is_over |= isinstance(stop, httptools.HttpParserCallbackError)
            if is_over or not is_first_read:
                return
        self.fail(Malformed("The upstream's answer is not valid HTTP."))

    def _hold(self) -> None:
        """Leave the rest in the kernel, where it slows the upstream, until this was taken."""
        if not self.parts:
            self.fail(Malformed("The upstream sends what frames a body, and no body."))
        elif not self._is_reading_paused and not self.transport.is_closing():
            self._is_reading_paused = True
            self.transport.pause_reading()

    def _end(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        if self._has_ended:
            return
        self._has_ended = self.closes = True
        if self.is_complete:
            return
        if exc is None and self._is_until_eof and not self.is_awaiting and self.fault is None:
            self.is_complete = True
            self._wake()
        else:
            self.fail(exc or EOFError("The upstream closed the connection."))

    def _expire(self) -> None:
        """Give up what is waited for, unless it came in time and the loop was too busy to see it.

        After a pause of the whole process the timer rings first, while the answer lies in the
        kernel; or it was read in the same turn, and whoever waits for it has yet to run.
        """
        waiter = self.waiter
        if waiter is not None and waiter.done():
            self.deadline.set(_LATE_S)  # by then the reader has set its own
        elif not self.is_forgiven and self._poll.poll(0):
            self.is_forgiven = True
            self.deadline.set(_LATE_S)
        else:
            self.fail(Expired())

    def _wake(self) -> None:
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _poll_for(transport: asyncio.Transport) -> select.poll:
    """What asks the kernel whether it holds something for us: an idle socket has nothing."""
    socket = cast("TransportSocket", transport.get_extra_info("socket"))
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN | select.POLLHUP)
    return poll
