"""The transport: from a URL, headers and a body to an exchange whose head has come."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from yarl import URL

from providers.contract import AttemptFacts, Deadlines, EgressPermit
from providers.errors import (
    ConnectionLost,
    FirstTokenTimeout,
    NotSent,
    ProviderError,
    StaleConnection,
    TotalTimeout,
)
from providers.transport.dial import Dialer
from providers.transport.exchange import Exchange, InflatedExchange, error_from
from providers.transport.head import RequestHead, origin_of, place_of
from providers.transport.inflate import is_to_inflate
from providers.transport.line import Expired, Line, Malformed
from providers.transport.options import TransportOptions
from providers.transport.pool import Pool
from providers.transport.upload import Upload

_TARGETS_MAX = 1000
_WHOLE_BYTES_MAX = 64 * 1024
"""A body up to this size is copied behind its head, which costs less than a second write."""

_STALE_S = 1.0
"""A kept connection that the upstream had given up ends this soon after a request went out."""


class _Target:
    """A URL that may be called."""

    __slots__ = ("head", "place", "pool", "url")

    def __init__(self, url: URL, pool: Pool, head: RequestHead) -> None:
        self.url = url
        self.pool = pool
        self.head = head
        self.place = place_of(url)


class Transport:
    """Pools of connections to one provider; made lazily, inside the running loop."""

    def __init__(
        self,
        base_urls: Sequence[str],
        options: TransportOptions | None = None,
        *,
        method: str = "POST",
    ) -> None:
        """Allow the origins of `base_urls` and no others.

        Args:
            base_urls: Addresses at the upstream.
            options: How connections are made.
            method: Of every request; `GET` for one that only reads.

        Raises:
            ValueError: A URL is not absolute http or https, or carries credentials.
        """
        self._origins = frozenset(origin_of(url) for url in base_urls)
        self._options = options or TransportOptions()
        self._method = method
        self._dialer: Dialer | None = None
        self._pools: dict[URL, Pool] = {}
        self._targets: dict[URL, _Target] = {}
        self._last_target: _Target | None = None  # a provider has one URL, and hashing it costs

    async def send(
        self,
        url: URL,
        *,
        permit: EgressPermit,
        deployment: str,
        headers: Mapping[str, str] | bytes,
        body: bytes | Sequence[bytes],
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> Exchange:
        """Send a body, as a POST unless said otherwise, and wait for the head of the answer.

        Args:
            url: Where to; its origin must be configured.
            permit: Where the request may be sent; looked at before a socket is.
            deployment: Which one the sender is, by its own knowledge.
            headers: Beside `host` and `content-length`; best as lines of `header_lines`.
            body: The JSON, in one piece or in several that are sent one after the other.
            deadlines: Connect and first-token limits apply here.
            facts: `was_sent` and `status` are set.

        Raises:
            NotPermitted: The permit does not have the deployment at this address.
            NotSent: Nothing reached the upstream.
            DeliveryError: The request may have reached it.
            ValueError: A header cannot be written.
        """
        target = self._last_target
        if target is None or target.url is not url:
            target = self._last_target = self._targets.get(url) or self._add_target(url)
        if permit.origins.get(deployment) != target.place:  # as `require`, without the call
            permit.require(deployment, target.place)
        pool, loop = target.pool, target.pool.loop
        pieces = (body,) if isinstance(body, bytes) else body
        size_bytes = len(body) if isinstance(body, bytes) else sum(map(len, pieces))
        head = target.head.encode(headers, size_bytes)
        now = loop.time()
        total_at = now + deadlines.total_s
        line = pool.take(now)
        if line is None:
            line = await pool.open(min(now + deadlines.connect_s, total_at))
            now = loop.time()
        facts.was_sent = True
        wait_at = min(now + deadlines.first_token_s, total_at)
        line.ask(wait_at)
        try:
            if size_bytes <= _WHOLE_BYTES_MAX:
                line.transport.write(b"".join((head, *pieces)))
            else:
                upload = line.upload = Upload(line, (head, *pieces), loop=loop)
                upload.push()
            waiter = line.waiter = loop.create_future()
            await waiter
            # What turns out malformed before a part was handed on is better no answer at all.
            if line.fault is not None and (line.is_awaiting or isinstance(line.fault, Malformed)):
                # Not by a name, which would keep this frame, and with it the body, in a cycle.
                raise _head_error(line, sent_at=now, total_at=total_at) from line.fault
            kind = Exchange if b"content-encoding" not in line.headers else _kind_of(line)
        except BaseException:
            pool.discard(line)
            raise
        facts.status = line.status
        if not line.was_used:
            line.note_first(now)
        if line.upload is not None and line.status >= 400:
            line.stop_upload()
        between_s = deadlines.between_tokens_s
        return kind(line, pool, wait_at=wait_at, total_at=total_at, between_tokens_s=between_s)

    async def close(self) -> None:
        """Close every connection; what is still being read of them is lost."""
        dialer, self._dialer = self._dialer, None
        pools, self._pools, self._targets = self._pools, {}, {}
        self._last_target = None
        for pool in pools.values():
            pool.close()
        if dialer is not None:
            await dialer.close()

    def _add_target(self, url: URL) -> _Target:
        """Learn a URL; the pool that a socket would come from exists for configured origins alone.

        Raises:
            NotSent: The origin is not configured.
        """
        origin = url.origin()
        if origin not in self._origins:
            raise NotSent("The address is not configured for this provider.")
        options = self._options
        if self._dialer is None:
            self._dialer = Dialer(options)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin, options, self._dialer)
        # Through a tunnel the upstream reads the head, else the proxy does.
        is_read_by_proxy = options.proxy is not None and origin.scheme == "http"
        head = RequestHead(
            url,
            proxy_credentials=options.proxy_credentials if is_read_by_proxy else None,
            is_absolute=is_read_by_proxy,
            method=self._method,
        )
        if len(self._targets) >= _TARGETS_MAX:
            self._targets.clear()
        target = self._targets[url] = _Target(url, pool, head)
        return target


def _kind_of(line: Line) -> type[Exchange]:
    """How an answer is read whose head says how its body is written.

    Raises:
        BadWire: It cannot be.
    """
    header = line.headers[b"content-encoding"]
    return InflatedExchange if is_to_inflate(header, status=line.status) else Exchange


def _head_error(line: Line, *, sent_at: float, total_at: float) -> ProviderError:
    """What a fault before the answer's head means.

    Args:
        line: Where.
        sent_at: When the request began to go out, by the loop's clock.
        total_at: The total deadline.
    """
    now = asyncio.get_running_loop().time()
    assert line.fault is not None
    if isinstance(line.fault, Expired):
        if now >= total_at:
            return TotalTimeout("The upstream took longer than the total deadline.")
        return FirstTokenTimeout("The upstream sent no answer within the first-token deadline.")
    error = error_from(line.fault)
    is_untouched = line.was_used and not line.head_bytes and now - sent_at < _STALE_S
    if type(error) is ConnectionLost and is_untouched:
        return StaleConnection("The upstream closed a kept connection as it was used.")
    return error
