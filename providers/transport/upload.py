"""A large request body on its way to an upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

SLICE_BYTES = 256 * 1024
"""Most of a body that is handed to the socket, or encrypted, in one go."""

_PUSH_BYTES_MAX = 1024 * 1024
"""Most that is handed on before others have their turn on the loop."""


class Sink(Protocol):
    """The connection that a body goes out on."""

    @property
    def transport(self) -> asyncio.Transport:
        """Its socket."""
        ...

    @property
    def is_writing_paused(self) -> bool:
        """Whether the socket takes no more for now."""
        ...


class Upload:
    """A body too large for one write, handed on in slices as the upstream takes them."""

    def __init__(
        self, sink: Sink, pieces: Sequence[bytes], *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._sink = sink
        self._loop = loop
        self._slices: Iterator[memoryview] | None = chain.from_iterable(map(_slices, pieces))

    @property
    def is_done(self) -> bool:
        """Whether the whole body was handed to the socket."""
        return self._slices is None

    def push(self) -> None:
        """Hand on what the socket takes now."""
        size_bytes = 0
        transport = self._sink.transport
        while self._slices is not None:
            if self._sink.is_writing_paused or transport.is_closing():
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
        self._slices = iter(())


def _slices(piece: bytes) -> Iterator[memoryview]:
    view = memoryview(piece)
    for start in range(0, len(view), SLICE_BYTES):
        yield view[start : start + SLICE_BYTES]
