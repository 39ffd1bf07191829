"""What is refused, with which words, and what a job is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest

from local_engine.content_guard import ContentGuard
from local_engine.errors import RequestRejected, TemplateError
from local_engine.frontend import Frontend
from local_engine.protocol import GenerateRequest
from tests.local_engine.fake_model import END_ID, VOCAB_SIZE, ByteTokenizer, render_chat

BASE = GenerateRequest(id="r", namespace=b"t", prompt="hello")


def make_frontend(**changes) -> Frontend:
    options = {
        "tokenizer": ByteTokenizer(),
        "guard": ContentGuard(ByteTokenizer.control_texts),
        "render_chat": render_chat,
        "context_window": 100,
        "random_seed": lambda: 77,
    }
    return Frontend(**{**options, **changes})


def prepare(frontend: Frontend | None = None, **changes):
    request = msgspec.structs.replace(BASE, **changes)
    return (frontend or make_frontend()).prepare(request, key=1, received_ns=5)


def chat(*contents) -> dict:
    messages = [{"role": "user", "content": content} for content in contents]
    return {"prompt": None, "messages": messages}


REFUSALS = {
    "a negative temperature": ({"temperature": -0.1}, "temperature", "between 0 and 100"),
    "a temperature that is no number": ({"temperature": math.nan}, "temperature", "between"),
    "an infinite temperature": ({"temperature": math.inf}, "temperature", "between"),
    "a top_p of zero": ({"top_p": 0.0}, "top_p", "above 0"),
    "a top_p above one": ({"top_p": 1.1}, "top_p", "at most 1"),
    "a negative top_k": ({"top_k": -1}, "top_k", "at least 0"),
    "a min_p above one": ({"min_p": 1.5}, "min_p", "between 0 and 1"),
    "a presence penalty out of range": ({"presence_penalty": 2.5}, "presence_penalty", "between"),
    "a frequency penalty out of range": (
        {"frequency_penalty": -3.0},
        "frequency_penalty",
        "between",
    ),
    "a repetition penalty of zero": ({"repetition_penalty": 0.0}, "repetition_penalty", "above 0"),
    "a negative max_tokens": ({"max_tokens": -1}, "max_tokens", "at least 0, got -1"),
    "a negative min_tokens": ({"min_tokens": -1}, "min_tokens", "at least 0"),
    "more min_tokens than max_tokens": (
        {"min_tokens": 5, "max_tokens": 4},
        "min_tokens",
        "exceeds",
    ),
    # ENG-074
    "a bias beyond the vocabulary": ({"logit_bias": {191222: -100.0}}, "logit_bias", "191222"),
    # ENG-076: the bound is the tokenizer's vocabulary, not the width of the logits.
    "a bias on a padding id": ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias", str(VOCAB_SIZE)),
    "a bias on a negative id": ({"logit_bias": {-1: 1.0}}, "logit_bias", "-1"),
    "a bias that is no number": ({"logit_bias": {1: math.nan}}, "logit_bias", "between"),
    "a stop token beyond the vocabulary": ({"stop_token_ids": [9999]}, "stop_token_ids", "9999"),
    "an empty stop": ({"stop": [""]}, "stop", "1 to"),
    "too many stops": ({"stop": ["x"] * 17}, "stop", "more than 16"),
    "no namespace": ({"namespace": b""}, "namespace", "1 to"),
    "a wild priority": ({"priority": 1000}, "priority", "between"),
    # ENG-065
    "an empty prompt": ({"prompt": ""}, "prompt", "empty"),
    "a lone surrogate": ({"prompt": "\ud800"}, "prompt", "surrogates"),
    "neither prompt nor messages": ({"prompt": None}, "messages", "exactly one"),
    "both prompt and messages": ({"messages": [{"role": "user"}]}, "messages", "exactly one"),
    "no messages": ({"prompt": None, "messages": []}, "messages", "at least one"),
    "a message without a role": (
        {"prompt": None, "messages": [{"content": "x"}]},
        "messages",
        "role",
    ),
    "an image part": (
        chat([{"type": "image_url", "image_url": {}}]),
        "messages",
        "text parts only",
    ),
    "a part that is no object": (chat(["x"]), "messages", "text parts only"),
    "a number as content": (chat(7), "messages", "text or a list"),
}


@pytest.mark.parametrize(("changes", "param", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused(changes, param, words) -> None:
    with pytest.raises(RequestRejected) as caught:
        prepare(**changes)
    assert caught.value.code == "invalid_request_error"
    assert caught.value.param == param
    assert words in caught.value.message


LENGTHS = {
    # ENG-069
    "a prompt of the whole window": (100, None, 1),
    "a prompt beyond the window": (130, None, 31),
    "a prompt of the whole window even with max_tokens 0": (100, 0, 1),
    "an answer one token too long": (90, 11, 1),
    "a far too long answer": (90, 1000, 990),
}


@pytest.mark.parametrize(("prompt", "max_tokens", "excess"), LENGTHS.values(), ids=LENGTHS.keys())
def test_too_long(prompt: int, max_tokens: int | None, excess: int) -> None:
    # ENG-070, ENG-073: nothing is cut silently, and the message has the numbers.
    with pytest.raises(RequestRejected) as caught:
        prepare(prompt="x" * prompt, max_tokens=max_tokens)
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 100 tokens" in caught.value.message
    assert f"has {prompt} tokens" in caught.value.message
    assert f"{excess} too many" in caught.value.message


FITS = {
    "one token is left": (99, None, 1),
    "up to the window": (60, None, 40),
    "exactly to the window": (60, 40, 40),
    "the prompt alone": (99, 0, 0),
}


@pytest.mark.parametrize(("prompt", "max_tokens", "output"), FITS.values(), ids=FITS.keys())
def test_fits(prompt: int, max_tokens: int | None, output: int) -> None:
    assert prepare(prompt="x" * prompt, max_tokens=max_tokens).output_tokens_max == output


def test_a_monstrous_prompt_is_refused_before_it_is_encoded() -> None:
    class Unused(ByteTokenizer):
        def encode(self, text: str, *, stand_ins: Mapping[str, str] | None = None) -> list[int]:
            raise AssertionError("encoded")

    with pytest.raises(RequestRejected, match="far more"):
        prepare(make_frontend(tokenizer=Unused()), prompt="x" * 100_000)


def test_messages_are_rendered_and_encoded_once() -> None:
    # ENG-036, ENG-038: what the template prints is all there is; nothing is added to it.
    job = prepare(
        **chat("hi", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], None)
    )
    assert bytes(job.prompt) == b"[user]hi\n[user]ab\n[user]\n[assistant]"


def test_without_a_template_messages_are_refused() -> None:
    with pytest.raises(RequestRejected, match="no chat template"):
        prepare(make_frontend(render_chat=None), **chat("x"))


def test_what_the_template_says_reaches_the_caller() -> None:
    def refuse(messages) -> str:
        raise TemplateError("roles must alternate")

    with pytest.raises(RequestRejected, match="roles must alternate") as caught:
        prepare(make_frontend(render_chat=refuse), **chat("x"))
    assert caught.value.param == "messages"


def test_ends_are_the_union_of_the_models_and_the_callers() -> None:
    # ENG-031
    job = prepare(stop_token_ids=[3], stop=["\nObservation"])
    assert job.end_ids == {3, END_ID} == job.sampling.end_ids


def test_ignored_end_tokens_still_wait_for_the_minimum() -> None:
    # ENG-034: with ignore_eos the true end ids are what min_tokens holds back.
    job = prepare(ignore_eos=True, min_tokens=4, stop_token_ids=[3])
    assert job.end_ids == {3}
    assert job.sampling.end_ids == {3, END_ID}


def test_a_request_without_a_seed_gets_a_random_one() -> None:
    assert prepare().sampling.seed == 77
    assert prepare(seed=0).sampling.seed == 0
