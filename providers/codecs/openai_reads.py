"""Reads of one OpenAI-compatible stream to events: runs of plain frames whole, the rest decoded."""

from __future__ import annotations

import msgspec

from providers.codecs.openai_stream import ChatStream, is_idle_member, is_plain_content
from providers.codecs.plain_runs import PlainRuns
from providers.contract import Event, OpaqueDelta, OpaqueRun
from providers.sse import SseDecoder

PIECE_BYTES = 32 * 1024
"""Most of a read that is decoded at once, unless all of it is one run; takes up to 4 ms."""

LINES_MAX = 512
"""Most lines in it; where there are more, which are tiny, much less is decoded at once."""

CROWDED_PIECE_BYTES = 4 * 1024
"""As much of lines without anything, of fields or of tiny events takes about 1 ms."""

_EVENT_END = b"\n\n"


class ChatReads(msgspec.Struct, kw_only=True):
    """Feeds a stream's reads to its codec, past which runs of plain content go as they came.

    Attributes:
        stream: The codec, which keeps the state of the answer.
        rest: What of the last read is still to be fed, in the loop's next turn: no upstream shall
            hold the loop with what it sent in one piece.
    """

    stream: ChatStream
    rest: bytes = b""
    _decoder: SseDecoder = msgspec.field(default_factory=SseDecoder)
    _runs: PlainRuns = msgspec.field(
        default_factory=lambda: PlainRuns(is_plain_content, is_idle_member)
    )
    _is_between: bool = False  # whether the decoder is between events, once it was fed

    def feed(self, read: bytes) -> list[Event]:
        """Take one read, or the rest of one, and return the events that it completes.

        Raises:
            BadWire: An event exceeds the size limit.
        """
        stream, runs = self.stream, self._runs
        self.rest = b""
        if self._is_between and (count := runs.count(read)) and not stream.is_over:
            return [OpaqueRun(raw=read, count=count)]
        if len(read) > CROWDED_PIECE_BYTES:
            read = self._cut(read)
        if runs.is_given_up or _EVENT_END not in read:
            return self._decode(read)
        if not self._is_between:
            read = self._decoder.take_torn() + read
            self._is_between = self._decoder.is_between_events
        events: list[Event] = []
        at = 0
        while at < len(read) and not stream.is_over:
            if self._is_between:
                end, count = runs.match(read, at)
                if count:
                    events.append(OpaqueRun(raw=read[at:end], count=count))
                    at = end
                    continue
            end = runs.end_of_other(read, at)
            found = self._decode(read[at:end])
            if found and isinstance(last := found[-1], OpaqueDelta) and not runs.is_given_up:
                runs.learn(last.raw)
            events += found
            at = end
        return events

    def _cut(self, read: bytes) -> bytes:
        """What of a long read is decoded now, up to the end of an event where there is one."""
        size = min(len(read), PIECE_BYTES)
        lines = read.count(b"\n", 0, size)
        if b"\r" in read:
            lines += read.count(b"\r", 0, size)
        end = read.rfind(_EVENT_END, 0, size) + len(_EVENT_END)
        is_run = self._is_between and not self._runs.is_given_up
        if lines > LINES_MAX and not (is_run and self._runs.count(read[:end])):
            size = CROWDED_PIECE_BYTES
            end = read.rfind(_EVENT_END, 0, size) + len(_EVENT_END)
        if size == len(read):
            return read
        if end >= len(_EVENT_END):
            size = end
        self.rest = read[size:]
        return read[:size]

    def _decode(self, part: bytes) -> list[Event]:
        events = self.stream.decode(self._decoder.feed(part))
        # A blank line ends whatever there was.
        self._is_between = part.endswith(_EVENT_END) or self._decoder.is_between_events
        return events

    def end(self) -> list[Event]:
        """The body ended: return the events of a last frame that lacks its blank line."""
        return self.stream.decode(self._decoder.close())
