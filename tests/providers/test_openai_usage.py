"""The usage object becomes disjoint meters, and the upstream's own cost keeps its digits."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.usage import Usage
from providers.codecs.openai_usage import read_with_care, report_from
from providers.contract import UsageReport


def report_of(usage: object) -> UsageReport | None:
    text = usage if isinstance(usage, str) else json.dumps(usage)
    return report_from(msgspec.Raw(text.encode()), is_alone=True, frame=b"f")


# usage object, (input, cache read, cache write, output), consistent
COUNTS = {
    "three counters": ({"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}, (9, 0, 0, 1), True),
    "cached tokens are inside the prompt (GW-067)": (
        {"prompt_tokens": 17111, "completion_tokens": 100, "total_tokens": 17211, "prompt_tokens_details": {"cached_tokens": 17102}},
        (9, 17102, 0, 100), True),
    "written tokens are inside the prompt (GW-069)": (
        {"prompt_tokens": 2000, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 500, "cache_write_tokens": 300}},
        (1200, 500, 300, 0), True),
    "reasoning is inside the completion (GW-074)": (
        {"prompt_tokens": 100, "completion_tokens": 1050, "total_tokens": 1150, "completion_tokens_details": {"reasoning_tokens": 50}},
        (100, 0, 0, 1050), True),
    "reasoning outside the completion is output (GW-073)": (
        {"prompt_tokens": 36, "completion_tokens": 10, "total_tokens": 736, "completion_tokens_details": {"reasoning_tokens": 690}},
        (36, 0, 0, 700), True),
    "SGLang's reasoning at the top": (
        {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "reasoning_tokens": 3, "prompt_tokens_details": None},
        (5, 0, 0, 4), True),
    "Together's cached tokens at the top": ({"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 4}, (6, 4, 0, 2), True),
    "DeepSeek's hit and miss": (
        {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "prompt_cache_hit_tokens": 7, "prompt_cache_miss_tokens": 3},
        (3, 7, 0, 2), True),
    "zero is a value, not an invitation to look elsewhere": (
        {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}, "cached_tokens": 4}, (10, 0, 0, 2), True),
    "null is missing": (
        {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": None}, "cached_tokens": 4}, (6, 4, 0, 2), True),
    "all zeros are a report": ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, (0, 0, 0, 0), True),
    "a missing completion follows from the total": ({"prompt_tokens": 10, "total_tokens": 14}, (10, 0, 0, 4), True),
    "a missing completion without a total is marked": ({"prompt_tokens": 10}, (10, 0, 0, 0), False),
    "a missing prompt is marked": ({"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, (0, 2, 0, 3), False),
    "a total that nothing explains is marked": ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 99}, (10, 0, 0, 2), False),
    "more cached than prompt is marked and clamped": (
        {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 11}}, (0, 10, 0, 2), False),
    "overlapping reads and writes stay disjoint": (
        {"prompt_tokens": 2168, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2161, "cache_write_tokens": 2161}},
        (0, 2161, 7, 1), False),
    "a negative count is no count": ({"prompt_tokens": 10, "completion_tokens": -2, "total_tokens": 10}, (10, 0, 0, 0), False),
    "a fraction is no count": ({"prompt_tokens": 10.5, "completion_tokens": 2}, (0, 0, 0, 2), False),
    "a whole number as a float is one": ({"prompt_tokens": 10.0, "completion_tokens": 2}, (10, 0, 0, 2), True),
    "an absurd count is no count": ({"prompt_tokens": 10**15, "completion_tokens": 2}, (0, 0, 0, 2), False),
    "prompt details of a wrong shape are unknown": (
        {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "prompt_tokens_details": []}, (10, 0, 0, 2), False),
    "their counts are looked for at the top": (
        {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": 3, "cached_tokens": 4}, (6, 4, 0, 2), False),
    "completion details of a wrong shape that are not needed": (
        {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "completion_tokens_details": "x"}, (10, 0, 0, 2), True),
    "completion details of a wrong shape that were needed": (
        {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 99, "completion_tokens_details": "x"}, (10, 0, 0, 2), False),
    "a text is no count": ({"prompt_tokens": "10", "completion_tokens": 2}, (0, 0, 0, 2), False),
}  # fmt: skip


@pytest.mark.parametrize(("usage", "meters", "is_consistent"), COUNTS.values(), ids=COUNTS.keys())
def test_counts(usage: object, meters: tuple[int, int, int, int], is_consistent: bool) -> None:
    report = report_of(usage)
    assert report is not None
    fresh, read, written, output = meters
    assert report.usage == Usage(
        input_tokens=fresh, cache_read_tokens=read, cache_write_tokens=written, output_tokens=output
    )
    assert report.is_consistent is is_consistent
    assert report.raw == b"f"


NOTHING = {
    "null": "null",
    "no object": "[1]",
    "an empty object": "{}",
    "an object of nulls": {"prompt_tokens": None, "completion_tokens": None},
    "an object of something else": {"billed_units": 3},
}


@pytest.mark.parametrize("usage", NOTHING.values(), ids=NOTHING.keys())
def test_what_is_no_report(usage: object) -> None:
    assert report_of(usage) is None


def cost_json(members: str) -> str:
    return '{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,' + members + "}"


COSTS = {
    "digits are kept": ('"cost":0.0000159', "0.0000159", True),
    "also those that a float would lose": ('"cost":0.12345678901234567890', "0.12345678901234567890", True),
    "trailing zeros too": ('"cost":0.10', "0.10", True),
    "an exponent is written out": ('"cost":1.59e-05', "0.0000159", True),
    "a text is a decimal too": ('"cost":"0.002"', "0.002", True),
    "zero is a cost": ('"cost":0', "0", True),
    "null is none": ('"cost":null', None, True),
    "without a key of our own the parts are the same money (GW-079)": (
        '"cost":0.002,"is_byok":false,"cost_details":{"upstream_inference_cost":0.002}', "0.002", True),
    "with a key of our own they add up (GW-079)": (
        '"cost":0.0001,"is_byok":true,"cost_details":{"upstream_inference_cost":0.0020000000000000001}',
        "0.0021000000000000001", True),
    "an unknown part adds nothing": ('"cost":0.1,"is_byok":true,"cost_details":{"upstream_inference_cost":null}', "0.1", True),
    "a negative cost is none": ('"cost":-0.1', None, False),
    "a word is none": ('"cost":"NaN"', None, False),
    "a bomb is none": ('"cost":1e999999999', None, False),
    "an object is none": ('"cost":{"total":1}', None, False),
    "details of a wrong shape leave it unknown": ('"cost":0.1,"cost_details":[]', None, False),
    "so does a flag that is none": ('"cost":0.1,"is_byok":1', None, False),
}  # fmt: skip


@pytest.mark.parametrize(("members", "cost", "is_consistent"), COSTS.values(), ids=COSTS.keys())
def test_the_upstreams_own_cost(members: str, cost: str | None, is_consistent: bool) -> None:
    report = report_of(cost_json(members))
    assert report is not None
    assert report.provider_cost_usd == cost
    assert report.is_consistent is is_consistent


COUNT = st.one_of(st.none(), st.integers(-5, 10**6))


@given(COUNT, COUNT, COUNT, COUNT, COUNT, COUNT)
def test_the_parts_of_a_prompt_always_make_it_up(
    prompt, completion, total, cached, written, reasoning
) -> None:
    report = report_of(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
    )
    if report is not None and prompt is not None and prompt >= 0:
        assert report.usage.prompt_tokens == prompt


NUMBERS = st.one_of(
    st.integers(0, 40).map(str),
    st.sampled_from(
        ["null", "-0", "-1", "2.0", "2.5", "1e1", "-0.0", '"3"', "true", "[]", "{}"]
        + [str(10**12 - 1), str(10**12), str(10**12) + ".0", "9" * 30]
    ),
)
NAMES = st.sampled_from(
    ["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"]
    + ["prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cost"]
)
COST_VALUES = st.sampled_from(["0.002", "1.5e-05", "-0.1", '"0.1"', "null", "0", '"x"', "[1]"])


def objects(names: st.SearchStrategy[str], values: st.SearchStrategy[str]) -> Any:
    """JSON objects as text, so that a name may come twice."""
    members = st.lists(st.tuples(names, values), max_size=4)
    return members.map(lambda found: "{" + ",".join(f'"{n}":{v}' for n, v in found) + "}")


DETAILS = st.one_of(
    objects(st.sampled_from(["cached_tokens", "cache_write_tokens", "audio_tokens"]), NUMBERS),
    objects(st.sampled_from(["reasoning_tokens", "audio_tokens"]), NUMBERS),
    st.sampled_from(["null", "3", "[]", "{}"]),
)
MEMBERS = st.one_of(
    st.tuples(NAMES, NUMBERS),
    st.tuples(st.sampled_from(["prompt_tokens_details", "completion_tokens_details"]), DETAILS),
    st.tuples(st.sampled_from(["is_byok"]), st.sampled_from(["true", "false", "null", "1"])),
    st.tuples(st.just("cost"), COST_VALUES),
    st.tuples(
        st.just("cost_details"),
        st.one_of(
            st.sampled_from(["null", "2"]),
            objects(st.just("upstream_inference_cost"), COST_VALUES),
        ),
    ),
)
COUNTED = st.tuples(st.integers(0, 40), st.integers(0, 40)).flatmap(
    lambda two: st.sampled_from(
        [
            [("prompt_tokens", str(two[0])), ("completion_tokens", str(two[1]))],
            [
                ("prompt_tokens", str(two[0])),
                ("completion_tokens", str(two[1])),
                ("total_tokens", str(sum(two))),
            ],
        ]
    )
)
USAGES = st.one_of(
    st.tuples(COUNTED, st.lists(MEMBERS, max_size=4)).map(lambda two: two[0] + two[1]),
    st.lists(MEMBERS, max_size=6),
)


@given(USAGES)
def test_the_quick_reading_finds_what_the_careful_one_does(members: list[tuple[str, str]]) -> None:
    text = b"{%b}" % ",".join(f'"{name}":{value}' for name, value in members).encode()
    quick = report_from(msgspec.Raw(text), is_alone=True, frame=b"f")
    careful = read_with_care(text, is_alone=True, frame=b"f")
    assert quick == careful
    assert quick is None or careful is None or quick.reported == careful.reported == text
