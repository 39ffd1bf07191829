"""HTTP to upstreams: the only module that knows the client library.

One `Transport` per provider owns a pool of connections and refuses, at the point where a socket
would be taken or opened, every origin that is not configured. It follows no redirect, reads no
proxy or credential from the environment and logs no body. Deadlines cost one timer: aiohttp's own
connect limit aside, `_Watch` is armed once per attempt and moved by assignment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from io import BytesIO
from ssl import SSLContext
from typing import Self
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError
from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.errors import (
    BadWire,
    ConnectionLost,
    FirstTokenTimeout,
    NotSent,
    ProviderError,
    StreamStalled,
    TotalTimeout,
)

ERROR_BODY_MAX_BYTES = 64 * 1024
ANSWER_MAX_BYTES = 64 * 1024 * 1024
_READ_BUFFER_BYTES = 64 * 1024
_READ_BYTES_MAX = 128 * 1024
"""Most that one read returns: what compressed bytes swell to is not worked through at once."""

_WHOLE_BODY_BYTES = 512 * 1024
_DNS_TTL_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """How a provider's connections are made.

    Attributes:
        connections_max: Sockets open at once; more requests wait within the connect deadline.
        keep_alive_s: How long an idle socket is kept.
        proxy: A forward proxy's URL, None for direct connections; the environment is never read.
        ssl_context: Trust roots and client certificate, None for the platform's.
        header_bytes_max: Longest response header line and field.
        headers_max: Most response header fields.
        finish_grace_s: How long a finished answer may take to send usage and its end mark.
        end_grace_s: How long to wait after the end mark for the end of the HTTP body, which is what
            allows the socket to be used again.
    """

    connections_max: int = 1000
    keep_alive_s: float = 30.0
    proxy: str | None = None
    ssl_context: SSLContext | None = None
    header_bytes_max: int = 16 * 1024
    headers_max: int = 128
    finish_grace_s: float = 2.0
    end_grace_s: float = 0.1


class _Expired(Exception):
    """Put into a body's reader when a deadline passes."""


class _Watch:
    """One loop timer for the reads of one attempt; moving the deadline is an assignment."""

    __slots__ = ("_handle", "_loop", "_reader", "expires_at", "has_expired")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reader: aiohttp.StreamReader, expires_at: float
    ) -> None:
        self._loop = loop
        self._reader = reader
        self.expires_at = expires_at
        self.has_expired = False
        self._handle = loop.call_at(expires_at, self._fire)

    def move(self, expires_at: float) -> None:
        """Set the deadline; only an earlier one than the timer's touches the loop."""
        self.expires_at = expires_at
        if expires_at < self._handle.when():
            self._handle.cancel()
            self._handle = self._loop.call_at(expires_at, self._fire)

    def stop(self) -> None:
        """Forget the deadline."""
        self._handle.cancel()

    def _fire(self) -> None:
        if self._loop.time() < self.expires_at:
            self._handle = self._loop.call_at(self.expires_at, self._fire)
            return
        self.has_expired = True
        self._reader.set_exception(_Expired())


class _Sending:
    """An attempt between its start and the response's headers."""

    __slots__ = ("_deadlines", "_facts", "_timeout", "first_token_at", "total_at")

    def __init__(
        self, *, facts: AttemptFacts, deadlines: Deadlines, timeout: asyncio.Timeout, now: float
    ) -> None:
        self._facts = facts
        self._deadlines = deadlines
        self._timeout = timeout
        self.total_at = now + deadlines.total_s
        self.first_token_at = min(now + deadlines.first_token_s, self.total_at)

    def note_connected(self, now: float) -> None:
        """A socket is at hand: from here on bytes may leave and the first token is awaited."""
        self._facts.was_sent = True
        self.first_token_at = min(now + self._deadlines.first_token_s, self.total_at)
        self._timeout.reschedule(self.first_token_at)


_SENDING: ContextVar[_Sending] = ContextVar("_SENDING")


