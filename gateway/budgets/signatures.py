"""How a webhook can tell that an alert comes from this gateway, and is not an old one again."""

from __future__ import annotations

import hashlib
import hmac

ID_HEADER = "x-fareway-alert-id"
TIMESTAMP_HEADER = "x-fareway-timestamp"
SIGNATURE_HEADER = "x-fareway-signature"


def signature(secret: bytes, timestamp_s: int, body: bytes) -> str:
    """HMAC-SHA256 over `TIMESTAMP.BODY`, as the header's value: `v1=` and 64 hex digits."""
    digest = hmac.new(secret, f"{timestamp_s}.".encode() + body, hashlib.sha256)
    return f"v1={digest.hexdigest()}"


def signed_headers(
    secret: bytes, *, alert_id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """The headers of an alert."""
    return {
        "content-type": "application/json",
        ID_HEADER: alert_id,
        TIMESTAMP_HEADER: str(timestamp_s),
        SIGNATURE_HEADER: signature(secret, timestamp_s, body),
    }
