"""Frames and messages, whole, split, cut and hostile."""

from __future__ import annotations

import struct
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine.errors import ProtocolError
from local_engine.protocol import (
    FRAME_BYTES_MAX,
    Abort,
    Accepted,
    ClientMessage,
    Done,
    EngineMessage,
    GenerateRequest,
    GenerationUsage,
    Hello,
    MessageReader,
    Submit,
    TextDelta,
    encode_frame,
)


def client_reader() -> MessageReader[ClientMessage]:
    return MessageReader(cast("type[ClientMessage]", ClientMessage))


def engine_reader() -> MessageReader[EngineMessage]:
    return MessageReader(cast("type[EngineMessage]", EngineMessage))


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


REQUEST = GenerateRequest(
    id="r1",
    namespace=b"\xff\0tenant",
    messages=[
        {"role": "user", "content": [{"type": "text", "text": "hé 😀"}]},
        {"role": "tool", "content": None, "n": 2**63, "deep": {"list": [1.5, True, None]}},
    ],
    logit_bias={5: -1.5},
    stop=["\n\n"],
    seed=2**64 - 1,
)
MESSAGES = [Hello(version=1), Submit(request=REQUEST), Abort(id="r1"), Abort(id="é")]


def test_messages_survive_every_split_of_their_bytes() -> None:
    data = b"".join(encode_frame(message) for message in MESSAGES)
    for cut in range(len(data) + 1):
        reader = client_reader()
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == MESSAGES


def test_messages_survive_arriving_byte_by_byte() -> None:
    reader = client_reader()
    data = b"".join(encode_frame(message) for message in MESSAGES)
    assert [each for byte in data for each in reader.feed(bytes([byte]))] == MESSAGES


def test_missing_bytes_never_reads_past_a_message() -> None:
    data = b"".join(encode_frame(message) for message in MESSAGES)
    reader = client_reader()
    got, position = [], 0
    while position < len(data):
        wanted = reader.missing_bytes
        new = reader.feed(data[position : position + wanted])
        assert len(new) <= 1
        got += new
        position += wanted
    assert got == MESSAGES
    assert position == len(data)


def test_unknown_fields_are_ignored() -> None:
    payload = msgspec.msgpack.encode({"type": "abort", "id": "x", "novelty": [1, {"a": 2}]})
    assert client_reader().feed(frame(payload)) == [Abort(id="x")]


SECRET = "the caller's words"
BAD_FRAMES = {
    "an unknown type": frame(msgspec.msgpack.encode({"type": "exec", "id": SECRET})),
    "no type": frame(msgspec.msgpack.encode({"id": SECRET})),
    "a message of the other direction": encode_frame(
        Done(id="x", finish_reason="stop", usage=GenerationUsage())
    ),
    "a value of the wrong type": frame(msgspec.msgpack.encode({"type": "abort", "id": [SECRET]})),
    "a missing field": frame(msgspec.msgpack.encode({"type": "abort"})),
    "no map": frame(msgspec.msgpack.encode([SECRET])),
    "no msgpack": frame(b"\xc1"),
    "an empty frame": frame(b""),
    "invalid text": frame(b"\x82\xa4type\xa5abort\xa2id\xa1\xff"),
    "bytes after the message": frame(msgspec.msgpack.encode({"type": "abort", "id": "x"}) + b"x"),
    "a length beyond the limit": struct.pack(">I", FRAME_BYTES_MAX + 1),
    "the greatest length": b"\xff\xff\xff\xff",
    "deep nesting": frame(
        b"\x82\xa4type\xa6submit\xa7request\x83\xa2id\xa1x\xa9namespace\xc4\x01x\xa8messages\x91\x81\xa1a"
        + b"\x91" * 100_000
    ),
    # ENG-133: bytes of a pickle are no message.
    "a pickle": frame(
        b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."
    ),
}


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_bad_frame_is_a_protocol_error_that_quotes_nothing(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        client_reader().feed(data)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_a_protocol_error(data: bytes) -> None:
    reader = client_reader()
    try:
        messages = reader.feed(data)
    except ProtocolError:
        return
    assert all(isinstance(message, Hello | Submit | Abort) for message in messages)


@given(st.binary(max_size=120), st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_frame_gives_a_message_or_a_protocol_error(tail: bytes, place, value) -> None:
    data = bytearray(encode_frame(Submit(request=REQUEST)) + tail)
    data[place % len(data)] = value
    reader = client_reader()
    try:
        reader.feed(bytes(data))
    except ProtocolError:
        return
    assert reader.missing_bytes > 0


def test_a_message_larger_than_a_frame_is_not_sent() -> None:
    text = "x" * (FRAME_BYTES_MAX + 1)
    with pytest.raises(ProtocolError, match="exceeds"):
        encode_frame(Submit(request=GenerateRequest(id="x", namespace=b"t", prompt=text)))


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


UNSENDABLE = {"a number beyond 64 bits": 10**30, "nesting without end": nested(10_000)}


@pytest.mark.parametrize("value", UNSENDABLE.values(), ids=UNSENDABLE.keys())
def test_a_message_that_no_frame_can_hold_is_not_sent(value: object) -> None:
    messages = [{"role": "user", "content": "x", "extra": value}]
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode_frame(Submit(request=GenerateRequest(id="x", namespace=b"t", messages=messages)))


EVENTS = st.one_of(
    st.builds(
        Accepted,
        id=st.text(max_size=5),
        prompt_tokens=st.integers(0, 2**40),
        cached_tokens=st.integers(0, 2**40),
    ),
    st.builds(
        TextDelta,
        id=st.text(max_size=5),
        text=st.text(max_size=20),
        output_tokens=st.integers(0, 2**40),
    ),
)


@given(st.lists(EVENTS, max_size=8))
def test_every_event_comes_out_as_it_went_in(events) -> None:
    assert engine_reader().feed(b"".join(map(encode_frame, events))) == events
