"""From an offset in a body's text to the path of the string there, such as `messages[2].content`.

A path is shown to clients and kept in records, so no content gets into it: a member's name is shown
only where it is one of the wires' own words, and every other member is its number in its object.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.detect.body_text import MARK_BYTE

TOKENS_MAX = 200_000
"""Structural signs that are walked over; behind them a path ends with its top-level member."""

_WORDS = """
    allOf annotations anyOf arguments arguments_json audio cache_control call_id citations code
    content context custom data default definitions description detail document enum example
    examples extra_body file file_data file_id file_name file_url filename format function
    function_call functions id image image_url input input_audio input_image input_text
    instructions items json_schema logit_bias media_type messages metadata modalities model name
    oneOf options output parallel_tool_calls parameters part partial_json parts pattern
    prediction prefix prompt prompt_cache_key properties reasoning reasoning_content refusal
    response_format role safety_identifier schema seed source stop store strict system text
    thinking title token tokens tool_call_id tool_calls tool_choice tool_result tool_use
    tool_use_id tools top_p type url user user_location video web_search_options
"""
WORDS = frozenset(_WORDS.split())
"""Members' names that are shown: the wires' own."""

_TOKEN = re.compile(MARK_BYTE + rb"[^" + MARK_BYTE + rb"]*" + MARK_BYTE + rb"|[{}\[\],]")
_COLON = re.compile(rb"\s*:")
_OPEN_OBJECT, _OPEN_LIST, _COMMA = b"{[,"


@dataclass(slots=True)
class _Level:
    """An object or a list that is open."""

    is_object: bool
    index: int = 0
    name: str | None = None  # of the member that is open, shown

    def shown(self) -> str:
        if not self.is_object:
            return f"[{self.index}]"
        return f".{self.name}" if self.name is not None else f".(member {self.index + 1})"


def paths_of(text: bytes, offsets: Sequence[int], *, tokens_max: int = TOKENS_MAX) -> list[str]:
    """The path of the string at each offset.

    Args:
        text: A body as one folded text.
        offsets: Ascending.
        tokens_max: Structural signs that are walked over.
    """
    found: list[str] = []
    levels: list[_Level] = []
    for count, token in enumerate(_TOKEN.finditer(text)):
        if len(found) == len(offsets) or count == tokens_max:
            break
        is_string = text[token.start()] == MARK_BYTE[0]
        is_name = is_string and bool(levels) and _COLON.match(text, token.end()) is not None
        if is_name:
            level = levels[-1]
            word = token[0][1:-1].decode("ascii", "replace")
            level.name = word if word in WORDS else None
        while len(found) < len(offsets) and offsets[len(found)] < token.end():
            found.append(_path(levels) + (" (its name)" if is_name else ""))
        if not is_string:
            _step(levels, text[token.start()])
    return found + [_path(levels[:1])] * (len(offsets) - len(found))


def _step(levels: list[_Level], sign: int) -> None:
    if sign in (_OPEN_OBJECT, _OPEN_LIST):
        levels.append(_Level(is_object=sign == _OPEN_OBJECT))
    elif sign == _COMMA:
        if levels:
            levels[-1].index += 1
            levels[-1].name = None
    elif levels:
        levels.pop()


def _path(levels: Sequence[_Level]) -> str:
    return "".join(level.shown() for level in levels).lstrip(".") or "the body"
