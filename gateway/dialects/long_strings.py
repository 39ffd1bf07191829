"""Base64 of images, audio and files, set aside while the JSON around it is looked through.

A body of several MiB is nearly all base64 within a few strings. The reader passes over a body once
per level (members, messages, parts), and so over each of those bytes three or four times, with the
interpreter's lock held. Here they are passed over once, a short mark stands for them in the text
that is read, and the marks are put back into what is sent.

Why a mark can change nothing that a reader sees, beside the string's own value: a run is taken only
behind `;base64,` or `"data":"` and up to the next quotation mark, where what stands between the
string's opening quotation mark and that one is valid as one whole JSON string. In a valid body both
signs stand within a string, or open one; a body in which they do not is invalid before the run and
stays so. And a valid string's inside leaves a reader, within a string, where it was.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

RUN_BYTES_MIN = 16 * 1024
"""Shortest run that is set aside: below it, setting aside costs more than passing over it again."""

OPENING_BYTES_MAX = 256
"""How far before `;base64,` the quotation mark may stand that opens the string; media types and
their parameters are short."""

RUNS_MAX = 1000
"""A body with more is read as it is: each run costs a few calls."""

_BASE64 = b";base64,"
_DATA_KEY = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\Z')
_DATA_KEY_BYTES_MAX = 32
_END_OF_KEY = re.compile(rb'"[ \t\r\n]*:')
_STRING = msgspec.json.Decoder(msgspec.Raw)
_INDEX_DIGITS = 4

_HELD_BYTES_MAX = 4 * 1024 * 1024
"""Most that is worked through with the interpreter's lock held: 2 ms, in which the loop, which is
another thread, stands still."""

_ESCAPE_BYTES_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A body without its long runs of base64.

    Attributes:
        text: The body with a mark in place of each run.
        mark: What each mark begins with; unpredictable, so that no client can write one.
        runs: What was taken out, in order; views of the body.
        spared_bytes: How much shorter the text is than the body.
    """

    text: bytes
    mark: bytes
    runs: tuple[memoryview, ...]
    spared_bytes: int

    def holds_all(self, text: bytes) -> bool:
        """Whether every mark stands in this part of the text."""
        return text.count(self.mark) == len(self.runs)

    def restore(self, text: bytes) -> bytes:
        """Put the runs back; a mark that is no longer there (a repeated key) stays away."""
        first, *others = text.split(self.mark)
        pieces: list[bytes | memoryview] = [first]
        for other in others:
            pieces += (self.runs[int(other[:_INDEX_DIGITS])], other[_INDEX_DIGITS:])
        if sum(map(len, pieces)) > _HELD_BYTES_MAX:
            pieces = [part for piece in pieces for part in _copies(piece)]
        return b"".join(pieces)


def set_aside(body: bytes, *, run_bytes_min: int = RUN_BYTES_MIN) -> SetAside | None:
    """Take the long runs of base64 out of a body; None where there is none, or too many.

    Args:
        body: JSON, not yet known to be valid; what is not valid stays invalid.
        run_bytes_min: Shortest run that is taken.
    """
    view = memoryview(body)
    mark = b"~" + secrets.token_hex(16).encode() + b"~"
    pieces: list[bytes | memoryview] = []
    runs: list[memoryview] = []
    kept_from, probe = 0, run_bytes_min
    while probe < len(body):
        opening, closing = body.rfind(b'"', kept_from, probe), body.find(b'"', probe)
        if opening < 0 or closing < 0:
            probe = closing + run_bytes_min if closing >= 0 else len(body)
            continue
        start = _start_of_run(body, opening)
        if (
            start is not None
            and closing - start >= run_bytes_min
            and _is_string(view, opening, closing)
        ):
            if len(runs) == RUNS_MAX:
                return None
            pieces += (view[kept_from:start], mark, b"%0*d" % (_INDEX_DIGITS, len(runs)))
            runs.append(view[start:closing])
            kept_from = closing
        probe = closing + run_bytes_min
    if not runs:
        return None
    pieces.append(view[kept_from:])
    text = b"".join(pieces)
    return SetAside(text=text, mark=mark, runs=tuple(runs), spared_bytes=len(body) - len(text))


def _start_of_run(body: bytes, opening: int) -> int | None:
    """Where base64 begins behind a quotation mark; None where nothing says that it does."""
    sign = body.find(_BASE64, opening, opening + OPENING_BYTES_MAX)
    if sign >= 0:
        return sign + len(_BASE64)
    before = body[max(0, opening - _DATA_KEY_BYTES_MAX) : opening]
    return opening + 1 if _DATA_KEY.search(before) else None


def _is_string(view: memoryview, opening: int, closing: int) -> bool:
    """Whether from one quotation mark to the other stands one whole JSON string, and no key.

    Of two equal keys the reader keeps one; with marks in them it would not know that they are.
    """
    if _END_OF_KEY.match(view, closing) is not None:
        return False
    try:
        if closing - opening <= _HELD_BYTES_MAX:
            _STRING.decode(view[opening : closing + 1])
        else:
            for start, end in _parts(view, opening + 1, closing):
                _STRING.decode(b'"%b"' % view[start:end])
    except msgspec.DecodeError:
        return False
    return True


def _parts(view: memoryview, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Parts of a string's inside that are valid each for itself if all of it is base64.

    None ends within an escape (writers escape `/` and `+`): there it ends before it.
    """
    while start < end:
        stop = start + _HELD_BYTES_MAX
        stop = end if stop >= end else _before_a_cut_escape(view, start, stop)
        yield start, stop
        start = stop


def _before_a_cut_escape(view: memoryview, start: int, stop: int) -> int:
    """Where to end a part so that it ends whole, at or shortly before `stop`.

    Whether a backslash opens an escape or is what another one escapes follows from how many stand
    in a row up to it. A client may send nothing but escapes: the row is counted in one step, and no
    place is tried twice.
    """
    window = bytes(view[stop - _ESCAPE_BYTES_MAX : stop])
    last = window.rfind(b"\\")
    if last < 0:
        return stop
    at = stop - _ESCAPE_BYTES_MAX + last
    up_to = bytes(view[start : at + 1])
    opens = (len(up_to) - len(up_to.rstrip(b"\\"))) % 2 == 1
    escape_bytes = _ESCAPE_BYTES_MAX if view[at + 1] == ord("u") else 2
    return at if opens and at + escape_bytes > stop else stop


def _copies(piece: bytes | memoryview) -> Iterator[bytes]:
    """A piece in parts of their own, which join without the interpreter's lock; views do not."""
    for start in range(0, len(piece), _HELD_BYTES_MAX):
        yield bytes(piece[start : start + _HELD_BYTES_MAX])
