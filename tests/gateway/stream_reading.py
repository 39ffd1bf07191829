"""What a client makes of an event stream, by the standard's rules and an SDK's, without our code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


def parse_sse(data: bytes) -> tuple[list[dict[str, str]], list[str]]:
    """Events and comments by the standard's own words, without our decoder.

    Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream".
    """
    text = data.decode("utf-8").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert lines[-1] == "", "the stream ends inside a line"
    events: list[dict[str, str]] = []
    comments: list[str] = []
    values: list[str] = []
    kind = "message"
    for line in lines[:-1]:
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if values:
                events.append({"event": kind, "data": "\n".join(values)})
            values, kind = [], "message"
        elif colon and name == "":
            comments.append(value)
        elif name == "data":
            values.append(value)
        elif name == "event":
            kind = value
    assert not values, "the stream ends inside an event"
    return events, comments


@dataclass(kw_only=True)
class Assembled:
    """A stream put together as an SDK does it."""

    texts: dict[int, str] = field(default_factory=dict)
    tool_arguments: dict[tuple[int, int], str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    roles: dict[int, str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    usages: list[dict] = field(default_factory=list)
    fareway: list[dict] = field(default_factory=list)
    errors: list[dict] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    is_done: bool = False
    chunks: list[dict] = field(default_factory=list)


def assemble(data: bytes) -> Assembled:
    """Put a stream's bytes together; nothing may follow `[DONE]` or an error."""
    events, comments = parse_sse(data)
    found = Assembled(comments=comments)
    for event in events:
        assert not found.is_done, "an event after [DONE]"
        assert not found.errors, "an event after an error"
        if event["data"] == "[DONE]":
            found.is_done = True
            continue
        chunk = json.loads(event["data"])
        if "error" in chunk:
            found.errors.append(chunk["error"])
            continue
        found.chunks.append(chunk)
        if chunk.get("id"):
            found.ids.add(chunk["id"])
        if chunk.get("usage"):
            found.usages.append(chunk["usage"])
        if chunk.get("fareway"):
            found.fareway.append(chunk["fareway"])
        for choice in chunk.get("choices", []):
            index, delta = choice["index"], choice.get("delta") or {}
            found.texts[index] = found.texts.get(index, "") + (delta.get("content") or "")
            if delta.get("role"):
                found.roles[index] = delta["role"]
            if choice.get("finish_reason"):
                found.reasons[index] = choice["finish_reason"]
            for call in delta.get("tool_calls") or []:
                place = (index, call["index"])
                text = (call.get("function") or {}).get("arguments") or ""
                found.tool_arguments[place] = found.tool_arguments.get(place, "") + text
    return found


async def first_bytes(answer) -> bytes:
    async for part in answer.aiter_raw():
        return part
    raise AssertionError("the answer is empty")
