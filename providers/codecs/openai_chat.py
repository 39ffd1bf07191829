"""Chat bodies and whole answers of OpenAI-compatible wires; the stream is in `openai_stream`.

Inner values of a request travel as the client's own bytes, and an answer goes back as the upstream
sent it. Only the members that the gateway acts on are decoded.

Source: OpenAI API reference, chat completions (2026-11).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import cast

import msgspec

from providers.codecs.finish_reasons import finish_word
from providers.codecs.openai_usage import report_from
from providers.codecs.short_lists import ITEMS_MAX, check_choices
from providers.codecs.tool_calls import ToolCallRepair
from providers.contract import ChatRequest, UsageReport, WholeAnswer
from providers.errors import BadRequest, BadWire, ProviderError

NULL = msgspec.Raw(b"null")
EMPTY_VALUES = frozenset({b"null", b'""', b"[]", b"{}"})
"""JSON values that hold nothing."""

EMPTY_BYTES_MAX = 4
"""A value with more bytes holds something; a long text is not copied to be compared."""


class Message(msgspec.Struct, gc=False):
    """The members of a message, or of a stream's delta, that make it content."""

    content: msgspec.Raw = NULL
    tool_calls: msgspec.Raw = NULL
    reasoning: msgspec.Raw = NULL
    reasoning_content: msgspec.Raw = NULL
    reasoning_details: msgspec.Raw = NULL
    refusal: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    images: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL

    def has_content(self) -> bool:
        """Whether anything but a tool call is there for the reader."""
        content = self.content
        if len(content) > EMPTY_BYTES_MAX or bytes(content) not in EMPTY_VALUES:
            return True
        others = (
            self.reasoning,
            self.reasoning_content,
            self.reasoning_details,
            self.refusal,
            self.audio,
            self.images,
            self.function_call,
        )
        return any(raw is not NULL and bytes(raw) not in EMPTY_VALUES for raw in others)


class GroqExtra(msgspec.Struct, gc=False):
    """Groq's own member, which repeats the usage and can hold an error."""

    usage: msgspec.Raw = NULL
    error: msgspec.Raw = NULL


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    message: Message | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct, gc=False):
    model: msgspec.Raw = NULL
    object: msgspec.Raw = NULL
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = NULL
    error: msgspec.Raw = NULL
    x_groq: GroqExtra | None = None


_FIELDS = (
    "messages max_tokens max_completion_tokens temperature top_p top_k min_p n seed stop tools"
    " tool_choice parallel_tool_calls response_format frequency_penalty presence_penalty logit_bias"
    " logprobs top_logprobs user metadata modalities audio prediction reasoning_effort reasoning"
    " service_tier store functions function_call verbosity safety_identifier prompt_cache_key"
)
_STARTS = {name: b',"%b":' % name.encode() for name in _FIELDS.split()}
"""What stands before the value of a field that clients send; other names are written anew."""


_ERROR_WORD = msgspec.Raw(b'"error"')
_PLAIN_ENDS = frozenset({"stop", "length", None})
_NO_FAULTS: Mapping[str, int] = MappingProxyType({})
_ANSWER = msgspec.json.Decoder(_Answer)
_TEXT = msgspec.json.Decoder(str)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


_JOINED_BYTES_MAX = 1024 * 1024
"""Longest messages that are copied once more; 16 MiB would take 6 ms."""


class DecodedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A non-stream answer.

    Attributes:
        event: The answer for the relay.
        upstream_model: The model name in it, None when it gave none.
        faults: Deviations from the wire that were put right, by kind.
    """

    event: WholeAnswer
    upstream_model: str | None
    faults: Mapping[str, int]


def build_body(
    model_id: str,
    request: ChatRequest,
    *,
    stream: bool,
    asks_for_usage: bool = True,
    renames: Mapping[str, str] | None = None,
) -> bytes | Sequence[bytes]:
    """Put a body together for one upstream, unless it is so long that it had better stay in pieces.

    Args:
        model_id: The upstream's own model name.
        request: Its fields travel as they are, in the client's order.
        stream: Whether to ask for a stream.
        asks_for_usage: Whether a stream asks for usage; every upstream that can is asked.
        renames: Field names of the client to those of the upstream.

    Returns:
        The body; in pieces where to join them would hold the event loop.

    Raises:
        BadRequest: A field and the one that it is renamed to are both present and differ.
    """
    parts: list[bytes | msgspec.Raw] = [_model_member(model_id)]
    for name, value in request.fields.items():
        if renames and (new_name := renames.get(name)) is not None:
            twin = request.fields.get(new_name)
            if twin is not None and bytes(twin) != bytes(value):
                raise BadRequest(f"{name} and {new_name} contradict each other.", param=name)
            if twin is not None:
                continue
            name = new_name
        parts.append(_STARTS.get(name) or b",%b:" % msgspec.json.encode(name))
        parts.append(value)
    if stream:
        parts.append(b',"stream":true')
        if asks_for_usage:
            parts.append(b',"stream_options":{"include_usage":true}')
    parts.append(b"}")
    messages = request.fields.get("messages")
    if messages is not None and len(messages) > _JOINED_BYTES_MAX:
        return cast("list[bytes]", parts)  # whoever sends them needs their bytes alone
    return b"".join(parts)


@lru_cache(maxsize=1024)
def _model_member(model_id: str) -> bytes:
    """The start of a body; kept, because models are few and requests are many."""
    return b'{"model":' + msgspec.json.encode(model_id)


def choice_count(request: ChatRequest) -> int:
    """How many choices the client asked for, 1 when it did not say or said nonsense."""
    value = bytes(request.fields.get("n", b"1"))
    return max(int(value), 1) if value.isdigit() and len(value) <= 4 else 1


def token_limit(request: ChatRequest) -> int | None:
    """The client's limit on generated tokens, None without one."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = bytes(request.fields.get(name, b""))
        if value.isdigit() and len(value) <= 9:
            return int(value)
    return None


