"""OpenAI's chat wire facing clients: a body in, a checked request and raw members out.

The top level, each message and each part are decoded into raw spans and put together again, so that
a repeated key cannot mean two things: what was checked is what is sent. All other values travel as
the client's own bytes. A field that OpenAI does not know is kept: whether a deployment can honour
it is routing's question, and it is never dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.dialects.controls import (
    keys_of,
    refuse_misplaced,
    refuse_repeated,
    without_controls,
)
from gateway.dialects.long_strings import set_aside
from gateway.dialects.off_machine import tools_of
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.privacy.model import NO_TOOLS
from gateway.privacy.tools import MEMBERS
from providers.codecs.openai_chat import NEUTRAL_NAMES, is_neutral

BYTES_PER_TOKEN = 4
"""A token's usual length in English text; for estimates before dispatch only."""

BYTES_PER_TOKEN_HIGH = 6
"""A long average: a prompt that does not fit by this count does not fit."""

TEMPLATE_TOKENS_MAX = 1024
"""What a chat template adds to a prompt at the most, a default system message included."""

_NULL = b"null"
_ABSENT = Raw(_NULL)
_ROLES_WITH_CONTENT = frozenset({"system", "developer", "user"})
_ROLES = _ROLES_WITH_CONTENT | {"assistant", "tool", "function"}
_TEXT_PARTS = frozenset({"text", "refusal"})
_ROLES_AS_WRITTEN = tuple(
    Raw(f'"{role}"'.encode())
    for role in ("user", "assistant", "system", "tool", "developer", "function")
)
_TEXT_PARTS_AS_WRITTEN = (Raw(b'"text"'), Raw(b'"refusal"'))
"""As nearly every client writes them; what is spelt in another way is decoded first."""

_QUOTATION_MARK, _BRACKET = b'"['
_Object = dict[str, Raw]
_Sent = Mapping[str, object]
"""An object whose members are raw spans, or what a span was found to hold."""


OUTPUT_TOKENS_MAX = 2**24
"""The largest bound on output that is taken: far beyond any model, and small enough that the upper
bound of a cost fits the ledger."""

_STEERING_FIELDS = frozenset(
    {
        "api_base",
        "api_key",
        "base_url",
        "content_policy_fallbacks",
        "context_window_fallbacks",
        "custom_llm_provider",
        "fallbacks",
        "model_list",
        "models",
        "route",
    }
)
"""Members by which LiteLLM and OpenRouter send a request to another model, host or account than
the one that was authorised, whose trust was looked at and whose price is charged.

Source: LiteLLM proxy, "Fallbacks" and "Clientside auth"; OpenRouter, "Model routing" (2026-11).
"""

METADATA_KEYS_MAX = 1000
"""Each key is looked at on the event loop; OpenAI itself takes 16."""

MEMBERS_MAX = 1000
"""Each member is looked at and encoded on the event loop; OpenAI itself knows about 40."""

OTHER_BYTES_MAX = 4 * 1024 * 1024
"""Longest body without its messages. Millions of keys take seconds to decode, in which no thread
can do anything else; what may be large is content, and that is in the messages."""

SET_ASIDE_BYTES_MIN = 64 * 1024
"""Longest body whose base64 is passed over with the rest, once per level; 20 us each time."""

ONE_MORE_PASS_BYTES_MAX = 16 * 1024
"""Longest refused body that is looked through again rather than put together without messages."""

_NOTHING_ASKED = frozenset({b"null", b"false"})


class _Outline(msgspec.Struct):
    """As little as can be decoded: everything else is only passed over."""

    messages: Raw = _ABSENT


