"""Reads of one OpenAI-compatible stream to events: runs of plain frames whole, the rest decoded."""

from __future__ import annotations

import msgspec

from providers.codecs.openai_stream import ChatStream, is_idle_member, is_plain_content
from providers.codecs.plain_runs import PlainRuns
from providers.contract import Event, OpaqueDelta, OpaqueRun
from providers.sse import SseDecoder

_EVENT_END = b"\n\n"


class ChatReads(msgspec.Struct, kw_only=True):
    """Feeds a stream's reads to its codec, past which runs of plain content go as they came.

    Attributes:
        stream: The codec, which keeps the state of the answer.
    """

    stream: ChatStream
    _decoder: SseDecoder = msgspec.field(default_factory=SseDecoder)
    _runs: PlainRuns = msgspec.field(
        default_factory=lambda: PlainRuns(is_plain_content, is_idle_member)
    )

    def feed(self, read: bytes) -> list[Event]:
        """Take one read and return the events that it completes.

        Raises:
            BadWire: An event exceeds the size limit.
        """
        stream, decoder, runs = self.stream, self._decoder, self._runs
        if (count := runs.count(read)) and decoder.is_between_events and not stream.is_over:
            return [OpaqueRun(raw=read, count=count)]
        if runs.is_given_up or _EVENT_END not in read:
            return stream.decode(decoder.feed(read))
        if not decoder.is_between_events:
            read = decoder.take_torn() + read
        events: list[Event] = []
        at = 0
        while at < len(read) and not stream.is_over:
            if decoder.is_between_events:
                end, count = runs.match(read, at)
                if count:
                    events.append(OpaqueRun(raw=read[at:end], count=count))
                    at = end
                    continue
            end = runs.end_of_other(read, at)
            found = stream.decode(decoder.feed(read[at:end]))
            if found and isinstance(last := found[-1], OpaqueDelta) and not runs.is_given_up:
                runs.learn(last.raw)
            events += found
            at = end
        return events

    def end(self) -> list[Event]:
        """The body ended: return the events of a last frame that lacks its blank line."""
        return self.stream.decode(self._decoder.close())
