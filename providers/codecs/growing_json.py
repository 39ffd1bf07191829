"""JSON that comes in fragments: whether it is whole by now, looking at each fragment once."""

from __future__ import annotations

import re

import msgspec

_CHARS_MAX = 8 * 1024 * 1024
_SCALAR_CHARS_MAX = 64
"""Longest number or word that is tried anew each time; nothing tells where it ends."""

_BLANKS = " \t\r\n"
_ESCAPED = re.compile(r"\\.", re.DOTALL)


class GrowingJson:
    """A JSON value whose text grows; to try all of it whenever somebody asks would be quadratic.

    Quotes and brackets are counted once, when somebody asks. Where they match, the text is decoded:
    what is no JSON there will never be, whatever follows.

    Attributes:
        chars: How long it is.
    """

    __slots__ = (
        "_depth", "_fragments", "_is_escaping", "_is_hopeless", "_is_in_text", "_is_whole",
        "_seen_count", "chars",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chars = 0
        self._fragments: list[str] = []
        # Of the fragments that were looked at:
        self._seen_count = self._depth = 0
        self._is_in_text = self._is_escaping = self._is_whole = self._is_hopeless = False

    def add(self, text: str) -> None:
        """Take a fragment; beyond the limit the value counts as unreadable."""
        self.chars += len(text)
        if self.chars <= _CHARS_MAX:
            self._fragments.append(text)

    def is_whole(self) -> bool:
        """Whether the fragments so far are complete JSON."""
        if self._is_hopeless or self.chars > _CHARS_MAX:
            return False
        fragments = self._fragments
        text = "".join(fragments[self._seen_count :])
        self._seen_count = len(fragments)
        if not text or (self._is_whole and not text.strip(_BLANKS)):
            return self._is_whole
        self._count(text)
        self._is_whole = False
        if not (self._is_in_text or self._is_escaping or self._depth):
            self._is_whole = self._decodes()
        return self._is_whole

    def _count(self, text: str) -> None:
        if self._is_escaping:
            text = text[1:]
        if "\\" in text:
            text = _ESCAPED.sub("", text)
        self._is_escaping = text.endswith("\\")
        pieces = text.split('"')
        outside = "".join(pieces[int(self._is_in_text) :: 2])
        self._is_in_text ^= len(pieces) % 2 == 0
        self._depth += outside.count("{") + outside.count("[")
        self._depth -= outside.count("}") + outside.count("]")

    def _decodes(self) -> bool:
        text = "".join(self._fragments)
        try:
            msgspec.json.decode(text, type=msgspec.Raw)
        except msgspec.DecodeError:
            is_scalar = text.lstrip()[:1] not in ("{", "[", '"')
            self._is_hopeless = not is_scalar or len(text) > _SCALAR_CHARS_MAX
            return False
        return True