class _GuardedConnector(aiohttp.TCPConnector):
    """A pool that hands out sockets to the configured origins alone."""

    def __init__(self, origins: frozenset[URL], options: TransportOptions) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]: aiohttp leaves a tuple bare
            limit=options.connections_max,
            keepalive_timeout=options.keep_alive_s,
            ttl_dns_cache=_DNS_TTL_S,
            ssl=options.ssl_context or True,
        )
        self._origins = origins
        self._used: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 the library's own signature
    ) -> aiohttp.connector.Connection:
        if req.url.origin() not in self._origins:
            raise NotSent(f"The host {req.url.host} is not configured for this provider.")
        connection = await super().connect(req, traces, timeout)
        while self._has_leftovers(connection):
            connection.close()
            connection = await super().connect(req, traces, timeout)
        _SENDING.get().note_connected(self._loop.time())
        return connection

    def _has_leftovers(self, connection: aiohttp.connector.Connection) -> bool:
        """Whether something came on a socket while it was idle: the next answer would be it.

        An upstream, or a proxy before it, that answers a request twice would otherwise give one
        tenant's answer to another. The library looks only when a socket goes back to the pool.
        """
        protocol = connection.protocol
        if protocol is None:
            return False
        if protocol in self._used:
            return protocol.should_close
        self._used.add(protocol)
        return False


