"""Bodies that go out and whole answers that come back."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.usage import Usage
from providers.codecs.finish_reasons import finish_word
from providers.codecs.openai_chat import (
    build_body,
    choice_count,
    chunk_from_answer,
    decode_answer,
    token_limit,
)
from providers.codecs.upstream_errors import error_from_body
from providers.contract import ChatRequest
from providers.errors import BadRequest, BadWire, ContextTooLong
from tests.providers.golden import CONTEXT


def request(**fields: str) -> ChatRequest:
    raw = {name: msgspec.Raw(value.encode()) for name, value in fields.items()}
    return ChatRequest(
        fields=raw, is_stream=True, wants_usage=False, namespace=bytes(16), request_id="r"
    )


def test_values_travel_as_their_own_bytes_in_the_clients_order() -> None:
    sent = request(
        temperature="1.0",
        messages='[ {"role":"user", "content":"\\u00e9 é"} ]',
        seed="12345678901234567890",
    )
    assert build_body("m/1", sent, stream=False).decode() == (
        '{"model":"m/1","temperature":1.0,"messages":[ {"role":"user", "content":"\\u00e9 é"} ],"seed":12345678901234567890}'
    )


def test_a_stream_asks_for_usage() -> None:
    body = json.loads(build_body("m", request(messages="[]"), stream=True))
    assert body == {
        "model": "m",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_an_upstream_that_cannot_be_asked_for_usage_is_not() -> None:
    body = json.loads(build_body("m", request(messages="[]"), stream=True, asks_for_usage=False))
    assert "stream_options" not in body


RENAMES = {"max_completion_tokens": "max_tokens"}


def test_a_field_that_the_upstream_knows_by_another_name_is_renamed() -> None:
    # GW-133
    body = json.loads(
        build_body(
            "m", request(max_completion_tokens="16", top_p="1"), stream=False, renames=RENAMES
        )
    )
    assert body == {"model": "m", "max_tokens": 16, "top_p": 1}


def test_both_names_with_one_value_are_one_field() -> None:
    body = build_body(
        "m", request(max_completion_tokens="16", max_tokens="16"), stream=False, renames=RENAMES
    )
    assert body == b'{"model":"m","max_tokens":16}'


def test_both_names_with_two_values_are_refused() -> None:
    # GW-133
    with pytest.raises(BadRequest) as caught:
        build_body(
            "m", request(max_completion_tokens="16", max_tokens="17"), stream=False, renames=RENAMES
        )
    assert caught.value.param == "max_completion_tokens"


def test_the_number_of_choices_and_the_limit_come_from_the_request() -> None:
    assert [choice_count(request(n=n)) for n in ("3", "1", "0", "null", "-1", '"2"', "99999")] == [
        3,
        1,
        1,
        1,
        1,
        1,
        1,
    ]
    assert choice_count(request()) == 1
    assert token_limit(request(max_tokens="5", max_completion_tokens="7")) == 7
    assert token_limit(request(max_tokens="5")) == 5
    assert token_limit(request(max_tokens="null")) is None


def answer(message: dict | None = None, **members: object) -> bytes:
    choices = [
        {
            "index": 0,
            "message": message or {"role": "assistant", "content": "ok"},
            "finish_reason": "stop",
        }
    ]
    return json.dumps(
        {"id": "c1", "object": "chat.completion", "model": "m1", "choices": choices, **members}
    ).encode()


def decode(body: bytes, limit: int | None = None):
    limits = {} if limit is None else {"max_tokens": str(limit)}
    return decode_answer(
        body,
        request(**limits),
        deployment="up/m1",
        on_error=lambda found: error_from_body(found, context=CONTEXT),
    )


def test_a_whole_answer_keeps_its_bytes() -> None:
    body = b' {"choices":[{"index":0,"message":{"content":"\\u00e9"},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":5}, "vendor":1} '
    found = decode(body)
    assert found.event.raw == body
    assert found.event.has_content
    assert list(found.event.finish_reasons) == ["stop"]
    assert found.event.usage is not None
    assert found.event.usage.usage == Usage(input_tokens=10, output_tokens=5)
    assert decode(answer()).upstream_model == "m1"


def test_groq_usage_is_found_in_its_own_member() -> None:
    found = decode(answer(x_groq={"usage": {"prompt_tokens": 3, "completion_tokens": 1}}))
    assert found.event.usage is not None
    assert found.event.usage.usage.input_tokens == 3


def test_an_answer_without_usage_has_none() -> None:
    assert decode(answer(usage=None)).event.usage is None


MEMBER_VALUES = st.sampled_from([None, "", [], {}, "no", "null", ["a"], {"a": 1}, 0, " "])
MESSAGES = st.dictionaries(
    st.sampled_from(
        ["content", "reasoning", "reasoning_content", "reasoning_details", "refusal", "audio"]
        + ["images", "function_call", "role", "annotations"]
    ),
    MEMBER_VALUES,
)
ENDS = st.sampled_from(["stop", "length", None, "eos", "", "content_filter"])
NOT_CONTENT = {"role", "annotations"}


@given(st.lists(st.tuples(st.one_of(st.none(), MESSAGES), ENDS), min_size=1, max_size=3))
def test_one_choice_is_read_as_several_are(said: list[tuple[dict | None, str | None]]) -> None:
    choices = [
        {"index": index, "message": message, "finish_reason": reason}
        for index, (message, reason) in enumerate(said)
    ]
    found = decode(answer(choices=choices))
    ends = [finish_word(reason or "", has_calls=False) for _, reason in said]
    assert list(found.event.finish_reasons) == ends
    assert found.event.has_content == any(
        value not in (None, "", [], {})
        for message, _ in said
        for name, value in (message or {}).items()
        if name not in NOT_CONTENT
    )
    expected = {**json.loads(answer()), "choices": choices}
    for choice, end in zip(choices, ends, strict=True):
        choice["finish_reason"] = end or choice["finish_reason"]
    assert json.loads(found.event.raw) == expected


def test_an_answer_without_content_says_so() -> None:
    # GW-049: the relay decides what an empty success is worth.
    assert not decode(answer({"role": "assistant", "content": None})).event.has_content
    assert not decode(answer({"role": "assistant", "content": ""})).event.has_content
    assert decode(answer({"role": "assistant", "content": None, "refusal": "no"})).event.has_content


BAD = {
    "an empty body": b"",
    "blanks": b" \n",
    "torn JSON": b'{"id": "chatcmpl-1", "object": "chat.comp',
    "HTML": b"<html></html>",
    "no object": b"[]",
    "no choices (GW-049)": answer(choices=[]),
    "choices null": answer(choices=None),
    "choices of a wrong shape": answer(choices={"a": 1}),
    "calls of a wrong shape": answer({"tool_calls": {"id": 1}}),
    "invalid UTF-8": b'{"choices":[{"finish_reason":"\xff"}]}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(BadWire):
        decode(body)


def test_an_error_instead_of_an_answer_is_raised() -> None:
    with pytest.raises(ContextTooLong):
        decode(b'{"error":{"message":"x","code":"context_length_exceeded"}}')
    with pytest.raises(ContextTooLong):
        decode(b'{"object":"error","message":"maximum context length is 8192"}')


def test_tool_calls_without_id_or_type_get_them() -> None:
    calls = [
        {"function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": {"p": 1}}},
    ]
    found = decode(answer({"role": "assistant", "content": None, "tool_calls": calls}))
    message = json.loads(found.event.raw)["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"function": {"name": "f", "arguments": "{}"}, "id": "call_r_0_0", "type": "function"},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"p": 1}'}},
    ]
    assert found.faults == {"tool_call": 2, "finish_reason": 1}


def test_a_tool_call_cut_by_the_limit_says_so() -> None:
    # GW-008, the same rule as in a stream.
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"p":"unfin'}}
    choices = [
        {
            "index": 0,
            "message": {"content": None, "tool_calls": [call]},
            "finish_reason": "tool_calls",
        }
    ]
    body = answer(choices=choices, usage={"prompt_tokens": 5, "completion_tokens": 8})
    assert list(decode(body, limit=8).event.finish_reasons) == ["length"]
    assert json.loads(decode(body, limit=8).event.raw)["choices"][0]["finish_reason"] == "length"
    assert list(decode(body, limit=9).event.finish_reasons) == ["tool_calls"]


def test_a_whole_answer_becomes_a_chunk() -> None:
    chunk = json.loads(chunk_from_answer(answer(usage={"prompt_tokens": 1})))
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"] == [
        {"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": "ok"}}
    ]
    assert chunk["usage"] == {"prompt_tokens": 1}


def test_a_long_body_stays_in_pieces_which_are_the_same_bytes():
    messages = json.dumps([{"role": "user", "content": "u" * 2_000_000}])
    pieces = build_body("m/1", request(messages=messages, seed="1"), stream=True)
    assert not isinstance(pieces, bytes)
    whole = json.loads(b"".join(pieces))
    assert (whole["model"], whole["seed"], whole["stream"]) == ("m/1", 1, True)
    assert whole["messages"] == json.loads(messages)
