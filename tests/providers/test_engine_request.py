"""A chat request in the engine's terms: honoured or refused, nothing in between."""

from __future__ import annotations

import json

import msgspec
import pytest

from local_engine.api import GenerateRequest
from providers.codecs.engine_request import HONOURED_FIELDS, generate_request
from providers.codecs.openai_chat import is_neutral
from providers.contract import ChatRequest
from providers.errors import BadRequest

MESSAGES = [{"role": "user", "content": "hi"}]


def translate(adapted: list[str] | None = None, **fields: object) -> GenerateRequest:
    members = {"messages": MESSAGES, **fields}
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in members.items()}
    request = ChatRequest(
        fields=raw, is_stream=True, wants_usage=False, namespace=b"n" * 16, request_id="r1"
    )
    return generate_request(request, call_id="r1.1", adapted=[] if adapted is None else adapted)


def test_defaults_are_the_engines() -> None:
    assert translate() == GenerateRequest(id="r1.1", namespace=b"n" * 16, messages=MESSAGES)


HONOURED = {
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}),
    "a whole number where a fraction may stand": ({"temperature": 0}, {"temperature": 0.0}),
    "nucleus and others": ({"top_p": 0.9, "top_k": 40, "min_p": 0.05}, {"top_p": 0.9, "top_k": 40, "min_p": 0.05}),
    "vLLM's word for all tokens": ({"top_k": -1}, {"top_k": 0}),
    "penalties": ({"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1}, {"presence_penalty": 1.0, "frequency_penalty": -1.0, "repetition_penalty": 1.1}),
    "a seed": ({"seed": 7}, {"seed": 7}),
    "a negative seed": ({"seed": -1}, {"seed": 2**64 - 1}),
    "max_tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "max_completion_tokens": ({"max_completion_tokens": 5}, {"max_tokens": 5}),
    "both with one value": ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
    "no tokens at all": ({"max_tokens": 0}, {"max_tokens": 0}),
    "one stop": ({"stop": "x"}, {"stop": ["x"]}),
    "several stops": ({"stop": ["x", "y"], "stop_token_ids": [3]}, {"stop": ["x", "y"], "stop_token_ids": [3]}),
    "least tokens": ({"min_tokens": 2, "ignore_eos": True}, {"min_tokens": 2, "ignore_eos": True}),
    "biases": ({"logit_bias": {"17": -100}}, {"logit_bias": {17: -100.0}}),
    "null is absent": ({"temperature": None, "stop": None, "seed": None, "tools": None}, {}),
    "the least token id": ({"logit_bias": {"0": 1}}, {"logit_bias": {0: 1.0}}),
    "labels ask for nothing": ({"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s"}, {}),
    "matters of form ask for nothing": ({"n": 1, "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "logprobs": False, "store": False, "parallel_tool_calls": True}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), HONOURED.values(), ids=HONOURED.keys())
def test_what_is_honoured(fields: dict[str, object], expected: dict[str, object]) -> None:
    found = translate(**fields)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found == msgspec.structs.replace(translate(), **expected)


REFUSED = {
    "tools": ({"tools": [{"type": "function"}]}, "tools"),
    "a schema": ({"response_format": {"type": "json_object"}}, "response_format"),
    "several choices": ({"n": 2}, "n"),
    "log probabilities": ({"logprobs": True}, "logprobs"),
    "storing": ({"store": True}, "store"),
    "the engine's priority is not the client's": ({"priority": 5}, "priority"),
    "an unknown field": ({"frobnicate": 1}, "frobnicate"),
    "a text for a number": ({"temperature": "warm"}, "temperature"),
    "a truth for a number": ({"seed": True}, "seed"),
    "a fraction of a token": ({"max_tokens": 1.5}, "max_tokens"),
    "less than no tokens": ({"max_tokens": -1}, "max_tokens"),
    "a number for a stop": ({"stop": 5}, "stop"),
    "limits that differ": ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    "messages that are no list": ({"messages": "hi"}, "messages"),
    "messages that are null": ({"messages": None}, "messages"),
    "a tool's result": ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    "a call in the history": ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}]}, "messages"),
    "a role that is no text": ({"messages": [{"role": 1, "content": "x"}]}, "messages"),
    "a content that is no text": ({"messages": [{"role": "user", "content": 10**30}]}, "messages"),
    "a part of another kind": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    "a part without its text": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
    "a part that is no object": ({"messages": [{"role": "user", "content": ["x"]}]}, "messages"),
    "a token id beyond all counts": ({"logit_bias": {str(10**30): 1}}, "logit_bias"),
    "a token id below zero": ({"logit_bias": {"-1": 1}}, "logit_bias"),
    "a token id that is no number": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "a message without a role": ({"messages": [{"content": "x"}]}, "messages"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        translate(**fields)
    assert caught.value.param == param


def test_a_developer_is_the_system_of_a_text_model() -> None:
    adapted: list[str] = []
    found = translate(adapted, messages=[{"role": "developer", "content": "be brief"}, *MESSAGES])
    assert found.messages == [{"role": "system", "content": "be brief"}, *MESSAGES]
    assert adapted == ["developer->system"]


def test_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = translate(messages=[{"role": "user", "content": parts}])
    assert found.messages == [{"role": "user", "content": "ab"}]


def test_what_a_model_would_not_see_of_a_message_is_said() -> None:
    adapted: list[str] = []
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    history = [
        {"role": "assistant", "content": None, "refusal": "no", "tool_calls": [], "audio": None},
        {"role": "user", "content": [part], "name": "bob", "weight": 10**30},
        {"role": "user", "content": "b", "name": "eve"},
    ]
    found = translate(adapted, messages=history)
    assert found.messages == [
        {"role": "assistant", "content": None},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    assert adapted == [
        "messages.refusal ignored",
        "messages.name ignored",
        "messages.weight ignored",
        "messages.content.cache_control ignored",
    ]


def test_the_list_of_changes_is_bounded() -> None:
    adapted: list[str] = []
    members = {f"{'x' * 1000}{number}": 1 for number in range(100)}
    members |= {f"{number}{'y' * 1000}": 1 for number in range(100)}
    translate(adapted, messages=[{"role": "user", "content": "a", **members}])
    assert len(adapted) <= 20
    assert max(map(len, adapted)) < 100
    assert adapted[-1] == "and more"


def test_a_refusal_names_the_place_once() -> None:
    with pytest.raises(BadRequest, match=r"^top_k: expected `int` >= -1$"):
        translate(top_k=-2)


def test_the_honoured_fields_are_named() -> None:
    assert {"messages", "temperature", "user", "max_completion_tokens"} <= HONOURED_FIELDS
    assert not {"tools", "n", "priority", "response_format"} & HONOURED_FIELDS


def test_neutral_values_may_be_spelt_with_blanks() -> None:
    assert is_neutral("response_format", msgspec.Raw(b'{ "type" : "text" }'))
    assert not is_neutral("response_format", msgspec.Raw(b'{"type":"json_object"}'))
    assert not is_neutral("temperature", msgspec.Raw(b"1"))
    assert is_neutral("anything", msgspec.Raw(b"null"))
