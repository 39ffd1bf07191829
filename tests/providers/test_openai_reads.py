"""Runs of plain frames: the short way through a stream means exactly what the long way means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.codecs.openai_reads import CROWDED_PIECE_BYTES, LINES_MAX, PIECE_BYTES, ChatReads
from providers.contract import Event, OpaqueDelta, OpaqueRun
from providers.sse import SseDecoder
from tests.providers.golden import new_stream, one_by_one, turns

HEAD = b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m1","choices":[{"index":0,"delta":{'
TAIL = b'},"finish_reason":null}]}'


def data_of(text: bytes, key: bytes = b"content") -> bytes:
    """A plain frame's JSON around a text that stands between quotes as it is."""
    return HEAD + b'"' + key + b'":"' + text + b'"' + TAIL


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def wire_of(*texts: bytes) -> bytes:
    return b"".join(event(data_of(text)) for text in texts)


def slow(wire: bytes) -> tuple[list[Event], object]:
    """Every frame decoded, in one read."""
    stream, decoder = new_stream(), SseDecoder()
    return stream.decode(decoder.feed(wire)) + stream.decode(decoder.close()), state(stream)


def fast(reads: list[bytes]) -> tuple[list[Event], object]:
    """The way of the provider."""
    fed = ChatReads(stream=new_stream())
    events = [event for read in reads for piece in turns(fed, read) for event in piece] + fed.end()
    return one_by_one(events), state(fed.stream)


def state(stream) -> object:
    return (
        type(stream.failure),
        stream.is_done,
        stream.is_finished,
        stream.has_content,
        stream.upstream_model,
        stream.faults,
    )


def cut(wire: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(at, len(wire)) for at in cuts), len(wire)]
    return [wire[a:b] for a, b in zip(edges, edges[1:], strict=False) if a < b]


ODD_TEXTS = [
    b"a", b"", b" word", b"\\n", b'\\"', b"\\\\", b"\\u0041", b"\\ud83d\\ude00", "é😀\u2028\u0085".encode(),
    b'"', b"\\", b"\\\\\\", b"\\u12", b"\\ud83d", b"\\ude00", b"\\q", b"\x00", b"\t", b"\xff", b"\xc3", b"\x7f",
    b'x","finish_reason":"stop', b'x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}',
    b'x"' + TAIL + b"\n\ndata: " + HEAD + b'"content":"y', b"x\n\ndata: [DONE]\n\n", b"x\rdata: y", b"data: ", b"[DONE]",
    b'\\"},\\"finish_reason\\":null}]}\\n\\ndata: ', b'a","content":"', b'a","content":null,"x":"', b'a","tool_calls":[],"x":"',
    b"tool_calls usage error finish_reason x_groq", b"fareway probe 7d2e",
]  # fmt: skip
"""What stands between the quotes, whether a string may hold it or not."""
TEXTS = st.sampled_from(ODD_TEXTS)

PADDED = HEAD + b'"content":"%b"},"finish_reason":null}],"usage":null,"obfuscation":"%b"}'
NESTED = HEAD + b'"content":"%b"},"finish_reason":null,"x":{"pad":"%b"}}]}'
MODEL = b'{"choices":[{"delta":{"content":"%b"}}],"model":"%b"}'
OBJECT = b'{"choices":[{"delta":{"content":"%b"}}],"object":"%b"}'
KEYED = b'{"choices":[{"delta":{"content":"%b"}}],"%b":1}'
PADDINGS = [PADDED, NESTED, MODEL, OBJECT, KEYED]
PADS = st.sampled_from([
    b"k3", b"", b"zQ1", b"\\n", b'\\"', b'"', b"\\", b"\r", b"\n", b'","usage":{"prompt_tokens":1},"obfuscation":"', b'x"}\n\n', b"error",
    b'"},"finish_reason":null}],"usage":null,"obfuscation":"', b"usage", b"fareway padding 41c9",
])  # fmt: skip

