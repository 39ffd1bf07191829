"""Text in base64: data URLs, attachments, and whatever else was encoded so that nobody reads it.

Any run of the alphabet may be base64; it counts when it decodes to text, which random words and
hashes do not. What does not is opaque (an image, say), and has tags of its own.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

from gateway.detect.budget import Budget
from gateway.detect.errors import BeyondBounds
from gateway.detect.hits import Group, Hit, Rule
from gateway.detect.linear import Pattern

RUN_CHARS_MIN = 20
"""Sixteen digits take 22; shorter runs are nearly all words."""

DEPTH_MAX = 3
"""How often base64 may be within base64."""

DECODED_BYTES_MAX = 2 * 1024 * 1024
"""Most text that is decoded for one request."""

_LOOK_CHARS = 1024
"""A run whose first part is no text is no text."""

_PREFILTER = f"[A-Za-z0-9+/_\\-]{{{RUN_CHARS_MIN}}}"
_RUN = Pattern(f"[A-Za-z0-9+/_\\-]{{{RUN_CHARS_MIN},}}")
_BREAKS = (b"\n", b"\r\n", b" ", b"  ")
"""What is between two lines of one run; a written line break is two spaces once it is folded."""

_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f") + b"\x7f"
_FIRST_HALF = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
_FIRST_CHARS = 128
_DIGITS = b"0123456789"
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-= \t\r\n"


def _find_nothing(_text: bytes, _budget: Budget) -> Iterator[Hit]:
    return iter(())


RULE = Rule(group=Group.ENCODED, prefilters=(_PREFILTER,), find=_find_nothing)
"""Tells by the prefilter whether there may be any; what is in it is found in what is decoded."""


class Decoder:
    """Decodes what one request holds, within bounds."""

    __slots__ = ("_left",)

    def __init__(self, bytes_max: int = DECODED_BYTES_MAX) -> None:
        self._left = bytes_max

    def texts(self, text: bytes, budget: Budget) -> Iterator[tuple[int, str]]:
        """Every text in base64 within a folded text, with the offset of its run.

        Raises:
            BeyondBounds: There is more than is decoded for one request.
            OutOfTime: There is no time left.
        """
        for block in _blocks(text):
            budget.note_candidate()
            start, end = block[0][0], block[-1][1]
            decoded = self.text_of(text[start:end])
            if decoded is not None:
                yield start, decoded
            elif len(block) > 1:  # words, or one line of base64 between them
                for start, end in block:
                    budget.note_candidate()
                    decoded = self.text_of(text[start:end])
                    if decoded is not None:
                        yield start, decoded

    def text_of(self, run: bytes) -> str | None:
        """The text that a run of base64 stands for; None where it stands for none.

        Raises:
            BeyondBounds: There is more than is decoded for one request.
        """
        if not _may_be_text(run):
            return None
        if len(run) > _LOOK_CHARS and _decode(run[:_LOOK_CHARS]) is None:
            return None
        self._left -= len(run) * 3 // 4
        if self._left < 0:
            raise BeyondBounds("more base64 than is decoded for one request")
        return _decode(run)


def _blocks(text: bytes) -> Iterator[list[tuple[int, int]]]:
    """Runs of the alphabet; lines that may be of one block together."""
    block: list[tuple[int, int]] = []
    for start, end in _RUN.spans(text):
        if block and text[block[-1][1] : start] not in _BREAKS:
            yield block
            block = []
        block.append((start, end))
    if block:
        yield block


def is_base64(run: bytes) -> bool:
    """Whether something holds nothing but characters of base64."""
    return not run.translate(None, _ALPHABET)


def _may_be_text(run: bytes) -> bool:
    """Whether it is worth decoding; of words, names and paths hardly one is.

    ASCII has no eighth bit, so that the first of each four characters is one of the first half of
    the alphabet. Other text in base64 has capitals, small letters and digits.
    """
    if not run[:_FIRST_CHARS:4].translate(None, _FIRST_HALF):
        return True
    if run.islower() or run.isupper():
        return False
    return len(run.translate(None, _DIGITS)) != len(run)


def _decode(run: bytes) -> str | None:
    """Decoded text, as much of it as whole groups of four characters hold."""
    bare = run.translate(_TO_STANDARD, b" \r\n\t=")
    spare = len(bare) % 4
    if spare == 1:
        bare = bare[:-1]
    elif spare:
        bare += b"=" * (4 - spare)
    decoded = base64.b64decode(bare)
    if not decoded.isascii():
        return _utf8(decoded)
    return None if _has_controls(decoded) else decoded.decode("ascii")


def _utf8(decoded: bytes) -> str | None:
    """Text that is not ASCII; what was cut within a character may end in half of one."""
    try:
        text = decoded.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(decoded) - 3:
            return None
        text = decoded[: error.start].decode("utf-8")
    return None if _has_controls(decoded) else text


def _has_controls(decoded: bytes) -> bool:
    return len(decoded.translate(None, _CONTROLS)) != len(decoded)
