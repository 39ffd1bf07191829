"""From provider events to the client's bytes: what is held, what is passed, what is added.

Nothing is sent before the first content event: role chunks and metadata wait, so that a failure
until then can still go to another deployment. Usage chunks wait for the end, where the cost is
known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gateway.dialects.openai_answer import (
    AnswerEncoder,
    FinalFacts,
    frame,
    with_cost,
    without_usage,
)
from providers.contract import (
    Batch,
    Event,
    Finished,
    OpaqueDelta,
    Preamble,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    WholeAnswer,
)
from providers.errors import BadWire

HELD_BYTES_MAX = 16 * 1024 * 1024
"""Most that is held before the first content: frames without any could come without end."""

BYTES_PER_TOKEN = 4
"""A token's usual length in an answer, for one that came whole and without counts."""


class _Identity(msgspec.Struct):
    """What is the same in every chunk of an upstream's stream."""

    id: str = ""
    created: int = 0
    model: str = ""


@dataclass(slots=True, kw_only=True)
class StreamFrames:
    """Collects one attempt's events.

    Attributes:
        make_encoder: Makes the encoder for events without a frame.
        wants_usage: Whether the client asked for usage in the stream.
        is_stream: Whether the client gets a stream.
        content_events: Events with text, reasoning or tool-call parts seen so far.
        reasons: Finish reason per choice.
        usage: The last usage report.
        whole: The answer of a non-stream request on an equal wire.
        texts: Decoded text per choice, kept only for a non-stream answer.
    """

    make_encoder: Callable[[], AnswerEncoder]
    wants_usage: bool
    is_stream: bool
    content_events: int = 0
    reasons: dict[int, str] = field(default_factory=dict[int, str])
    usage: UsageReport | None = None
    whole: WholeAnswer | None = None
    texts: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    _held: list[bytes] = field(default_factory=list[bytes])
    _held_bytes: int = 0
    _usage_frame: bytes | None = None
    _encoder: AnswerEncoder | None = None
    _has_frames: bool = False
    _content_frame: bytes | None = None

    @property
    def encoder(self) -> AnswerEncoder:
        """The encoder, made on first use."""
        if self._encoder is None:
            self._encoder = self.make_encoder()
        return self._encoder

    @property
    def has_passed(self) -> bool:
        """Whether the upstream began to generate: content or counts came."""
        return bool(self.content_events) or self.usage is not None

    @property
    def output_tokens_estimate(self) -> int:
        """Generated tokens that passed: one per event, or by the length of a whole answer."""
        if self.whole is not None and self.whole.has_content:
            return max(1, len(self.whole.raw) // BYTES_PER_TOKEN)
        return self.content_events

    def take(self, batch: Batch) -> bytes:
        """Turn a batch into what may be sent now; empty while there has been no content.

        A finish alone does not release what is held: an answer that ends without any content is
        looked at as a whole by the caller.

        Raises:
            BadWire: Too much came without any content.
        """
        for event in batch:
            self._take_event(event)
        if self.content_events:
            return self.release()
        # Of a batch as a whole, as a read of the socket is bounded.
        self._held_bytes += sum(len(event.raw) for event in batch if event.raw is not None)
        if self._held_bytes > HELD_BYTES_MAX:
            raise BadWire(f"The answer holds no content in its first {HELD_BYTES_MAX} bytes.")
        return b""

    def release(self) -> bytes:
        """Everything held so far, which from now on counts as sent."""
        if not self._held:
            return b""
        data = b"".join(self._held)
        self._held.clear()
        return data

    def _take_event(self, event: Event) -> None:
        # A provider either frames everything or nothing; an event without a frame behind one with a
        # frame is the second meaning of that frame.
        self._has_frames = self._has_frames or event.raw is not None
        match event:
            case OpaqueDelta() | ToolCallDelta():
                self.content_events += 1
                self._content_frame = event.raw
                self._held.append(frame(event.raw))
            case TextDelta():
                self._take_text(event)
            case Preamble():
                if event.raw is not None:
                    self._held.append(frame(event.raw))
            case Finished():
                self._take_finish(event)
            case UsageReport():
                self._take_usage(event)
            case WholeAnswer():
                self.whole = event
                self.usage = event.usage
                self.reasons = dict(enumerate(event.finish_reasons))
                self.content_events += event.has_content

    def _take_text(self, event: TextDelta) -> None:
        self.content_events += 1
        if not self.is_stream:
            self.texts.setdefault(event.index, []).append(event.text)
        elif event.raw is not None:
            self._held.append(frame(event.raw))
        else:
            self._held.append(frame(self.encoder.text_chunk(event.text, event.index)))

    def _take_finish(self, event: Finished) -> None:
        self.reasons[event.index] = event.reason
        if event.raw is not None:
            self._content_frame = event.raw
            self._held.append(frame(event.raw))
        elif self.is_stream and not self._has_frames:
            self._held.append(frame(self.encoder.finish_chunk(event.reason, event.index)))

    def _take_usage(self, event: UsageReport) -> None:
        self.usage = event
        if event.raw is None:
            return
        if event.is_alone:
            self._usage_frame = event.raw
        else:
            self._held.append(frame(event.raw if self.wants_usage else without_usage(event.raw)))

    def last_usage(self, cost_usd: str | None, final: FinalFacts) -> bytes:
        """The usage chunk for the end of the stream; empty when the client did not ask for one."""
        if not self.wants_usage or self.usage is None:
            return b""
        if self._usage_frame is not None:
            return frame(with_cost(self._usage_frame, cost_usd, final))
        return frame(self._usage_encoder().usage_chunk(self.usage.usage, cost_usd, final))

    def _usage_encoder(self) -> AnswerEncoder:
        """The encoder of the last chunk, which has the id of the upstream's chunks before it."""
        if self._content_frame is None:
            return self.encoder
        try:
            known = msgspec.json.decode(self._content_frame, type=_Identity)
        except msgspec.ValidationError:
            return self.encoder  # an upstream that names its chunks with something else than text
        own = self.encoder
        return AnswerEncoder(
            answer_id=known.id or own.answer_id,
            created=known.created or own.created,
            model=known.model or own.model,
        )

    def whole_answer(self, cost_usd: str | None) -> bytes:
        """The body of a non-stream answer."""
        if self.whole is not None:
            if self.whole.usage is None:
                return self.whole.raw
            return with_cost(self.whole.raw, cost_usd, None)
        assert self.usage is not None, "an engine of ours always reports usage"
        indexes = sorted(self.reasons)
        texts = ["".join(self.texts.get(index, [])) for index in indexes]
        reasons = [self.reasons[index] for index in indexes]
        return self.encoder.answer(texts, reasons, self.usage.usage, cost_usd)