OTHERS = st.sampled_from([
    HEAD + b'"role":"assistant","content":""},"finish_reason":null}]}',
    HEAD + b'"role":"assistant","content":"a"},"finish_reason":null}]}',
    HEAD + b'},"finish_reason":"stop"}]}',
    HEAD + b'"content":"z"},"finish_reason":"length"}]}',
    HEAD + b'"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"finish_reason":null}]}',
    HEAD + b'"content":"b"},"finish_reason":null}],"usage":{"prompt_tokens":3,"completion_tokens":1}}',
    b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}',
    b'{"choices":[{"index":1,"delta":{"content":"other choice"},"finish_reason":null}]}',
    b'{"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"two"}}]}',
    b'{"choices":[{"index":0,"delta":{"content":"a","content":"b"}}]}',
    b'{"choices":[{"index":0,"delta":{"content":"b"}}],"x_groq":{"id":"r"}}',
    b'{"choices":[{"index":0,"delta":{"content":"b"}}],"error":null}',
    b'{"error":{"message":"no","code":500}}',
    b"[DONE]", b"", b"{", b'{"choices":[]}{"choices":[]}', b"null",
])  # fmt: skip
KEYS = st.sampled_from([b"content", b"reasoning_content", b"reasoning"])
FRAMINGS = st.sampled_from([
    b"data: %b\n\n", b"data: %b\n\n", b"data: %b\n\n", b"data:%b\n\n", b"data: %b\r\n\r\n", b"data: %b\r\r", b"data: %b\n\n\n",
    b"event: error\ndata: %b\n\n", b"event: message\ndata: %b\n\n", b": x\n\ndata: %b\n\n", b": x\ndata: %b\n\n", b"id: 1\ndata: %b\n\n",
    b"data: %b\n", b"data: %b\ndata: \n\n", b" data: %b\n\n",
])  # fmt: skip


@st.composite
def wires(draw: st.DrawFn) -> bytes:
    """Mostly runs, with everything between them that a stream may hold and much that it may not."""
    wire = b""
    for _ in range(draw(st.integers(1, 5))):
        key = draw(KEYS)
        plain = draw(st.lists(st.sampled_from([b"a", b"bc", b"\\n", "é".encode()]), max_size=6))
        wire += b"".join(event(data_of(text, key)) for text in plain)
        padded = draw(st.sampled_from(PADDINGS))
        pads = draw(st.lists(st.sampled_from([b"k3", b"zQ1", b"", b"k4x"]), max_size=6))
        wire += b"".join(event(padded % (b"a", pad)) for pad in pads)
        odd = st.one_of(
            OTHERS,
            st.builds(data_of, TEXTS, st.just(key)),
            st.builds(lambda text, pad, padded=padded: padded % (text, pad), TEXTS, PADS),
        )
        wire += b"".join(draw(FRAMINGS) % data for data in draw(st.lists(odd, max_size=3)))
    return wire


@given(wires(), st.lists(st.integers(0, 3000), max_size=10))
def test_the_short_way_means_what_the_long_way_means(wire: bytes, cuts: list[int]) -> None:
    assert fast(cut(wire, cuts)) == slow(wire)


@given(wires())
def test_also_when_each_event_comes_alone(wire: bytes) -> None:
    ends = [at + 2 for at in range(len(wire)) if wire.startswith(b"\n\n", at)]
    assert fast(cut(wire, ends)) == slow(wire)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_every_odd_text_among_others_and_alone(text: bytes) -> None:
    learned = wire_of(b"a", b"b")
    for more in (wire_of(text), wire_of(b"c", text, b"d")):
        assert fast([learned, more]) == slow(learned + more)


BETWEEN = {
    "nothing": b"",
    "an event type of the next frame": b"event: error\n",
    "an event type of nobody": b"event: error\n\n",
    "a line of data": b"data: \n",
    "a line of data that ends in CR": b"data: \r",
    "CR": b"\r",
    "CRLF": b"\r\n",
    "a comment": b": x\n",
    "an id": b"id: 1\n",
    "a torn field": b"da",
    "space": b" ",
    "a byte order mark": b"\xef\xbb\xbf",
}
SHORT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN.keys())
def test_what_stands_before_a_run_keeps_its_meaning_at_every_split(between: bytes) -> None:
    wire = SHORT * 3 + between + SHORT * 2
    expected = slow(wire)
    for at in range(len(wire)):
        for more in (at, at + len(SHORT), len(wire)):
            assert fast(cut(wire, [at, more])) == expected


def runs_of(*reads: bytes) -> list[tuple[int, bool]]:
    """How many frames each event holds, and whether it is a run."""
    fed = ChatReads(stream=new_stream())
    events = [event for read in reads for event in fed.feed(read)]
    return [(event.count, True) if isinstance(event, OpaqueRun) else (1, False) for event in events]


