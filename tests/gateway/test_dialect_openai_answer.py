"""Answers on OpenAI's wire: chunks, whole answers, usage with cost, frames."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai_answer import (
    DONE,
    HEARTBEAT,
    AnswerEncoder,
    FinalFacts,
    encode_usage,
    frame,
    with_cost,
    without_usage,
)
from pricing.usage import Usage
from providers.sse import SseDecoder

FINAL = FinalFacts(deployment="local/m", attempts=2, request_id="0af1")
USAGE = Usage(input_tokens=7, cache_read_tokens=3, output_tokens=5)
USAGE_JSON = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 3},
}


@pytest.fixture
def encoder():
    return AnswerEncoder(answer_id="chatcmpl-1", created=1_700_000_000, model="m")


def delta(raw):
    return json.loads(raw)["choices"][0]["delta"]


USAGES = {
    "nothing": (Usage(), (0, 0, 0, 0)),
    "fresh input only": (Usage(input_tokens=4, output_tokens=2), (4, 2, 6, 0)),
    "cache reads are part of the prompt": (USAGE, (10, 5, 15, 3)),
    "cache writes are part of the prompt": (
        Usage(input_tokens=1, cache_write_tokens=9, output_tokens=1),
        (10, 1, 11, 0),
    ),
    "reasoning is part of the completion": (
        Usage(input_tokens=1, output_tokens=2, reasoning_tokens=30),
        (1, 32, 33, 0),
    ),
    "machine time is no token": (Usage(input_tokens=1, gpu_us=999), (1, 0, 1, 0)),
}


@pytest.mark.parametrize(("usage", "counts"), USAGES.values(), ids=USAGES.keys())
def test_usage_on_this_wire(usage, counts):
    found = json.loads(encode_usage(usage))
    assert counts == (
        found["prompt_tokens"],
        found["completion_tokens"],
        found["total_tokens"],
        found["prompt_tokens_details"]["cached_tokens"],
    )
    assert "cost_usd" not in found


def test_a_known_cost_is_decimal_text(encoder):
    found = json.loads(encoder.usage_chunk(encode_usage(USAGE), "0.000001", None))
    assert found["usage"]["cost_usd"] == "0.000001"


def test_the_usage_chunk_keeps_every_count_of_the_upstream_but_no_cost_that_is_not_ours(encoder):
    counts = b'{"prompt_tokens":9,"queue_time":0.0240,"cost_usd":"99"}'
    assert b'"usage":{"prompt_tokens":9,"queue_time":0.0240}' in encoder.usage_chunk(
        counts, None, None
    )


def test_the_first_chunk_of_each_choice_carries_the_role(encoder):
    first, second = encoder.text_chunk("a", 0), encoder.text_chunk("b", 0)
    other = encoder.text_chunk("c", 1)
    assert delta(first) == {"role": "assistant", "content": "a"}
    assert delta(second) == {"content": "b"}
    assert delta(other) == {"role": "assistant", "content": "c"}
    assert json.loads(other)["choices"][0]["index"] == 1


def test_every_chunk_has_the_same_head(encoder):
    chunks = [
        encoder.text_chunk("a", 0),
        encoder.finish_chunk("stop", 0),
        encoder.usage_chunk(encode_usage(USAGE), None, None),
    ]
    heads = [
        {name: json.loads(chunk)[name] for name in ("id", "object", "created", "model")}
        for chunk in chunks
    ]
    assert (
        heads
        == [
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1_700_000_000,
                "model": "m",
            }
        ]
        * 3
    )


def test_a_chunk_of_text_is_not_finished(encoder):
    (choice,) = json.loads(encoder.text_chunk("a", 0))["choices"]
    assert choice["finish_reason"] is None
    assert choice["logprobs"] is None


def test_the_finish_comes_in_an_empty_delta(encoder):
    encoder.text_chunk("a", 0)
    (choice,) = json.loads(encoder.finish_chunk("length", 0))["choices"]
    assert choice["delta"] == {}
    assert choice["finish_reason"] == "length"


def test_a_choice_that_ends_without_text_is_opened_first(encoder):
    assert delta(encoder.finish_chunk("stop", 0)) == {"role": "assistant", "content": ""}
    assert delta(encoder.text_chunk("late", 0)) == {"content": "late"}


def test_the_usage_chunk_has_no_choice_and_names_what_headers_could_not(encoder):
    found = json.loads(encoder.usage_chunk(encode_usage(USAGE), "0.5", FINAL))
    assert found["choices"] == []
    assert found["usage"] == {**USAGE_JSON, "cost_usd": "0.5"}
    assert found["fareway"] == {"deployment": "local/m", "attempts": 2, "request_id": "0af1"}
    assert "fareway" not in json.loads(encoder.usage_chunk(encode_usage(USAGE), "0.5", None))


def test_a_whole_answer(encoder):
    found = json.loads(encoder.answer(["one", "two"], ["stop", "length"], USAGE, "0.1"))
    assert found["object"] == "chat.completion"
    assert found["usage"] == {**USAGE_JSON, "cost_usd": "0.1"}
    assert [
        (choice["index"], choice["message"]["content"], choice["finish_reason"])
        for choice in found["choices"]
    ] == [(0, "one", "stop"), (1, "two", "length")]
    assert {choice["message"]["role"] for choice in found["choices"]} == {"assistant"}
    assert {choice["message"]["refusal"] for choice in found["choices"]} == {None}


def test_texts_without_reasons_are_a_fault_of_ours(encoder):
    with pytest.raises(ValueError, match="zip"):
        encoder.answer(["one", "two"], ["stop"], USAGE, None)


@given(pieces=st.lists(st.text(), max_size=8))
def test_the_assembled_stream_is_the_whole_answer(pieces):
    encoder = AnswerEncoder(answer_id="chatcmpl-1", created=1, model="m")
    chunks = [encoder.text_chunk(piece, 0) for piece in pieces]
    deltas = [delta(chunk) for chunk in (*chunks, encoder.finish_chunk("stop", 0))]
    whole = json.loads(encoder.answer(["".join(pieces)], ["stop"], USAGE, None))
    assert (
        "".join(one.get("content", "") for one in deltas)
        == (whole["choices"][0]["message"]["content"])
    )
    assert [one.get("role") for one in deltas] == ["assistant"] + [None] * len(pieces)


UPSTREAM = (
    b'{"id":"x","model":"up","choices":[ ],'
    b'"usage":{ "prompt_tokens":1, "extra":{"a": 1.50} },"service":"z"}'
)


def test_cost_is_put_into_an_upstreams_usage_and_nothing_else_changes():
    found = json.loads(with_cost(UPSTREAM, "0.25", None))
    before = json.loads(UPSTREAM)
    assert found["usage"].pop("cost_usd") == "0.25"
    assert found == before
    assert b'{"a": 1.50}' in with_cost(UPSTREAM, "0.25", None)


@pytest.mark.parametrize("cost_usd", ["0.25", None], ids=["known", "unknown"])
def test_an_upstreams_own_cost_does_not_pass_for_ours(cost_usd):
    raw = b'{"usage":{"prompt_tokens":1,"cost_usd":"99"}}'
    assert json.loads(with_cost(raw, cost_usd, None))["usage"].get("cost_usd") == cost_usd


def test_a_name_that_is_no_utf8_does_not_cost_an_answer():
    raw = b'{"k\xff":1,"usage":{"a\xff":1},"x_groq":{"b\xff":2,"usage":3}}'
    assert json.loads(with_cost(raw, "0.25", None)) == {
        "k\ufffd": 1,
        "usage": {"a\ufffd": 1, "cost_usd": "0.25"},
        "x_groq": {"b\ufffd": 2, "usage": 3},
    }
    assert json.loads(without_usage(raw)) == {"k\ufffd": 1, "x_groq": {"b\ufffd": 2}}


COUNTS_ELSEWHERE = {
    "no usage": b'{"x_groq":{"usage":{"prompt_tokens":1}}}',
    "a usage of null": b'{"usage":null,"x_groq":{}}',
}


@pytest.mark.parametrize("raw", COUNTS_ELSEWHERE.values(), ids=COUNTS_ELSEWHERE.keys())
def test_an_answer_whose_counts_lie_elsewhere_keeps_its_shape(raw):
    assert json.loads(with_cost(raw, "0.25", None)) == json.loads(raw)


def test_an_unknown_cost_leaves_usage_alone():
    found = json.loads(with_cost(UPSTREAM, None, FINAL))
    assert found["usage"] == json.loads(UPSTREAM)["usage"]
    assert found["fareway"]["deployment"] == "local/m"


def test_usage_that_nobody_asked_for_is_taken_out():
    found = json.loads(without_usage(UPSTREAM))
    assert "usage" not in found
    assert found == {k: v for k, v in json.loads(UPSTREAM).items() if k != "usage"}
    assert json.loads(without_usage(b'{"id":"x"}')) == {"id": "x"}


GROQ = {
    "beside an id": ({"id": "req_1", "usage": {"prompt_tokens": 1}}, {"id": "req_1"}),
    "without usage": ({"id": "req_1"}, {"id": "req_1"}),
    "nothing": (None, None),
}


@pytest.mark.parametrize(("before", "after"), GROQ.values(), ids=GROQ.keys())
def test_usage_in_groqs_own_member_is_taken_out_too(before, after):
    raw = json.dumps({"choices": [], "x_groq": before, "usage": {"prompt_tokens": 1}}).encode()
    assert json.loads(without_usage(raw)) == {"choices": [], "x_groq": after}


FRAMES = {
    "one line": b'{"a":1}',
    "a line break between tokens": b'{\n"a":1\n}',
    "line breaks of another system": b'{\r\n"a":\r1}',
}


@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES.keys())
def test_a_frame_is_one_event_with_the_same_meaning(data):
    framed = frame(data)
    assert framed.endswith(b"\n\n")
    assert framed.count(b"\n") == 2
    assert b"\r" not in framed
    (event,) = SseDecoder().feed(framed)
    assert json.loads(event.data) == json.loads(data)


def test_a_heartbeat_is_a_comment_and_the_end_is_an_event():
    decoder = SseDecoder()
    assert list(decoder.feed(HEARTBEAT)) == []
    assert [bytes(event.data) for event in decoder.feed(DONE)] == [b"[DONE]"]