def call_id_prefix(request: ChatRequest) -> str:
    """Start of the ids that are made for tool calls without one."""
    return f"call_{request.request_id}_"


def decode_answer(
    body: bytes,
    request: ChatRequest,
    *,
    deployment: str,
    on_error: Callable[[bytes], ProviderError],
) -> DecodedAnswer:
    """Read a 2xx answer to a request that was not a stream.

    Args:
        body: The whole body.
        request: What was asked.
        deployment: The name for error messages.
        on_error: Maps an error object that came instead of an answer.

    Raises:
        BadWire: Not JSON, not an answer, or an answer without choices.
        ProviderError: What `on_error` makes of an error in the body.
    """
    try:
        check_choices(body)
        answer = _ANSWER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        what = "is not a chat completion" if body.strip() else "is empty"
        raise BadWire(f"The answer of {deployment} {what}.") from fault
    choices, raw_usage, groq = answer.choices, answer.usage, answer.x_groq
    if answer.error is not NULL or answer.object == _ERROR_WORD or groq is not None:
        if is_error(answer.error, answer.object) or (groq and not is_null(groq.error)):
            raise on_error(body)
        if groq is not None and is_null(raw_usage):
            raw_usage = groq.usage
    if not choices:
        raise BadWire(f"The answer of {deployment} holds no choices.")
    if len(choices) > ITEMS_MAX:
        raise BadWire(f"The answer of {deployment} holds too many choices.")
    usage = report_from(raw_usage, is_alone=False, frame=None)
    only = choices[0]
    message, reason = only.message, only.finish_reason
    if (
        len(choices) == 1
        and message is not None
        and message.tool_calls is NULL
        and reason in _PLAIN_ENDS
    ):
        # One plain text that ended as OpenAI's do, which nearly all answers are.
        raw, faults, reasons = body, _NO_FAULTS, (reason or "",)
        has_content = len(message.content) > EMPTY_BYTES_MAX or message.has_content()
    else:
        raw, faults = _put_right(body, choices, request, usage)
        reasons = tuple([choice.finish_reason or "" for choice in choices])
        has_content = any(_has_content(choice.message) for choice in choices)
    return DecodedAnswer(
        event=WholeAnswer(raw=raw, usage=usage, finish_reasons=reasons, has_content=has_content),
        upstream_model=text_of(answer.model),
        faults=faults,
    )


def chunk_from_answer(body: bytes) -> bytes:
    """Make one stream chunk of a whole answer, for servers that ignore `stream`.

    Raises:
        msgspec.DecodeError: The body is no JSON object, or its choices are no list of objects.
    """
    check_choices(body)
    members = _OBJECT.decode(body)
    if "choices" not in members:
        return body
    choices = _CHOICES.decode(bytes(members["choices"]))
    for choice in choices:
        if (message := choice.pop("message", None)) is not None:
            choice["delta"] = message
    members["choices"] = msgspec.Raw(msgspec.json.encode(choices))
    members["object"] = msgspec.Raw(b'"chat.completion.chunk"')
    return msgspec.json.encode(members)


def is_null(raw: msgspec.Raw) -> bool:
    """Whether a member is absent or null."""
    return raw is NULL or bytes(raw) == b"null"


def is_error(error: msgspec.Raw, kind: msgspec.Raw) -> bool:
    """Whether a body or an event is an error: nested, or flat with `object: error`."""
    return not is_null(error) or bytes(kind) == b'"error"'


def text_of(raw: msgspec.Raw) -> str | None:
    """A text that is not empty, None for anything else."""
    value = bytes(raw)
    if not value.startswith(b'"') or value == b'""':
        return None
    return _TEXT.decode(value)


