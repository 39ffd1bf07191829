"""The connections to one origin: taken, waited for, opened, given back.

aiohttp's connector opens them (names, addresses, TLS, proxies) and is asked for nothing else: its
own pool would cost an await, a context and a key for each request, and its queue has no bound.
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Mapping
from ssl import SSLObject
from typing import cast

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from providers.errors import NoConnectionFree, NotSent
from providers.transport.handler import Handler
from providers.transport.head import basic_credentials
from providers.transport.options import KEEP_ALIVE_S, TransportOptions
from providers.transport.tls import ResumingContext
from providers.transport.watch import Watch

logger = logging.getLogger(__name__)

DISTRUST_S = 600
"""So long an origin that sent something unasked gets a new connection for each request."""

_KEEP_ALIVE_MARGIN_S = 1
_ANNOUNCED = re.compile(r"\btimeout=(\d{1,6})")
_NO_LIMITS = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None)


class Line:
    """An open connection.

    Attributes:
        handler: Its protocol.
        transport: Its socket, or TLS over it.
        watch: The deadline of what goes on on it.
        idle_at: When it was last given back, by the loop's clock.
        keep_alive_s: How long it may be idle.
        expires_at: When it is too old to be used again.
        was_used: Whether an answer came on it.
        is_idle: Whether it lies in the pool.
    """

    __slots__ = (
        "_connection",
        "expires_at",
        "handler",
        "idle_at",
        "is_idle",
        "keep_alive_s",
        "transport",
        "was_used",
        "watch",
    )

    def __init__(
        self, connection: Connection, handler: Handler, *, keep_alive_s: float, expires_at: float
    ) -> None:
        assert handler.transport is not None
        self._connection = connection
        self.handler = handler
        self.transport = handler.transport
        self.keep_alive_s = keep_alive_s
        self.expires_at = expires_at
        self.watch = Watch(handler.loop)
        self.idle_at = 0.0
        self.is_idle = False
        self.was_used = False

    def is_usable(self, now: float) -> bool:
        """Whether a request may go out on it: open, rested not too long, and nothing left over.

        An upstream, or a proxy before it, that answers a request twice would otherwise give one
        tenant's answer to another. The kernel is asked each time, which takes a microsecond: what
        has come while the loop was busy is not with the parser yet.
        """
        transport = self.handler.transport
        if transport is None or transport.is_closing() or not self.handler.is_clean:
            return False
        return now - self.idle_at <= self.keep_alive_s and not _is_readable(transport)

    def has_unsent(self) -> bool:
        """Whether a request was answered before all of it was sent."""
        upload = self.handler.upload
        if upload is None:
            return False
        self.handler.upload = None
        return not upload.is_done or self.transport.get_write_buffer_size() > 0

    def note_answer(self, headers: Mapping[str, str]) -> None:
        """Learn from the first answer: how long the upstream waits, and its TLS session."""
        self.was_used = True
        announced = _ANNOUNCED.search(headers.get("Keep-Alive", ""))
        if announced is not None:
            self.keep_alive_s = min(self.keep_alive_s, int(announced[1]) - _KEEP_ALIVE_MARGIN_S)
        tls = cast("SSLObject | None", self.transport.get_extra_info("ssl_object"))
        if tls is not None and isinstance(tls.context, ResumingContext):
            tls.context.remember(tls)

    def abort(self) -> None:
        """Close at once; what was not sent yet is not waited for."""
        self.watch.stop()
        transport = self.handler.transport
        if transport is not None:
            transport.abort()
        self._connection.close()


class Connector(aiohttp.TCPConnector):
    """Opens connections whose protocol is `Handler`."""

    def __init__(self, options: TransportOptions, *, dns_ttl_s: int) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]: aiohttp leaves a tuple bare
            limit=0,
            ttl_dns_cache=dns_ttl_s,
            ssl=options.ssl_context or True,
            resolver=options.resolver,
        )
        self._factory = lambda: Handler(self._loop)


class Pool:
    """The connections to one origin."""

    def __init__(self, origin: URL, options: TransportOptions, connector: Connector) -> None:
        self._origin = origin
        self._options = options
        self._connector = connector
        self._loop = asyncio.get_running_loop()
        self._lines: set[Line] = set()
        self._idle: list[Line] = []
        self._waiting: deque[asyncio.Future[Line | None]] = deque()
        self._slots_taken = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._distrusted_until = 0.0

    def take(self) -> Line | None:
        """The connection that rested last, None when none is idle."""
        while self._idle:
            line = self._idle.pop()
            line.is_idle = False
            if line.is_usable(self._loop.time()):
                return line
            self._drop(line)
        return None

    async def open(self, expires_at: float) -> Line:
        """Open a connection, or wait for one where the limit is reached.

        Args:
            expires_at: When to give up, by the loop's clock.

        Raises:
            NoConnectionFree: All are in use, and none came free in time or too many wait for one.
            NotSent: None could be opened in time.
            aiohttp.ClientError: It could not be opened.
            OSError: It could not be opened.
        """
        is_waiting = False
        try:
            async with asyncio.timeout_at(expires_at):
                while self._slots_taken >= self._options.connections_max:
                    is_waiting = True
                    line = await self._wait()
                    if line is None:
                        break
                    if line.is_usable(self._loop.time()):
                        return line
                    self._drop(line)
                else:
                    self._slots_taken += 1
                is_waiting = False
                return await self._dial()
        except TimeoutError:
            if is_waiting:
                what = "No connection to the upstream came free within the deadline."
                raise NoConnectionFree(what) from None
            what = "No connection to the upstream could be opened within the deadline."
            raise NotSent(what) from None

    def give_back(self, line: Line) -> None:
        """Put a connection back whose answer was read to its end."""
        line.watch.rest()
        now = line.idle_at = self._loop.time()
        if line not in self._lines:
            return
        if line.handler.should_close:
            self._drop(line)
            return
        if now >= line.expires_at or now < self._distrusted_until or line.has_unsent():
            self.discard(line)
            return
        if self._waiting and (waiter := self._next_waiter()) is not None:
            waiter.set_result(line)
            return
        line.is_idle = True
        self._idle.append(line)
        if self._sweep is None:
            self._sweep = self._loop.call_later(line.keep_alive_s, self._close_rested)

    def _drop(self, line: Line) -> None:
        """Discard a connection that cannot be used again, and look why.

        What an upstream sends unasked is taken for the answer to the next request on the line, and
        HTTP/1.1 has nothing to tell them apart by. Where it happened once no line is used twice.
        """
        if line.handler.has_unasked:
            if self._loop.time() >= self._distrusted_until:
                logger.warning(
                    "%s sent something that nobody asked for; its connections are not used again"
                    " for %d s",
                    self._origin,
                    DISTRUST_S,
                )
            self._distrusted_until = self._loop.time() + DISTRUST_S
            idle, self._idle = self._idle, []
            for other in idle:
                self.discard(other)
        self.discard(line)

    def discard(self, line: Line) -> None:
        """Close a connection; again is harmless."""
        if line not in self._lines:
            return
        self._lines.discard(line)
        line.handler.on_lost = None
        line.abort()
        self._free_slot()

    def close(self) -> None:
        """Close every connection, those in use too, and send who waits away."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        while (waiter := self._next_waiter()) is not None:
            waiter.set_exception(NotSent("The provider was closed."))
        self._idle.clear()
        for line in list(self._lines):
            self.discard(line)

    async def _dial(self) -> Line:
        """Open a connection in a slot that is already taken."""
        options = self._options
        try:
            connection = await self._connector.connect(self._first_request(), [], _NO_LIMITS)
        except BaseException:
            # What the names meant may be out of date.
            self._connector.clear_dns_cache()
            self._free_slot()
            raise
        handler = connection.protocol
        assert isinstance(handler, Handler)
        line = Line(
            connection,
            handler,
            keep_alive_s=KEEP_ALIVE_S[self._origin.scheme]
            if options.keep_alive_s is None
            else options.keep_alive_s,
            expires_at=self._loop.time() + options.connection_age_max_s,
        )
        self._lines.add(line)
        handler.on_lost = lambda: self._note_lost(line)
        return line

    def _first_request(self) -> aiohttp.ClientRequest:
        """What tells the connector where to; made anew, since it writes into it."""
        options = self._options
        proxy = None if options.proxy is None else URL(options.proxy)
        credentials = options.proxy_credentials
        if proxy is None or credentials is None:
            return aiohttp.ClientRequest("POST", self._origin, loop=self._loop, proxy=proxy)
        return aiohttp.ClientRequest(
            "POST",
            self._origin,
            loop=self._loop,
            proxy=proxy,
            proxy_headers={"Proxy-Authorization": basic_credentials(credentials)},
        )

    async def _wait(self) -> Line | None:
        """Queue for a connection that is given back, or for a free slot, which is then ours."""
        if len(self._waiting) >= self._options.waiting_max:
            raise NoConnectionFree(
                f"All {self._options.connections_max} connections to the upstream are in use and"
                f" {len(self._waiting)} requests wait for one."
            )
        waiter: asyncio.Future[Line | None] = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
            elif (line := waiter.result()) is None:
                self._free_slot()
            else:
                self.give_back(line)
            raise

    def _next_waiter(self) -> asyncio.Future[Line | None] | None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    def _free_slot(self) -> None:
        waiter = self._next_waiter()
        if waiter is None:
            self._slots_taken -= 1
        else:
            waiter.set_result(None)

    def _note_lost(self, line: Line) -> None:
        """Forget an idle connection that ended; one in use is its user's to discard."""
        if line.is_idle:
            self._idle.remove(line)
            self.discard(line)

    def _close_rested(self) -> None:
        self._sweep = None
        now = self._loop.time()
        for line in [one for one in self._idle if now - one.idle_at >= one.keep_alive_s]:
            if line in self._idle:  # else all of them were discarded with another one
                self._idle.remove(line)
                self._drop(line)
        if self._idle:
            next_at = min(line.idle_at + line.keep_alive_s for line in self._idle)
            self._sweep = self._loop.call_at(next_at, self._close_rested)


def _is_readable(transport: asyncio.Transport) -> bool:
    """Whether the kernel holds something for us, be it the end: an idle socket has nothing."""
    socket = cast("TransportSocket | None", transport.get_extra_info("socket"))
    if socket is None or (number := socket.fileno()) < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(0))
