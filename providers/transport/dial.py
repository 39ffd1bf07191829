"""Opens connections: names looked up and kept for a while, addresses raced, TLS, forward proxies.

Every address is looked at before a socket is opened to it: those of metadata services and the like
are refused in every form, and so is one that stands where the upstream's name must not lead. A name
is checked by each look-up, so that a second answer cannot undo the first.

Direct connections are made with the loop and aiohappyeyeballs, which is what aiohttp itself makes
them with; importing aiohttp takes a worker a quarter of its start, and it is imported for the first
connection through a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast

import aiohappyeyeballs
from yarl import URL

from providers.addresses import Reach, why_refused
from providers.errors import AddressRefused, NotSent
from providers.transport.head import basic_credentials
from providers.transport.options import Address, SocketAddress, TransportOptions
from providers.transport.tls import client_context

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import ResolveResult
    from aiohttp.resolver import ThreadedResolver

logger = logging.getLogger(__name__)

NAMES_TTL_S = 30.0
"""So long a name's addresses are kept; the system's resolver does not tell how long they hold."""

HAPPY_EYEBALLS_DELAY_S = 0.25
"""After so long without an answer the next address is tried beside. Source: RFC 8305, section 5."""

_USELESS = "The connection to the upstream was of no use."


@dataclass(slots=True, kw_only=True)
class _Name:
    """What is known of a host and port."""

    addresses: list[Address]
    known_at: float
    lookup: asyncio.Task[list[Address]] | None


class Opening(asyncio.Protocol):
    """Holds a connection until somebody takes it over, and sees what comes too early.

    Attributes:
        is_spoilt: Whether the other side ended it or said something: an answer to nothing.
    """

    is_spoilt = False

    def data_received(self, data: bytes) -> None:
        """Note what nobody asked for."""
        self.is_spoilt = True

    def eof_received(self) -> None:
        """Note the end; the connection closes itself."""
        self.is_spoilt = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        self.is_spoilt = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """An open connection that nothing went over.

    Attributes:
        transport: Its socket, or TLS over it; its protocol is to be set before the next await.
        close: To be told when it is closed.
    """

    transport: asyncio.Transport
    close: Callable[[], None]


class Dialer:
    """Opens connections for one provider; made inside the running loop."""

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._names: dict[tuple[str, int], _Name] = {}
        self._context = options.ssl_context
        self._connector: aiohttp.TCPConnector | None = None

    async def dial(self, origin: URL) -> Dialled:
        """Open a connection.

        Args:
            origin: Scheme, host and port.

        Raises:
            NotSent: It could not be opened.
        """
        try:
            if self._options.proxy is not None:
                return await self._through_proxy(origin, self._options.proxy)
            return await self._directly(origin)
        except (OSError, UnicodeError, RuntimeError) as fault:
            # A name that cannot be written for DNS, and some of uvloop's refusals, are no OSErrors.
            raise _not_opened(fault) from fault

    async def close(self) -> None:
        """Let go of what is kept; connections are their users' to close."""
        names, self._names = self._names, {}
        for name in names.values():
            if name.lookup is not None:
                name.lookup.cancel()
        connector, self._connector = self._connector, None
        if connector is not None:
            await connector.close()

    async def _directly(self, origin: URL) -> Dialled:
        # Not `host`, which is decoded: asyncio would encode it again by the rules of 2003, and that
        # is another domain for some names of today.
        host, port = origin.raw_host, origin.port
        assert host is not None, "an origin has a host"
        assert port is not None, "an origin has a port"
        context = await self._tls_context() if origin.scheme == "https" else None
        addresses = await self._addresses(host, port)
        while True:
            sock: socket.socket | None = None
            peer: SocketAddress | None = None
            try:
                sock = await aiohappyeyeballs.start_connection(  # pyright: ignore[reportUnknownMemberType]
                    addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, interleave=1
                )
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                peer = cast("SocketAddress", sock.getpeername())
                name = None if context is None else host.rstrip(".")
                transport, opening = await self._loop.create_connection(
                    Opening, sock=sock, ssl=context, server_hostname=name
                )
                sock = None  # the transport's from here on
            except OSError:
                if (named := self._names.get((host, port))) is not None:
                    named.addresses = []  # what the name meant may be out of date
                # An address that answers and then fails (TLS) is no reason to pass over the others.
                if peer is None or not _without(addresses, peer):
                    raise
                continue
            finally:
                if sock is not None:
                    with contextlib.suppress(OSError):
                        if peer is None:
                            sock.close()
                        else:  # asyncio closes it; its number would be somebody else's before that
                            sock.shutdown(socket.SHUT_RDWR)
            if opening.is_spoilt or transport.is_closing():
                transport.abort()
                raise NotSent(_USELESS)
            return Dialled(transport=transport, close=_nothing)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        """The addresses to try, in an order that changes so that each has its share."""
        if _is_literal(host):
            infos = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
            return _permitted(host, [cast("Address", each) for each in infos], Reach.ANY)
        name = self._names.get((host, port))
        if name is None:
            name = self._names[host, port] = _Name(addresses=[], known_at=0.0, lookup=None)
        addresses = name.addresses
        if not addresses or self._loop.time() - name.known_at >= NAMES_TTL_S:
            lookup = name.lookup
            if lookup is None:  # many connections at once ask once
                lookup = asyncio.Task(self._look_up(name, host, port), loop=self._loop)
                lookup.add_done_callback(_see)
                name.lookup = lookup
            # To give up ends the wait and not the lookup, which a slow resolver would never finish.
            await asyncio.wait([lookup])
            if lookup.cancelled():
                raise OSError("the provider was closed")
            try:
                addresses = lookup.result()
            finally:
                del lookup  # else a fault and this frame keep each other
        found = list(addresses)
        addresses.append(addresses.pop(0))
        return found

    async def _look_up(self, name: _Name, host: str, port: int) -> list[Address]:
        """Learn what a name means, for all who ask meanwhile."""
        try:
            if self._options.resolve is not None:
                found = list(await self._options.resolve(host, port))
            else:
                infos = await self._loop.getaddrinfo(
                    host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
                )
                found = [cast("Address", each) for each in infos]
            if not found:
                raise OSError(f"{host} has no address")
            found = _permitted(host, found, self._options.reach)
            name.addresses, name.known_at = found, self._loop.time()
            return found
        finally:
            name.lookup = None

    async def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:  # reads the platform's certificates, about 140 files
            self._context = await asyncio.to_thread(client_context)
        return self._context

    async def _through_proxy(self, origin: URL, proxy: str) -> Dialled:
        import aiohttp

        if self._connector is None:
            self._connector = aiohttp.TCPConnector(
                limit=0,
                resolver=_proxy_resolver(),
                ttl_dns_cache=int(NAMES_TTL_S),
                ssl=self._options.ssl_context or True,
            )
        credentials = self._options.proxy_credentials
        headers = None
        if credentials is not None:
            headers = {"Proxy-Authorization": basic_credentials(credentials)}
        _check_proxy(proxy)
        # Made anew each time, since the connector writes into it.
        request = aiohttp.ClientRequest(
            "POST", origin, loop=self._loop, proxy=URL(proxy), proxy_headers=headers
        )
        no_limits = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None)
        try:
            connection = await self._connector.connect(request, [], no_limits)
        except aiohttp.ClientHttpProxyError as fault:
            raise NotSent(f"The proxy refused to connect (status {fault.status}).") from fault
        except aiohttp.ClientError as fault:
            if isinstance(fault.__cause__, _RefusedName):
                raise _refused() from fault
            self._connector.clear_dns_cache()
            raise _not_opened(fault) from fault
        transport, opener = connection.transport, connection.protocol
        if opener is None or transport is None or transport.is_closing() or opener.should_close:
            connection.close()
            raise NotSent(_USELESS)
        return Dialled(transport=transport, close=connection.close)


