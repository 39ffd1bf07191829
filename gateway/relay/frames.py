"""From provider events to the client's bytes: what is held, what is passed, what is added.

Nothing is sent before the first content event: role chunks and metadata wait, so that a failure
until then can still go to another deployment. A client that asked for usage gets it once, in a
chunk of its own at the end, where the cost is known: SDKs add up what several chunks report. For
one that did not ask it is taken out, unless the vendor reports it to everybody.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gateway.dialects.openai_answer import (
    AnswerEncoder,
    FinalFacts,
    encode_usage,
    frame,
    with_cost,
    without_usage,
)
from providers.contract import (
    Batch,
    Event,
    Finished,
    OpaqueDelta,
    OpaqueRun,
    Preamble,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    WholeAnswer,
)
from providers.errors import BadWire

HELD_BYTES_MAX = 16 * 1024 * 1024
"""Most that is held before the first content: frames without any could come without end."""


class _Identity(msgspec.Struct):
    """What is the same in every chunk of an upstream's stream."""

    id: str = ""
    created: int = 0
    model: str = ""


class StreamFrames(msgspec.Struct, kw_only=True):
    """Collects the events of one attempt at a stream.

    Attributes:
        make_encoder: Makes the encoder for events without a frame.
        wants_usage: Whether the client asked for usage in the stream.
        keeps_usage: Whether the vendor reports usage to every client, so that who did not ask for
            it sees it where the vendor puts it.
        content_events: Events with text, reasoning or tool-call parts seen so far.
        reasons: Finish reason per choice.
        usage: The last usage report.
    """

    make_encoder: Callable[[], AnswerEncoder]
    wants_usage: bool
    keeps_usage: bool = False
    content_events: int = 0
    reasons: dict[int, str] = {}
    usage: UsageReport | None = None
    _held: list[bytes] = []
    _held_bytes: int = 0
    _usage_frame: bytes | None = None
    _encoder: AnswerEncoder | None = None
    _content_frame: bytes | None = None
    _frame: bytes | None = None

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
    def finish_reason(self) -> str:
        """That of the choice that ended first, empty before."""
        return next(iter(self.reasons.values()), "")

    @property
    def output_tokens_estimate(self) -> int:
        """Generated tokens that passed, for want of counts: one per event."""
        return self.content_events

    @property
    def shows_usage(self) -> bool:
        """Whether the client is to see a usage chunk at the end, if any counts came."""
        return self.wants_usage or (self.keeps_usage and self._usage_frame is not None)

    def take(self, batch: Batch) -> bytes:
        """Turn a batch into what may be sent now; empty while there has been no content.

        A finish alone does not release what is held: an answer that ends without any content is
        looked at as a whole by the caller.

        Raises:
            BadWire: Too much came without any content.
        """
        held = self._held
        if not held and len(batch) == 1 and isinstance(only := batch[0], OpaqueRun):
            # Most of a stream: nothing waits, and what came goes on as it is.
            self.content_events += only.count
            self._content_frame = self._frame = raw = only.raw
            return raw
        for event in batch:
            if isinstance(event, OpaqueRun):
                self.content_events += event.count
                self._content_frame = self._frame = event.raw
                self._held.append(event.raw)
            elif isinstance(event, OpaqueDelta):
                self.content_events += 1
                self._hold_content(event.raw)
            else:
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
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        return data

    def _hold_content(self, raw: bytes) -> None:
        self._content_frame = self._frame = raw
        self._held.append(frame(raw))

    def _take_event(self, event: Event) -> None:
        match event:
            case ToolCallDelta():
                self.content_events += 1
                self._hold_content(event.raw)
            case TextDelta():
                self._take_text(event)
            case Preamble():
                if event.raw is not None:
                    self._frame = event.raw
                    self._held.append(frame(event.raw))
            case Finished():
                self._take_finish(event)
            case UsageReport():
                self._take_usage(event)
            case OpaqueDelta() | OpaqueRun():
                raise AssertionError("taken before, being most of a stream")
            case WholeAnswer():
                raise AssertionError("no provider answers a stream with one piece")

    def _take_text(self, event: TextDelta) -> None:
        self.content_events += 1
        if event.raw is not None:
            self._hold_content(event.raw)
        else:
            self._held.append(frame(self.encoder.text_chunk(event.text, event.index)))

    def _take_finish(self, event: Finished) -> None:
        self.reasons[event.index] = event.reason
        if event.raw is not None:
            self._hold_content(event.raw)
        elif self._frame is None:
            # A provider either frames everything or nothing; an event without a frame behind one
            # with a frame is the second meaning of that frame.
            self._held.append(frame(self.encoder.finish_chunk(event.reason, event.index)))

    def _take_usage(self, event: UsageReport) -> None:
        self.usage = event
        if event.is_alone:
            self._usage_frame = event.raw
            return
        self._usage_frame = None
        if self._frame is None:
            return
        # It came inside the frame held last, which the events of one batch follow at once.
        is_taken_out = self.wants_usage or not self.keeps_usage
        raw = self._frame
        self._held[-1] = frame(without_usage(raw) if is_taken_out else with_cost(raw, None, None))

    def last_usage(self, cost_usd: str | None, final: FinalFacts) -> bytes:
        """The usage chunk for the end of the stream; empty when the client is to see none."""
        if not self.shows_usage or self.usage is None:
            return b""
        if self._usage_frame is not None:
            return frame(with_cost(self._usage_frame, cost_usd, final))
        counts = self.usage.reported or encode_usage(self.usage.usage)
        return frame(self._usage_encoder().usage_chunk(counts, cost_usd, final))

    def _usage_encoder(self) -> AnswerEncoder:
        """The encoder of the last chunk, which has the id of the upstream's chunks before it."""
        content = self._content_frame
        if content is None:
            return self.encoder
        if content.startswith(b"data: "):
            content = content[:-2].rpartition(b"\n\n")[2][6:]  # the last frame of a run
        try:
            known = msgspec.json.decode(content, type=_Identity)
        except msgspec.ValidationError:
            return self.encoder  # an upstream that names its chunks with something else than text
        own = self.encoder
        return AnswerEncoder(
            answer_id=known.id or own.answer_id,
            created=known.created or own.created,
            model=known.model or own.model,
        )
