"""The usage object of OpenAI-compatible wires, turned into disjoint meters.

On this wire cached and written tokens are part of `prompt_tokens`, and reasoning is part of
`completion_tokens` unless the total says otherwise. Zero is a value, null and absent are unknown. A
report that contradicts itself is still used, but marked, so that finance sees it.

Source: `usage` in the references of OpenAI, OpenRouter, DeepSeek, Together and SGLang (2026-11).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Annotated, TypeVar

import msgspec

from pricing.usage import Usage
from providers.contract import UsageReport

_ABSENT = msgspec.Raw(b"null")
_COUNT_MAX = 10**12
_DECIMAL = re.compile(rb'"?(-?\d{1,30}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?)"?')
_EXACT = Context(prec=200)


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: msgspec.Raw = _ABSENT
    cache_write_tokens: msgspec.Raw = _ABSENT


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: msgspec.Raw = _ABSENT


class _CostDetails(msgspec.Struct, gc=False):
    upstream_inference_cost: msgspec.Raw = _ABSENT


class _Cost(msgspec.Struct, gc=False):
    cost: msgspec.Raw = _ABSENT
    is_byok: bool | None = None
    cost_details: _CostDetails | None = None


class _UsageObject(msgspec.Struct, gc=False):
    prompt_tokens: msgspec.Raw = _ABSENT
    completion_tokens: msgspec.Raw = _ABSENT
    total_tokens: msgspec.Raw = _ABSENT
    prompt_tokens_details: msgspec.Raw = _ABSENT
    completion_tokens_details: msgspec.Raw = _ABSENT
    cached_tokens: msgspec.Raw = _ABSENT  # Together, at the top
    prompt_cache_hit_tokens: msgspec.Raw = _ABSENT  # DeepSeek
    reasoning_tokens: msgspec.Raw = _ABSENT  # SGLang, at the top


_DECODER = msgspec.json.Decoder(_UsageObject)
_COST_DECODER = msgspec.json.Decoder(_Cost)
_PROMPT_DECODER = msgspec.json.Decoder(_PromptDetails | None)
_COMPLETION_DECODER = msgspec.json.Decoder(_CompletionDetails | None)

_Part = TypeVar("_Part")
_Count = Annotated[int, msgspec.Meta(ge=0, lt=_COUNT_MAX)]


class _SoundPromptDetails(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = None
    cache_write_tokens: _Count | None = None


class _SoundUsage(_Cost, kw_only=True, gc=False):
    """A usage object as nearly all are, its counts decoded: whatever differs is read with care."""

    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count | None = None
    prompt_tokens_details: _SoundPromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    cached_tokens: _Count | None = None
    prompt_cache_hit_tokens: _Count | None = None


_SOUND_DECODER = msgspec.json.Decoder(_SoundUsage)


@dataclass(slots=True)
class _Counts:
    """Reads counts and remembers whether one of them was not a count."""

    is_consistent: bool = True

    def read(self, raw: msgspec.Raw) -> int | None:
        """A count, None when it is absent, null or not a whole number of at least 0."""
        text = bytes(raw)
        if text == b"null":
            return None
        whole = text[:-2] if text.endswith(b".0") else text
        if whole.isdigit() and len(whole) < len(str(_COUNT_MAX)):
            return int(whole)
        self.is_consistent = False
        return None

    def first(self, *raws: msgspec.Raw) -> int | None:
        """The first of several places that holds a count."""
        for raw in raws:
            if (count := self.read(raw)) is not None:
                return count
        return None

    def part(self, raw: msgspec.Raw, decoder: msgspec.json.Decoder[_Part | None]) -> _Part | None:
        """An object inside, None when it is absent, null or of another shape."""
        try:
            return decoder.decode(raw)
        except msgspec.ValidationError:
            self.is_consistent = False
            return None


def report_from(raw: msgspec.Raw, *, is_alone: bool, frame: bytes | None) -> UsageReport | None:
    """Read a usage object.

    Args:
        raw: The JSON value of `usage`.
        is_alone: As in `UsageReport`.
        frame: The report's `raw`.

    Returns:
        None when the value is null, holds no counts, or is not an object of the known shape.
    """
    text = bytes(raw)
    if text == b"null":
        return None
    if b"-" in text:  # a count may be -0, which is none and would be decoded as 0
        return read_with_care(text, is_alone=is_alone, frame=frame)
    try:
        found = _SOUND_DECODER.decode(text)
    except msgspec.DecodeError:
        return read_with_care(text, is_alone=is_alone, frame=frame)
    prompt, completion = found.prompt_tokens, found.completion_tokens
    total, cached, written = found.total_tokens, None, 0
    if (details := found.prompt_tokens_details) is not None:
        cached, written = details.cached_tokens, details.cache_write_tokens or 0
    if cached is None and (cached := found.cached_tokens) is None:
        cached = found.prompt_cache_hit_tokens or 0
    if prompt < cached + written or (total is not None and total != prompt + completion):
        return read_with_care(text, is_alone=is_alone, frame=frame)
    cost, is_cost_sound = (None, True) if found.cost is _ABSENT else _cost(found)
    return UsageReport(
        usage=Usage(
            input_tokens=prompt - cached - written,
            cache_read_tokens=cached,
            cache_write_tokens=written,
            output_tokens=completion,
        ),
        provider_cost_usd=cost,
        is_consistent=is_cost_sound,
        is_alone=is_alone,
        raw=frame,
        reported=text,
    )


def read_with_care(text: bytes, *, is_alone: bool, frame: bytes | None) -> UsageReport | None:
    """Read a usage object of any shape, each count by itself; as `report_from`, which is quicker.

    Args:
        text: The JSON value of `usage`.
        is_alone: As in `UsageReport`.
        frame: The report's `raw`.
    """
    if text in (b"", b"null", b"{}"):
        return None
    try:
        found = _DECODER.decode(text)
    except msgspec.ValidationError:
        return None
    counts = _Counts()
    usage = _disjoint(found, counts)
    if usage is None:
        return None
    try:
        cost, is_cost_sound = _cost(_COST_DECODER.decode(text))
    except msgspec.ValidationError:
        cost, is_cost_sound = None, False  # the counts are what we charge by, and stay
    return UsageReport(
        usage=usage,
        provider_cost_usd=cost,
        is_consistent=counts.is_consistent and is_cost_sound,
        is_alone=is_alone,
        raw=frame,
        reported=text,
    )


def _disjoint(found: _UsageObject, counts: _Counts) -> Usage | None:
    """Split the prompt into fresh, read and written, and find the whole output."""
    prompt, completion = counts.read(found.prompt_tokens), counts.read(found.completion_tokens)
    if prompt is None and completion is None:
        return None
    details = counts.part(found.prompt_tokens_details, _PROMPT_DECODER) or _PromptDetails()
    cached = counts.first(details.cached_tokens, found.cached_tokens, found.prompt_cache_hit_tokens)
    written = counts.read(details.cache_write_tokens)
    if prompt is None:
        counts.is_consistent = False
        prompt = (cached or 0) + (written or 0)
    output = _output(found, counts, prompt, completion)
    read_tokens = min(cached or 0, prompt)
    # Gemini through OpenRouter counts the same tokens as read and as written; reads win.
    written_tokens = min(written or 0, prompt - read_tokens)
    if (cached or 0) + (written or 0) > prompt:
        counts.is_consistent = False
    return Usage(
        input_tokens=prompt - read_tokens - written_tokens,
        cache_read_tokens=read_tokens,
        cache_write_tokens=written_tokens,
        output_tokens=output,
    )


def _output(found: _UsageObject, counts: _Counts, prompt: int, completion: int | None) -> int:
    """All generated tokens, reasoning included, checked against the total where there is one."""
    total = counts.read(found.total_tokens)
    if completion is None:
        if total is not None and total >= prompt:
            return total - prompt
        counts.is_consistent = False
        return 0
    if total is None or total == prompt + completion:
        return completion
    details = counts.part(found.completion_tokens_details, _COMPLETION_DECODER)
    inside = _ABSENT if details is None else details.reasoning_tokens
    reasoning = counts.first(inside, found.reasoning_tokens) or 0
    if total == prompt + completion + reasoning:
        # Gemini and xAI report reasoning outside the completion; it is billed as output.
        return completion + reasoning
    counts.is_consistent = False
    return completion


def _cost(found: _Cost) -> tuple[str | None, bool]:
    """The upstream's own cost in USD with every digit kept, and whether it made sense."""
    cost, is_sound = _decimal(found.cost)
    if cost is None or not found.is_byok or found.cost_details is None:
        return (None if cost is None else _plain(cost)), is_sound
    # With the operator's own vendor key `cost` is only the fee; without one both are equal.
    inference, is_inference_sound = _decimal(found.cost_details.upstream_inference_cost)
    summed = cost if inference is None else _EXACT.add(cost, inference)
    return _plain(summed), is_sound and is_inference_sound


def _decimal(raw: msgspec.Raw) -> tuple[Decimal | None, bool]:
    text = bytes(raw)
    if text == b"null":
        return None, True
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None, False
    value = Decimal(match[1].decode("ascii"))
    return (value, True) if value >= 0 else (None, False)


def _plain(value: Decimal) -> str:
    return format(value, "f")
