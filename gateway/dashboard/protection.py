"""What keeps a page from being framed, scripted, cached or posted to from elsewhere."""

from __future__ import annotations

from typing import Final

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
