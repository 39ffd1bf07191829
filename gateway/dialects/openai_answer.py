"""OpenAI's chat wire facing clients: events out, as chunks of a stream or as one answer.

Frames of an upstream that speaks the same wire pass as they are. Events without a frame (the local
engine's) are encoded here. Usage is the one member that Fareway adds to: `usage.cost_usd`, and in
the last chunk of a stream the `fareway` object with what headers could not name yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from pricing.usage import Usage

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": heartbeat\n\n"


_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


class _Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class _ChunkChoice(msgspec.Struct):
    index: int
    delta: _Delta
    finish_reason: str | None = None
    logprobs: None = None


class _Chunk(msgspec.Struct, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    choices: list[_ChunkChoice]
    system_fingerprint: str | None = None
    usage: Raw | None = None
    fareway: Raw | None = None


class _Message(msgspec.Struct):
    role: str
    content: str
    refusal: None = None


class _Choice(msgspec.Struct):
    index: int
    message: _Message
    finish_reason: str
    logprobs: None = None


class _Answer(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_Choice]
    usage: Raw


class _PromptDetails(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalFacts:
    """What the last usage chunk says beside the counts.

    Attributes:
        deployment: Who served the answer.
        attempts: How many attempts it took.
        request_id: Fareway's id.
    """

    deployment: str
    attempts: int
    request_id: str


class _FinalFacts(msgspec.Struct):
    deployment: str
    attempts: int
    request_id: str


def encode_usage(usage: Usage) -> bytes:
    """OpenAI's `usage` object; cached tokens are part of `prompt_tokens` on this wire."""
    output_tokens = usage.output_tokens + usage.reasoning_tokens
    return msgspec.json.encode(
        _Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=output_tokens,
            total_tokens=usage.prompt_tokens + output_tokens,
            prompt_tokens_details=_PromptDetails(cached_tokens=usage.cache_read_tokens),
        )
    )


def _members_of(raw: bytes | Raw) -> dict[str, Raw]:
    """The members of an upstream's object; where bytes are no UTF-8, with what readers put there.

    Nothing else looks at the names of members that we do not know, so that one may be of such
    bytes in an answer that was taken, and charged, as whole.
    """
    try:
        return _MEMBERS.decode(raw)
    except msgspec.DecodeError:
        return _MEMBERS.decode(bytes(raw).decode(errors="replace"))


def _priced(counts: bytes, cost_usd: str | None) -> bytes:
    """A `usage` object with our cost; an upstream's own `cost_usd` never passes for it."""
    usage = _members_of(counts)
    usage.pop("cost_usd", None)
    if cost_usd is not None:
        usage["cost_usd"] = Raw(msgspec.json.encode(cost_usd))
    return msgspec.json.encode(usage)


def frame(data: bytes) -> bytes:
    """One server-sent event; `data` holds no line break outside what JSON allows between tokens."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r\n", b" ").replace(b"\n", b" ").replace(b"\r", b" ")
    return b"data: " + data + b"\n\n"


def with_cost(raw: bytes, cost_usd: str | None, final: FinalFacts | None) -> bytes:
    """Add the cost to the `usage` of an upstream's chunk or answer, and the `fareway` object.

    An upstream's own `cost_usd` (another gateway's, say) never passes for ours. A body whose counts
    are not in `usage` but in a vendor's own member keeps its shape.

    Args:
        raw: A JSON object.
        cost_usd: Decimal string, None when the price is unknown.
        final: For the last chunk of a stream, None elsewhere.
    """
    members = _members_of(raw)
    counts = members.get("usage")
    if counts is not None and bytes(counts)[:1] == b"{":
        members["usage"] = Raw(_priced(bytes(counts), cost_usd))
    elif final is None:
        return raw
    if final is not None:
        members["fareway"] = Raw(_encode_final(final))
    return msgspec.json.encode(members)


def without_usage(raw: bytes) -> bytes:
    """An upstream's chunk without its counts, in `usage` or in Groq's own member."""
    members = _members_of(raw)
    members.pop("usage", None)
    if (groq := members.get("x_groq")) is not None and bytes(groq)[:1] == b"{":
        inner = _members_of(groq)
        if inner.pop("usage", None) is not None:
            members["x_groq"] = Raw(msgspec.json.encode(inner))
    return msgspec.json.encode(members)


def _encode_final(final: FinalFacts) -> bytes:
    return msgspec.json.encode(
        _FinalFacts(
            deployment=final.deployment, attempts=final.attempts, request_id=final.request_id
        )
    )


@dataclass(slots=True, kw_only=True)
class AnswerEncoder:
    """Encodes events that have no frame of their own.

    Attributes:
        answer_id: `chatcmpl-...`, the same in every chunk.
        created: Whole seconds since the epoch.
        model: The upstream's own model name.
    """

    answer_id: str
    created: int
    model: str
    _opened: set[int] = field(default_factory=set[int])

    def text_chunk(self, text: str, index: int) -> bytes:
        """A chunk with text; the first of a choice carries the role."""
        role = None if index in self._opened else "assistant"
        self._opened.add(index)
        return self._chunk([_ChunkChoice(index=index, delta=_Delta(role=role, content=text))])

    def finish_chunk(self, reason: str, index: int) -> bytes:
        """The chunk that ends a choice; opens it first when it had no text."""
        role = None if index in self._opened else "assistant"
        content = None if index in self._opened else ""
        self._opened.add(index)
        choice = _ChunkChoice(
            index=index, delta=_Delta(role=role, content=content), finish_reason=reason
        )
        return self._chunk([choice])

    def usage_chunk(self, counts: bytes, cost_usd: str | None, final: FinalFacts | None) -> bytes:
        """The chunk without choices at the end of a stream.

        Args:
            counts: A `usage` object as JSON.
            cost_usd: Decimal string, None when the price is unknown.
            final: What else the last chunk says.
        """
        return self._chunk(
            [],
            usage=Raw(_priced(counts, cost_usd)),
            fareway=Raw(_encode_final(final)) if final else None,
        )

    def answer(
        self, texts: Sequence[str], reasons: Sequence[str], usage: Usage, cost_usd: str | None
    ) -> bytes:
        """A whole answer: one text and one finish reason per choice."""
        choices = [
            _Choice(
                index=index,
                message=_Message(role="assistant", content=text),
                finish_reason=reason,
            )
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return msgspec.json.encode(
            _Answer(
                id=self.answer_id,
                object="chat.completion",
                created=self.created,
                model=self.model,
                choices=choices,
                usage=Raw(_priced(encode_usage(usage), cost_usd)),
            )
        )

    def _chunk(
        self, choices: list[_ChunkChoice], *, usage: Raw | None = None, fareway: Raw | None = None
    ) -> bytes:
        return msgspec.json.encode(
            _Chunk(
                id=self.answer_id,
                object="chat.completion.chunk",
                created=self.created,
                model=self.model,
                choices=choices,
                usage=usage,
                fareway=fareway,
            )
        )