def _permitted(host: str, addresses: Sequence[Address], reach: Reach) -> list[Address]:
    """The addresses that may be connected to.

    Raises:
        AddressRefused: None of them.
    """
    kept: list[Address] = []
    for each in addresses:
        reason = why_refused(str(each[4][0]), reach)
        if reason is None:
            kept.append(each)
        else:
            logger.warning("%s leads to %s, which %s", host, each[4][0], reason)
    if not kept:
        raise _refused()
    return kept


def _refused() -> AddressRefused:
    return AddressRefused("The upstream's name leads to an address that is refused.")


def _check_proxy(proxy: str) -> None:
    """Look at a proxy that is an address; aiohttp asks no resolver about one.

    Raises:
        AddressRefused: It may not be connected to.
    """
    host = URL(proxy).raw_host or ""
    if _is_literal(host) and (reason := why_refused(host)) is not None:
        logger.warning("the proxy %s %s", host, reason)
        raise _refused()


class _RefusedName(OSError):
    """A proxy's name led where it must not."""


def _proxy_resolver() -> ThreadedResolver:
    """What looks a proxy's name up, and looks at what it led to."""
    from aiohttp.resolver import ThreadedResolver

    class Checked(ThreadedResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            found = await super().resolve(host, port, family)
            kept = [one for one in found if why_refused(one["host"]) is None]
            if found and not kept:
                logger.warning("the proxy %s leads to %s only", host, found[0]["host"])
                raise _RefusedName(f"{host} leads where it must not")
            return kept

    return Checked()


def _not_opened(fault: Exception) -> NotSent:
    return NotSent(f"No connection to the upstream ({type(fault).__name__}).")


def _see(lookup: asyncio.Task[list[Address]]) -> None:
    """Look at how a lookup ended, or asyncio complains of one that all had given up."""
    if not lookup.cancelled():
        lookup.exception()


def _is_literal(host: str) -> bool:
    """Whether it is an address and no name."""
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _without(addresses: list[Address], peer: SocketAddress) -> bool:
    """Take an address out; whether it was there and others are left."""
    before = len(addresses)
    addresses[:] = [each for each in addresses if each[4][:2] != peer[:2]]
    return 0 < len(addresses) < before


def _nothing() -> None:
    """Nobody keeps count of direct connections but their pool."""
