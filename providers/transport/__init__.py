"""HTTP to upstreams: the only package that knows the client library.

One `Transport` per provider owns a pool of connections per configured origin; an origin that is not
configured has no pool, so no socket can be taken or opened for it. It follows no redirect, reads no
proxy or credential from the environment and logs no body. httptools parses answers, aiohttp opens
connections through proxies; why no more of either
is used is in `docs/decisions/0001-raw-asgi-and-aiohttp.md`.
"""

from providers.transport.client import Transport
from providers.transport.exchange import Exchange, header_text
from providers.transport.head import header_lines
from providers.transport.options import ANSWER_MAX_BYTES, ERROR_BODY_MAX_BYTES, TransportOptions
from providers.transport.tls import client_context

__all__ = [
    "ANSWER_MAX_BYTES",
    "ERROR_BODY_MAX_BYTES",
    "Exchange",
    "Transport",
    "TransportOptions",
    "client_context",
    "header_lines",
    "header_text",
]