class _Head(msgspec.Struct):
    """The members, beside `messages`, that the gateway reads or whose type it vouches for."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    stream: bool | None = None
    stream_options: dict[str, Raw] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=OUTPUT_TOKENS_MAX)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=0, le=OUTPUT_TOKENS_MAX)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    logit_bias: dict[str, float] | None = None
    tools: list[dict[str, Raw]] | None = None
    metadata: dict[str, Raw] | None = None
    user: str | None = None


class _Whole(_Head):
    """The same and the messages, so that one pass over a body reads both."""

    messages: list[_Object] | UnsetType = UNSET


_KNOWN_FIELDS = frozenset(_Whole.__struct_fields__)
_HEAD = msgspec.json.Decoder(_Head)
_WHOLE = msgspec.json.Decoder(_Whole)
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, Raw]])
_TEXT = msgspec.json.Decoder(str)
_BARE_MESSAGES = Raw(b"[]")


class ParsedChat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat body whose types have been checked.

    Attributes:
        model: What the client asked for.
        is_stream: Whether the answer is to be streamed.
        wants_usage: Whether the client asked for usage in the stream.
        fields: Top-level members for the upstream; `model`, `stream`, `stream_options` and
            Fareway's own metadata keys are out.
        fields_used: Names of the members that ask for something: what a deployment must honour;
            null and what means the same as leaving it out (`n: 1`, `tools: []`) do not count.
        metadata: The client's metadata, Fareway's keys included; None when there is none.
        prompt_tokens_estimate: From the messages' length, at least 1.
        prompt_tokens_low: An estimate that errs on the low side, for questions of fit.
        prompt_tokens_max: No tokenizer makes more tokens of the messages: one per byte, and what
            templates and tools add.
        max_output_tokens: The client's bound per choice, None when it set none.
        choices: How many answers were asked for.
        has_media: Whether a message part is something other than text.
        tools: What it asks for that leaves the machine of whoever answers it.
    """

    model: str
    is_stream: bool
    wants_usage: bool
    fields: dict[str, Raw]
    fields_used: frozenset[str]
    metadata: dict[str, Raw] | None
    prompt_tokens_estimate: int
    prompt_tokens_low: int
    prompt_tokens_max: int
    max_output_tokens: int | None
    choices: int
    has_media: bool
    tools: frozenset[str] = NO_TOOLS


def parse(body: bytes) -> ParsedChat:
    """Check a chat body.

    Raises:
        InvalidRequest: It is no JSON object, or a member has the wrong type or range.
        UnsupportedParameter: It asks for something of a stream that no upstream is asked for.
    """
    _check_utf8(body)
    if len(body) <= SET_ASIDE_BYTES_MIN:
        return _parse(body)
    found = set_aside(body)
    if found is None:
        return _parse(body)
    try:
        parsed = _parse(found.text, spared_bytes=found.spared_bytes)
    except (InvalidRequest, UnsupportedParameter):
        return _parse(body)  # which says what is wrong in the client's own words and places
    messages = bytes(parsed.fields["messages"])
    if not found.holds_all(messages):  # elsewhere no value is as long, or it was a repeated one
        return _parse(body)
    parsed.fields["messages"] = Raw(found.restore(messages))
    return parsed


def _parse(body: bytes, *, spared_bytes: int = 0) -> ParsedChat:
    """The same of UTF-8 that may be shorter than the client's by what was set aside."""
    fields, head, messages = _decode(body)
    if len(fields) > MEMBERS_MAX or not fields.keys() <= _KNOWN_FIELDS:
        _check_names(fields)
    if messages is None:
        raise InvalidRequest("messages is required", param="messages")
    if "metadata" in fields and body.count(b'"metadata"') > 1:
        _check_one_metadata(body)
    given_bytes = len(fields["messages"]) + spared_bytes
    sent, has_media = _check_messages(messages)
    fields["messages"] = Raw(msgspec.json.encode(sent))
    tools = NO_TOOLS
    if head.tools or sent is not messages or not MEMBERS.isdisjoint(fields):
        tools = tools_of(fields, head.tools or (), () if sent is messages else sent)
        if head.tools:  # they were looked at, so of a repeated key only the value that counted goes
            fields["tools"] = Raw(msgspec.json.encode(head.tools))
    del fields["model"]
    fields.pop("stream", None)
    fields.pop("stream_options", None)
    if head.metadata is not None:
        if len(head.metadata) > METADATA_KEYS_MAX:
            message = f"metadata holds over {METADATA_KEYS_MAX} keys"
            raise InvalidRequest(message, param="metadata")
        kept = without_controls(head.metadata)
        if len(kept) != len(head.metadata):
            refuse_repeated(head.metadata, bytes(fields["metadata"]))
        if not kept:
            fields.pop("metadata", None)
        elif len(kept) != len(head.metadata):
            fields["metadata"] = Raw(msgspec.json.encode(kept))
    is_stream = head.stream is True
    wants_usage = False
    if head.stream_options is not None:
        wants_usage = _wants_usage(head.stream_options, is_stream=is_stream)
    fields_used = frozenset(fields)
    if _ABSENT in fields.values() or not NEUTRAL_NAMES.isdisjoint(fields_used):
        fields_used = frozenset(name for name, raw in fields.items() if not is_neutral(name, raw))
    max_output_tokens = head.max_tokens
    if head.max_completion_tokens is not None:
        max_output_tokens = _output_bound(head.max_tokens, head.max_completion_tokens)
    return ParsedChat(
        model=head.model,
        is_stream=is_stream,
        wants_usage=wants_usage,
        fields=fields,
        fields_used=fields_used,
        metadata=head.metadata,
        prompt_tokens_estimate=given_bytes // BYTES_PER_TOKEN or 1,
        prompt_tokens_low=given_bytes // BYTES_PER_TOKEN_HIGH or 1,
        prompt_tokens_max=len(body) + spared_bytes + TEMPLATE_TOKENS_MAX,
        max_output_tokens=max_output_tokens,
        choices=head.n or 1,
        has_media=has_media,
        tools=tools,
    )


