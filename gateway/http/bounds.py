"""What a connection may send, and for how long; how it is refused beyond that."""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.errors import GatewayError, HeadersTooLarge
from gateway.http.errors import openai_body, row_of
from gateway.http.messages import request_id_lines

HEAD_BYTES_MAX: Final = 64 * 1024
"""Longest request line with headers."""

HEADERS_MAX: Final = 256
"""Most headers of a request, each of which is looked at; clients send about ten, and what is in
front of us may add some. Envoy takes 100 unless told otherwise."""

HEAD_S_MAX: Final = 30.0
"""Longest time from a connection, or from a request's first byte, to the end of its headers."""

PIPELINED_MAX: Final = 64
"""Most requests of a connection that wait behind the one being answered."""

READ_ON_MAX: Final = 8
"""While fewer requests wait, reading goes on: a client that leaves is noticed only by reading."""

REST_S_MAX: Final = 10.0
"""Longest time that a client may go on sending after its answer. Not zero: closing on a client that
still sends takes away the answer that it has not read yet."""

UNREAD_S_MAX: Final = 1000.0
"""Longest time that a client may leave an answer unread. Above the relay's patience with a stream
at the default deadlines; closing alone would wait for the client to read, and keep the socket."""

LINGER_BYTES_MAX: Final = 256 * 1024
"""Most bytes that are read and dropped from a client that still sends behind its last answer."""

LOOK_EVERY_S: Final = 1.0
"""How often a client whose requests are not read on is looked after: it may have left."""


class Refused(Exception):
    """Ends the parsing of a read: what came is HTTP, and this error of ours is the answer."""

    def __init__(self, error: GatewayError) -> None:
        super().__init__(str(error))
        self.error = error


class Closing:
    """Whether a server lets its connections end, and how; shared by all of them."""

    __slots__ = ("idle_s",)

    def __init__(self) -> None:
        """Not yet."""
        self.idle_s: float | None = None

    def begin(self, idle_s: float) -> None:
        """From now on answers carry `connection: close`.

        Args:
            idle_s: How long a connection may ask nothing before it is closed untold.
        """
        self.idle_s = idle_s


def head_too_large() -> HeadersTooLarge:
    """The error of a head beyond the bound."""
    return HeadersTooLarge(f"request line and headers are over {HEAD_BYTES_MAX // 1024} KiB")


def too_many_headers() -> HeadersTooLarge:
    """The error of a head with more headers than the bound."""
    return HeadersTooLarge(f"the request has over {HEADERS_MAX} headers")


def refusal(error: GatewayError, request_id: bytes) -> bytes:
    """A whole answer, for what no application sees; an empty id is none."""
    status, body = row_of(error).status, openai_body(error)
    return (
        b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    ) % (STATUS_LINE[status], request_id_lines(request_id) if request_id else b"", len(body), body)
