"""Runs of stream frames that differ in nothing but their text, found without decoding each.

Nearly every frame of an answer is the one before it with another text in it. Once a frame was
decoded and found to be plain content, its bytes around that text are a template: whatever stands
between them and is the inside of a JSON string means the same, so a whole run of such frames is one
slice of the read. Nothing is guessed: the template is tried with a text of ours first, and a text
that could end its string (a quote, a lone backslash, a control character) is never taken. OpenAI
pads every frame with a random text in a member of its own, so a template may have a second gap, in
a member that nobody looks at.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TEXTS = {
    key: re.compile(rb'"%s"\s*:\s*"((?:[^"\\]|\\.)+)"' % key.encode(), re.DOTALL)
    for key in ("content", "reasoning_content", "reasoning")
}
"""Where the text of a delta may stand, by the member's name."""

_PROBE = b"fareway probe 7d2e"
_OTHER_PROBE = b"fareway padding 41c9"
_START, _END = b"data: ", b"\n\n"
_PLAIN = bytes(byte for byte in range(0x20, 0x100) if byte not in b'"\\')
_ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
_TRIALS_MAX = 12
"""Frames of one stream that may fail to become a template before the search is given up."""

_MISSES_MAX = 32
"""Frames beside a template that held, less those that fitted it, before it is given up too."""

_TEMPLATE_BYTES_MAX = 4096


