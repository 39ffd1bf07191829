"""Streamed tool calls as upstreams get them wrong, put right.

A client's SDK joins the parts of a call by `index` and expects id and type on the first. Servers
reuse an index for another call, leave indexes, ids or types out, or label the parts of one call
differently. The rule here: a new id opens a new call; without an id the index decides; with neither
the part belongs to the call that was opened last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from providers.codecs.growing_json import GrowingJson
from providers.codecs.short_lists import ITEMS_MAX, check_list

_ABSENT = msgspec.Raw(b"null")


class _Function(msgspec.Struct, gc=False):
    name: msgspec.Raw = _ABSENT
    arguments: msgspec.Raw = _ABSENT


class ToolCallPart(msgspec.Struct, gc=False):
    """The skeleton of one element of `delta.tool_calls`; absent members are null."""

    index: int | None = None
    id: str | None = None
    type: msgspec.Raw = _ABSENT
    function: _Function | None = None


_PARTS = msgspec.json.Decoder(list[ToolCallPart])
_MEMBERS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_FUNCTION_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(slots=True)
class _Call:
    """A call that was opened: where the client sees it, what it is known by, what it says."""

    index: int
    id: str
    arguments: GrowingJson = field(default_factory=GrowingJson)


@dataclass(slots=True)
class ToolCallRepair:
    """Repairs the tool calls of one choice of one answer, part by part.

    Attributes:
        id_prefix: Start of the ids made for calls that came without one; unique per answer and
            choice.
        is_stream: Whether calls come in parts with indexes; in a whole answer each is complete.
        repairs: Parts that had to be changed.
    """

    id_prefix: str
    is_stream: bool = True
    repairs: int = 0
    _by_id: dict[str, _Call] = field(default_factory=dict[str, _Call])
    _taken: set[int] = field(default_factory=set[int])
    _next_index: int = 0
    _last: _Call | None = None
    _by_upstream_index: dict[int, _Call] = field(default_factory=dict[int, _Call])

    def repair(self, raw: bytes) -> bytes | None:
        """Check one `tool_calls` array.

        Args:
            raw: Its JSON.

        Returns:
            The array put right, None when it is right as it is.

        Raises:
            msgspec.ValidationError: It is not an array of tool calls, or holds too many.
        """
        check_list(raw)
        parts = _PARTS.decode(raw)
        if len(parts) > ITEMS_MAX:
            raise _too_many()
        changes = [self._changes(part) for part in parts]
        if not any(changes):
            return None
        members = _MEMBERS.decode(raw)
        for member, change in zip(members, changes, strict=True):
            arguments = change.pop("arguments", None)
            if arguments is not None:
                function = _FUNCTION_MEMBERS.decode(bytes(member.get("function", b"{}")))
                function["arguments"] = msgspec.Raw(arguments)
                change["function"] = msgspec.json.encode(function)
            for name, value in change.items():
                member[name] = msgspec.Raw(value)
            self.repairs += bool(change)
        return msgspec.json.encode(members)

    def _changes(self, part: ToolCallPart) -> dict[str, bytes]:
        """Members of the part to set, as JSON; empty for a faultless part."""
        call, is_new = self._find(part)
        changes: dict[str, bytes] = {}
        if self.is_stream and part.index != call.index:
            changes["index"] = b"%d" % call.index
        if is_new:
            if not part.id:
                changes["id"] = msgspec.json.encode(call.id)
            if bytes(part.type) in (b"null", b'""'):
                changes["type"] = b'"function"'
        if part.function is not None:
            arguments = bytes(part.function.arguments)
            if arguments.startswith((b"{", b"[")):
                # An object where the wire has text that contains JSON.
                call.arguments.add(arguments.decode())
                changes["arguments"] = msgspec.json.encode(arguments.decode())
            elif arguments.startswith(b'"'):
                call.arguments.add(msgspec.json.decode(arguments, type=str))
        return changes

    def _find(self, part: ToolCallPart) -> tuple[_Call, bool]:
        """The call that the part belongs to, and whether the part opens it."""
        if not self.is_stream:
            return self._open(part, part.id or f"{self.id_prefix}{len(self._by_id)}"), True
        if part.id:
            known = self._by_id.get(part.id)
            return (self._open(part, part.id), True) if known is None else (known, False)
        is_named = part.function is not None and bytes(part.function.name) not in (b"null", b'""')
        call = None if part.index is None else self._by_upstream_index.get(part.index)
        if call is not None and not (is_named and call.arguments.is_whole()):
            return call, False
        if is_named or self._last is None:
            # Also a second complete call without an id at an index that is in use.
            return self._open(part, f"{self.id_prefix}{len(self._by_id)}"), True
        if part.index is not None:
            self._by_upstream_index[part.index] = self._last
        return self._last, False

    def _open(self, part: ToolCallPart, call_id: str) -> _Call:
        if len(self._by_id) >= ITEMS_MAX:  # each is kept until the end
            raise _too_many()
        index = part.index
        if index is None or index < 0 or index in self._taken:
            index = self._next_index
        call = _Call(index=index, id=call_id)
        self._taken.add(index)
        self._next_index = max(self._next_index, index + 1)
        self._by_id[call_id] = call
        self._last = call
        if part.index is not None:
            self._by_upstream_index[part.index] = call
        return call

    def has_torn_arguments(self) -> bool:
        """Whether a call's arguments are not complete JSON; a call without any is whole."""
        calls = self._by_id.values()
        return any(call.arguments.chars and not call.arguments.is_whole() for call in calls)


def _too_many() -> msgspec.ValidationError:
    return msgspec.ValidationError(f"over {ITEMS_MAX} tool calls")
