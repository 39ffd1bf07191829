"""The form of Fareway's keys: `fw_<environment>_<key id>_<secret>_<checksum>`.

The key id is public: it is what reports, logs and revocations name. The secret has 256 bits, so a
fast keyed hash protects it. The checksum lets typos and guesses be refused before anything is
looked up, and gives secret scanners a form without false alarms (`finance_policy.md` 5.1).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Environment = Literal["live", "test"]
RandomBytes = Callable[[int], bytes]
"""`secrets.token_bytes`, or a fixed source in tests."""

KEY_ID_CHARACTERS = 12
SECRET_CHARACTERS = 43
CHECKSUM_CHARACTERS = 6
FIXED_KEY_BYTES_MIN = 20
TOKEN_BYTES_MAX = 512

_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(rb"(fw_(live|test)_([a-z2-7]{12})_([0-9A-Za-z]{43}))_([0-9A-Za-z]{6})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made; its text is shown once and never kept.

    Attributes:
        text: What the client sends.
        key_id: Its public part.
    """

    text: str
    key_id: str

    def __repr__(self) -> str:
        return f"NewKey(key_id={self.key_id!r})"


def make_key(environment: Environment, random_bytes: RandomBytes) -> NewKey:
    """Make a key.

    Args:
        environment: Shown in the key, so that a test key is not taken for a live one.
        random_bytes: A cryptographic source.
    """
    key_id = _encode(int.from_bytes(random_bytes(8)) >> 4, _BASE32, KEY_ID_CHARACTERS)
    secret = _encode(int.from_bytes(random_bytes(32)), _BASE62, SECRET_CHARACTERS)
    body = f"fw_{environment}_{key_id}_{secret}"
    return NewKey(text=f"{body}_{_checksum(body.encode('ascii'))}", key_id=key_id)


def parse_key_id(token: bytes) -> str | None:
    """The key id of a well-formed key, None when the form or the checksum is wrong."""
    match = _FORM.fullmatch(token)
    if match is None:
        return None
    body, _, key_id, _, checksum = match.groups()
    return key_id.decode("ascii") if _checksum(body).encode("ascii") == checksum else None


def looks_like_key(token: bytes) -> bool:
    """Whether a token sets out to be one of Fareway's keys, well-formed or not."""
    return token.startswith((b"fw_live_", b"fw_test_"))


def hash_key(pepper: bytes, token: bytes) -> bytes:
    """The 32 bytes that are kept in place of a key: HMAC-SHA256 with the pepper."""
    return hmac.digest(pepper, token, "sha256")


def fixed_key_id(team: str, name: str) -> str:
    """The public id of a key brought along, of its team and name: it survives a new value."""
    digest = hashlib.sha256(f"fareway/fixed-key/1\0{team}\0{name}".encode()).digest()
    return _encode(int.from_bytes(digest[:8]) >> 4, _BASE32, KEY_ID_CHARACTERS)


def _checksum(body: bytes) -> str:
    return _encode(zlib.crc32(body), _BASE62, CHECKSUM_CHARACTERS)


def _encode(number: int, alphabet: str, length: int) -> str:
    """Write a number in an alphabet, most significant first, padded to `length`."""
    digits: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    assert number == 0
    return "".join(reversed(digits))
