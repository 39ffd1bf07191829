"""Streamed tool calls are put right as an SDK joins them."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from providers.codecs.tool_calls import ToolCallRepair


def part(
    index: int | None = None,
    call_id: str | None = None,
    name: str | None = None,
    arguments: object = None,
    kind: str | None = "function",
) -> dict:
    function = {
        key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None
    }
    members = {
        "index": index,
        "id": call_id,
        "type": kind if name else None,
        "function": function or None,
    }
    return {key: value for key, value in members.items() if value is not None}


def joined(arrays: list[list[dict]]) -> dict[int, tuple[str, str, str, str]]:
    """What a client that joins parts by index ends up with: id, type, name, arguments."""
    repair = ToolCallRepair(id_prefix="call_")
    calls: dict[int, list[str]] = {}
    for array in arrays:
        raw = json.dumps(array).encode()
        for found in json.loads(repair.repair(raw) or raw):
            call = calls.setdefault(found["index"], ["", "", "", ""])
            call[0] = call[0] or found.get("id", "")
            call[1] = call[1] or found.get("type", "")
            call[2] = call[2] or found.get("function", {}).get("name", "")
            call[3] += found.get("function", {}).get("arguments", "")
    return {index: tuple(call) for index, call in calls.items()}


CASES = {
    "a faultless call": ([[part(0, "a1", "f", "")], [part(0, arguments='{"p":')], [part(0, arguments="1}")]], {0: ("a1", "function", "f", '{"p":1}')}),
    "two faultless calls in turn": ([[part(0, "a1", "f", "{}")], [part(1, "b1", "g", "{}")]], {0: ("a1", "function", "f", "{}"), 1: ("b1", "function", "g", "{}")}),
    "two faultless calls in one array": ([[part(0, "a1", "f", "{}"), part(1, "b1", "g", "{}")]], {0: ("a1", "function", "f", "{}"), 1: ("b1", "function", "g", "{}")}),
    "interleaved parts": ([[part(0, "a1", "f", "{")], [part(1, "b1", "g", "{")], [part(0, arguments="}")], [part(1, arguments="}")]], {0: ("a1", "function", "f", "{}"), 1: ("b1", "function", "g", "{}")}),
    "one index for two ids (GW-002)": ([[part(0, "a1", "f", '{"p":"1"}')], [part(0, "b1", "f", '{"p":"2"}')]], {0: ("a1", "function", "f", '{"p":"1"}'), 1: ("b1", "function", "f", '{"p":"2"}')}),
    "a colliding head and a rightly labelled tail (GW-004)": ([[part(0, "a1", "f", '{"p":"1"}')], [part(0, "b1", "g", "")], [part(1, arguments='{"q":2}')]], {0: ("a1", "function", "f", '{"p":"1"}'), 1: ("b1", "function", "g", '{"q":2}')}),
    "no type and no id (GW-006)": ([[part(0, None, "f", "{", kind=None)], [part(0, arguments="}")]], {0: ("call_0", "function", "f", "{}")}),
    "no index (SGLang)": ([[part(None, "a1", "f", "{")], [part(None, arguments="}")], [part(None, "b1", "g", "{}")]], {0: ("a1", "function", "f", "{}"), 1: ("b1", "function", "g", "{}")}),
    "neither index nor id": ([[part(None, None, "f", "{}")], [part(None, None, "g", "{}")]], {0: ("call_0", "function", "f", "{}"), 1: ("call_1", "function", "g", "{}")}),
    "one index and no ids for two whole calls": ([[part(0, None, "f", '{"p":1}')], [part(0, None, "f", '{"p":2}')]], {0: ("call_0", "function", "f", '{"p":1}'), 1: ("call_1", "function", "f", '{"p":2}')}),
    "the id repeated on every part": ([[part(0, "a1", "f", "{")], [part(0, "a1", None, "}")]], {0: ("a1", "function", "f", "{}")}),
    "the name repeated on every part": ([[part(0, "a1", "f", "{")], [part(0, None, "f", "}")]], {0: ("a1", "function", "f", "{}")}),
    "an empty id is none": ([[part(0, "", "f", "{}")]], {0: ("call_0", "function", "f", "{}")}),
    "arguments as an object": ([[part(0, "a1", "f", {"p": [1, "ü"]})]], {0: ("a1", "function", "f", '{"p": [1, "\\u00fc"]}')}),
    "indexes that start at one stay": ([[part(1, "a1", "f", "{}")], [part(2, "b1", "g", "{}")]], {1: ("a1", "function", "f", "{}"), 2: ("b1", "function", "g", "{}")}),
}  # fmt: skip


@pytest.mark.parametrize(("arrays", "calls"), CASES.values(), ids=CASES.keys())
def test_calls_as_a_client_joins_them(
    arrays: list[list[dict]], calls: dict[int, tuple[str, str, str, str]]
) -> None:
    assert joined(arrays) == calls


FAULTLESS = [
    "a faultless call",
    "two faultless calls in turn",
    "two faultless calls in one array",
    "interleaved parts",
    "indexes that start at one stay",
]


@pytest.mark.parametrize("case", FAULTLESS)
def test_faultless_parts_keep_their_bytes(case: str) -> None:
    repair = ToolCallRepair(id_prefix="call_")
    assert [repair.repair(json.dumps(array).encode()) for array in CASES[case][0]] == [None] * len(
        CASES[case][0]
    )
    assert repair.repairs == 0


def test_repairs_are_counted() -> None:
    repair = ToolCallRepair(id_prefix="call_")
    for array in CASES["one index for two ids (GW-002)"][0]:
        repair.repair(json.dumps(array).encode())
    assert repair.repairs == 1


def test_unknown_members_of_a_repaired_part_stay() -> None:
    raw = b'[{"index":0,"function":{"name":"f","arguments":"{}","strict":true},"extra_content":{"google":{"sig":"x"}}}]'
    repaired = json.loads(ToolCallRepair(id_prefix="call_").repair(raw) or b"")
    assert repaired[0]["extra_content"] == {"google": {"sig": "x"}}
    assert repaired[0]["function"]["strict"] is True


def test_arguments_are_torn_until_they_are_whole() -> None:
    repair = ToolCallRepair(id_prefix="call_")
    repair.repair(json.dumps([part(0, "a1", "f", '{"p":')]).encode())
    assert repair.has_torn_arguments()
    repair.repair(json.dumps([part(0, arguments="1}")]).encode())
    assert not repair.has_torn_arguments()


def test_more_calls_than_anyone_asks_for_are_no_answer() -> None:
    calls = [part(index, None, "f", "{}") for index in range(1025)]
    assert ToolCallRepair(id_prefix="call_").repair(json.dumps(calls[:-1]).encode())
    with pytest.raises(msgspec.ValidationError, match="1024"):
        ToolCallRepair(id_prefix="call_").repair(json.dumps(calls).encode())


def test_a_name_on_every_fragment_costs_no_more_the_longer_the_call_is() -> None:
    repair = ToolCallRepair(id_prefix="call_")
    fragment = json.dumps([part(0, None, "f", "x" * 400)]).encode()
    start_s = time.perf_counter()
    repair.repair(json.dumps([part(0, "a1", "f", '{"p":"')]).encode())
    for _ in range(10_000):
        repair.repair(fragment)
    # Joined each time these would be 20 GB.
    assert time.perf_counter() - start_s < 5
    repair.repair(json.dumps([part(0, None, "f", '"}')]).encode())
    assert not repair.has_torn_arguments()
