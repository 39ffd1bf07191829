"""Lists of an upstream that hold more than anything means are refused before they are decoded."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from providers.codecs.openai_chat import DecodedAnswer, chunk_from_answer, decode_answer
from providers.codecs.tool_calls import ToolCallRepair
from providers.contract import ChatRequest, OpaqueDelta
from providers.errors import BadWire, UpstreamFault
from providers.sse import Frame
from tests.providers.golden import new_stream

MANY = b"[" + b"{}," * 1_000_000 + b"{}]"
CONTENT = b'{"choices":[{"delta":{"content":"a"}}]}'


def failure_within_a_tenth(data: bytes) -> str:
    """What a stream says to one event, which must not take long."""
    found = new_stream()
    start_s = time.thread_time()
    events = found.decode([Frame(CONTENT), Frame(data), Frame(CONTENT)])
    assert time.thread_time() - start_s < 0.1
    assert [type(event) for event in events] == [OpaqueDelta]
    assert isinstance(found.failure, BadWire)
    return str(found.failure)


EVENTS = {
    "choices": b'{"choices":%b}' % MANY,
    "tool calls": b'{"choices":[{"delta":{"tool_calls":%b}}]}' % MANY,
    "an object of another shape": b'{"choices":5,"x":%b}' % MANY,
    "garbage behind it": b'{"x":%b}!' % MANY,
}


@pytest.mark.parametrize("data", EVENTS.values(), ids=EVENTS)
def test_a_list_of_a_million_ends_the_stream_at_once(data: bytes) -> None:
    assert "holds a broken" in failure_within_a_tenth(data)


@pytest.mark.parametrize("filler", [b"", b" " * 70_000], ids=["short", "long"])
def test_a_thousand_choices_are_taken_and_one_more_is_not(filler: bytes) -> None:
    choices = [{"index": n, "delta": {"content": "a"}} for n in range(1025)]
    found = new_stream()
    found.decode([Frame(json.dumps({"choices": choices[:-1]}).encode() + filler)])
    assert found.failure is None
    found.decode([Frame(json.dumps({"choices": choices}).encode() + filler)])
    assert isinstance(found.failure, BadWire)


def test_as_many_calls_in_one_event_are_none_even_if_they_are_parts_of_one() -> None:
    raw = json.dumps([{"index": 0, "function": {"arguments": "1"}}] * 1025).encode()
    with pytest.raises(msgspec.ValidationError, match="1024"):
        ToolCallRepair(id_prefix="call_").repair(raw)


@pytest.mark.parametrize("filler", [b"", b" " * 70_000], ids=["short", "long"])
def test_a_whole_answer_holds_a_thousand_choices_and_not_one_more(filler: bytes) -> None:
    choice = {"message": {"content": "a"}, "finish_reason": "stop"}
    whole = json.dumps({"choices": [choice] * 1024}).encode() + filler
    assert len(decoded(whole).event.finish_reasons) == 1024
    with pytest.raises(BadWire):
        decoded(json.dumps({"choices": [choice] * 1025}).encode() + filler)


def test_a_whole_answer_of_a_million_choices_is_refused_at_once() -> None:
    body = b'{"choices":%b}' % MANY
    start_s = time.thread_time()
    with pytest.raises(BadWire):
        decoded(body)
    with pytest.raises(msgspec.DecodeError):
        chunk_from_answer(body)
    assert time.thread_time() - start_s < 0.1


def decoded(body: bytes) -> DecodedAnswer:
    request = ChatRequest(
        fields={}, is_stream=False, wants_usage=False, namespace=bytes(16), request_id="r"
    )
    return decode_answer(
        body, request, deployment="a/m", on_error=lambda body: UpstreamFault("fault")
    )
