"""What a checked body asks for that leaves the machine of whoever answers it, on every wire.

Which names mean what is `gateway.privacy.tools`' business; here they are found in raw members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec
from msgspec import Raw

from gateway.privacy.tools import MEMBERS, Tool, has_address, tool_of_member, tool_of_type

_FUNCTION = Raw(b'"function"')
_SWITCHED_OFF = frozenset({b"null", b"false", b"[]"})
_TEXT_MEMBERS = frozenset({"type", "text", "refusal", "cache_control"})

Object = Mapping[str, object]
"""An object of the body: raw members, or what one was found to hold."""


def tools_of(
    fields: Mapping[str, Raw], tools: Iterable[Mapping[str, Raw]], messages: Iterable[Object]
) -> frozenset[str]:
    """Names of the tools that a request asks for.

    Args:
        fields: Its top-level members.
        tools: The entries of `tools`.
        messages: Those with lists of parts, as they are sent.
    """
    found: set[str] = set()
    for tool in tools:
        if tool.get("type") != _FUNCTION or len(tool) > 2:
            found.update(_tools_of_entry(tool))
    for name in MEMBERS.intersection(fields):
        tool = tool_of_member(name)
        if tool is not None and bytes(fields[name]) not in _SWITCHED_OFF:
            found.add(tool)
    if any(_is_fetched(part) for message in messages for part in _parts(message)):
        found.add(Tool.URL_FETCH)
    return frozenset(found)


def _tools_of_entry(entry: Mapping[str, Raw]) -> Iterable[str]:
    """The tool of one entry; of one whose type cannot be told, one that nobody knows."""
    # Servers written in Go match names without regard to case: `Type` beside `type` counts there.
    kinds = [raw for name, raw in entry.items() if name.casefold() == "type"]
    if not kinds:
        yield Tool.OTHER
    for raw in kinds:
        try:
            tool = tool_of_type(msgspec.json.decode(raw, type=str))
        except msgspec.ValidationError:
            tool = Tool.OTHER
        if tool is not None:
            yield tool


def _parts(message: Object) -> Sequence[Mapping[str, Raw]]:
    content = message.get("content")
    return cast("list[Mapping[str, Raw]]", content) if isinstance(content, list) else ()


def _is_fetched(part: Mapping[str, Raw]) -> bool:
    """Whether a part holds an address; the text of a text part is no address, whatever it says."""
    return any(name not in _TEXT_MEMBERS and has_address(bytes(raw)) for name, raw in part.items())