def edit_choices(body: bytes, edits: Mapping[int, Mapping[str, bytes]], *, inner: str) -> bytes:
    """Set members in the choices of a body; everything else keeps its bytes.

    Args:
        body: A JSON object with `choices`.
        edits: By position in `choices`: new JSON by name. `tool_calls` goes into the inner object.
        inner: `message` or `delta`.
    """
    members = _OBJECT.decode(body)
    choices = _CHOICES.decode(bytes(members["choices"]))
    for position, edit in edits.items():
        choice = choices[position]
        for name, value in edit.items():
            if name == "tool_calls":
                holder = _OBJECT.decode(bytes(choice[inner]))
                holder[name] = msgspec.Raw(value)
                choice[inner] = msgspec.Raw(msgspec.json.encode(holder))
            else:
                choice[name] = msgspec.Raw(value)
    members["choices"] = msgspec.Raw(msgspec.json.encode(choices))
    return msgspec.json.encode(members)


def _has_content(message: Message | None) -> bool:
    if message is None:
        return False
    return message.has_content() or bytes(message.tool_calls) not in EMPTY_VALUES


def _is_right(choice: _Choice) -> bool:
    """Whether a choice is a plain text that ended as OpenAI's do; nearly all are."""
    message = choice.message
    is_plain = message is None or message.tool_calls is NULL
    return is_plain and choice.finish_reason in _PLAIN_ENDS


def _put_right(
    body: bytes, choices: list[_Choice], request: ChatRequest, usage: UsageReport | None
) -> tuple[bytes, Mapping[str, int]]:
    """The answer with calls and finish reasons put right, and what was; `choices` follow suit."""
    if all(_is_right(choice) for choice in choices):
        return body, _NO_FAULTS
    limit = token_limit(request)
    is_cut = bool(usage and limit and usage.usage.output_tokens >= limit)
    prefix = call_id_prefix(request)
    edits: dict[int, dict[str, bytes]] = {}
    faults: Counter[str] = Counter()
    for position, choice in enumerate(choices):
        repair = ToolCallRepair(id_prefix=f"{prefix}{position}_", is_stream=False)
        has_calls = (
            choice.message is not None and bytes(choice.message.tool_calls) not in EMPTY_VALUES
        )
        if has_calls and choice.message is not None:
            try:
                repaired = repair.repair(bytes(choice.message.tool_calls))
            except msgspec.ValidationError as fault:
                raise BadWire("The answer's tool calls are not a list of calls.") from fault
            if repaired is not None:
                edits.setdefault(position, {})["tool_calls"] = repaired
                faults["tool_call"] += repair.repairs
        reason = choice.finish_reason
        if not reason:
            continue
        choice.finish_reason = finish_word(reason, has_calls=has_calls)
        if is_cut and choice.finish_reason == "tool_calls" and repair.has_torn_arguments():
            # A call that the limit cut off ends as `length`, whatever the server says.
            choice.finish_reason = "length"
            faults["torn_tool_call"] += 1
        elif choice.finish_reason != reason:
            faults["finish_reason"] += 1
        if choice.finish_reason != reason:
            word = msgspec.json.encode(choice.finish_reason)
            edits.setdefault(position, {})["finish_reason"] = word
    return (edit_choices(body, edits, inner="message") if edits else body), dict(faults)


_NEUTRAL_VALUES: Mapping[str, frozenset[bytes]] = {
    "frequency_penalty": frozenset({b"0", b"0.0"}),
    "function_call": frozenset({b'"none"', b'"auto"'}),
    "functions": frozenset({b"[]"}),
    "logit_bias": frozenset({b"{}"}),
    "logprobs": frozenset({b"false"}),
    "modalities": frozenset({b'["text"]'}),
    "n": frozenset({b"1"}),
    "parallel_tool_calls": frozenset({b"true", b"false"}),
    "presence_penalty": frozenset({b"0", b"0.0"}),
    "response_format": frozenset({b'{"type":"text"}'}),
    "service_tier": frozenset({b'"auto"', b'"default"'}),
    "stop": frozenset({b"[]"}),
    "store": frozenset({b"false"}),
    "tool_choice": frozenset({b'"none"', b'"auto"'}),
    "tools": frozenset({b"[]"}),
    "top_logprobs": frozenset({b"0"}),
}
NEUTRAL_NAMES = frozenset(_NEUTRAL_VALUES)
"""Members of a request that have a value, beside null, that asks for nothing."""


def is_neutral(name: str, raw: msgspec.Raw) -> bool:
    """Whether a request member asks for nothing that its absence would not give.

    Clients send `n: 1` or `tools: []` as a matter of form; a deployment without several choices or
    tools serves them all the same. `tool_choice` and `parallel_tool_calls` mean nothing by
    themselves: what needs tools is `tools`.
    """
    value = bytes(raw)
    if value == b"null":
        return True
    neutral = _NEUTRAL_VALUES.get(name)
    if neutral is None:
        return False
    return value in neutral or (len(value) < 100 and b"".join(value.split()) in neutral)
