"""Puts the cost into an upstream's whole answer without taking the answer apart.

An answer that is decoded and put together again costs several times as much as everything else that
is done with it. Nearly all have one `usage`, spelt plainly and with each of its members once: there
the cost is written into its span, and every other byte stays. What is not certainly of that kind
goes the careful way, through `openai_answer.with_cost`; both mean the same JSON value.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from gateway.dialects.openai_answer import with_cost

_KEY_BYTES: Final = len(b'"usage"')
_COLON: Final = ord(":")
_WHITE: Final = b" \t\r\n"
_DIGITS: Final = b"0123456789"

_COUNTS_BYTES_MAX: Final = 2048
"""Of a `usage` whose shape is remembered; those of vendors have 100 to 600."""

_SHAPES_MAX: Final = 512

_SCALAR = rb'(?:[-.eE+]++|null|true|false|"[^"\\]*+"|)'
_MEMBERS = rb'(?:\s*+"[^"\\]*+"\s*+:\s*+%b\s*+(?:,|(?=\})))*+' % _SCALAR
_MEMBER = re.compile(rb'\s*+"([^"\\]*+)"\s*+:\s*+(?:\{%b\s*+\}|%b)\s*+(,|\})' % (_MEMBERS, _SCALAR))
"""A member of a JSON object without its digits; objects inside hold plain values only."""


class _Spot(msgspec.Struct, gc=False):
    """What of an answer says where its counts are."""

    usage: Raw = Raw(b"")


_SPOT = msgspec.json.Decoder(_Spot)


def answer_with_cost(raw: bytes, counts: bytes | None, cost_usd: bytes | None) -> bytes:
    """Write our cost into the `usage` of a whole answer.

    Args:
        raw: A JSON object, already decoded once without a fault.
        counts: The value of its last `usage`, byte by byte, or that of a vendor's own member where
            it has none; None when unknown.
        cost_usd: A decimal, None when the price is unknown: an upstream's own `cost_usd` is taken
            out all the same.
    """
    end = end_of_usage(raw, counts) if counts else None
    if end is None:
        return with_cost(raw, None if cost_usd is None else cost_usd.decode(), None)
    if cost_usd is None:
        return raw
    return b"".join((raw[: end - 1], b',"cost_usd":"', cost_usd, b'"}', raw[end:]))


def end_of_usage(raw: bytes, counts: bytes) -> int | None:
    """Where the value of the only top-level `usage` ends; arguments as `answer_with_cost`.

    Returns:
        None where that is not certain, or where the value does not take a further `cost_usd`.
    """
    key = raw.rfind(b'"usage"')
    start = key + _KEY_BYTES + 1
    if not raw.startswith(counts, start) or raw[start - 1] != _COLON:
        start = raw.find(counts, key) if key >= 0 else -1
        if start < 0 or raw[key + _KEY_BYTES : start].strip(_WHITE) != b":":
            return None
    if raw.find(b'"usage"', 0, key) >= 0:
        return None  # elsewhere in the answer, too: perhaps a second time at the top
    if b"\\" in raw and (b"\\u006" in raw or b"\\u007" in raw):
        return None  # a letter of some name may be spelt so, and the name be `usage`
    size = len(counts)
    if size > _COUNTS_BYTES_MAX or not _takes_a_cost(counts.translate(None, _DIGITS)):
        return None
    end = start + size
    # One brace behind it closes one object, so that the counts stand at the top.
    if raw.count(b"}", end) == 1 or bytes(_SPOT.decode(raw).usage) == counts:
        return end
    return None  # they are those of a vendor's own member


@lru_cache(maxsize=_SHAPES_MAX)  # an upstream's counts look alike from answer to answer
def _takes_a_cost(shape: bytes) -> bool:
    """Whether a member `cost_usd` can be added at the end of counts of this shape.

    Args:
        shape: A `usage` object without its digits. Two names that are equal are equal without them,
            so that no name comes twice here only if none did in the counts.
    """
    if not shape.startswith(b"{"):
        return False
    place, names = 1, set[bytes]()
    while (member := _MEMBER.match(shape, place)) is not None:
        name, place = member[1], member.end()
        if name in names or name == b"cost_usd":
            return False
        names.add(name)
        if member[2] == b"}":
            return place == len(shape)
    return False
