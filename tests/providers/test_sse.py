"""The SSE core: every spelling, every split, bounded size, linear time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import BadWire
from providers.sse import Frame, SseDecoder


def frames_of(*reads: bytes) -> list[Frame]:
    decoder = SseDecoder()
    frames: list[Frame] = []
    for read in reads:
        frames += decoder.feed(read)
    return frames + decoder.close()


CASES = {
    "a space after the colon is dropped": (b"data: a\n\n", [Frame(b"a")]),
    "the space is optional (GW-018)": (b"data:a\n\n", [Frame(b"a")]),
    "only one space is dropped": (b"data:  a\n\n", [Frame(b" a")]),
    "CRLF ends lines": (b"data: a\r\n\r\ndata: b\r\n\r\n", [Frame(b"a"), Frame(b"b")]),
    "CR ends lines": (b"data: a\r\rdata: b\r\r", [Frame(b"a"), Frame(b"b")]),
    "line ends may be mixed": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", [Frame(b"a"), Frame(b"b"), Frame(b"c")]),
    "data lines are joined by LF": (b"data: a\ndata:b\r\ndata\n\n", [Frame(b"a\nb\n")]),
    "comments vanish (GW-022)": (b": OPENROUTER PROCESSING\n\n:\ndata: a\n: x\n\n", [Frame(b"a")]),
    "the event type is kept for its event alone": (b"event: error\ndata: a\n\ndata: b\n\n", [Frame(b"a", b"error"), Frame(b"b")]),
    "an event without data is none": (b"event: ping\n\ndata: a\n\n", [Frame(b"a")]),
    "id and retry are not data": (b"id: 7\nretry: 100\nevent: message\ndata: a\n\n", [Frame(b"a", b"message")]),
    "unknown fields are ignored": (b"foo: bar\nfoo\ndata: a\n\n", [Frame(b"a")]),
    "llama.cpp's error field is an error event": (b'error: {"code":500}\n\n', [Frame(b'{"code":500}', b"error")]),
    "a byte order mark is dropped": (b"\xef\xbb\xbfdata: a\n\n", [Frame(b"a")]),
    "an empty data line is an event": (b"data:\n\n", [Frame(b"")]),
    "colons in the value stay": (b"data: a: b\n\n", [Frame(b"a: b")]),
    "UTF-8 passes as bytes (GW-016)": ("data: 你好😀é\n\n".encode(), [Frame("你好😀é".encode())]),
    "blank lines alone are nothing": (b"\n\n\r\n\n", []),
}  # fmt: skip


@pytest.mark.parametrize(("wire", "expected"), CASES.values(), ids=CASES.keys())
def test_frames(wire: bytes, expected: list[Frame]) -> None:
    assert SseDecoder().feed(wire) == expected


@pytest.mark.parametrize("wire", [wire for wire, _ in CASES.values()], ids=CASES.keys())
def test_every_split_gives_the_same_frames(wire: bytes) -> None:
    whole = SseDecoder().feed(wire)
    for cut in range(len(wire) + 1):
        decoder = SseDecoder()
        assert decoder.feed(wire[:cut]) + decoder.feed(wire[cut:]) == whole
    decoder = SseDecoder()
    assert [frame for byte in wire for frame in decoder.feed(bytes([byte]))] == whole


PIECES = st.sampled_from(
    [b"data: ", b"data:", b"data", b'{"a":1}', b"\n", b"\r", b"\r\n", b"\n\n", b": c", b"event: e", b"id: 1", "é😀".encode(), b"\xef\xbb\xbf", b" ", b"[DONE]"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=30), st.lists(st.integers(0, 200), max_size=12))
def test_any_wire_gives_the_same_frames_however_it_is_cut(
    pieces: list[bytes], cuts: list[int]
) -> None:
    wire = b"".join(pieces)
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    reads = [wire[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    assert frames_of(*reads) == frames_of(wire)


@given(st.lists(PIECES, max_size=30))
def test_line_ends_do_not_matter(pieces: list[bytes]) -> None:
    wire = b"".join(piece for piece in pieces if b"\r" not in piece)
    assert SseDecoder().feed(wire.replace(b"\n", b"\r\n")) == SseDecoder().feed(wire)
    assert SseDecoder().feed(wire.replace(b"\n", b"\r")) == SseDecoder().feed(wire)


LAST = {
    "complete JSON without its blank line is delivered": (b'data: {"a":1}\n', [Frame(b'{"a":1}')]),
    "also without any line end": (b'data: {"a":1}', [Frame(b'{"a":1}')]),
    "the end mark too": (b"data: [DONE]", [Frame(b"[DONE]")]),
    "a torn object is discarded": (b'data: {"a":', []),
    "a torn field name is discarded": (b"dat", []),
    "a mark cut short is discarded": (b"\xef\xbb", []),
}


@pytest.mark.parametrize(("wire", "expected"), LAST.values(), ids=LAST.keys())
def test_the_end_of_the_stream_delivers_a_whole_last_event(
    wire: bytes, expected: list[Frame]
) -> None:
    decoder = SseDecoder()
    assert decoder.feed(wire) == []
    assert decoder.close() == expected


def test_comments_and_unknown_fields_are_counted() -> None:
    decoder = SseDecoder()
    decoder.feed(b": a\n:\nfoo: 1\nid: 2\ndata: x\n\n")
    assert (decoder.comments, decoder.ignored_fields) == (2, 1)


OVERSIZED = {
    "one line that never ends": [b"data: " + b"x" * 600, b"y" * 600],
    "one line in one read": [b"data: " + b"x" * 1200 + b"\n"],
    "many data lines": [b"data: " + b"x" * 90 + b"\n"] * 12,
    "endless empty data lines": [b"data:\n" * 1100],
    "a comment that never ends": [b":" + b"x" * 600, b"x" * 600],
}


@pytest.mark.parametrize("reads", OVERSIZED.values(), ids=OVERSIZED.keys())
def test_an_event_beyond_the_limit_is_refused(reads: list[bytes]) -> None:
    decoder = SseDecoder(max_frame_bytes=1000)
    with pytest.raises(BadWire, match="exceeds 1000 bytes"):
        for read in reads:
            decoder.feed(read)


def test_the_limit_is_per_event() -> None:
    decoder = SseDecoder(max_frame_bytes=1000)
    frames = [frame for _ in range(20) for frame in decoder.feed(b"data: " + b"x" * 900 + b"\n\n")]
    assert len(frames) == 20


def test_a_huge_event_in_small_reads_takes_linear_time() -> None:
    def seconds_for(size_bytes: int) -> float:
        wire = b'data: "' + b"x" * size_bytes + b'"\n\n'
        decoder = SseDecoder()
        start = time.thread_time()  # of this thread alone: whoever else runs does not count
        frames = [f for at in range(0, len(wire), 512) for f in decoder.feed(wire[at : at + 512])]
        assert len(frames[0].data) == size_bytes + 2
        return time.thread_time() - start

    small = min(seconds_for(250_000) for _ in range(3))
    # Sixteen times the bytes; a rescan per read would take 256 times as long.
    assert min(seconds_for(4_000_000) for _ in range(3)) < 100 * small
