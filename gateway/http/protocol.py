"""uvicorn's HTTP/1.1 protocol with bounds on what comes before a body.

httptools collects request lines and headers without a limit of its own, in size or in time; a
client without a key could fill the memory with one header, or hold sockets by sending none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import HeadersTooLarge
from gateway.http.errors import openai_body, row_of

HEAD_BYTES_MAX: Final = 64 * 1024
"""Longest request line with headers; what a single read brings at once may be more."""

HEAD_S_MAX: Final = 30.0
"""Longest time from a connection, or from a request's first byte, to the end of its headers."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection, whose heads are bounded in size and time."""

    head_s_max = HEAD_S_MAX
    _head_bytes = 0
    _is_in_head = True
    _has_begun = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Expect a first request soon."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass what came to the parser, unless the head is too long already."""
        self._has_begun = False
        super().data_received(data)
        # Of a read in which a head begins nobody knows which part is head; it is bounded itself.
        if self._is_in_head and not self._has_begun:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
                self.transport.write(_refusal())
                self.transport.close()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._expect_head()
        self._await_head()

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._is_in_head = False
        self._end_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes next is a head again."""
        self._expect_head()
        super().on_message_complete()

    def _expect_head(self) -> None:
        self._is_in_head, self._has_begun, self._head_bytes = True, True, 0

    def _await_head(self) -> None:
        if self._head_timer is None:
            close: Callable[[], None] = self.transport.abort
            self._head_timer = self.loop.call_later(self.head_s_max, close)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _refusal() -> bytes:
    error = HeadersTooLarge(f"request line and headers are over {HEAD_BYTES_MAX // 1024} KiB")
    body = openai_body(error)
    return (
        b"HTTP/1.1 %d Request Header Fields Too Large\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
    ) % (row_of(error).status, len(body), body)
