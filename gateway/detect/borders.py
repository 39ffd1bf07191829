"""Where one text of a conversation ends and the next begins: a number may be split over both.

Templates put parts of a message, and messages, next to each other, so that the model reads on. What
stands around such a border is looked at as one text, and only what reaches over it counts.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from gateway.detect.body_text import fold

AROUND_CHARS = 256
"""Taken from each side of a border."""

_WORD_CHARS_MIN = 20
_DIGIT = re.compile("[0-9]")
_WORDS = 6
"""Words of the first and of the last text that are read with a border: what a number needs that is
written in groups or stands behind the word that names it."""
_OF_NUMBERS = "0123456789 .-"
_BARE = str.maketrans("", "", " .-")
_JOINS = re.compile(r"[0-9A-Za-z+/=_.\-~]")


class _Part(msgspec.Struct):
    text: object = None  # of a part that is text


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _Conversation(msgspec.Struct):
    messages: list[_Message] = []


_DECODER = msgspec.json.Decoder(_Conversation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """The text around borders that touch.

    Attributes:
        pieces: What stands on each side of each border, folded, in order.
        first: Path of the first text.
        last: Path of the last one.
    """

    pieces: tuple[str, ...]
    first: str
    last: str

    def readings(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """How it may be read, each with the offsets at which a piece begins, ascending.

        As it stands; and, where digits touch, without what separates them, as groups of digits may
        be cut anywhere.
        """
        pieces = (_last_words(self.pieces[0]), *self.pieces[1:-1], _first_words(self.pieces[-1]))
        yield _joined(pieces)
        squeezed = tuple(map(_squeeze, self.pieces))
        if squeezed != self.pieces:
            yield _joined((_last_words(squeezed[0]), *squeezed[1:-1], _first_words(squeezed[-1])))


def is_across(borders: Sequence[int], start: int, end: int) -> bool:
    """Whether a span reaches over one of the borders, which ascend."""
    place = bisect_right(borders, start)
    return place < len(borders) and borders[place] < end


def _last_words(text: str) -> str:
    return " ".join(text.rsplit(None, _WORDS)[-_WORDS:])


def _first_words(text: str) -> str:
    return " ".join(text.split(None, _WORDS)[:_WORDS])


def _squeeze(text: str) -> str:
    """A piece with the digits at its ends close together."""
    kept = text.rstrip(_OF_NUMBERS)
    end = text[len(kept) :]
    rest = kept.lstrip(_OF_NUMBERS)
    begin = kept[: len(kept) - len(rest)]
    between = " " if rest and end[:1] == " " else ""
    return begin.translate(_BARE) + rest + between + end.translate(_BARE)


def _joined(pieces: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    ends = list(accumulate(map(len, pieces)))
    return "".join(pieces), tuple(ends[:-1])


def seams(body: bytes) -> list[Seam]:
    """Every place in a conversation where the text goes on in the next message or part.

    Args:
        body: The top-level members as JSON.
    """
    return list(_seams(_texts(_DECODER.decode(body))))


def _texts(conversation: _Conversation) -> list[tuple[str, str]]:
    """Path and text of each part in order."""
    found: list[tuple[str, str]] = []
    for index, message in enumerate(conversation.messages):
        path = f"messages[{index}].content"
        if isinstance(message.content, str):
            found.append((path, message.content))
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part.text, str):
                found.append((f"{path}[{place}].text", part.text))
    return found


def _seams(texts: Sequence[tuple[str, str]]) -> Iterator[Seam]:
    chain: _Chain | None = None
    for index in range(1, len(texts)):
        (before, left), (after, right) = texts[index - 1], texts[index]
        tail, head = _end_of(left), _begin_of(right)
        if not _may_go_on(tail, head):
            if chain is not None:
                yield chain.seam()
            chain = None
            continue
        if chain is not None and len(left) > AROUND_CHARS:
            yield chain.seam()
            chain = None
        if chain is None:
            chain = _Chain(before, tail)
        chain.add(after, head)
    if chain is not None:
        yield chain.seam()


class _Chain:
    """A seam that is being put together."""

    def __init__(self, path: str, text: str) -> None:
        self._first = self._last = path
        self._pieces = [text]

    def add(self, path: str, text: str) -> None:
        """Go on with the next text."""
        self._pieces[-1] = self._pieces[-1].rstrip()
        self._pieces.append(text)
        self._last = path

    def seam(self) -> Seam:
        """What was put together."""
        return Seam(pieces=tuple(self._pieces), first=self._first, last=self._last)


def _end_of(text: str) -> str:
    return fold(text[-AROUND_CHARS:]).rstrip()


def _begin_of(text: str) -> str:
    return fold(text[:AROUND_CHARS]).lstrip()


def _may_go_on(tail: str, head: str) -> bool:
    """Whether the last word before a border and the first after it may be one number or key."""
    if not tail or not head or not _JOINS.match(tail[-1]) or not _JOINS.match(head):
        return False
    last, first = tail.rsplit(None, 1)[-1], head.split(None, 1)[0]
    if len(last) + len(first) >= _WORD_CHARS_MIN:
        return True
    return _DIGIT.search(last) is not None or _DIGIT.search(first) is not None
