"""The connections to one origin: taken, waited for, opened, given back.

A `Dialer` opens them, and an opened connection becomes a `Line`. aiohttp's own pool would cost an
await, a context and a key for each request, and its queue has no bound.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from math import inf

from yarl import URL

from providers.errors import NoConnectionFree, NotSent
from providers.transport.dial import Dialer
from providers.transport.line import Line
from providers.transport.options import KEEP_ALIVE_S, TransportOptions

logger = logging.getLogger(__name__)

DISTRUST_S = 600
"""So long an origin that sent something unasked gets a new connection for each request."""


class Pool:
    """The connections to one origin.

    Attributes:
        loop: The loop that they run on.
        options: How they are made.
    """

    def __init__(self, origin: URL, options: TransportOptions, dialer: Dialer) -> None:
        self.loop = asyncio.get_running_loop()
        self.options = options
        self._origin = origin
        self._dialer = dialer
        self._lines: set[Line] = set()
        self._idle: list[Line] = []
        self._waiting: deque[asyncio.Future[Line | None]] = deque()
        self._slots_taken = 0
        self._sweep: asyncio.TimerHandle | None = None
        self._distrusted_until = 0.0

    def take(self, now: float) -> Line | None:
        """The connection that rested last, None when none is idle.

        Args:
            now: By the loop's clock.
        """
        while self._idle:
            line = self._idle.pop()
            line.is_idle = False
            if line.is_usable(now):
                return line
            self._drop(line)
        return None

    async def open(self, expires_at: float) -> Line:
        """Open a connection, or wait for one where the limit is reached.

        Args:
            expires_at: When to give up, by the loop's clock.

        Raises:
            NoConnectionFree: All are in use, and none came free in time or too many wait for one.
            NotSent: None could be opened, or not in time.
        """
        is_waiting = False
        try:
            async with asyncio.timeout_at(expires_at):
                while self._slots_taken >= self.options.connections_max:
                    is_waiting = True
                    line = await self._wait()
                    if line is None:
                        break
                    if line.is_usable(self.loop.time()):
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
        line.deadline.at_s = inf
        now = line.idle_at = self.loop.time()
        if line not in self._lines:
            return
        if line.closes:
            self._drop(line)
        elif (
            now >= line.expires_at
            or now < self._distrusted_until
            or (line.upload is not None and line.has_unsent())
        ):
            self.discard(line)
        elif self._waiting and (waiter := self._next_waiter()) is not None:
            waiter.set_result(line)
        else:
            line.is_idle = True
            self._idle.append(line)
            if self._sweep is None:
                self._sweep = self.loop.call_later(line.keep_alive_s, self._close_rested)

    def _drop(self, line: Line) -> None:
        """Discard a connection that cannot be used again, and look why.

        What an upstream sends unasked is taken for the answer to the next request on the line, and
        HTTP/1.1 has nothing to tell them apart by. Where it happened once no line is used twice.
        """
        if line.has_unasked:
            if self.loop.time() >= self._distrusted_until:
                logger.warning(
                    "%s sent something that nobody asked for; its connections are not used again"
                    " for %d s",
                    self._origin,
                    DISTRUST_S,
                )
            self._distrusted_until = self.loop.time() + DISTRUST_S
            idle, self._idle = self._idle, []
            for other in idle:
                self.discard(other)
        self.discard(line)

    def discard(self, line: Line) -> None:
        """Close a connection; again is harmless."""
        if line not in self._lines:
            return
        self._lines.discard(line)
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
        options = self.options
        try:
            dialled = await self._dialer.dial(self._origin)
        except BaseException:
            self._free_slot()
            raise
        line = Line(
            dialled.transport,
            options,
            loop=self.loop,
            keep_alive_s=KEEP_ALIVE_S[self._origin.scheme]
            if options.keep_alive_s is None
            else options.keep_alive_s,
            expires_at=self.loop.time() + options.connection_age_max_s,
            close=dialled.close,
        )
        self._lines.add(line)
        line.on_lost = lambda: self._note_lost(line)
        return line

    async def _wait(self) -> Line | None:
        """Queue for a connection that is given back, or for a free slot, which is then ours."""
        if len(self._waiting) >= self.options.waiting_max:
            raise NoConnectionFree(
                f"All {self.options.connections_max} connections to the upstream are in use and"
                f" {len(self._waiting)} requests wait for one."
            )
        waiter: asyncio.Future[Line | None] = self.loop.create_future()
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
        now = self.loop.time()
        for line in [one for one in self._idle if now - one.idle_at >= one.keep_alive_s]:
            if line in self._idle:  # else all of them were discarded with another one
                self._idle.remove(line)
                self._drop(line)
        if self._idle:
            next_at = min(line.idle_at + line.keep_alive_s for line in self._idle)
            self._sweep = self.loop.call_at(next_at, self._close_rested)
