"""What an upstream says streamed is what it says whole: one rule for both ways (GW-009)."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.codecs.finish_reasons import finish_word
from providers.codecs.openai_chat import decode_answer
from providers.codecs.openai_reads import ChatReads
from providers.codecs.upstream_errors import error_from_body
from providers.contract import ChatRequest, Finished, UsageReport
from tests.gateway.stream_reading import assemble
from tests.providers.golden import CONTEXT, new_stream, one_by_one, turns

WORDS = {
    "OpenAI's own": ("stop", False, "stop"),
    "Together's": ("eos", False, "stop"),
    "a limit by another name": ("max_tokens", False, "length"),
    "a filter by another name": ("guardrail_intervened", False, "content_filter"),
    "a word that nobody knows": ("malformed_output", False, "malformed_output"),
    "a call that ends as stop": ("stop", True, "tool_calls"),
    "a call that ends as eos": ("eos", True, "tool_calls"),
    "a call that the limit ended": ("length", True, "length"),
    "a function call of old": ("function_call", False, "function_call"),
}


@pytest.mark.parametrize(("reason", "has_calls", "word"), WORDS.values(), ids=WORDS.keys())
def test_finish_words(reason: str, has_calls: bool, word: str) -> None:
    assert finish_word(reason, has_calls=has_calls) == word


texts = st.text(max_size=8)
arguments = st.sampled_from(["{}", '{"p":1}', '{"p":"unfin', "", '"x"'])
reasons = st.sampled_from(["stop", "eos", "length", "tool_calls", "content_filter", "max_tokens"])
calls = st.fixed_dictionaries({"id": st.booleans(), "type": st.booleans(), "arguments": arguments})
choices = st.fixed_dictionaries(
    {"pieces": st.lists(texts, max_size=4), "calls": st.lists(calls, max_size=3), "reason": reasons}
)
counts = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 99), "completion_tokens": st.integers(0, 20)}
)
scripts = st.tuples(st.lists(choices, min_size=1, max_size=3), counts, st.none() | st.just(10))


def call_of(number: int, call: dict) -> dict:
    made = {"function": {"name": f"f{number}", "arguments": call["arguments"]}}
    if call["id"]:
        made["id"] = f"id-{number}"
    if call["type"]:
        made["type"] = "function"
    return made


def streamed(script: tuple) -> bytes:
    said, usage, _ = script
    chunks = [
        {"index": index, "delta": {"content": piece}}
        for index, choice in enumerate(said)
        for piece in choice["pieces"]
    ]
    for index, choice in enumerate(said):
        for number, call in enumerate(choice["calls"]):
            part = {"index": number, **call_of(number, call)}
            chunks.append({"index": index, "delta": {"tool_calls": [part]}})
        chunks.append({"index": index, "delta": {}, "finish_reason": choice["reason"]})
    payloads = [{"id": "c", "model": "m1", "choices": [chunk]} for chunk in chunks]
    if usage is not None:
        payloads.append({"id": "c", "model": "m1", "choices": [], "usage": usage})
    lines = [json.dumps(payload) for payload in payloads]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


def whole(script: tuple) -> bytes:
    said, usage, _ = script
    made: list[dict] = []
    for index, choice in enumerate(said):
        message = {"role": "assistant", "content": "".join(choice["pieces"])}
        if choice["calls"]:
            message["tool_calls"] = [
                call_of(number, call) for number, call in enumerate(choice["calls"])
            ]
        made.append({"index": index, "message": message, "finish_reason": choice["reason"]})
    body = {"id": "c", "model": "m1", "choices": made}
    return json.dumps(body if usage is None else {**body, "usage": usage}).encode()


def request_of(limit: int | None) -> ChatRequest:
    fields = {} if limit is None else {"max_tokens": msgspec.Raw(b"%d" % limit)}
    return ChatRequest(
        fields=fields, is_stream=False, wants_usage=False, namespace=bytes(16), request_id="r"
    )


@given(scripts)
def test_a_stream_assembles_to_the_whole_answer(script: tuple) -> None:
    said, _, limit = script
    answer = decode_answer(
        whole(script),
        request_of(limit),
        deployment="up/m1",
        on_error=lambda body: error_from_body(body, context=CONTEXT),
    )
    stream = new_stream(choices=len(said), token_limit=limit)
    found_in_turns = turns(ChatReads(stream=stream), streamed(script))
    events = one_by_one([each for found in found_in_turns for each in found] + stream.close())
    assert stream.failure is None
    sent = b"".join(b"data: " + event.raw + b"\n\n" for event in events if event.raw is not None)
    found = assemble(sent)

    body = json.loads(answer.event.raw)
    assert found.reasons == {c["index"]: c["finish_reason"] for c in body["choices"]}
    assert found.reasons == dict(enumerate(answer.event.finish_reasons))
    assert {e.index: e.reason for e in events if isinstance(e, Finished)} == found.reasons
    for choice in body["choices"]:
        index, message = choice["index"], choice["message"]
        assert found.texts.get(index, "") == message["content"]
        heads = heads_of(found.chunks, index)
        assert heads == [(c["id"], c["type"]) for c in message.get("tool_calls", [])]
        joined = [found.tool_arguments[index, number] for number in range(len(heads))]
        assert joined == [c["function"]["arguments"] for c in message.get("tool_calls", [])]
    reports = [event.usage for event in events if isinstance(event, UsageReport)]
    assert reports == ([] if answer.event.usage is None else [answer.event.usage.usage])
    assert stream.upstream_model == answer.upstream_model


def heads_of(chunks: list[dict], index: int) -> list[tuple[str, str]]:
    """Id and type of each call of a choice, from its first part, in the order of their indexes."""
    heads: dict[int, tuple[str, str]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        for call in choice["delta"].get("tool_calls") or [] if choice["index"] == index else []:
            heads.setdefault(call["index"], (call.get("id"), call.get("type")))
    return [heads[number] for number in sorted(heads)]
