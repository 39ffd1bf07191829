"""What a rule finds in a folded text, and what each rule is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from gateway.detect.budget import Budget


class Hit(NamedTuple):
    """Something that a detector knows, at a place in a folded text.

    Attributes:
        detector: The setting's name, for example `payment_card`.
        kind: What exactly, for example `us_ssn` of `national_id`; the detector's name where it has
            no kinds.
        start: Offset of its first byte.
        end: Offset after its last byte.
    """

    detector: str
    kind: str
    start: int
    end: int


Find = Callable[[bytes, Budget], Iterable[Hit]]
"""Looks through a folded text; in time linear in it."""


class Group(IntEnum):
    """Whose prefilters are looked for in one pass.

    A pass keeps track of all that may have begun before each character. Patterns that begin with
    letters, with digits and with anything multiply, in one pass, to more than it can remember.
    """

    NUMBERS = 0
    TOKENS = 1
    ENCODED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A way to find something.

    Attributes:
        group: Whose prefilters go with these.
        prefilters: RE2 patterns, one of which matches wherever `find` finds anything.
        find: Run only where one of them matched.
    """

    group: Group = Group.NUMBERS
    prefilters: tuple[str, ...]
    find: Find


LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
DIGITS = frozenset(b"0123456789")
ALPHANUMERIC = LETTERS | DIGITS
_BEYOND_HEX = frozenset(b"GHIJKLMNOPQRSTUVWXYZghijklmnopqrstuvwxyz")
_LOOK_BYTES_MAX = 24


def stands_alone(text: bytes, start: int, end: int) -> bool:
    """Whether neither a letter nor a digit touches a span."""
    if start and text[start - 1] in ALPHANUMERIC:
        return False
    return end >= len(text) or text[end] not in ALPHANUMERIC


def is_apart(text: bytes, start: int, end: int) -> bool:
    """Whether a number is one of its own: alone, or beside a word as in `card4111…`.

    Not where it may be part of a hash, of base64 or of a longer number.
    """
    before = _letters_before(text, start)
    if before and (not _is_word(before) or before in (b"x", b"X")):
        return False
    after = _letters_after(text, end)
    return not after or _is_word(after)


def _letters_before(text: bytes, start: int) -> bytes:
    from_ = start
    while from_ and start - from_ < _LOOK_BYTES_MAX and text[from_ - 1] in ALPHANUMERIC:
        from_ -= 1
    return text[from_:start]


def _letters_after(text: bytes, end: int) -> bytes:
    to = end
    while to < len(text) and to - end < _LOOK_BYTES_MAX and text[to] in ALPHANUMERIC:
        to += 1
    return text[end:to]


def _is_word(letters: bytes) -> bool:
    return letters.isalpha() and not _BEYOND_HEX.isdisjoint(letters) and _is_one_case(letters)


def _is_one_case(letters: bytes) -> bool:
    # The first letter may be a capital; base64 mixes them.
    rest = letters[1:]
    return rest.islower() or letters.isupper() or not rest
