"""How a provider's connections are made, and the limits of what is read from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext

from providers.addresses import Reach

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
Address = tuple[int, int, int, str, SocketAddress]
"""Family, type, protocol, canonical name and socket address, as `getaddrinfo` gives them."""

ERROR_BODY_MAX_BYTES = 64 * 1024
ANSWER_MAX_BYTES = 64 * 1024 * 1024

KEEP_ALIVE_S = {"http": 4.0, "https": 30.0}
"""By scheme. Plain HTTP is a server of one's own: most run under uvicorn or Node, which close after
5 s. Vendors' load balancers wait 60 s and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """How a provider's connections are made.

    Attributes:
        connections_max: Connections open at once, per origin.
        waiting_max: Requests that may wait for one of them, each within its connect deadline; one
            more is refused at once.
        keep_alive_s: How long an idle connection is kept, None for `KEEP_ALIVE_S`; shorter where
            the upstream announces less. It should be below the upstream's own limit, or requests
            meet a closing socket.
        connection_age_max_s: A connection older than this is not used again, so that a changed
            address is noticed.
        proxy: A forward proxy's URL, None for direct connections; the environment is never read.
        proxy_credentials: `user:password` for the proxy; never shown.
        ssl_context: Trust roots and client certificate, None for the platform's.
        reach: Where the machines behind the upstream's name may stand; through a proxy the proxy
            looks the name up, and its own address is what is checked.
        resolve: Gives a name's addresses for direct connections, None for the system's resolver.
        header_bytes_max: Longest response header field, its name included.
        headers_max: Most response header fields, trailers included.
        finish_grace_s: How long a finished answer may take to send usage and its end mark.
        end_grace_s: How long to wait after the end mark for the end of the HTTP body, which is what
            allows the socket to be used again.
    """

    connections_max: int = 1000
    waiting_max: int = 1000
    keep_alive_s: float | None = None
    connection_age_max_s: float = 600.0
    proxy: str | None = None
    proxy_credentials: str | None = field(default=None, repr=False)
    ssl_context: SSLContext | None = None
    reach: Reach = Reach.ANY
    resolve: Callable[[str, int], Awaitable[Sequence[Address]]] | None = None
    header_bytes_max: int = 16 * 1024
    headers_max: int = 128
    finish_grace_s: float = 2.0
    end_grace_s: float = 0.1