def _check_one_metadata(body: bytes) -> None:
    """Refuse metadata that is given twice, for one of the two may hold tags."""
    if keys_of(body).count("metadata") > 1:
        raise InvalidRequest("metadata is given twice; send it once", param="metadata")


def _check_utf8(body: bytes) -> None:
    """Inner values travel undecoded, so this is where they are checked."""
    if body.isascii():
        return
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: byte {error.start} cannot be read; send UTF-8"
        ) from error


def _decode(body: bytes) -> tuple[_Object, _Head, list[_Object] | None]:
    """The members, what is read of them, and the messages; None for these where there are none."""
    try:
        if len(body) > OTHER_BYTES_MAX:
            _check_outline(msgspec.json.decode(body, type=_Outline), len(body))
        members = _MEMBERS.decode(body)
        try:
            whole = _WHOLE.decode(body)
        except msgspec.ValidationError:
            return _decode_apart(body, members)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except msgspec.DecodeError as error:
        if not body.strip():
            message = "the body is empty; send a JSON object with model and messages"
            raise InvalidRequest(message) from error
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    messages = whole.messages
    return members, whole, None if messages is UNSET else messages


def _decode_apart(body: bytes, members: _Object) -> tuple[_Object, _Head, list[_Object] | None]:
    """The same for a body in which some value is wrong: which member to name first, if any.

    Of a repeated key that value may be one that does not count.
    """
    if len(body) <= ONE_MORE_PASS_BYTES_MAX or "messages" not in members:
        head = _HEAD.decode(body)
    else:
        head = _HEAD.decode(msgspec.json.encode({**members, "messages": _BARE_MESSAGES}))
    _check_names(members)
    try:
        return members, head, _OBJECTS.decode(members["messages"])
    except msgspec.ValidationError as error:
        raise _invalid(error, prefix="messages") from error


def _check_outline(outline: _Outline, size: int) -> None:
    if size - len(outline.messages) > OTHER_BYTES_MAX:
        mib = OTHER_BYTES_MAX // 2**20
        raise InvalidRequest(f"all that is not messages is larger than {mib} MiB")


def _check_names(names: Collection[str]) -> None:
    """Refuse a member that an upstream may take for another one than we do.

    Servers written in Go match names without regard to case: `Model` beside `model` would choose
    there what nobody has authorised or priced here. And routers behind us take orders in the body.
    """
    if len(names) > MEMBERS_MAX:
        raise InvalidRequest(f"the body holds over {MEMBERS_MAX} members")
    for name in names:
        if name in _KNOWN_FIELDS:
            continue
        known, shown = name.casefold(), name[:64]
        if known in _KNOWN_FIELDS:
            raise InvalidRequest(f"{shown}: write {known}, in lower case", param=shown)
        if known in _STEERING_FIELDS:
            raise UnsupportedParameter(
                f"{shown} is not available: where a request goes is decided here", param=shown
            )
        refuse_misplaced(name)