class PlainRuns:
    """Finds runs in the reads of one stream.

    Attributes:
        is_given_up: Whether frames of this stream vary elsewhere too, so that looking costs more
            than it saves.
    """

    def __init__(
        self,
        is_plain: Callable[[bytes, str, bytes], bool],
        is_idle: Callable[[bytes, bytes], bool],
    ) -> None:
        """Start without a template.

        Args:
            is_plain: Told a frame's JSON, a key and a text; whether the frame is plain content
                whose delta holds exactly that text under that key.
            is_idle: Told a frame's JSON and a text; whether exactly that text is a member of the
                frame that means nothing.
        """
        self.is_given_up = False
        self._is_plain = is_plain
        self._is_idle = is_idle
        self._is_proven = False
        self._trials = 0
        self._misses = 0
        self._head = self._between = self._tail = self._joint = b""
        self._start = self._stop = 0
        self._example: bytes | None = None

    def count(self, read: bytes) -> int:
        """How many frames a read holds that is nothing but whole frames of a run, else 0."""
        if self._example is not None:
            self._learn_now(read, 0)
        if not self._head or not read.startswith(self._head) or not read.endswith(self._tail):
            return 0
        text = read[self._start : -len(self._tail)]
        if b"\n" not in text:
            # One frame, which is how slower streams come.
            first, rest = text, b""
            if self._between:
                first, found, rest = text.partition(self._between)
                first = first if found else b""
            is_plain = first and not (first + rest).translate(None, _PLAIN)
            count = 1 if is_plain else int(bool(first) and self._are_texts([text]))
        else:
            texts = self._texts_of(read.split(b"\n"))
            # Put together again they are the read, or something else is among them.
            count = len(texts) if self._joint.join(texts) == text and self._are_texts(texts) else 0
        if count and (self._misses or not self._is_proven):
            self._note(count)
        return count

    def match(self, read: bytes, at: int) -> tuple[int, int]:
        """Find a run that starts at an event boundary.

        Args:
            read: Bytes of the stream.
            at: Where an event starts.

        Returns:
            Where the run ends, and how many whole frames it holds.
        """
        if self._example is not None:
            self._learn_now(read, at)
        if not self._head or not read.startswith(self._head, at):
            return at, 0
        end = read.rfind(_END, at) + len(_END)
        region = read if at == 0 and end == len(read) else read[at:end]
        if count := self.count(region):
            return end, count
        texts = self._leading(region.split(b"\n"), region)
        self._note(len(texts))
        frame_bytes = len(self._head) + len(self._tail)
        return at + len(texts) * frame_bytes + sum(map(len, texts)), len(texts)

    def _note(self, count: int) -> None:
        self._is_proven = self._is_proven or count > 0
        self._misses = max(0, self._misses - count)

    def _texts_of(self, lines: list[bytes]) -> list[bytes]:
        """What fills the gaps, if every second line is a frame of the run.

        A read is split at each line end because one byte is found ten times faster than two are.
        """
        start, stop = self._start, self._stop
        return [line[start:stop] for line in lines[:-2:2]]

    def _leading(self, lines: list[bytes], region: bytes) -> list[bytes]:
        """The texts of the frames before the first that is no frame of the run."""
        head, tail = self._head, self._tail[: -len(_END)]
        texts = self._texts_of(lines)
        # Nearly always the run ends a frame or two before the read does.
        while texts:
            last = lines[2 * len(texts) - 2]
            if last.startswith(head) and last.endswith(tail):
                break
            texts.pop()
        run = self._joint.join(texts) + self._tail
        if region.startswith(run, len(head)) and self._are_texts(texts):
            return texts
        good: list[bytes] = []
        for text, frame, blank in zip(texts, lines[::2], lines[1::2], strict=False):
            if blank or head + text + tail != frame or not self._are_texts([text]):
                break
            good.append(text)
        return good

    def end_of_other(self, read: bytes, at: int) -> int:
        """Where the event ends that starts here and has to be decoded; the rest, once given up."""
        if self._is_proven:
            self._misses += 1
        else:
            self._trials += 1
        self.is_given_up = self._misses > _MISSES_MAX or self._trials > _TRIALS_MAX
        found = -1 if self.is_given_up else read.find(_END, at)
        return len(read) if found < 0 else found + len(_END)

    def learn(self, data: bytes) -> None:
        """Make a template of the JSON of a frame that was decoded as content, when it is needed.

        That is with the next frame: the first words of an answer do not wait for it, and often they
        stand in a frame like no other, since it names the role too.
        """
        self._example = data

    def _learn_now(self, read: bytes, at: int) -> None:
        """Make the template, if the frame at a place of a read is like it up to the text."""
        data, self._example = self._example or b"", None
        if len(data) > _TEMPLATE_BYTES_MAX or _PROBE in data or _OTHER_PROBE in data:
            return
        for key, text in _TEXTS.items():
            for found in text.finditer(data):
                before, after = data[: found.start(1)], data[found.end(1) :]
                if not read.startswith(before, at + len(_START)):
                    continue
                # Whatever else the bytes could be read as: only if the probe comes out as this
                # member's whole text is the gap between them the inside of that one string.
                if self._is_plain(before + _PROBE + after, key, _PROBE):
                    between, after = self._second_gap(before, after, key)
                    self._set(_START + before, between, after + _END)
                    return

    def _second_gap(self, before: bytes, after: bytes, key: str) -> tuple[bytes, bytes]:
        """What stands between two gaps and behind the second; nothing and all of it without one."""
        known = self._tail[: -len(_END)]
        if self._between or self._head != _START + before or known == after:
            return b"", after
        # The last frame and this one differ behind the text: within one string of a member?
        between = after[: _equal_bytes(known, after)]
        between = between[: between.rfind(b'"') + 1]
        behind = after[len(after) - _equal_bytes(known[::-1], after[::-1]) :]
        behind = behind[behind.find(b'"') :] if b'"' in behind else b""
        probe = before + _PROBE + between + _OTHER_PROBE + behind
        is_sound = bool(between and behind) and len(between) + len(behind) <= len(after)
        if is_sound and self._is_plain(probe, key, _PROBE) and self._is_idle(probe, _OTHER_PROBE):
            return between, behind
        return b"", after

    def _set(self, head: bytes, between: bytes, tail: bytes) -> None:
        self._head, self._between, self._tail = head, between, tail
        self._joint = tail + head
        self._start, self._stop = len(head), len(_END) - len(tail)
        self._is_proven = False

    def _are_texts(self, texts: list[bytes]) -> bool:
        """Whether each fills the gaps with insides of JSON strings, and the first is not empty."""
        joined = b"\n".join(texts)
        separators = b"\n" * (len(texts) - 1)
        if between := self._between:
            if b"\r" in joined:
                return False
            joined = joined.replace(between, b"\r")
            separators = b"\r\n" * (len(texts) - 1) + b"\r"
        if not all(texts) or joined.startswith(b"\r") or b"\n\r" in joined:
            return False
        odd = joined.translate(None, _PLAIN)
        if b"\\" in odd:
            odd = _ESCAPE.sub(b"", joined).translate(None, _PLAIN)
        # What is left are the separators, unless a text holds what no string may hold unescaped.
        return odd == separators


def _equal_bytes(one: bytes, other: bytes) -> int:
    """How many bytes are equal from the start on."""
    for count, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return count
    return min(len(one), len(other))
