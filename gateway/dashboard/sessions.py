"""Sessions of the dashboard: a signed cookie that names a key and an end, and nothing kept here.

The signature covers what is kept of the key, so that a session ends with the key it was opened
with: when it is revoked, expired, taken away or replaced by another one, at once and in every
worker. Forms carry a token that only the page of the same session can know.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gateway.auth.directory import KeyDirectory, Principal
from gateway.auth.keys import RandomBytes

SESSION_S = 8 * 3600
SESSION_COOKIE = "fareway_session"
LOGIN_COOKIE = "fareway_login"
LOGIN_S = 3600
COOKIE_CHARACTERS_MAX = 1024
_NONCE_BYTES = 16
_SIGNATURE_BYTES = 32


class _Claims(msgspec.Struct, array_like=True, frozen=True):
    key_id: str
    ends_at_s: int
    session_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Who looks at a page.

    Attributes:
        principal: As the key directory knows them now.
        session_id: Random; tokens of forms are bound to it.
    """

    principal: Principal
    session_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Opens and reads sessions.

    Attributes:
        key: 32 bytes that everything is signed with.
        directory: The keys of this moment.
        wall_us: Microseconds since the epoch.
        random_bytes: A cryptographic source.
    """

    key: bytes
    directory: Callable[[], KeyDirectory]
    wall_us: Callable[[], int]
    random_bytes: RandomBytes

    def open(self, principal: Principal) -> str:
        """The cookie of a new session."""
        ends_at_s = self.wall_us() // 1_000_000 + SESSION_S
        claims = _Claims(principal.key_id, ends_at_s, self.random_bytes(_NONCE_BYTES))
        digest = self.directory().digest(principal.key_id)
        assert digest is not None, "the principal was just found in this directory"
        payload = msgspec.msgpack.encode(claims)
        return urlsafe_b64encode(self._sign(payload, digest) + payload).decode("ascii")

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie; None when it is not ours, has ended, or its key has."""
        if len(cookie) > COOKIE_CHARACTERS_MAX:
            return None
        try:
            raw = urlsafe_b64decode(cookie.encode("ascii"))
            payload = raw[_SIGNATURE_BYTES:]
            # Not trusted yet: it only says whose digest the signature is to be checked with.
            claims = msgspec.msgpack.decode(payload, type=_Claims)
        except (ValueError, msgspec.DecodeError):
            return None
        directory = self.directory()
        digest = directory.digest(claims.key_id)
        if digest is None or not hmac.compare_digest(
            self._sign(payload, digest), raw[:_SIGNATURE_BYTES]
        ):
            return None
        now_us = self.wall_us()
        principal = directory.recall(claims.key_id, now_us=now_us)
        if claims.ends_at_s * 1_000_000 <= now_us or not isinstance(principal, Principal):
            return None
        return Session(principal=principal, session_id=claims.session_id)

    def new_login(self) -> str:
        """The cookie of a login form, before there is a session."""
        return self.random_bytes(_NONCE_BYTES).hex()

    def login_token(self, login_cookie: str) -> str:
        """What the login form of this cookie carries."""
        return self._token("login", login_cookie.encode("utf-8", "surrogatepass"))

    def form_token(self, session: Session) -> str:
        """What forms of this session carry."""
        return self._token("form", session.session_id)

    def _sign(self, payload: bytes, digest: bytes) -> bytes:
        return hmac.digest(self.key, b"session\0" + digest + payload, "sha256")

    def _token(self, purpose: str, subject: bytes) -> str:
        return hmac.new(self.key, purpose.encode() + b"\0" + subject, "sha256").hexdigest()
