"""One answered request: its status, its headers, and its body as it comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Self

from providers.errors import (
    BadWire,
    ConnectionLost,
    FirstTokenTimeout,
    ProviderError,
    StreamStalled,
    TotalTimeout,
)
from providers.transport.inflate import Inflater
from providers.transport.line import Expired, Line, Malformed
from providers.transport.options import ERROR_BODY_MAX_BYTES
from providers.transport.pool import Pool

_READ_BYTES_MAX = 128 * 1024
"""Most that one read returns: more than this is not worked through at once."""


class Headers(Mapping[str, str]):
    """The headers as they were parsed; only those that are looked at are decoded."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return header_text(self._fields[name.lower().encode()])

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower().encode() in self._fields

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def header_text(value: bytes) -> str:
    """A header's value; bytes that are no UTF-8 are replaced, so that it can be written down."""
    return value.decode("utf-8", "replace").rstrip(" \t")


class Exchange:
    """One request that was answered with a head; its body is read here.

    Attributes:
        status: The HTTP status.
        fields: The headers as they came, names in lower case; of repeated ones the first.
    """

    __slots__ = (
        "_between_tokens_s", "_has_content", "_has_finished", "_line", "_pool", "_total_at",
        "_wait_at", "_was_cut", "fields", "status",
    )  # fmt: skip

    def __init__(
        self,
        line: Line,
        pool: Pool,
        *,
        wait_at: float,
        total_at: float,
        between_tokens_s: float,
    ) -> None:
        self._line = line
        self._pool = pool
        self._total_at = total_at
        self._wait_at = wait_at
        self._between_tokens_s = between_tokens_s
        self._has_content = False
        self._has_finished = False
        self._was_cut = False
        # From here on a deadline concerns the body, of which nobody reads yet.
        line.waiter = None
        line.deadline.at_s = total_at
        self.status = line.status
        self.fields: Mapping[bytes, bytes] = line.headers

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers as text; `header_text` of a field is quicker for one whose name is known."""
        return Headers(self.fields)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the socket back when the body was read to its end, else close it at once."""
        line = self._line
        if line.is_complete and not line.parts and line.fault is None:
            self._pool.give_back(line)
        else:
            self._pool.discard(line)

    def note_content(self) -> None:
        """The first content event came: reads now have the between-tokens deadline each."""
        self._has_content = True

    def note_finish(self) -> None:
        """The answer is complete: what follows has a short grace and may be missing."""
        if not self._has_finished:
            self._has_finished = True
            self._wait_at = self._pool.loop.time() + self._pool.options.finish_grace_s

    async def read(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end.

        Raises:
            FirstTokenTimeout: No content came in time.
            StreamStalled: The body fell silent.
            TotalTimeout: The attempt took too long.
            ConnectionLost: The connection broke.
            BadWire: The body's framing or compression is broken.
        """
        line = self._line
        if self._was_cut:
            await asyncio.sleep(0)  # the rest is here already, and others wait for the loop
        if not (line.parts or line.is_complete or line.fault):
            loop, deadline, total_at = self._pool.loop, line.deadline, self._total_at
            if self._has_content and not self._has_finished:
                self._wait_at = loop.time() + self._between_tokens_s
                line.is_forgiven = False
            deadline.move(min(self._wait_at, total_at))
            try:
                while not (line.parts or line.is_complete or line.fault):
                    waiter = line.waiter = loop.create_future()
                    await waiter
            finally:
                line.waiter = None
                # A slow consumer is no silence of the upstream; only the total limit runs on.
                deadline.at_s = total_at
        part = line.take(_READ_BYTES_MAX)
        self._was_cut = len(part) == _READ_BYTES_MAX
        if not part and line.fault is not None and not self._has_finished:
            raise self._error(line.fault) from line.fault
        return part

    async def read_all(self, *, max_bytes: int, cuts: bool = False) -> bytes:
        """Read the whole body.

        Args:
            max_bytes: Limit on its size after decompression.
            cuts: The start is enough, as of a refusal, whose status says the most: a body that is
                longer, breaks, or falls silent for the grace of a finished answer, is cut there.

        Raises:
            BadWire: The body is longer than `max_bytes`.
            DeliveryError: As `read`.
        """
        if cuts:
            self.note_finish()
        parts: list[bytes] = []
        size_bytes = 0
        while part := await self.read():
            parts.append(part)
            size_bytes += len(part)
            if size_bytes > max_bytes and cuts:
                break
            if size_bytes > max_bytes:
                raise BadWire(f"The answer exceeds {max_bytes} bytes.")
        return b"".join(parts)[:max_bytes]

    def take_rest(self) -> bytes | None:
        """All that is still to be read of the body, None while some of it has yet to arrive."""
        line = self._line
        return line.take(sys.maxsize) if line.is_complete and line.fault is None else None

    async def settle(self) -> None:
        """After the end mark: wait briefly for the end of the body, so that the socket is kept."""
        line = self._line
        if line.is_complete and not line.parts:
            return
        self._has_finished = True
        self._wait_at = self._pool.loop.time() + self._pool.options.end_grace_s
        size_bytes = 0
        while part := await self.read():
            size_bytes += len(part)
            if size_bytes > ERROR_BODY_MAX_BYTES:
                return

    def _error(self, fault: Exception) -> ProviderError:
        if not isinstance(fault, Expired):
            return error_from(fault)
        if self._pool.loop.time() >= self._total_at:
            return TotalTimeout("The upstream took longer than the total deadline.")
        if self._has_content:
            return StreamStalled("The upstream fell silent in the middle of its answer.")
        return FirstTokenTimeout("The upstream sent no content within the deadline.")


class InflatedExchange(Exchange):
    """An exchange whose body came compressed."""

    __slots__ = ("_inflater",)

    def __init__(self, line: Line, pool: Pool, **waits: float) -> None:
        super().__init__(line, pool, **waits)
        self._inflater = Inflater(line.headers[b"content-encoding"])

    async def read(self) -> bytes:
        """Wait for the next bytes of the body, decompressed; as `Exchange.read`."""
        inflater = self._inflater
        try:
            while True:
                part = b""
                if inflater.has_more:
                    await asyncio.sleep(0)  # others wait for the loop
                elif not (part := await super().read()):
                    inflater.check_end()
                    return b""
                if plain := inflater.inflate(part, max_bytes=_READ_BYTES_MAX):
                    return plain
        except BadWire:
            if self._has_finished:
                return b""
            raise

    def take_rest(self) -> bytes | None:
        """As `Exchange.take_rest`; never at once, for it may swell to any size."""
        return None


def error_from(fault: Exception) -> ProviderError:
    """What a broken connection means to a caller.

    Args:
        fault: A line's, other than that it took too long.
    """
    if isinstance(fault, Malformed):
        return BadWire(str(fault))
    return ConnectionLost("The connection to the upstream broke.")
