"""The stream of OpenAI-compatible wires: frames in, events out.

Every frame's skeleton is decoded, its inner values are not: msgspec checks the whole frame's JSON
and hands `delta.content`, `usage` and the like over as spans in about 0.3 microseconds. Searching
for the words that matter instead measured no faster, and misses keys that are spelt with escapes,
glued objects and torn frames. A frame's `raw` is its JSON on one line, without SSE framing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

import msgspec

from providers.codecs.finish_reasons import finish_word
from providers.codecs.openai_chat import (
    EMPTY_BYTES_MAX,
    EMPTY_VALUES,
    NULL,
    GroqExtra,
    Message,
    edit_choices,
    is_error,
    is_null,
    text_of,
)
from providers.codecs.openai_usage import report_from
from providers.codecs.short_lists import ITEMS_MAX, LONG_BYTES, check_choices
from providers.codecs.tool_calls import ToolCallRepair
from providers.contract import (
    Event,
    Finished,
    OpaqueDelta,
    Preamble,
    ToolCallDelta,
    UsageReport,
)
from providers.errors import BadWire, ConnectionLost, ProviderError, UpstreamFault
from providers.sse import Frame


class _Choice(msgspec.Struct, gc=False):
    index: int | None = 0
    delta: Message | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = NULL
    error: msgspec.Raw = NULL
    x_groq: GroqExtra | None = None


class _Label(msgspec.Struct, gc=False):
    """Members of a chunk that few frames need to be asked for."""

    model: msgspec.Raw = NULL
    object: msgspec.Raw = NULL


_CHUNK = msgspec.json.Decoder(_Chunk)
_LABEL = msgspec.json.Decoder(_Label)
_LOOKED_AT = frozenset({*_Chunk.__struct_fields__, *_Label.__struct_fields__})
_SPLITTER = json.JSONDecoder()
_DONE = b"[DONE]"
_PLAIN_ENDS = frozenset({"stop", "length"})
"""Reasons of a text's end that no rule changes."""

_GLUED_MAX = 64
"""Most objects that are taken apart; intermediaries glue a few, and each one costs the loop."""

_GLUED_FEW, _GLUED_BYTES = 4, 32
"""More than a few are taken apart only where they are as long as events are on the average."""

_BETWEEN = re.compile(r"\s*(?:data:\s*)?")


