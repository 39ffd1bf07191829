"""Small pieces of ASGI: types, reading a body within bounds, answering with JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, cast

import anyio

from gateway.errors import BodyTooLarge, BodyTooSlow, InvalidRequest, UnsupportedMediaType

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Headers = Sequence[tuple[bytes, bytes]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON_TYPE = b"application/json"

BODY_STALL_S = 30.0
"""Longest silence within a body; a client that falls silent shall not hold a request for ever."""


class ClientGone(Exception):
    """The client left before its request was complete; there is nobody to answer."""


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first value of a header, None when it is absent."""
    return next((value for key, value in headers if key == name), None)


def check_is_json(headers: Headers) -> None:
    """Refuse a body that declares itself to be something other than plain JSON.

    A missing declaration is taken for JSON: many hand-written clients send none.

    Raises:
        UnsupportedMediaType: It declares another type or a content encoding.
    """
    declared = header(headers, b"content-type")
    if declared is not None:
        media_type = declared.split(b";", 1)[0].strip().lower()
        if media_type != JSON_TYPE and not media_type.endswith(b"+json"):
            raise UnsupportedMediaType(
                f"content-type {media_type.decode('latin-1')[:80]!r} is not supported;"
                " send application/json"
            )
    encoding = header(headers, b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        raise UnsupportedMediaType("compressed request bodies are not supported; send it plain")


async def read_body(
    receive: Receive, headers: Headers, *, max_bytes: int, stall_s: float = BODY_STALL_S
) -> bytes:
    """Read a request body.

    Args:
        receive: ASGI's.
        headers: For the declared length, so that a huge body is refused unread.
        max_bytes: The bound, also for bodies that declare no length.
        stall_s: Longest silence.

    Raises:
        BodyTooLarge: It is longer, by declaration or in fact.
        BodyTooSlow: The client fell silent.
        InvalidRequest: The declared length is no number.
        ClientGone: The client left.
    """
    check_declared_length(headers, max_bytes)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await _receive_within(receive, stall_s)
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = cast("bytes", message.get("body", b""))
        size += len(chunk)
        check_length(size, max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _receive_within(receive: Receive, stall_s: float) -> MutableMapping[str, Any]:
    try:
        with anyio.fail_after(stall_s):
            return await receive()
    except TimeoutError as error:
        raise BodyTooSlow(f"nothing of the body came for {stall_s:g} s") from error


def check_declared_length(headers: Headers, max_bytes: int) -> None:
    """Refuse a body that declares itself too long, so that it is refused unread.

    Raises:
        BodyTooLarge: It does.
        InvalidRequest: The declared length is no number.
    """
    declared = header(headers, b"content-length")
    if declared is None:
        return
    if not declared.isdigit():
        raise InvalidRequest("content-length is no number")
    check_length(int(declared[:18]), max_bytes)  # more digits are too large in any case


def check_length(size: int, max_bytes: int) -> None:
    """Refuse a body that is too long.

    Raises:
        BodyTooLarge: It is.
    """
    if size > max_bytes:
        raise BodyTooLarge(
            f"the body is larger than {max_bytes // (1024 * 1024)} MiB (server.max_body_mib)"
        )


_ID_NAMES = (b"x-fareway-request-id", b"x-request-id")
_ID_LINES = b"".join([b"%b: %%b\r\n" % name for name in _ID_NAMES])


def request_id_headers(request_id: bytes) -> list[tuple[bytes, bytes]]:
    """The headers that every answer has, whatever becomes of the request."""
    text = request_id.hex().encode()
    return [(name, text) for name in _ID_NAMES]


def request_id_lines(request_id: bytes) -> bytes:
    """The same as lines, for answers that go out without ASGI."""
    text = request_id.hex().encode()
    return _ID_LINES % (text, text)


def header_lines(headers: Headers) -> bytes:
    """Headers as lines, each with its line end; values must be fit for that."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])
