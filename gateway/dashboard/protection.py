"""What keeps a page from being framed, scripted, cached or posted to from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

SECURITY_HEADERS: Final = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
            b" img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    # Not `no-referrer`: with that, browsers send `Origin: null` on our own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
"""On every answer of pages and administration; a page's scripts are files of ours."""


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Whether a form was sent by a page of ours.

    The scheme is not compared: a proxy may end TLS in front of us. A request that says nothing
    about where it comes from is none of ours, as every browser says so on a form.

    Args:
        headers: Names in lower case.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return site is not None
    host = headers.get("host", "")
    return bool(host) and _host_of(origin) == host.lower()


def is_https(scheme: str, headers: Mapping[str, str]) -> bool:
    """Whether the browser speaks TLS, to us or to a proxy in front of us.

    The headers can be made up, but whoever does that only keeps their own cookie from travelling.

    Args:
        scheme: Of the connection to us.
        headers: Names in lower case.
    """
    said = (scheme, headers.get("x-forwarded-proto", ""), headers.get("origin", "").split(":")[0])
    return "https" in said


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
