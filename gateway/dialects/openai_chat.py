"""OpenAI's chat wire facing clients: a body in, a checked request and raw members out.

The top level is decoded into raw spans, so that a repeated key cannot mean two things: what was
checked is what is sent. Inner values travel as the client's own bytes. A field that OpenAI does not
know is kept: whether a deployment can honour it is routing's question, and it is never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from gateway.dialects.controls import without_controls
from gateway.errors import InvalidRequest

BYTES_PER_TOKEN = 4
"""A token's usual length in English text; for estimates before dispatch only."""

BYTES_PER_TOKEN_HIGH = 6
"""A long average: a prompt that does not fit by this count does not fit."""

TEMPLATE_TOKENS_MAX = 1024
"""What a chat template adds to a prompt at the most, a default system message included."""

_GATEWAY_FIELDS = frozenset({"model", "stream", "stream_options"})
_NULL = b"null"
_ROLES_WITH_CONTENT = frozenset({"system", "developer", "user"})
_ROLES = _ROLES_WITH_CONTENT | {"assistant", "tool", "function"}


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Head(msgspec.Struct):
    """The members that the gateway itself reads or whose type it vouches for."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Raw
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=0)] | None = None
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


class _Message(msgspec.Struct):
    role: str
    content: Raw = Raw(_NULL)


class _Part(msgspec.Struct):
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedChat:
    """A chat body whose types have been checked.

    Attributes:
        model: What the client asked for.
        is_stream: Whether the answer is to be streamed.
        wants_usage: Whether the client asked for usage in the stream.
        fields: Top-level members for the upstream; `model`, `stream`, `stream_options` and
            Fareway's own metadata keys are out.
        fields_used: Names of the members whose value is not null: what a deployment must honour.
        metadata: The client's metadata, Fareway's keys included; None when there is none.
        prompt_tokens_estimate: From the messages' length, at least 1.
        prompt_tokens_low: An estimate that errs on the low side, for questions of fit.
        prompt_tokens_max: No tokenizer makes more tokens of the messages: one per byte, and what
            templates and tools add.
        max_output_tokens: The client's bound per choice, None when it set none.
        choices: How many answers were asked for.
        has_media: Whether a message part is something other than text.
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


def parse(body: bytes) -> ParsedChat:
    """Check a chat body.

    Raises:
        InvalidRequest: It is no JSON object, or a member has the wrong type or range.
    """
    members, head = _decode(body)
    has_media = _check_messages(head.messages)
    fields = {name: raw for name, raw in members.items() if name not in _GATEWAY_FIELDS}
    if head.metadata is not None:
        kept = without_controls(head.metadata)
        if not kept:
            fields.pop("metadata", None)
        elif len(kept) != len(head.metadata):
            fields["metadata"] = Raw(msgspec.json.encode(kept))
    options = head.stream_options
    if options is not None and not head.stream:
        raise InvalidRequest("stream_options goes with stream: true only", param="stream_options")
    return ParsedChat(
        model=head.model,
        is_stream=bool(head.stream),
        wants_usage=options is not None and bool(options.include_usage),
        fields=fields,
        fields_used=frozenset(name for name, raw in fields.items() if bytes(raw) != _NULL),
        metadata=head.metadata,
        prompt_tokens_estimate=max(1, len(bytes(head.messages)) // BYTES_PER_TOKEN),
        prompt_tokens_low=max(1, len(bytes(head.messages)) // BYTES_PER_TOKEN_HIGH),
        prompt_tokens_max=len(body) + TEMPLATE_TOKENS_MAX,
        max_output_tokens=_output_bound(head),
        choices=head.n or 1,
        has_media=has_media,
    )


def _decode(body: bytes) -> tuple[dict[str, Raw], _Head]:
    try:
        body.decode("utf-8")  # inner values travel undecoded, so this is where they are checked
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"the body is not UTF-8: byte {error.start} cannot be read; send UTF-8"
        ) from error
    if not body.strip():
        raise InvalidRequest("the body is empty; send a JSON object with model and messages")
    try:
        return msgspec.json.decode(body, type=dict[str, Raw]), msgspec.json.decode(body, type=_Head)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error


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


def _check_messages(raw: Raw) -> bool:
    try:
        messages = msgspec.json.decode(raw, type=list[_Message])
    except msgspec.ValidationError as error:
        raise _invalid(error, prefix="messages") from error
    except RecursionError as error:
        raise InvalidRequest("messages: nested too deeply", param="messages") from error
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    has_media = False
    for index, message in enumerate(messages):
        has_media |= _check_message(message, f"messages[{index}]")
    return has_media


def _check_message(message: _Message, where: str) -> bool:
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role: no role {message.role[:40]!r}; use one of {', '.join(sorted(_ROLES))}",
            param=f"{where}.role",
        )
    content = bytes(message.content)
    first = content[:1]
    if first == b'"':
        return False
    if first == b"[":
        return _check_parts(message.content, f"{where}.content")
    if content == _NULL and message.role not in _ROLES_WITH_CONTENT:
        return False
    raise InvalidRequest(
        f"{where}.content must be a string or a list of parts", param=f"{where}.content"
    )


def _check_parts(raw: Raw, where: str) -> bool:
    try:
        parts = msgspec.json.decode(raw, type=list[_Part])
    except msgspec.ValidationError as error:
        raise _invalid(error, prefix=where) from error
    except RecursionError as error:
        raise InvalidRequest(f"{where}: nested too deeply", param=where) from error
    if not parts:
        raise InvalidRequest(f"{where} must hold at least one part", param=where)
    return any(part.type not in {"text", "refusal"} for part in parts)


def _output_bound(head: _Head) -> int | None:
    old, new = head.max_tokens, head.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidRequest(
            f"max_tokens is {old} and max_completion_tokens is {new}; send one of them",
            param="max_tokens",
        )
    return new if new is not None else old
