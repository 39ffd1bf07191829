"""The engine's end of a link to one gateway worker.

While the worker reads slower than the engine writes, text of the same request is put together
instead of queued, so that a link holds at most one message of each kind per request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import cast

import msgspec

from local_engine.errors import ProtocolError
from local_engine.protocol import (
    Accepted,
    ClientMessage,
    Done,
    EngineMessage,
    MessageReader,
    Refused,
    TextDelta,
    encode_frame,
)

_log = logging.getLogger(__name__)
_BACKLOG_REQUESTS_MAX = 4096
_WRITE_BUFFER_BYTES = 256 * 1024

RequestMessage = Accepted | TextDelta | Done | Refused


class Link(asyncio.Protocol):
    """A transport's protocol that reads client messages and writes engine messages.

    Args:
        on_message: Called with each message of the client.
        on_lost: Called once when the link is gone.
    """

    def __init__(
        self,
        *,
        on_message: Callable[[Link, ClientMessage], None],
        on_lost: Callable[[Link], None],
    ) -> None:
        self.is_greeted = False
        self.keys: dict[str, int] = {}
        self._on_message = on_message
        self._on_lost = on_lost
        # A union is a type to msgspec, which the stubs cannot say.
        self._reader = MessageReader(cast("type[ClientMessage]", ClientMessage))
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._backlog: dict[str, list[RequestMessage]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for message in self._reader.feed(data):
                self._on_message(self, message)
        except ProtocolError as fault:
            _log.warning("closing a link: %s", fault)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        self._backlog.clear()
        self._on_lost(self)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._is_paused = False
        backlog, self._backlog = self._backlog, {}
        self._write(message for messages in backlog.values() for message in messages)

    def send(self, messages: Iterable[RequestMessage]) -> None:
        """Write messages about requests, or keep them put together while the worker is behind."""
        if self._transport is None:
            return
        if not self._is_paused:
            self._write(messages)
            return
        for message in messages:
            waiting = self._backlog.setdefault(message.id, [])
            last = waiting[-1] if waiting else None
            if isinstance(message, TextDelta) and isinstance(last, TextDelta):
                waiting[-1] = msgspec.structs.replace(message, text=last.text + message.text)
            else:
                waiting.append(message)
        if len(self._backlog) > _BACKLOG_REQUESTS_MAX:
            _log.warning("closing a link that no longer reads")
            self.abort()

    def send_now(self, message: EngineMessage) -> None:
        """Write a message that is not about a request in progress."""
        self._write([message])

    def close(self) -> None:
        """Close after what was written has gone out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, messages: Iterable[EngineMessage]) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(encode_frame(message) for message in messages))
