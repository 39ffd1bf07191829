"""One answered request: its status, its headers, and its body as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Self

import aiohttp
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError
from aiohttp.streams import StreamReader
from multidict import CIMultiDictProxy

from providers.errors import (
    BadWire,
    ConnectionLost,
    FirstTokenTimeout,
    ProviderError,
    StreamStalled,
    TotalTimeout,
)
from providers.transport.options import ERROR_BODY_MAX_BYTES, TransportOptions
from providers.transport.pool import Line, Pool
from providers.transport.watch import Expired

_READ_BYTES_MAX = 128 * 1024
"""Most that one read returns: what compressed bytes swell to is not worked through at once."""


class _Headers(Mapping[str, str]):
    """The headers as they were parsed; only those that are looked at are put right."""

    __slots__ = ("_parsed",)

    def __init__(self, parsed: CIMultiDictProxy[str]) -> None:
        self._parsed = parsed

    def __getitem__(self, name: str) -> str:
        return _proper(self._parsed[name])

    def __contains__(self, name: object) -> bool:
        return name in self._parsed

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.lower() for name in self._parsed))

    def __len__(self) -> int:
        return len(dict.fromkeys(name.lower() for name in self._parsed))


class Exchange:
    """One request that was answered with a head; its body is read here.

    Attributes:
        status: The HTTP status.
        headers: The headers, names in lower case; of repeated ones the first. Bytes that are no
            UTF-8 are replaced, so that every value can be written down.
    """

    __slots__ = (
        "_between_tokens_s",
        "_has_content",
        "_has_finished",
        "_line",
        "_loop",
        "_options",
        "_pool",
        "_reader",
        "_total_at",
        "_wait_at",
        "_was_cut",
        "_watch",
        "headers",
        "status",
    )

    def __init__(
        self,
        message: RawResponseMessage,
        reader: StreamReader,
        *,
        loop: asyncio.AbstractEventLoop,
        line: Line,
        pool: Pool,
        wait_at: float,
        total_at: float,
        between_tokens_s: float,
        options: TransportOptions,
    ) -> None:
        self._loop = loop
        self._reader = reader
        self._line = line
        self._pool = pool
        self._watch = line.watch
        self._total_at = total_at
        self._wait_at = wait_at
        self._between_tokens_s = between_tokens_s
        self._options = options
        self._has_content = False
        self._has_finished = False
        self._was_cut = False
        # From here on a deadline concerns the body, of which nobody reads yet.
        line.watch.move(total_at, reader)
        self.status = message.code
        self.headers: Mapping[str, str] = _Headers(message.headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the socket back when the body was read to its end, else close it at once."""
        if self._reader.at_eof() and self._reader.exception() is None:
            self._pool.give_back(self._line)
        else:
            self._pool.discard(self._line)

    def note_content(self) -> None:
        """The first content event came: reads now have the between-tokens deadline each."""
        self._has_content = True

    def note_finish(self) -> None:
        """The answer is complete: what follows has a short grace and may be missing."""
        if not self._has_finished:
            self._has_finished = True
            self._wait_at = self._loop.time() + self._options.finish_grace_s

    async def read(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end.

        Raises:
            FirstTokenTimeout: No content came in time.
            StreamStalled: The body fell silent.
            TotalTimeout: The attempt took too long.
            ConnectionLost: The connection broke.
            BadWire: The body's framing or compression is broken.
        """
        if self._was_cut:
            await asyncio.sleep(0)  # the rest is here already, and others wait for the loop
        if self._is_here:
            part = self._reader.read_nowait(_READ_BYTES_MAX)
            self._was_cut = len(part) == _READ_BYTES_MAX
            return part
        if self._has_content and not self._has_finished:
            self._wait_at = self._loop.time() + self._between_tokens_s
        self._watch.move(min(self._wait_at, self._total_at), self._reader)
        try:
            part = await self._reader.read(_READ_BYTES_MAX)
        except (Expired, aiohttp.ClientError, ConnectionError, HttpProcessingError) as fault:
            rest = self._unread(fault)
            if rest or self._has_finished:
                return rest
            if isinstance(fault, Expired):
                raise self._timeout_error() from None
            raise read_error(fault) from fault
        else:
            self._was_cut = len(part) == _READ_BYTES_MAX
            return part
        finally:
            # A slow consumer is no silence of the upstream; only the total limit runs on.
            self._watch.expires_at = self._total_at

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
        if self._is_here:
            # The usual answer, which came in one packet with its head.
            whole = self._reader.read_nowait()
            if len(whole) <= max_bytes or cuts:
                return whole[:max_bytes]
            raise BadWire(f"The answer exceeds {max_bytes} bytes.")
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
        return self._reader.read_nowait() if self._is_here else None

    async def settle(self) -> None:
        """After the end mark: wait briefly for the end of the body, so that the socket is kept."""
        if self._reader.at_eof():
            return
        self._has_finished = True
        self._wait_at = self._loop.time() + self._options.end_grace_s
        size_bytes = 0
        while part := await self.read():
            size_bytes += len(part)
            if size_bytes > ERROR_BODY_MAX_BYTES:
                return

    def _unread(self, fault: Exception) -> bytes:
        """What had come before a failure and was not read: aiohttp's reader would withhold it."""
        reader = self._reader
        reader._exception = None  # pyright: ignore[reportPrivateUsage]: no other way
        rest = reader.read_nowait()
        # Without its frames: ours is among them, which would keep itself and all that came.
        reader.set_exception(fault.with_traceback(None))
        return rest

    @property
    def _is_here(self) -> bool:
        """Whether all that is still to be read has arrived."""
        return self._reader.is_eof() and self._reader.exception() is None

    def _timeout_error(self) -> ProviderError:
        if self._loop.time() >= self._total_at:
            return TotalTimeout("The upstream took longer than the total deadline.")
        if self._has_content:
            return StreamStalled("The upstream fell silent in the middle of its answer.")
        return FirstTokenTimeout("The upstream sent no content within the deadline.")


def _proper(value: str) -> str:
    """A header's text without the surrogates that stand for its undecodable bytes."""
    if value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_error(fault: Exception) -> ProviderError:
    """What a broken answer means to a caller.

    Args:
        fault: From aiohttp or the socket, after the request was sent.
    """
    if isinstance(fault.__cause__, ContentEncodingError):
        return BadWire("The upstream's answer is compressed in a way that cannot be undone.")
    if isinstance(fault, aiohttp.ClientResponseError | HttpProcessingError):
        return BadWire("The upstream's answer is not valid HTTP.")
    return ConnectionLost("The connection to the upstream broke.")
