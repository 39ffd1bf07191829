"""What came of an answer that is not a stream: one piece of an upstream's, or an engine's events.

A whole answer waits for nothing and holds nothing back, so it needs none of what `frames` does.
"""

from __future__ import annotations

import msgspec

from gateway.dialects.answer_cost import answer_with_cost
from gateway.dialects.openai_answer import AnswerEncoder
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

BYTES_PER_TOKEN = 4
"""A token's usual length in an answer, for one that came without counts."""


class WholeParts(msgspec.Struct, kw_only=True):
    """Collects one attempt's whole answer.

    Attributes:
        answer: As the upstream sent it; None for an engine, whose events have no frames.
        usage: The last usage report.
        content_events: Events with text, reasoning or tool-call parts seen so far.
        finish_reason: Of the choice that ended first, empty before.
        texts: Text per choice, of events without a frame.
        reasons: Finish reason per choice, likewise.
    """

    answer: WholeAnswer | None = None
    usage: UsageReport | None = None
    content_events: int = 0
    finish_reason: str = ""
    texts: dict[int, list[str]] | None = None
    reasons: dict[int, str] | None = None

    @property
    def has_passed(self) -> bool:
        """Whether the upstream began to generate: content or counts came."""
        return bool(self.content_events) or self.usage is not None

    @property
    def output_tokens_estimate(self) -> int:
        """Generated tokens for want of counts: by the answer's length, or one per event."""
        if self.answer is not None and self.answer.has_content:
            return max(1, len(self.answer.raw) // BYTES_PER_TOKEN)
        return self.content_events

    def take(self, batch: Batch) -> bool:
        """Take a batch in; whether the answer is whole, so that nothing can follow."""
        for event in batch:
            if isinstance(event, WholeAnswer):
                self.answer = event
                self.usage = event.usage
                self.content_events += event.has_content
                reasons = event.finish_reasons
                self.finish_reason = reasons[0] if reasons else ""
                return True
            self._take_event(event)
        return False

    def _take_event(self, event: Event) -> None:
        match event:
            case TextDelta():
                self.content_events += 1
                if self.texts is None:
                    self.texts = {}
                self.texts.setdefault(event.index, []).append(event.text)
            case Finished():
                if self.reasons is None:
                    self.reasons = {}
                self.reasons[event.index] = event.reason
                self.finish_reason = next(iter(self.reasons.values()))
            case UsageReport():
                self.usage = event
            case OpaqueDelta() | ToolCallDelta():
                self.content_events += 1
            case OpaqueRun():
                self.content_events += event.count
            case Preamble() | WholeAnswer():
                pass

    def body(self, cost_usd: bytes | None) -> bytes | None:
        """The upstream's answer for the client; None where there is none, but events.

        Args:
            cost_usd: A decimal, None when the price is unknown.
        """
        answer = self.answer
        if answer is None:
            return None
        usage = answer.usage
        return answer_with_cost(answer.raw, None if usage is None else usage.reported, cost_usd)

    def encoded(self, encoder: AnswerEncoder, cost_usd: bytes | None) -> bytes:
        """The answer that the events make; arguments as `body`."""
        assert self.usage is not None, "an engine of ours always reports usage"
        texts, reasons = self.texts or {}, self.reasons or {}
        indexes = sorted(reasons)
        return encoder.answer(
            ["".join(texts.get(index, [])) for index in indexes],
            [reasons[index] for index in indexes],
            self.usage.usage,
            None if cost_usd is None else cost_usd.decode(),
        )
