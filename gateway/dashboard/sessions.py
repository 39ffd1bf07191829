"""Cookies and tokens of the dashboard, as a worker makes and reads them.

A session is a row in the ledger's database that knows only the SHA-256 of its token; the ledger
process says at every page whose it is now, so whatever ends a session ends it at once in every
worker. The cookie is the token with a tag under a key of ours: what nobody was ever given is not
asked about. Forms carry a token that only a page of the same session can know.
"""

from __future__ import annotations

import hmac
import itertools
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass

from gateway.access.people import digest_of
from gateway.auth.directory import KeyDirectory
from gateway.auth.keys import RandomBytes

SESSION = "fareway_session"
LOGIN = "fareway_login"
DEVICE = "fareway_device"
OIDC = "fareway_oidc"
LOGIN_S = 3600
DEVICE_S = 180 * 86_400
COOKIE_CHARACTERS_MAX = 4096
_TOKEN_BYTES = 32
_TAG_BYTES = 16


def cookie_name(name: str, *, is_secure: bool) -> str:
    """A cookie's name; over TLS one that no other host and no page in the clear can set."""
    return f"__Host-{name}" if is_secure else name


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session to be opened.

    Attributes:
        cookie: For the browser; nowhere else.
        digest: For the ledger.
    """

    cookie: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Makes and reads cookies.

    Attributes:
        key: 32 bytes that everything is signed with.
        directory: The keys of this moment.
        random_bytes: A cryptographic source.
    """

    key: bytes
    directory: Callable[[], KeyDirectory]
    random_bytes: RandomBytes

    def new(self) -> NewSession:
        """A cookie that nobody has had before."""
        token = self.random_bytes(_TOKEN_BYTES)
        return NewSession(cookie=self.seal("session", token), digest=digest_of(token))

    def digest(self, cookie: str) -> bytes | None:
        """What the ledger knows a session by; None when the cookie is none of ours."""
        token = self.unseal("session", cookie)
        return None if token is None else digest_of(token)

    def mark(self, key_id: str) -> bytes | None:
        """What a key's session is bound to: a new value of the key ends it; None without a key."""
        digest = self.directory().digest(key_id)
        return None if digest is None else hmac.digest(self.key, b"mark\0" + digest, "sha256")

    def new_login(self) -> str:
        """The cookie of a login form, before there is a session."""
        return self.random_bytes(_TAG_BYTES).hex()

    def login_token(self, login_cookie: str) -> str:
        """What the login form of this cookie carries."""
        return self._token("login", login_cookie.encode("utf-8", "surrogatepass"))

    def form_token(self, digest: bytes) -> str:
        """What forms of a session carry, and calls of the API with its cookie."""
        return self._token("form", digest)

    def random_of(self, number: bytes) -> RandomBytes:
        """What looks random to everybody but us, and is the same for the same number of a form."""
        blocks = itertools.count()

        def draw(count: int) -> bytes:
            drawn = b""
            while len(drawn) < count:
                block = b"drawn\0" + number + next(blocks).to_bytes(4)
                drawn += hmac.digest(self.key, block, "sha256")
            return drawn[:count]

        return draw

    def seal(self, purpose: str, content: bytes) -> str:
        """A cookie that only we can have made, for this purpose."""
        return urlsafe_b64encode(self._tag(purpose, content) + content).decode("ascii")

    def unseal(self, purpose: str, cookie: str) -> bytes | None:
        """What was sealed for this purpose; None when the cookie is none of ours."""
        if len(cookie) > COOKIE_CHARACTERS_MAX:
            return None
        try:
            raw = urlsafe_b64decode(cookie.encode("ascii"))
        except ValueError:
            return None
        tag, content = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        return content if hmac.compare_digest(tag, self._tag(purpose, content)) else None

    def _tag(self, purpose: str, content: bytes) -> bytes:
        message = b"cookie\0" + purpose.encode() + b"\0" + content
        return hmac.digest(self.key, message, "sha256")[:_TAG_BYTES]

    def _token(self, purpose: str, subject: bytes) -> str:
        return hmac.new(self.key, purpose.encode() + b"\0" + subject, "sha256").hexdigest()