class ChatStream(msgspec.Struct, kw_only=True):
    """One answer as it streams in.

    Attributes:
        deployment: The name for error messages.
        call_id_prefix: Start of ids made for tool calls that lack one.
        on_error: Maps an error object that came as an event.
        choices: How many choices the answer will have.
        token_limit: The client's limit on generated tokens, None without one.
        is_done: Whether the stream said that it is over.
        has_content: Whether a content event was decoded.
        failure: Set by `decode` when the stream failed; raise it after its events are handed on.
        upstream_model: The model name in the answer, None until it was seen.
        faults: Deviations from the wire that were put right, by kind.
        is_finished: Whether every choice has ended; usage may still follow.
    """

    deployment: str
    call_id_prefix: str
    on_error: Callable[[bytes], ProviderError]
    choices: int = 1
    token_limit: int | None = None
    is_done: bool = False
    has_content: bool = False
    failure: ProviderError | None = None
    upstream_model: str | None = None
    faults: dict[str, int] = {}
    is_finished: bool = False
    _finished: set[int] = set()
    _repairs: dict[int, ToolCallRepair] = {}
    _seen: set[int] = set()
    _held: list[tuple[int, bytes]] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing that follows counts: the stream ended, or failed."""
        return self.is_done or self.failure is not None

    def decode(self, frames: Iterable[Frame]) -> list[Event]:
        """Turn frames into events, until the stream says it is over or `failure` is set."""
        events: list[Event] = []
        if self.is_over:
            return events
        for frame in frames:
            data = frame.data
            if data == _DONE:
                self.is_done = True
                break
            if b"\n" in data:
                data = data.replace(b"\n", b" ")
            try:
                if len(data) > LONG_BYTES:
                    check_choices(data)
                chunk = _CHUNK.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as fault:
                self._take_odd(data, frame.event, fault, events)
            else:
                self._take(chunk, data, frame.event, events)
            if self.is_done or self.failure is not None:
                break
        if self.is_done:
            self._release_held(events)
        return events

    def close(self) -> list[Event]:
        """The connection ended: return what was held back.

        Raises:
            ConnectionLost: The answer is not whole.
            BadWire: The stream ended in good order but held no answer.
        """
        if self.failure is not None:
            raise self.failure
        is_whole = bool(self._finished) and self._finished >= self._seen
        if not self.is_done and not is_whole:
            raise ConnectionLost(f"The stream of {self.deployment} ended before its answer did.")
        if not self.has_content:
            raise BadWire(f"The stream of {self.deployment} held no answer.")
        events: list[Event] = []
        self._release_held(events)
        return events

    def _take_odd(self, data: bytes, event: bytes, fault: Exception, events: list[Event]) -> None:
        """A frame that is not one JSON object: the end mark, nothing, glued objects, garbage."""
        stripped = data.strip()
        if stripped == _DONE:
            self.is_done = True
        elif event == b"error":
            self._fail(data)
        elif stripped:
            # An object of another shape is not taken apart; in a long event that would take long.
            is_object = isinstance(fault, msgspec.ValidationError) and stripped.startswith(b"{")
            parts = [] if is_object or len(data) > LONG_BYTES else _split_glued(data)
            if len(parts) < 2:
                self.failure = BadWire(f"The stream of {self.deployment} holds a broken event.")
                self.failure.__cause__ = fault
                return
            self._count("glued_objects")
            events += self.decode([Frame(part, event) for part in parts])

    def _take(self, chunk: _Chunk, data: bytes, event: bytes, events: list[Event]) -> None:
        groq, choices = chunk.x_groq, chunk.choices
        if chunk.error is not NULL or groq is not None or choices is None or event:
            # A flat error has no choices; its `object` tells.
            is_fault = event == b"error" or is_error(chunk.error, _LABEL.decode(data).object)
            if is_fault or (groq is not None and not is_null(groq.error)):
                self._fail(data)
                return
        if self.upstream_model is None:
            self.upstream_model = text_of(_LABEL.decode(data).model)
        raw_usage = chunk.usage
        if groq is not None and is_null(raw_usage):
            raw_usage = groq.usage
        if choices is None:
            choices = []
        elif len(choices) > ITEMS_MAX:
            self.failure = BadWire(f"An event of {self.deployment} holds too many choices.")
            return
        if len(choices) == 1 and (raw_usage is NULL or is_null(raw_usage)):
            if self._take_plain(choices[0], data, events):
                return
        elif not choices and not self._held:
            report, data = self._read_usage(raw_usage, data)
            events.append(Preamble(raw=data) if report is None else report)
            return
        self._take_whole(choices, raw_usage, data, events)

    def _take_plain(self, choice: _Choice, data: bytes, events: list[Event]) -> bool:
        """Take a frame that is text and nothing else, or an end in OpenAI's words; else False."""
        delta, index, reason = choice.delta, choice.index or 0, choice.finish_reason
        if delta is None or delta.tool_calls is not NULL:
            return False
        has_text = len(delta.content) > EMPTY_BYTES_MAX or delta.has_content()
        if not reason:
            if not has_text:
                return False
            events.append(OpaqueDelta(raw=data))
        elif reason not in _PLAIN_ENDS or index in self._repairs or index in self._finished:
            return False
        else:
            if has_text:
                events.append(OpaqueDelta(raw=data))
            events.append(Finished(reason=reason, index=index, raw=None if has_text else data))
            self._note_finished(index)
        self.has_content = True
        self._seen.add(index)
        return True

    def _note_finished(self, index: int) -> None:
        self._finished.add(index)
        self.is_finished = len(self._finished) >= self.choices

    def _take_whole(
        self,
        choices: list[_Choice],
        raw_usage: msgspec.Raw,
        data: bytes,
        events: list[Event],
    ) -> None:
        """A frame that may mean several things."""
        edits: dict[int, dict[str, bytes]] = {}
        finished: list[tuple[int, str]] = []
        has_calls = has_text = False
        for position, choice in enumerate(choices):
            delta, index = choice.delta, choice.index or 0
            self._seen.add(index)
            edit: dict[str, bytes] = {}
            if delta is not None and bytes(delta.tool_calls) not in EMPTY_VALUES:
                has_calls = True
                self._repair_calls(index, delta.tool_calls, edit)
            elif delta is not None:
                has_text |= delta.has_content()
            if choice.finish_reason == "error":
                self._fail(data)
            elif choice.finish_reason:
                self._take_reason(index, choice.finish_reason, edit, finished)
            if edit:
                edits[position] = edit
        if self.failure is not None:
            return
        report, data = self._read_usage(raw_usage, data)
        if len(finished) == len(choices) == 1 and self._may_be_cut(*finished[0]):
            if report is None and not (has_calls or has_text):
                self._note_finished(finished[0][0])
                self._held.append((finished[0][0], edit_choices(data, edits, inner="delta")))
                return
            if report is not None and self._is_cut(report):
                edits[0] = {**edits.get(0, {}), "finish_reason": b'"length"'}
                self._count("torn_tool_call")
                finished = [(finished[0][0], "length")]
        if report is not None:
            self._release_held(events, report)
        if edits and not (has_calls or has_text or finished):
            self._count("repeated_finish")
            if report is None:
                return
            data, choices = _without_choices(data), []
        elif edits:
            data = edit_choices(data, edits, inner="delta")
        self._emit(
            events,
            data,
            main=_main_event(has_calls=has_calls, has_text=has_text, raw=data),
            finished=finished,
            report=report,
            has_choices=bool(choices),
        )

    def _take_reason(
        self, index: int, reason: str, edit: dict[str, bytes], finished: list[tuple[int, str]]
    ) -> None:
        """A choice ended: once, and in OpenAI's words."""
        if index in self._finished:
            # OpenRouter repeats the finish beside the usage.
            edit["finish_reason"] = b"null"
            return
        word = finish_word(reason, has_calls=index in self._repairs)
        finished.append((index, word))
        if word != reason:
            edit["finish_reason"] = b'"' + word.encode() + b'"'
            self._count("finish_reason")

    def _emit(
        self,
        events: list[Event],
        data: bytes,
        *,
        main: Event | None,
        finished: list[tuple[int, str]],
        report: UsageReport | None,
        has_choices: bool,
    ) -> None:
        """Append the frame's events; only the first carries `raw`."""
        self.has_content |= main is not None or bool(finished)
        found: list[Event] = [] if main is None else [main]
        for index, reason in finished:
            self._note_finished(index)
            found.append(Finished(reason=reason, index=index, raw=None if found else data))
        if not found and (has_choices or report is None):
            found.append(Preamble(raw=data))
        if report is not None:
            found.append(
                UsageReport(
                    usage=report.usage,
                    provider_cost_usd=report.provider_cost_usd,
                    is_consistent=report.is_consistent,
                    is_alone=not found,
                    raw=None if found else data,
                    reported=report.reported,
                )
            )
        events += found

    def _read_usage(self, raw_usage: msgspec.Raw, data: bytes) -> tuple[UsageReport | None, bytes]:
        """A frame's counts, and the frame without a `usage` object that holds none.

        Nobody charges by such a one, and what it holds instead (another gateway's cost) would reach
        the client as if it were said about this answer here.
        """
        report = report_from(raw_usage, is_alone=True, frame=data)
        text = bytes(raw_usage)
        if report is not None or not text.startswith(b"{") or text == b"{}":
            return report, data
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        if members.pop("usage", NULL) != raw_usage:
            return None, data  # it stands in a vendor's own member
        self._count("void_usage")
        return None, msgspec.json.encode(members)

    def _may_be_cut(self, index: int, reason: str) -> bool:
        """Whether a finished tool call looks torn; servers hide that the limit cut it off."""
        repair = self._repairs.get(index)
        is_candidate = reason == "tool_calls" and self.token_limit is not None
        return is_candidate and repair is not None and repair.has_torn_arguments()

    def _is_cut(self, report: UsageReport) -> bool:
        return self.token_limit is not None and report.usage.output_tokens >= self.token_limit

    def _release_held(self, events: list[Event], report: UsageReport | None = None) -> None:
        """Hand on finishes that waited for the usage, which tells whether the limit was hit."""
        for index, data in self._held:
            reason = "tool_calls"
            if report is not None and self._is_cut(report):
                reason = "length"
                data = edit_choices(data, {0: {"finish_reason": b'"length"'}}, inner="delta")
                self._count("torn_tool_call")
            self.has_content = True
            events.append(Finished(reason=reason, index=index, raw=data))
        self._held.clear()

    def _repair_calls(self, index: int, raw: msgspec.Raw, edit: dict[str, bytes]) -> None:
        repair = self._repairs.get(index)
        if repair is None:
            repair = ToolCallRepair(id_prefix=f"{self.call_id_prefix}{index}_")
            self._repairs[index] = repair
        try:
            repaired = repair.repair(bytes(raw))
        except msgspec.ValidationError as fault:
            self.failure = BadWire(f"The stream of {self.deployment} holds a broken tool call.")
            self.failure.__cause__ = fault
            return
        if repaired is not None:
            self._count("tool_call")
            edit["tool_calls"] = repaired

    def _fail(self, data: bytes) -> None:
        """Keep the error; once content flowed it is the upstream's fault, whatever it says."""
        failure = self.on_error(data)
        if self.has_content:
            failure = UpstreamFault(
                f"{self.deployment} broke off its answer with an error.",
                status=failure.status,
                code=failure.code,
                retry_after_s=failure.retry_after_s,
                upstream_request_id=failure.upstream_request_id,
            )
        self.failure = failure

    def _count(self, kind: str) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1


