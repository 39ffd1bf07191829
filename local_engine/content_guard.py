"""Keeps what people write in messages from becoming control tokens of the prompt.

A chat template prints markers of turns and contents of messages into one text, in which markers
are then recognised as control tokens. A content that spells such a marker would end its own turn
and begin another, in any role: prompt injection below the model's level. So before rendering, one
character of each such spelling is replaced by a stand-in, a character that the conversation does
not hold; the tokenizer puts it back after it has looked for control tokens. Everything else of a
content stays as it is, because templates look into contents and trim them.

Source: the flaw is llama.cpp's issue 24382 and transformers' issue 29279 (2026-11-30).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

StandIns = Mapping[str, str]
"""The character that each stand-in stands for."""

_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class ContentGuard:
    """Finds spellings of control tokens.

    Args:
        control_texts: Texts of the model's control tokens.
    """

    def __init__(self, control_texts: Sequence[str]) -> None:
        texts = [text for text in control_texts if text]
        self._whole = _compile_overlapping(texts)
        self._beginnings = {text[:cut] for text in texts for cut in range(1, len(text))}
        self._endings = {text[cut:] for text in texts for cut in range(1, len(text))}
        self._partial_max = max(map(len, texts), default=1) - 1

    def mask(
        self, messages: Sequence[Mapping[str, object]]
    ) -> tuple[list[Mapping[str, object]], StandIns]:
        """Replace what could become a control token.

        Returns:
            The messages to render, and the stand-ins in them; none for most conversations.
        """
        texts = [text for message in messages for text in _texts_of(message)]
        marked = {text: places for text in texts if (places := self._places(text))}
        if not marked:
            return list(messages), {}
        wanted = {text[place] for text, places in marked.items() for place in places}
        stand_in_of = dict(zip(sorted(wanted), _unused_characters(texts), strict=False))
        masked = {
            text: "".join(
                stand_in_of[character] if place in places else character
                for place, character in enumerate(text)
            )
            for text, places in marked.items()
        }
        return (
            [{name: _replaced(value, masked) for name, value in each.items()} for each in messages],
            {stand_in: character for character, stand_in in stand_in_of.items()},
        )

    def _places(self, text: str) -> set[int]:
        """Where a character has to be replaced."""
        if self._whole is None:
            return set()
        places = {match.start() for match in self._whole.finditer(text)}
        # What stands beside a content may complete a spelling, once a template has trimmed it.
        trimmed = text.strip()
        first = len(text) - len(text.lstrip())
        for length in range(1, min(self._partial_max, len(trimmed)) + 1):
            if trimmed[-length:] in self._beginnings:
                places.add(first + len(trimmed) - length)
            if trimmed[:length] in self._endings:
                places.add(first)
        return places


def _compile_overlapping(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Finds the first character of every spelling, also of those that overlap; None for no texts.

    Each match is one character, the rest is only looked at.
    """
    rests: defaultdict[str, list[str]] = defaultdict(list)
    for text in texts:
        rests[text[0]].append(re.escape(text[1:]))
    choices = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
    return re.compile("|".join(choices)) if rests else None


def _texts_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        members: Mapping[object, object] = value
        for part in members.values():
            yield from _texts_of(part)
    elif isinstance(value, list):
        items: list[object] = value
        for item in items:
            yield from _texts_of(item)


def _replaced(value: object, masked: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return masked.get(value, value)
    if isinstance(value, Mapping):
        members: Mapping[object, object] = value
        return {name: _replaced(part, masked) for name, part in members.items()}
    if isinstance(value, list):
        items: list[object] = value
        return [_replaced(item, masked) for item in items]
    return value


def _unused_characters(texts: Sequence[str]) -> Iterator[str]:
    """Characters that stand in none of the texts, rare ones first."""
    used = set("".join(texts))
    for code in range(_LAST_CODE_POINT, 0, -1):
        if code not in _SURROGATES and chr(code) not in used:
            yield chr(code)
