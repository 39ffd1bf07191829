"""One connection's protocol: aiohttp's parser and body reader, and what is added to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from aiohttp.client_proto import ResponseHandler

SLICE_BYTES = 256 * 1024
"""Most of a body that is handed to the socket, or encrypted, in one go."""

_PUSH_BYTES_MAX = 1024 * 1024
"""Most that is handed on before others have their turn on the loop."""


class Handler(ResponseHandler):
    """aiohttp's protocol of a client connection, used without its request and response classes.

    Attributes:
        on_lost: Told when the connection has ended.
        upload: The large body that is being sent, None when there is none.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.on_lost: Callable[[], None] | None = None
        self.upload: Upload | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left of earlier answers, nor anything came after them.

        Not even the start of another answer: the parser, asked to end, shows one that has begun.
        """
        if self.should_close:
            return False
        return self._parser is None or self._parser.feed_eof() is None

    @property
    def has_unasked(self) -> bool:
        """Whether something came that answers nothing which was asked."""
        return bool(self._buffer or self._tail) or (not self.should_close and not self.is_clean)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it runs on."""
        return self._loop

    def connection_lost(self, exc: BaseException | None) -> None:
        """End what was going on, then tell the pool."""
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on after a pause; aiohttp's reader asks for it at each part that it hands out."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def resume_writing(self) -> None:
        """Go on with a body that the upstream was too slow for."""
        super().resume_writing()
        if self.upload is not None:
            self.upload.push()

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """Fail the answer, and its body too: aiohttp 3.14 leaves a malformed one waiting."""
        if exc_cause is None:
            super().set_exception(exc)
        else:
            super().set_exception(exc, exc_cause)
        payload = self._payload
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(exc)


class Upload:
    """A body too large for one write, handed on in slices as the upstream takes them."""

    def __init__(
        self, handler: Handler, pieces: Sequence[bytes], *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._handler = handler
        self._loop = loop
        self._slices: Iterator[memoryview] | None = chain.from_iterable(map(_slices, pieces))

    @property
    def is_done(self) -> bool:
        """Whether the whole body was handed to the socket."""
        return self._slices is None

    def push(self) -> None:
        """Hand on what the socket takes now."""
        size_bytes = 0
        transport = self._handler.transport
        while self._slices is not None and transport is not None:
            if self._handler.writing_paused or transport.is_closing():
                return
            if size_bytes >= _PUSH_BYTES_MAX:
                self._loop.call_soon(self.push)
                return
            part = next(self._slices, None)
            if part is None:
                self._slices = None
                return
            transport.write(part)
            size_bytes += len(part)

    def stop(self) -> None:
        """Send nothing more; the connection cannot be used again."""
        self._handler.force_close()
        self._handler.upload = None
        self._slices = iter(())


def _slices(piece: bytes) -> Iterator[memoryview]:
    view = memoryview(piece)
    for start in range(0, len(view), SLICE_BYTES):
        yield view[start : start + SLICE_BYTES]
