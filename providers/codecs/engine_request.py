"""A chat request in the terms of the embedded engine: every member is honoured or refused.

Labels that ask nothing of the answer (`user`, `metadata` and the like) are honoured by having no
effect. Members whose value is neutral (`n: 1`, `tools: []`) ask for nothing.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec

from local_engine.api import GenerateRequest
from providers.codecs.openai_chat import is_neutral
from providers.contract import ChatRequest
from providers.errors import BadRequest

_LABELS = frozenset({"metadata", "prompt_cache_key", "safety_identifier", "user"})
_ROLES = frozenset({"system", "developer", "user", "assistant"})
_SHOWN_CHARACTERS_MAX = 64
_ADAPTED_MAX = 16
_SAYS_NOTHING = frozenset({b"null", b"false", b"[]", b"{}", b'""'})
_MEMBER = re.compile(r"`\$\.(\w+)")

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Object = dict[str, msgspec.Raw]
_Value = TypeVar("_Value")
_NULL = b"null"


class _Members(msgspec.Struct, kw_only=True):
    """The members that change what is generated, with the engine's defaults."""

    messages: list[_Object]
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[_Count, float] = msgspec.field(default_factory=dict[_Count, float])
    seed: int | None = None
    stop: str | list[str] = msgspec.field(default_factory=list[str])
    stop_token_ids: list[_Count] = msgspec.field(default_factory=list[_Count])
    min_tokens: _Count = 0
    ignore_eos: bool = False


class _Part(msgspec.Struct, kw_only=True):
    """A part of a content."""

    type: str
    text: str | None = None


_DECODER = msgspec.json.Decoder(_Members)

HONOURED_FIELDS = frozenset(_Members.__struct_fields__) | _LABELS
"""Top-level members of a request that the engine honours."""


def generate_request(request: ChatRequest, *, call_id: str, adapted: list[str]) -> GenerateRequest:
    """Translate a request.

    Args:
        request: The client's.
        call_id: Unique among the generations in flight on the link.
        adapted: Changes are added here.

    Raises:
        BadRequest: A member is of a wrong type or cannot be honoured.
    """
    members = _decode(request)
    limits = {members.max_tokens, members.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise BadRequest(
            "max_tokens and max_completion_tokens contradict each other.", param="max_tokens"
        )
    return GenerateRequest(
        id=call_id,
        namespace=request.namespace,
        messages=_messages(members.messages, adapted),
        max_tokens=next(iter(limits), None),
        temperature=members.temperature,
        top_p=members.top_p,
        # vLLM's word for all tokens is -1, the engine's is 0.
        top_k=max(members.top_k, 0),
        min_p=members.min_p,
        presence_penalty=members.presence_penalty,
        frequency_penalty=members.frequency_penalty,
        repetition_penalty=members.repetition_penalty,
        logit_bias=members.logit_bias,
        seed=None if members.seed is None else members.seed % 2**64,
        stop=[members.stop] if isinstance(members.stop, str) else members.stop,
        stop_token_ids=members.stop_token_ids,
        min_tokens=members.min_tokens,
        ignore_eos=members.ignore_eos,
    )


def _decode(request: ChatRequest) -> _Members:
    """Decode the members that count; the error names the one at fault."""
    parts: list[bytes] = []
    for name, raw in request.fields.items():
        if name in _LABELS or is_neutral(name, raw):
            continue
        if name not in HONOURED_FIELDS:
            raise BadRequest(
                f"{name} is not supported by this model.",
                code="unsupported_parameter",
                param=name,
            )
        parts.append(msgspec.json.encode(name) + b":" + bytes(raw))
    try:
        return _DECODER.decode(b"{" + b",".join(parts) + b"}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        member = _MEMBER.search(str(fault))
        param = "messages" if member is None else member[1]
        raise BadRequest(f"{param}: {_say(fault)}", param=param) from fault


def _messages(messages: list[_Object], adapted: list[str]) -> list[dict[str, object]]:
    """Messages that a template of a text model can render: a role and a text each.

    What else a client's history carries would be lost on the model, so it is left out and said.

    Raises:
        BadRequest: A message holds what the model would not see.
    """
    found: list[dict[str, object]] = []
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        role = _decode_value(message, "role", str, where)
        is_known = role in _ROLES
        if not is_known or _says(message, "tool_calls") or _says(message, "function_call"):
            what = "tool calls" if is_known else "the role of a message"
            raise BadRequest(
                f"{where}: {what} cannot be honoured by this model.",
                code="unsupported_parameter",
                param="messages",
            )
        if role == "developer":
            role = "system"
            _note(adapted, "developer->system")
        _note_ignored(message, {"role", "content"}, "messages", adapted)
        found.append({"role": role, "content": _content(message, where, adapted)})
    return found


def _content(message: _Object, where: str, adapted: list[str]) -> str | None:
    """The text of a message, all parts together."""
    raw = bytes(message.get("content", _NULL))
    if raw == _NULL:
        return None
    if raw[:1] != b"[":
        return _decode_value(message, "content", str, where)
    parts = _decode_value(message, "content", list[_Part], where)
    if any(part.type != "text" or part.text is None for part in parts):
        raise BadRequest(
            f"{where}.content: this model reads text parts only.",
            code="unsupported_parameter",
            param="messages",
        )
    for part in _decode_value(message, "content", list[_Object], where):
        _note_ignored(part, {"type", "text"}, "messages.content", adapted)
    return "".join(part.text or "" for part in parts)


def _decode_value(members: _Object, name: str, kind: type[_Value], where: str) -> _Value:
    try:
        return msgspec.json.decode(bytes(members.get(name, _NULL)), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadRequest(f"{where}.{name}: {_say(fault)}", param="messages") from fault


def _says(members: _Object, name: str) -> bool:
    """Whether a member holds more than a matter of form."""
    return bytes(members.get(name, _NULL)) not in _SAYS_NOTHING


def _note_ignored(members: _Object, known: set[str], where: str, adapted: list[str]) -> None:
    for name in members:
        if name not in known and _says(members, name):
            _note(adapted, f"{where}.{name[:_SHOWN_CHARACTERS_MAX]} ignored")


def _note(adapted: list[str], change: str) -> None:
    """List a change once; names are the client's, so their number is bounded."""
    if len(adapted) >= _ADAPTED_MAX:
        change = "and more"
    if change not in adapted:
        adapted.append(change)


def _say(fault: Exception) -> str:
    """What was expected, without the path, which the sentence has already."""
    if isinstance(fault, RecursionError):
        return "nested too deeply"
    text = str(fault).partition(" - at ")[0]
    return f"{text[:1].lower()}{text[1:]}"
