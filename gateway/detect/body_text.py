"""A request's body as one text: every string decoded, and folded to what a reader would see.

The body is not taken apart into objects. Escapes stand within strings only, so the whole of it is
decoded as if it were one string, in which a mark stands for each quotation mark: nothing can hide
in a repeated key, an unknown member or a place that a walk would leave out, and it takes
microseconds.

Folding undoes what is used to write a number so that a program does not see it: zero-width
characters, soft hyphens, full-width and other scripts' digits, look-alike letters, odd spaces and
dashes, and escapes within strings (JSON in JSON, URLs). What comes out is ASCII, one byte for each
character, so that offsets in it are offsets in the folded text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from functools import cache
from typing import cast

import msgspec

from gateway.detect.linear import TextPattern

MARK = "\x7f"
"""Stands for the quotation mark at each end of a string; clients' own become a space."""

MARK_BYTE = b"\x7f"

_SPACES_FOR = bytes.maketrans(b"\t\n\r\x7f", b"    ")
_ODD_BYTES = (b"\n", b"\r", b"\t", b"\x7f")
_TEXT = msgspec.json.Decoder(str)

_DIGIT_ZEROS = (
    0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6,
    0xE50, 0xED0, 0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50,
    0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10,
    0x104A0, 0x11066, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1FBF0,
)  # fmt: skip
"""The zeros of scripts' own digits (Unicode's class Nd); each is the first of ten."""

_DROPPED = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\u0300-\u036f\u0483-\u0489\u20d0-\u20f0"
    "\U000e0000-\U000e0fff"
)
"""Characters that take no room, and marks on others, as a range of a regular expression."""

_SPACES = "\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_DASHES = "\u2010-\u2015\u2212\ufe58\ufe63\uff0d"
_COMPATIBLE = (
    "\u00b2\u00b3\u00b9\u2070-\u209c\u2460-\u2468\u24b6-\u24ea\u2776-\u277e\u2780-\u2788\u278a-\u2792"
    "\uff0b\uff0e\uff0f\uff1d\uff20-\uff3a\uff3f\uff41-\uff5a\U0001d400-\U0001d7cd"
)
"""Ranges whose characters stand for an ASCII letter, digit or sign."""

_LOOK_ALIKES = dict(
    zip(
        "АВЕЗКМНОРСТУХаеорсухіјѕһԁԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧοѴІЈЅ",  # noqa: RUF001  # that is the point
        "ABE3KMHOPCTYXaeopcyxijshdqwABEZHIKMNOPTYXoVIJS",
        strict=True,
    )
)
_LATIN = str.maketrans(_LOOK_ALIKES)
_HAS_ASCII = re.compile("[0-9A-Za-z]")
_SCRIPT_DIGITS = {
    chr(zero + value): str(value) for zero in _DIGIT_ZEROS for value in range(10)
}  # a few hundred

_ODD_RANGES = f"{_DROPPED}{_SPACES}{_DASHES}{_COMPATIBLE}" + "".join(
    f"{chr(zero)}-{chr(zero + 9)}" for zero in _DIGIT_ZEROS
)
_ODD = re.compile(f"[{_ODD_RANGES}]")
_ALIKE = "".join(_LOOK_ALIKES)
_WORD = re.compile(f"[0-9A-Za-z{_ALIKE}]+")
_HAS_ODD = TextPattern(_ODD.pattern)
_HAS_ALIKE = TextPattern(f"[0-9A-Za-z][{_ALIKE}]|[{_ALIKE}][0-9A-Za-z]")
"""Look-alikes count only beside ASCII: most of them are ordinary letters of other alphabets."""

_IS_DROPPED = re.compile(f"[{_DROPPED}]")
_IS_SPACE = re.compile(f"[{_SPACES}]")
_IS_DASH = re.compile(f"[{_DASHES}]")

_BACKSLASHES = re.compile(r"\\{2,}")
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf\"/]))|%([2-7][0-9a-fA-F])|\t"
)
_BEGINS_ESCAPE = ("\\", "%", "\t")
_WRITTEN_SPACES = frozenset("nrtbf")


