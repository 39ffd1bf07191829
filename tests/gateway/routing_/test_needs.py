"""A parameter is honoured or refused by name; what does not fit is refused with numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from gateway.routing.decision import Stage
from gateway.routing.needs import RequestNeeds
from gateway.routing.refusal import RefusalCode
from providers.contract import Capabilities
from tests.gateway.routing_.fleets import (
    CHEAP,
    DEAR,
    NEEDS,
    ask,
    order,
)

# Ability.
CLOSED = Capabilities(is_open=False, supported=frozenset({"temperature"}))
ABILITIES = {
    "a named field is refused with its reason": (
        Capabilities(unsupported={"logit_bias": "the vendor ignores it"}), {"fields": frozenset({"logit_bias"})},
        "logit_bias", "logit_bias is not supported: the vendor ignores it",
    ),
    "a closed wire refuses what it does not list": (
        CLOSED, {"fields": frozenset({"temperature", "top_k"})}, "top_k", "top_k is not supported",
    ),
    "media need a model that understands them": (
        Capabilities(multimodal=False), {"has_media": True}, "messages", "other than text",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("capabilities", "needs", "param", "reason"), ABILITIES.values(), ids=ABILITIES.keys()
)
def test_a_parameter_is_honoured_elsewhere_or_refused(
    capabilities, needs, param: str, reason: str
) -> None:
    unable = replace(CHEAP, capabilities=capabilities)
    elsewhere = ask(unable, DEAR, needs=changed(NEEDS, **needs))
    assert order(elsewhere) == ["dear/m"]
    assert elsewhere.excluded[0].stage is Stage.ABILITY
    assert reason in elsewhere.excluded[0].reason
    refusal = ask(unable, needs=changed(NEEDS, **needs)).refusal
    assert refusal is not None
    assert (refusal.code, refusal.param) == (RefusalCode.UNSUPPORTED_PARAMETER, param)
    assert f"can honour {param!r}" in refusal.message
    assert reason in refusal.message


def test_an_open_or_listed_field_is_no_obstacle() -> None:
    needs = changed(NEEDS, fields=frozenset({"temperature"}))
    assert order(ask(CHEAP, replace(DEAR, capabilities=CLOSED), needs=needs)) == [
        "cheap/m",
        "dear/m",
    ]


def test_the_parameter_that_nobody_honours_is_named_before_one_that_somebody_does() -> None:
    first = replace(CHEAP, capabilities=Capabilities(unsupported={"a": "no", "z": "never"}))
    second = replace(DEAR, capabilities=Capabilities(unsupported={"z": "never"}))
    refusal = ask(first, second, needs=changed(NEEDS, fields=frozenset({"a", "z"}))).refusal
    assert refusal is not None
    assert refusal.param == "z"


def test_without_a_common_parameter_each_deployment_says_its_own() -> None:
    first = replace(CHEAP, capabilities=Capabilities(unsupported={"a": "no"}))
    second = replace(DEAR, capabilities=Capabilities(unsupported={"b": "never"}))
    refusal = ask(first, second, needs=changed(NEEDS, fields=frozenset({"a", "b"}))).refusal
    assert refusal is not None
    assert refusal.param == "a"
    assert "cheap/m: a is not supported: no; dear/m: b is not supported: never" in refusal.message


def test_too_long_for_every_candidate_names_the_numbers() -> None:
    short = replace(CHEAP, capabilities=Capabilities(context_window_tokens=512))
    longer = replace(DEAR, capabilities=Capabilities(context_window_tokens=1050))
    refusal = ask(short, longer).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.CONTEXT_LENGTH_EXCEEDED
    assert refusal.message == (
        "the longest context window of 'chat' is 1050 tokens; "
        "the prompt has about 1000 tokens and 100 tokens of output"
    )


WINDOWS = {
    "prompt and output fill it exactly": (1100, NEEDS, True),
    "one token too many": (1099, NEEDS, False),
    "no limit asks for one token of room": (1001, RequestNeeds(prompt_tokens_estimate=1000), True),
    "no room for one token": (1000, RequestNeeds(prompt_tokens_estimate=1000), False),
    "an unknown window excludes nothing": (None, RequestNeeds(prompt_tokens_estimate=10**7), True),
}


@pytest.mark.parametrize(("window", "needs", "fits"), WINDOWS.values(), ids=WINDOWS.keys())
def test_context_window(window: int | None, needs: RequestNeeds, fits: bool) -> None:
    decision = ask(
        replace(CHEAP, capabilities=Capabilities(context_window_tokens=window)), needs=needs
    )
    assert (decision.refusal is None) is fits
    if decision.refusal is not None:
        assert decision.refusal.code is RefusalCode.CONTEXT_LENGTH_EXCEEDED


def test_a_deployment_that_is_only_too_short_makes_the_length_to_blame() -> None:
    unable = replace(
        CHEAP, capabilities=Capabilities(unsupported={"a": "no"}, context_window_tokens=100)
    )
    short = replace(DEAR, capabilities=Capabilities(context_window_tokens=200))
    needs = changed(NEEDS, fields=frozenset({"a"}))
    refusal = ask(unable, short, needs=needs).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.CONTEXT_LENGTH_EXCEEDED
    assert "is 200 tokens" in refusal.message
    only = ask(unable, needs=needs).refusal
    assert only is not None
    assert only.code is RefusalCode.UNSUPPORTED_PARAMETER
