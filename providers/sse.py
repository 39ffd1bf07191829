"""Server-sent events from bytes, correct for every split of the input.

One decoder for every vendor: LF, CRLF and CR line ends (mixed, split over reads), `data:` with and
without the space, several data lines, comments, a byte order mark. Text is never decoded here, so a
character that straddles two reads survives. A byte is looked at a bounded number of times however
small the reads are.

Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream" (2026-11).
"""

from __future__ import annotations

import msgspec

from providers.errors import BadWire

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""The longest event accepted; real ones reach megabytes (images and audio as base64)."""

_TORN_BYTES_MAX = 64 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event; a struct because a busy stream makes hundreds of thousands a second.

    Attributes:
        data: The data lines joined by LF, without the field name.
        event: The event type, empty when the stream named none.
    """

    data: bytes
    event: bytes = b""


class SseDecoder:
    """Turns reads of one stream into frames; `id` and `retry` are dropped, POST never reconnects.

    Attributes:
        comments: Comment lines seen; vendors use them as keep-alives.
        ignored_fields: Lines with a field name that the format does not know.
    """

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.comments = 0
        self.ignored_fields = 0
        self._max_frame_bytes = max_frame_bytes
        self._line_parts: list[bytes] = []
        self._data: list[bytes] = []
        self._event = b""
        self._line_bytes = 0
        self._data_bytes = 0
        self._skips_lf = False
        self._head: bytes | None = b""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Take one read and return the frames that it completes.

        Raises:
            BadWire: An event exceeds the size limit.
        """
        if self._head is not None:
            chunk = self._without_mark(chunk)
        elif (
            # One event of one line, which is how slower streams come.
            chunk.startswith(b"data: ")
            and chunk.find(b"\n") == len(chunk) - 2 <= self._max_frame_bytes
            and chunk.endswith(b"\n\n")
            and b"\r" not in chunk
            and not (self._line_parts or self._data or self._event or self._skips_lf)
        ):
            return [Frame(chunk[6:-2])]
        if self._skips_lf and chunk:
            self._skips_lf = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        if not chunk:
            return []
        frames: list[Frame] = []
        if b"\r" in chunk:
            # A CR ends its line at once; an LF that opens the next read belongs to it.
            self._skips_lf = chunk[-1] == 0x0D
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not (self._line_parts or self._data or self._event):
            chunk = self._take_events(chunk, frames)
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._line_parts:
            self._line_parts.append(lines[0])
            lines[0] = b"".join(self._line_parts)
            self._line_parts.clear()
            self._line_bytes = 0
        if lines:
            self._take_lines(lines, frames)
        if rest:
            self._line_parts.append(rest)
            self._line_bytes += len(rest)
            if self._line_bytes + self._data_bytes > self._max_frame_bytes:
                raise self._too_long()
        return frames

    @property
    def is_between_events(self) -> bool:
        """Whether the next byte starts an event: nothing of one is kept."""
        return self._head is None and not (
            self._line_parts or self._data or self._event or self._skips_lf
        )

    def take_torn(self) -> bytes:
        """Take back the start of an event that broke off in its first line of data.

        Empty when it broke off elsewhere, or is so long that putting it before the next read would
        cost too much; then it stays here.
        """
        is_first_line = self._head is None and not (self._data or self._event or self._skips_lf)
        if not is_first_line or self._line_bytes > _TORN_BYTES_MAX:
            return b""
        torn = b"".join(self._line_parts)
        self._line_parts.clear()
        self._line_bytes = 0
        return torn

    def close(self) -> list[Frame]:
        """End of the stream: return a last event that lacks its blank line but is whole.

        The standard discards it; many servers end without the blank line, so an event that is
        `[DONE]` or complete JSON is delivered and only a torn one is discarded.
        """
        frames: list[Frame] = []
        if self._head:
            self._line_parts.append(self._head)
            self._head = None
        line = b"".join(self._line_parts)
        self._line_parts.clear()
        self._take_lines([line, b""], frames)
        return [frame for frame in frames if frame.data == b"[DONE]" or _is_json(frame.data)]

    def _without_mark(self, chunk: bytes) -> bytes:
        """Strip a byte order mark from the start of the stream, also one that is split."""
        head = (self._head or b"") + chunk
        if len(head) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BYTE_ORDER_MARK)

    def _take_events(self, chunk: bytes, frames: list[Frame]) -> bytes:
        """Interpret whole events from an event boundary on and return what is behind the last."""
        events = chunk.split(b"\n\n")
        rest = events.pop()
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                if len(event) > self._max_frame_bytes:
                    raise self._too_long()
                frames.append(Frame(event[6:]))
            else:
                self._take_lines([*event.split(b"\n"), b""], frames)
        return rest

    def _take_lines(self, lines: list[bytes], frames: list[Frame]) -> None:
        """Interpret lines, their ends already removed; one loop because it is the hot one."""
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                value = line[6:] if line.startswith(b"data: ") else line[5:]
                data.append(value)
                self._data_bytes += len(value) + 1
                if self._data_bytes > self._max_frame_bytes:
                    raise self._too_long()
            elif not line:
                if data:
                    whole = data[0] if len(data) == 1 else b"\n".join(data)
                    frames.append(Frame(whole, self._event))
                    data.clear()
                    self._data_bytes = 0
                self._event = b""
            elif line.startswith(b":"):
                self.comments += 1
            else:
                self._take_field(line)

    def _take_field(self, line: bytes) -> None:
        """Interpret a line that is neither data with a colon, a comment nor empty."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._event = value
        elif name == b"data":
            self._append_data(value)
        elif name == b"error":
            # llama.cpp builds of 2024 send `error: {...}` as a field of its own.
            self._event = b"error"
            self._append_data(value)
        elif name not in (b"id", b"retry"):
            self.ignored_fields += 1

    def _append_data(self, value: bytes) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1
        if self._data_bytes > self._max_frame_bytes:
            raise self._too_long()

    def _too_long(self) -> BadWire:
        return BadWire(f"An event of the stream exceeds {self._max_frame_bytes} bytes.")


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
