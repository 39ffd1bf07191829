"""The transport: from a URL, headers and a body to an exchange whose head has come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import aiohttp
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from yarl import URL

from providers.contract import AttemptFacts, Deadlines
from providers.errors import (
    BadWire,
    ConnectionLost,
    FirstTokenTimeout,
    NotSent,
    ProviderError,
    StaleConnection,
    TotalTimeout,
)
from providers.transport.exchange import Exchange, read_error
from providers.transport.handler import Handler, Upload
from providers.transport.head import RequestHead, origin_of
from providers.transport.options import TransportOptions
from providers.transport.pool import Connector, Line, Pool
from providers.transport.watch import Expired

_TARGETS_MAX = 1000
_WHOLE_BYTES_MAX = 64 * 1024
"""A body up to this size is copied behind its head, which costs less than a second write."""

_INTERIM_MAX = 256
"""Two a second, which say that the upstream still thinks, for as long as a first token may take."""

_READ_BUFFER_BYTES = 64 * 1024
_DNS_TTL_S = 30
_STALE_S = 1.0
"""A kept connection that the upstream had given up ends this soon after a request went out."""


class _Target:
    """A URL that may be called."""

    __slots__ = ("head", "pool")

    def __init__(self, pool: Pool, head: RequestHead) -> None:
        self.pool = pool
        self.head = head


class Transport:
    """Pools of connections to one provider; made lazily, inside the running loop."""

    def __init__(self, base_urls: Sequence[str], options: TransportOptions | None = None) -> None:
        """Allow the origins of `base_urls` and no others.

        Raises:
            ValueError: A URL is not absolute http or https, or carries credentials.
        """
        self._origins = frozenset(origin_of(url) for url in base_urls)
        self._options = options or TransportOptions()
        self._connector: Connector | None = None
        self._pools: dict[URL, Pool] = {}
        self._targets: dict[URL, _Target] = {}

    async def send(
        self,
        url: URL,
        *,
        headers: Mapping[str, str] | bytes,
        body: bytes | Sequence[bytes],
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> Exchange:
        """POST a body and wait for the head of the answer.

        Args:
            url: Where to; its origin must be configured.
            headers: Sent as they are, beside `host` and `content-length`; as lines of
                `header_lines` where they are the same for many requests.
            body: The JSON, in one piece or in several that are sent one after the other.
            deadlines: Connect and first-token limits apply here.
            facts: `was_sent` and `status` are set.

        Raises:
            NotSent: Nothing reached the upstream.
            DeliveryError: The request may have reached it.
            ValueError: A header cannot be written.
        """
        loop = asyncio.get_running_loop()
        target = self._targets.get(url) or self._add_target(url)
        pieces = (body,) if isinstance(body, bytes) else body
        size_bytes = len(body) if isinstance(body, bytes) else sum(map(len, pieces))
        head = target.head.encode(headers, size_bytes)
        now = loop.time()
        total_at = now + deadlines.total_s
        line = target.pool.take()
        if line is None:
            line = await _open(target.pool, min(now + deadlines.connect_s, total_at))
            now = loop.time()
        facts.was_sent = True
        handler = line.handler
        wait_at = min(now + deadlines.first_token_s, total_at)
        line.watch.move(wait_at, handler)
        try:
            self._prepare(handler)
            if size_bytes <= _WHOLE_BYTES_MAX:
                line.transport.write(b"".join((head, *pieces)))
            else:
                _upload(handler, (head, *pieces), loop)
            message, payload = await _read_head(handler)
            _check_coding(message)
            if not line.was_used:
                line.note_answer(message.headers)
            if handler.upload is not None and message.code >= 400:
                handler.upload.stop()
        except BaseException as fault:
            target.pool.discard(line)
            error = _head_error(fault, line, loop.time() - now, is_total=loop.time() >= total_at)
            if error is None:
                raise
            raise error from fault.with_traceback(None)  # which the protocol keeps
        facts.status = message.code
        return Exchange(
            message,
            payload,
            loop=loop,
            line=line,
            pool=target.pool,
            wait_at=wait_at,
            total_at=total_at,
            between_tokens_s=deadlines.between_tokens_s,
            options=self._options,
        )

    async def close(self) -> None:
        """Close every connection; what is still being read of them is lost."""
        connector, self._connector = self._connector, None
        pools, self._pools, self._targets = self._pools, {}, {}
        for pool in pools.values():
            pool.close()
        if connector is not None:
            await connector.close()

    def _add_target(self, url: URL) -> _Target:
        """Learn a URL; the pool that a socket would come from exists for configured origins alone.

        Raises:
            NotSent: The origin is not configured.
        """
        origin = url.origin()
        if origin not in self._origins:
            raise NotSent("The address is not configured for this provider.")
        options = self._options
        if self._connector is None:
            self._connector = Connector(options, dns_ttl_s=_DNS_TTL_S)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin, options, self._connector)
        # Through a tunnel the upstream reads the head, else the proxy does.
        is_read_by_proxy = options.proxy is not None and origin.scheme == "http"
        head = RequestHead(
            url,
            proxy_credentials=options.proxy_credentials if is_read_by_proxy else None,
            is_absolute=is_read_by_proxy,
        )
        if len(self._targets) >= _TARGETS_MAX:
            self._targets.clear()
        target = self._targets[url] = _Target(pool, head)
        return target

    def _prepare(self, handler: Handler) -> None:
        """Expect an answer, with a parser that knows nothing of earlier ones."""
        options = self._options
        handler.set_response_params(
            read_until_eof=True,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=options.header_bytes_max,
            max_field_size=options.header_bytes_max,
            max_headers=options.headers_max,
        )


async def _open(pool: Pool, expires_at: float) -> Line:
    try:
        return await pool.open(expires_at)
    except aiohttp.ClientHttpProxyError as fault:
        raise NotSent(f"The proxy refused to connect (status {fault.status}).") from fault
    except (aiohttp.ClientError, OSError) as fault:
        kind = type(fault).__name__
        raise NotSent(f"No connection to the upstream ({kind}).") from fault


async def _read_head(handler: Handler) -> tuple[RawResponseMessage, StreamReader]:
    """Wait for the answer's own head, behind interim ones (1xx).

    Raises:
        BadWire: Too many of them: those that are here already are taken without a turn of others.
    """
    for _ in range(_INTERIM_MAX + 1):
        message, payload = await handler.read()
        if message.code == 101 or not 100 <= message.code < 200:
            return message, payload
    raise BadWire(f"The upstream sent more than {_INTERIM_MAX} interim answers.")


def _upload(handler: Handler, pieces: Sequence[bytes], loop: asyncio.AbstractEventLoop) -> None:
    upload = handler.upload = Upload(handler, pieces, loop=loop)
    upload.push()


def _check_coding(message: RawResponseMessage) -> None:
    """Refuse an answer in a coding that cannot be undone; an error's status tells enough.

    Raises:
        BadWire: The upstream compressed what we did not ask it to compress.
    """
    if message.compression is None and message.code < 400:
        coding = message.headers.get("Content-Encoding", "").lower()
        if coding not in ("", "identity"):
            raise BadWire(
                f"The upstream's answer is compressed in an unknown way: {coding[:40]!r}."
            )


def _head_error(
    fault: BaseException, line: Line, waited_s: float, *, is_total: bool
) -> ProviderError | None:
    """What an end before the answer's head means; None for what is no fault of the upstream.

    Args:
        fault: From aiohttp, the socket, our timer or whoever cancelled.
        line: Where.
        waited_s: Since the request began to go out.
        is_total: Whether the total deadline has passed.
    """
    if isinstance(fault, Expired):
        return _head_timeout(is_total=is_total)
    if not isinstance(fault, aiohttp.ClientError | OSError | HttpProcessingError):
        return None
    error = read_error(fault)
    is_untouched = not isinstance(fault, aiohttp.ServerDisconnectedError) or isinstance(
        fault.message, str
    )  # else it is the part of an answer
    is_lost = type(error) is ConnectionLost
    if is_lost and line.was_used and is_untouched and waited_s < _STALE_S:
        return StaleConnection("The upstream closed a kept connection as it was used.")
    return error


def _head_timeout(*, is_total: bool) -> ProviderError:
    if is_total:
        return TotalTimeout("The upstream took longer than the total deadline.")
    return FirstTokenTimeout("The upstream sent no answer within the first-token deadline.")