class Exchange:
    """One request that was answered with a head; its body is read here.

    Attributes:
        status: The HTTP status.
        headers: The headers, names in lower case; of repeated ones the first. Bytes that are no
            UTF-8 are replaced, so that every value can be written down.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        *,
        sending: _Sending,
        deadlines: Deadlines,
        options: TransportOptions,
    ) -> None:
        self._response = response
        self._reader = response.content
        self._loop = asyncio.get_running_loop()
        self._between_tokens_s = deadlines.between_tokens_s
        self._options = options
        self._total_at = sending.total_at
        self._wait_at = sending.first_token_at
        self._has_content = False
        self._has_finished = False
        self._was_cut = False
        self._watch = _Watch(self._loop, self._reader, sending.first_token_at)
        connection = response.connection
        self._protocol = None if connection is None else connection.protocol
        self._closed = None if self._protocol is None else self._protocol.closed
        if self._closed is not None:
            self._closed.remove_done_callback(_forget)
            self._closed.add_done_callback(self._note_closed)
        self.status = response.status
        self.headers: Mapping[str, str] = {
            name.lower(): _proper(value) for name, value in reversed(list(response.headers.items()))
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give the socket back when the body was read to its end, else close it at once."""
        self._watch.stop()
        if self._closed is not None:
            # The future lives as long as the socket, which many exchanges share.
            self._closed.remove_done_callback(self._note_closed)
            self._closed.add_done_callback(_forget)
        response = self._response
        if not self._reader.at_eof() or self._reader.exception() is not None:
            connection = response.connection
            if connection is not None and connection.transport is not None:
                # Not close(): that would first flush a body which the upstream is not reading.
                connection.transport.abort()
            response.close()
        response.release()

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
        if self._has_content and not self._has_finished:
            self._wait_at = self._loop.time() + self._between_tokens_s
        self._watch.move(min(self._wait_at, self._total_at))
        try:
            if self._was_cut:
                await asyncio.sleep(0)  # the rest is here already, and others wait for the loop
            part = await self._reader.read(_READ_BYTES_MAX)
        except _Expired:
            if self._has_finished:
                return b""
            raise self._timeout_error() from None
        except (aiohttp.ClientError, ConnectionError, HttpProcessingError) as fault:
            if self._has_finished:
                return b""
            raise _read_error(fault) from fault
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
            cuts: Return the start of a longer body instead of raising.

        Raises:
            BadWire: The body is longer than `max_bytes`.
            DeliveryError: As `read`.
        """
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

    def _note_closed(self, closed: asyncio.Future[None]) -> None:
        """Wake the reader after a malformed chunk: aiohttp 3.14 closes the socket without it."""
        fault = None if closed.cancelled() else closed.exception()
        if self._protocol is not None:
            fault = self._protocol.exception() or fault
        if isinstance(fault, HttpProcessingError) and self._reader.exception() is None:
            self._reader.set_exception(fault)

    def _timeout_error(self) -> ProviderError:
        if self._loop.time() >= self._total_at:
            return TotalTimeout("The upstream took longer than the total deadline.")
        if self._has_content:
            return StreamStalled("The upstream fell silent in the middle of its answer.")
        return FirstTokenTimeout("The upstream sent no content within the deadline.")


class Transport:
    """A pool of connections to one provider; made lazily, inside the running loop."""

    def __init__(self, base_urls: Sequence[str], options: TransportOptions | None = None) -> None:
        """Allow the origins of `base_urls` and no others.

        Raises:
            ValueError: A URL is not absolute http or https, or carries credentials.
        """
        self._origins = frozenset(_origin(url) for url in base_urls)
        self._options = options or TransportOptions()
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        url: URL,
        *,
        headers: Mapping[str, str],
        body: bytes,
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> Exchange:
        """POST a body and wait for the head of the answer.

        Args:
            url: Where to; its origin must be configured.
            headers: Sent as they are.
            body: The JSON.
            deadlines: Connect and first-token limits apply here.
            facts: `was_sent` and `status` are set.

        Raises:
            NotSent: Nothing reached the upstream.
            DeliveryError: The request may have reached it.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        timeout = asyncio.timeout_at(now + deadlines.total_s)
        sending = _Sending(facts=facts, deadlines=deadlines, timeout=timeout, now=now)
        token = _SENDING.set(sending)
        try:
            async with timeout:
                response = await self._open().post(
                    url,
                    # In one piece a large body would hold up the loop while it is copied.
                    data=body if len(body) <= _WHOLE_BODY_BYTES else BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(connect=deadlines.connect_s),
                    proxy=self._options.proxy,
                )
        except TimeoutError:
            raise _head_timeout(facts, is_total=loop.time() >= sending.total_at) from None
        except (aiohttp.ClientError, OSError) as fault:
            raise _head_error(fault, facts) from fault
        finally:
            _SENDING.reset(token)
        facts.status = response.status
        return Exchange(response, sending=sending, deadlines=deadlines, options=self._options)

    async def close(self) -> None:
        """Close the pool."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            options = self._options
            self._session = aiohttp.ClientSession(
                connector=_GuardedConnector(self._origins, options),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
                trust_env=False,
                read_bufsize=_READ_BUFFER_BYTES,
                max_line_size=options.header_bytes_max,
                max_field_size=options.header_bytes_max,
                max_headers=options.headers_max,
            )
        return self._session


def _forget(closed: asyncio.Future[None]) -> None:
    """Look at how an idle socket ended, or asyncio would report that nobody did."""
    if not closed.cancelled():
        closed.exception()


def _proper(value: str) -> str:
    """A header's text without the surrogates that stand for its undecodable bytes."""
    if value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _origin(text: str) -> URL:
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("base_url must be an absolute http or https address")
    if url.user is not None or url.password is not None:
        raise ValueError("base_url must not contain credentials; use api_key_env")
    return url.origin()


def _head_timeout(facts: AttemptFacts, *, is_total: bool) -> ProviderError:
    if not facts.was_sent:
        return NotSent("No connection to the upstream within the deadline.")
    if is_total:
        return TotalTimeout("The upstream took longer than the total deadline.")
    return FirstTokenTimeout("The upstream sent no answer within the first-token deadline.")


def _head_error(fault: Exception, facts: AttemptFacts) -> ProviderError:
    kind = type(fault).__name__
    if not facts.was_sent:
        return NotSent(f"No connection to the upstream ({kind}).")
    return _read_error(fault)


def _read_error(fault: Exception) -> ProviderError:
    is_wire = isinstance(fault, aiohttp.ClientResponseError | HttpProcessingError)
    if is_wire or isinstance(fault.__cause__, ContentEncodingError):
        return BadWire("The upstream's answer is not valid HTTP.")
    return ConnectionLost("The connection to the upstream broke.")
