"""Private keys: PEM, OpenSSH, PGP, PuTTY, age, JSON Web Keys, and DER in bare base64.

A header alone is no key: code that reads and writes keys is full of headers. What follows must
hold a line's worth of base64 that looks random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.detect.budget import Budget
from gateway.detect.hits import ALPHANUMERIC, Group, Hit, Rule
from gateway.detect.linear import Pattern
from gateway.detect.tokens import entropy_bits

PRIVATE_KEY = "private_key"

_PEM_START = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PUTTY_START = r"PuTTY-User-Key-File-[0-9]: "
_AGE = r"AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}"
_DER = r"MI[EIGJ][A-Za-z0-9+/]{3}[A-Za-z0-9+/]?IBADANBgkqhkiG9w0BAQEFAASC"
_JWK = r"\x7fd\x7f ?: ?\x7f[A-Za-z0-9_\-]{40}"

_STARTS = (Pattern(_PEM_START), Pattern(_PUTTY_START))
_WHOLE = (("age", Pattern(_AGE)), ("pkcs8", Pattern(_DER)))
_JWK_PATTERN = Pattern(_JWK)
_JWK_NEAR_BYTES = 2048
_KEY_TYPE = b"\x7fkty\x7f"

_FOLLOWS_BYTES = 1024
_LINE = re.compile(rb"[A-Za-z0-9+/]{40,}")
_BITS_MIN = 3.5
_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\x7f")


def find(text: bytes, budget: Budget) -> Iterator[Hit]:
    """Private keys in armour: a header, and random base64 soon after it."""
    for pattern in _STARTS:
        done = 0
        for start, end in pattern.spans(text):
            budget.note_candidate()
            if start < done:
                continue
            line = _LINE.search(text, end, end + _FOLLOWS_BYTES)
            if line is not None and entropy_bits(line[0]) >= _BITS_MIN:
                done = _end_of_key(text, line.end())
                yield Hit(PRIVATE_KEY, "pem", start, done)


def find_bare(text: bytes, budget: Budget) -> Iterator[Hit]:
    """Private keys that say by themselves what they are."""
    for kind, pattern in _WHOLE:
        for start, end in pattern.spans(text):
            budget.note_candidate()
            if (
                not (start and text[start - 1] in ALPHANUMERIC)
                and entropy_bits(text[start:end]) >= _BITS_MIN
            ):
                yield Hit(PRIVATE_KEY, kind, start, end)


def find_jwks(text: bytes, budget: Budget) -> Iterator[Hit]:
    """The private part of JSON Web Keys (RFC 7518, section 6): `d` in an object with `kty`."""
    for start, end in _JWK_PATTERN.spans(text):
        budget.note_candidate()
        near = text[max(0, start - _JWK_NEAR_BYTES) : end + _JWK_NEAR_BYTES]
        if _KEY_TYPE in near and entropy_bits(text[end - 40 : end]) >= _BITS_MIN:
            yield Hit(PRIVATE_KEY, "jwk", start, end)


def _end_of_key(text: bytes, from_: int) -> int:
    """Where a key ends: behind its last line, or with its string."""
    found = _END.search(text, from_)
    if found is None:
        return len(text)
    return found.start() if found[0] == b"\x7f" else found.end()


RULES = (
    Rule(group=Group.TOKENS, prefilters=(_PEM_START, _PUTTY_START), find=find),
    Rule(group=Group.TOKENS, prefilters=(_AGE, _DER), find=find_bare),
    Rule(group=Group.TOKENS, prefilters=(_JWK,), find=find_jwks),
)