def is_plain_content(data: bytes, key: str, text: bytes) -> bool:
    """Whether a frame is nothing but content and its delta holds exactly a text under a key.

    Args:
        data: The frame's JSON.
        key: `content`, `reasoning` or `reasoning_content`.
        text: The text as it stands between the quotes.
    """
    try:
        chunk = _CHUNK.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    choices = chunk.choices
    if chunk.error is not NULL or chunk.x_groq is not None or not is_null(chunk.usage):
        return False
    if choices is None or len(choices) != 1 or choices[0].finish_reason:
        return False
    delta = choices[0].delta
    if delta is None or delta.tool_calls is not NULL:
        return False
    found = delta.content
    if key != "content":
        found = delta.reasoning if key == "reasoning" else delta.reasoning_content
    return bytes(found) == b'"' + text + b'"'


def is_idle_member(data: bytes, text: bytes) -> bool:
    """Whether a text is the whole value of a frame's member that the codec never looks at.

    Args:
        data: The frame's JSON.
        text: The text as it stands between the quotes.
    """
    try:
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    value = b'"' + text + b'"'
    return any(bytes(raw) == value for name, raw in members.items() if name not in _LOOKED_AT)


def _main_event(*, has_calls: bool, has_text: bool, raw: bytes) -> Event | None:
    if has_calls:
        return ToolCallDelta(raw=raw)
    return OpaqueDelta(raw=raw) if has_text else None


def _without_choices(data: bytes) -> bytes:
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    members["choices"] = msgspec.Raw(b"[]")
    return msgspec.json.encode(members)


def _split_glued(data: bytes) -> list[bytes]:
    """Take apart JSON objects that an intermediary put on one line; empty when it is not that."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return []
    parts: list[bytes] = []
    start = len(text) - len(text.lstrip())
    while start < len(text):
        if len(parts) == _GLUED_MAX or len(parts) >= max(_GLUED_FEW, len(data) // _GLUED_BYTES):
            return []
        if text.startswith("[DONE]", start):
            end = start + len(_DONE)
        else:
            try:
                end = _SPLITTER.raw_decode(text, start)[1]
            except (ValueError, RecursionError):
                return []
        parts.append(text[start:end].encode())
        if (between := _BETWEEN.match(text, end)) is not None:
            start = between.end()
    return parts