def _invalid(error: msgspec.ValidationError, *, prefix: str = "") -> InvalidRequest:
    text = str(error)
    message, _, path = text.partition(" - at `$")
    param = (prefix + path.rstrip("`")).lstrip(".") or None
    if "missing required field `" in message:
        missing = message.rsplit("`", 2)[1]
        param = f"{param}.{missing}" if param else missing
        return InvalidRequest(f"{param} is required", param=param)
    where = f"{param}: " if param else ""
    return InvalidRequest(f"{where}{message[:1].lower()}{message[1:]}", param=param)


def _check_messages(messages: list[_Object]) -> tuple[Sequence[_Sent], bool]:
    """The messages as they are sent, and whether a part is something other than text."""
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    # Nearly every body has only messages with a usual role and text; they are sent as they are.
    for message in messages:
        is_text = memoryview(message.get("content", _ABSENT))[0] == _QUOTATION_MARK
        if not is_text or message.get("role") not in _ROLES_AS_WRITTEN:
            break
    else:
        return messages, False
    checked = [_check_message(message, index) for index, message in enumerate(messages)]
    return [message for message, _ in checked], any(is_media for _, is_media in checked)


def _check_message(message: _Object, index: int) -> tuple[_Sent, bool]:
    """One message as it is sent, and whether a part of it is something other than text."""
    if message.get("role") not in _ROLES_AS_WRITTEN:
        _check_role(message, f"messages[{index}]")
    content = message.get("content", _ABSENT)
    first = memoryview(content)[0]
    if first == _QUOTATION_MARK:
        return message, False
    if first == _BRACKET:
        parts, has_media = _check_parts(content, index)
        # Not written out here: the whole list of messages is, once.
        return {**message, "content": parts}, has_media
    where = f"messages[{index}]"
    if content == _ABSENT and _text(message, "role", where) not in _ROLES_WITH_CONTENT:
        return message, False
    raise InvalidRequest(
        f"{where}.content must be a string or a list of parts", param=f"{where}.content"
    )


def _check_role(message: _Object, where: str) -> None:
    role = _text(message, "role", where)
    if role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role: no role {role[:40]!r}; use one of {', '.join(sorted(_ROLES))}",
            param=f"{where}.role",
        )


def _check_parts(raw: Raw, index: int) -> tuple[list[_Object], bool]:
    """The parts of a message, and whether one of them is something other than text."""
    try:
        parts = _OBJECTS.decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid(error, prefix=f"messages[{index}].content") from error
    if not parts:
        where = f"messages[{index}].content"
        raise InvalidRequest(f"{where} must hold at least one part", param=where)
    unusual = {
        _text(part, "type", f"messages[{index}].content[{place}]")
        for place, part in enumerate(parts)
        if part.get("type") not in _TEXT_PARTS_AS_WRITTEN
    }
    return parts, not unusual <= _TEXT_PARTS


def _text(members: _Object, name: str, where: str) -> str:
    raw = members.get(name)
    if raw is None:
        param = f"{where}.{name}"
        raise InvalidRequest(f"{param} is required", param=param)
    try:
        return _TEXT.decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid(error, prefix=f"{where}.{name}") from error


def _wants_usage(options: _Object | None, *, is_stream: bool) -> bool:
    """Whether usage was asked for; nothing else of `stream_options` reaches an upstream."""
    if options is None:
        return False
    if not is_stream:
        raise InvalidRequest("stream_options goes with stream: true only", param="stream_options")
    for name, raw in options.items():
        if name != "include_usage" and bytes(raw) not in _NOTHING_ASKED:
            param = f"stream_options.{name[:64]}"
            raise UnsupportedParameter(f"{param} is not available; leave it out", param=param)
    param = "stream_options.include_usage"
    try:
        return bool(msgspec.json.decode(options.get("include_usage", _ABSENT), type=bool | None))
    except msgspec.ValidationError as error:
        raise _invalid(error, prefix=param) from error


def _output_bound(old: int | None, new: int) -> int:
    """The bound where the new name is used, beside the old one perhaps."""
    if old is not None and old != new:
        raise InvalidRequest(
            f"max_tokens is {old} and max_completion_tokens is {new}; send one of them",
            param="max_tokens",
        )
    return new