WORDS = [b" word%d" % number for number in range(40)]
TAKEN = {
    "a run behind the first frame": ([wire_of(*WORDS)], [(1, False), (39, True)]),
    "each frame of its own read": ([wire_of(word) for word in WORDS[:3]], [(1, False), (1, True), (1, True)]),
    "escapes": ([wire_of(b"a", b"\\n", b'\\"x\\"', b"\\u00e9", b"\\ud83d\\ude00")], [(1, False), (4, True)]),
    "a frame without text ends a run": ([wire_of(b"a", b"b", b"", b"c", b"d")], [(1, False), (1, True), (1, False), (2, True)]),
    "a run that is torn goes on": ([wire_of(*WORDS)[:1000], wire_of(*WORDS)[1000:]], [(1, False), (5, True), (34, True)]),
    "OpenAI's padding": (
        [b"".join(event(PADDED % (b"a%d" % n, b"pad%d" % (n * 7))) for n in range(20))],
        [(1, False), (1, False), (18, True)],
    ),
    "padding, each frame of its own read": (
        [event(PADDED % (b"a", pad)) for pad in (b"k3", b"zQ1", b"", b"k")],
        [(1, False), (1, False), (1, True), (1, True)],
    ),
    "what varies in the choice itself": (
        [b"".join(event(NESTED % (b"a", pad)) for pad in (b"k3", b"zQ1", b"k"))],
        [(1, False)] * 3,
    ),
    "reasoning, then text": (
        [b"".join(event(data_of(b"hm", b"reasoning")) for _ in range(3)) + wire_of(b"a", b"b", b"c")],
        [(1, False), (2, True), (1, False), (2, True)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reads", "expected"), TAKEN.values(), ids=TAKEN.keys())
def test_where_the_short_way_is_taken(reads: list[bytes], expected: list[tuple[int, bool]]) -> None:
    assert runs_of(*reads) == expected


def test_a_run_is_the_bytes_of_the_read() -> None:
    fed = ChatReads(stream=new_stream())
    fed.feed(wire_of(b"a"))
    read = wire_of(b"b", b"c")
    [run] = fed.feed(read)
    assert run == OpaqueRun(raw=read, count=2)
    assert run.raw is read


def test_a_stream_whose_frames_differ_elsewhere_is_given_up_on() -> None:
    frames = [
        json.dumps({"id": f"c{number}", "choices": [{"index": 0, "delta": {"content": "a"}}]})
        for number in range(100)
    ]
    fed = ChatReads(stream=new_stream())
    events = fed.feed("".join(f"data: {frame}\n\n" for frame in frames).encode())
    assert events == [OpaqueDelta(raw=frame.encode()) for frame in frames]


def test_text_that_varies_in_its_other_copy_is_no_run() -> None:
    # Together repeats the text outside the delta: only frames that repeat it alike may run.
    frames = [b'{"choices":[{"index":0,"text":"%b","delta":{"content":"%b"}}]}' % (t, t) for t in (b"a", b"b", b"b", b"b")]  # fmt: skip
    wire = b"".join(event(frame) for frame in frames)
    assert fast([wire]) == slow(wire)
    assert [one.raw for one in fast([wire])[0]] == frames


BARE = HEAD + b'"content":"%b"}'
"""Starts and ends as a padded frame does, and is no JSON."""

HOSTILE = {
    "no padding": (PADDED, [BARE % b"a"]),
    "no padding, but a line end": (PADDED, [BARE % b"a\rb"]),
    "an empty text": (PADDED, [PADDED % (b"", b"k3")]),
    "an empty text among others": (PADDED, [PADDED % pair for pair in ((b"a", b"k"), (b"", b"k3"), (b"b", b""))]),
    "two paddings in one frame and none in the next": (
        PADDED,
        [PADDED % (b"a", PADDED[len(HEAD) :].removesuffix(b'"}').split(b"%b")[1].join([b"x", b"y"])), BARE % b"a"],
    ),
    "an error where the padding's name was": (KEYED, [KEYED % (b"a", b"error")]),
    "counts where the padding's name was": (KEYED, [KEYED % (b"a", b"usage")]),
}  # fmt: skip


@pytest.mark.parametrize(("padded", "frames"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_only_looks_like_a_padded_frame(padded: bytes, frames: list[bytes]) -> None:
    learned = [event(padded % (b"a", pad)) for pad in (b"k3", b"zQ1", b"k", b"")]
    hostile = b"".join(event(frame) for frame in frames)
    for reads in ([*learned, hostile], [b"".join(learned) + hostile]):
        assert fast(reads) == slow(b"".join(reads))


def test_nothing_behind_the_end_of_a_stream_is_taken() -> None:
    fed = ChatReads(stream=new_stream())
    fed.feed(wire_of(b"a", b"b") + event(b"[DONE]"))
    assert fed.stream.is_done
    assert fed.feed(wire_of(b"c")) == []
    assert fed.feed(wire_of(b"c", b"d")) == []


READ_BYTES = 128 * 1024
CALL = b'{"choices":[{"delta":{"tool_calls":[{}]}}]}'
CROWDED = {
    "comments": b":\n",
    "blank lines": b"\n",
    "blank lines of one kind": b"\r",
    "fields that nobody knows": b"x\n",
    "events without data": b"data:\n\n",
    "events without content": event(b'{"choices":[]}'),
    "tool calls": event(CALL),
    "glued objects": b"data:" + CALL * 3 + b"\n\n",
    "plain frames and others in turn": event(data_of(b"a")) + event(b'{"choices":[]}'),
}


@pytest.mark.parametrize("piece", CROWDED.values(), ids=CROWDED.keys())
def test_a_turn_takes_a_bounded_part_of_a_crowded_read(piece):
    read = piece * (READ_BYTES // len(piece))
    fed = ChatReads(stream=new_stream())
    fed.feed(event(data_of(b"hi")))
    left, parts, events = read, [], 0
    while left:
        found = fed.feed(left)
        parts.append(left.removesuffix(fed.rest))
        left = fed.rest
        events += len(found)
        assert len(found) <= PIECE_BYTES // len(CALL)
    assert b"".join(parts) == read
    for part in parts:
        lines = part.count(b"\n") + part.count(b"\r")
        assert len(part) <= CROWDED_PIECE_BYTES or (lines <= LINES_MAX and len(part) <= PIECE_BYTES)
    assert fed.stream.failure is None
    assert events or not piece.startswith(b"data: ")


def test_a_read_that_is_one_run_is_taken_at_once_however_long():
    fed = ChatReads(stream=new_stream())
    fed.feed(wire_of(b"first", b"second"))
    read = wire_of(*[b"t"] * (READ_BYTES // len(wire_of(b"t"))))
    assert [len(found) for found in turns(fed, read)] == [1]


def test_a_run_of_short_frames_is_taken_in_long_pieces_although_its_end_is_torn():
    fed = ChatReads(stream=new_stream())
    fed.feed(wire_of(b"first", b"second"))
    frame = wire_of(b"t")
    read = frame * (READ_BYTES // len(frame)) + frame[:40]
    pieces = list(turns(fed, read))
    assert len(pieces) == -(-len(read) // (PIECE_BYTES // len(frame) * len(frame)))
    assert sum(run.count for [run] in pieces if isinstance(run, OpaqueRun)) == len(read) // len(
        frame
    )


@given(
    st.lists(
        st.sampled_from([*CROWDED.values(), event(data_of(b"word")), event(data_of(b"x" * 5000))]),
        max_size=30,
    ),
    st.integers(1, 200),
    st.lists(st.integers(0, READ_BYTES), max_size=3),
)
def test_pieces_mean_what_the_whole_means(kinds, repeats, cuts):
    wire = b"".join(kind * repeats for kind in kinds)[:READ_BYTES]
    assert fast(cut(wire, cuts)) == slow(wire)


GLUED = {
    "a few tiny objects": (b'{"choices":[]}' * 4, None),
    "many of an event's length": (CALL * 60, None),
    "many tiny ones, each of which costs as much": (b"{}" * 60, "BadWire"),
}


@pytest.mark.parametrize(("data", "failure"), GLUED.values(), ids=GLUED.keys())
def test_glued_objects_are_taken_apart_where_they_may_be_events(data, failure):
    fed = ChatReads(stream=new_stream())
    fed.feed(event(data_of(b"hi")))
    found = fed.feed(event(data))
    assert type(fed.stream.failure).__name__ == (failure or "NoneType")
    assert bool(found) is (failure is None)
