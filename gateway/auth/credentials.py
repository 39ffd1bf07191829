"""The key that a request carries, out of its raw headers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from gateway.auth.keys import TOKEN_BYTES_MAX

RawHeaders = Iterable[tuple[bytes, bytes]]
"""Header names in lower case with their values, as ASGI gives them."""

_SENDABLE = re.compile(rb"[!-~]{1,%d}" % TOKEN_BYTES_MAX)
_KEY_HEADERS = frozenset({b"x-api-key", b"api-key"})


class Refusal(StrEnum):
    """Why a request was not authenticated; the value may be counted and logged."""

    MISSING = "missing"
    MALFORMED = "malformed"
    """No `Bearer` scheme, not ASCII, too long, or a Fareway key with a wrong checksum."""
    CONFLICTING = "conflicting"
    """Different keys in one request."""
    UNKNOWN = "unknown"
    UNCHECKED = "unchecked"
    """Not known here, while the database has not told all keys."""
    DISABLED = "disabled"
    EXPIRED = "expired"


def token_of(headers: RawHeaders) -> bytes | Refusal:
    """The one key of a request, or why there is none.

    The same key may be repeated in several headers (SDKs do that); two different ones are refused,
    because whichever was picked, something in front of Fareway may have looked at the other.
    """
    token: bytes | None = None
    for name, value in headers:
        if name in _KEY_HEADERS:
            found = value.strip()
        elif name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme and scheme.lower() != b"bearer":
                return Refusal.MALFORMED
            found = rest.strip()
        else:
            continue
        if not found:
            continue
        if token is not None and found != token:
            return Refusal.CONFLICTING
        token = found
    if token is None:
        return Refusal.MISSING
    return token if is_sendable(token) else Refusal.MALFORMED


def is_sendable(token: bytes) -> bool:
    """Whether a token is printable ASCII without spaces, and not too long."""
    return _SENDABLE.fullmatch(token) is not None