def flatten(body: bytes) -> str:
    """Decode every string of a JSON document in place.

    Args:
        body: Valid JSON in UTF-8.

    Returns:
        The document's text with `MARK` for each quotation mark that begins or ends a string, and
        every escape decoded.
    """
    for odd in _ODD_BYTES:
        if odd in body:
            body = body.translate(_SPACES_FOR)
            break
    if b"\\" not in body:
        return body.replace(b'"', MARK_BYTE).decode()
    if b"\\\\" in body:
        body = body.replace(b"\\\\", b"\\u005c")
    if b"\\u007" in body:
        body = body.replace(b"\\u007f", b" ").replace(b"\\u007F", b" ")
    body = b'"%b"' % body.replace(b'\\"', b"\\u0022").replace(b'"', MARK_BYTE)
    try:
        return _TEXT.decode(body)
    except msgspec.DecodeError:
        # Half a surrogate pair, which some writers send and some upstreams take.
        text = cast("str", json.loads(body))
        return text.encode("utf-8", "replace").decode()


def fold(text: str) -> str:
    """What a reader would see, as far as it matters for numbers and keys."""
    if not text.isascii():
        text = _fold_characters(text)
    if any(sign in text for sign in _BEGINS_ESCAPE):
        text = _BACKSLASHES.sub(_one_backslash, text)
        text = _ESCAPE.sub(_unescaped, text)
        if not text.isascii():
            text = _fold_characters(text)
    return text


def _fold_characters(text: str) -> str:
    # RE2 tells in a tenth of the time whether there is anything to do, and mostly there is not.
    if _HAS_ODD.is_in(text):
        text = _ODD.sub(_folded, text)
    if _HAS_ALIKE.is_in(text):
        text = _WORD.sub(_latin, text)
    return text


def fold_with_offsets(text: str) -> tuple[str, list[int]]:
    """Fold a text, and tell for each character of the result where it came from.

    Returns:
        The folded text, and one offset in `text` per character of it, with the text's length as
        one more at the end.
    """
    if text.isascii() and not any(sign in text for sign in _BEGINS_ESCAPE):
        return text, list(range(len(text) + 1))
    pieces = [(character, place) for place, character in enumerate(text)]
    for pattern, replace in (
        (_ODD, _folded),
        (_WORD, _latin),
        (_BACKSLASHES, _one_backslash),
        (_ESCAPE, _unescaped),
        (_ODD, _folded),
        (_WORD, _latin),
    ):
        current = "".join(character for character, _ in pieces)
        replaced: list[tuple[str, int]] = []
        kept_from = 0
        for match in pattern.finditer(current):
            replaced += pieces[kept_from : match.start()]
            made = replace(match)
            for index, character in enumerate(made):
                # As many as there were, each from its own; else all from the first.
                same = len(made) == match.end() - match.start()
                replaced.append((character, pieces[match.start() + (index if same else 0)][1]))
            kept_from = match.end()
        pieces = replaced + pieces[kept_from:]
    folded = "".join(character for character, _ in pieces)
    return folded, [*(place for _, place in pieces), len(text)]


def to_ascii(text: str) -> bytes:
    """A folded text as ASCII, one byte per character; what is not ASCII becomes `?`."""
    return text.encode("ascii", "replace")


def _folded(match: re.Match[str]) -> str:
    return _fold_character(match[0])


@cache  # as many entries as the pattern has characters: some thousands
def _fold_character(character: str) -> str:
    if _IS_DROPPED.match(character):
        return ""
    if _IS_SPACE.match(character):
        return " "
    if _IS_DASH.match(character):
        return "-"
    digit = _SCRIPT_DIGITS.get(character) or unicodedata.digit(character, None)
    if digit is not None:
        return str(digit)
    compatible = unicodedata.normalize("NFKC", character)
    return compatible if len(compatible) == 1 and compatible.isascii() else character


def _latin(match: re.Match[str]) -> str:
    word = match[0]
    if word.isascii() or not _HAS_ASCII.search(word):
        return word
    return word.translate(_LATIN)


def _one_backslash(_match: re.Match[str]) -> str:
    return "\\"


def _unescaped(match: re.Match[str]) -> str:
    sign = match[3]
    if sign is not None:
        return " " if sign in _WRITTEN_SPACES else sign
    number = match[1] or match[2] or match[4]
    if number is None:
        return " "  # a tab
    character = chr(int(number, 16))
    # Half a surrogate pair cannot be encoded, and a mark of the client's would look like ours.
    return " " if character == MARK or "\ud800" <= character <= "\udfff" else character
