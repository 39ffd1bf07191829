"""The stream codec against golden wire files, and what no single file shows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.contract import Finished, OpaqueDelta, Preamble, ToolCallDelta, UsageReport
from providers.errors import BadWire, UpstreamFault
from providers.sse import Frame
from tests.providers.golden import NAMES, choices_of, expected, new_stream, plain, play, wire_of


@pytest.mark.parametrize("name", NAMES)
def test_golden_wire(name: str) -> None:
    stream = new_stream(choices=choices_of(name))
    events, ends = play([wire_of(name)], stream)
    found = {
        "ends": ends,
        "upstream_model": stream.upstream_model,
        "faults": stream.faults,
        "events": [plain(event) for event in events],
    }
    assert found == {key: expected(name)[key] for key in found}


def frame(choices: list[dict] | None = None, **members: object) -> Frame:
    return Frame(
        json.dumps(
            {"model": "m1", "choices": choices or [], **members}, separators=(",", ":")
        ).encode()
    )


def choice(delta: dict, finish: str | None = None, index: int = 0) -> dict:
    return {"index": index, "delta": delta, "finish_reason": finish}


PREAMBLES = {
    "a role": {"role": "assistant"},
    "a role and empty content": {"role": "assistant", "content": ""},
    "null content (GW-013)": {"content": None},
    "no content at all": {},
    "an empty list of calls": {"tool_calls": []},
    "empty reasoning": {"reasoning": "", "reasoning_content": None},
}
CONTENTS = {
    "text": {"content": "a"},
    "a space": {"content": " "},
    "text in parts": {"content": [{"type": "text", "text": "a"}]},
    "reasoning": {"content": None, "reasoning": "hm"},
    "reasoning by its other name": {"reasoning_content": "hm"},
    "reasoning in parts": {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    "a refusal": {"refusal": "no"},
    "audio": {"audio": {"data": "AAAA"}},
    "a function call of old": {"function_call": {"name": "f", "arguments": ""}},
}


@pytest.mark.parametrize("delta", PREAMBLES.values(), ids=PREAMBLES.keys())
def test_what_is_no_content(delta: dict) -> None:
    stream = new_stream()
    [event] = stream.decode([frame([choice(delta)])])
    assert isinstance(event, Preamble)
    assert not stream.has_content


@pytest.mark.parametrize("delta", CONTENTS.values(), ids=CONTENTS.keys())
def test_what_is_content(delta: dict) -> None:
    stream = new_stream()
    sent = frame([choice(delta)])
    assert stream.decode([sent]) == [OpaqueDelta(raw=sent.data)]
    assert stream.has_content


@given(st.text(max_size=40))
def test_no_text_can_pass_for_structure(text: str) -> None:
    tricks = f'{text}","finish_reason":"stop"}}],"usage":{{"prompt_tokens":9}},"error":{{"tool_calls":[]}}'
    stream = new_stream()
    sent = frame([choice({"content": tricks})])
    assert stream.decode([sent]) == [OpaqueDelta(raw=sent.data)]
    assert stream.failure is None


def test_escaped_keys_are_the_same_keys() -> None:
    wire = b'{"choices":[],"\\u0075sage":{"prompt_tokens":3,"completion_tokens":1}}'
    [event] = new_stream().decode([Frame(wire)])
    assert isinstance(event, UsageReport)
    assert event.usage.input_tokens == 3


def test_only_the_first_event_of_a_frame_carries_it() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1}
    sent = frame([choice({"content": "a"}, "stop")], usage=usage)
    text, finish, report = new_stream().decode([sent])
    assert text == OpaqueDelta(raw=sent.data)
    assert finish == Finished(reason="stop")
    assert isinstance(report, UsageReport)
    assert (report.raw, report.is_alone) == (None, False)


VOID = {"prompt_tokens": None, "cost_usd": "99", "cost": 0.1}
VOID_USAGES = {
    "alone": ([], Preamble),
    "beside text": ([choice({"content": "a"})], OpaqueDelta),
    "beside a role": ([choice({"role": "assistant"})], Preamble),
    "beside a call": ([choice({"tool_calls": [{"index": 0, "id": "c"}]})], ToolCallDelta),
    "beside an end": ([choice({}, "stop")], Finished),
}


@pytest.mark.parametrize(("choices", "kind"), VOID_USAGES.values(), ids=VOID_USAGES.keys())
def test_a_usage_without_counts_does_not_pass(choices: list[dict], kind: type) -> None:
    stream = new_stream()
    [event] = stream.decode([frame(choices, usage=VOID, other={"usage": VOID})])
    assert isinstance(event, kind)
    found = json.loads(event.raw or b"")
    assert "usage" not in found
    assert found["other"] == {"usage": VOID}
    assert stream.faults["void_usage"] == 1


EMPTY_USAGES = {
    "null": {"usage": None},
    "an empty object": {"usage": {}},
    "no object": {"usage": [{"cost_usd": "99"}]},
    "a vendor's own member": {"usage": None, "x_groq": {"usage": VOID}},
}


@pytest.mark.parametrize("members", EMPTY_USAGES.values(), ids=EMPTY_USAGES.keys())
def test_a_frame_whose_usage_says_nothing_passes_as_it_is(members: dict) -> None:
    stream = new_stream()
    sent = frame([choice({"content": "a"})], **members)
    assert stream.decode([sent]) == [OpaqueDelta(raw=sent.data)]
    assert stream.faults == {}


def test_data_in_several_lines_becomes_one() -> None:
    [event] = new_stream().decode([Frame(b'{"choices":[{"delta":\n{"content":"a"}}]}')])
    assert event == OpaqueDelta(raw=b'{"choices":[{"delta": {"content":"a"}}]}')


def test_a_finish_that_is_said_twice_is_reported_once() -> None:
    stream = new_stream()
    events = stream.decode([frame([choice({"content": "a"}, "stop")]), frame([choice({}, "stop")])])
    assert [type(event) for event in events] == [OpaqueDelta, Finished]
    assert stream.faults == {"repeated_finish": 1}


def test_content_beside_a_repeated_finish_is_kept_without_it() -> None:
    events = new_stream().decode(
        [frame([choice({}, "stop")]), frame([choice({"content": "b"}, "stop")])]
    )
    assert isinstance(events[1], OpaqueDelta)
    assert json.loads(events[1].raw)["choices"] == [choice({"content": "b"}, None)]


def test_an_empty_finish_reason_is_none() -> None:
    [event] = new_stream().decode([frame([choice({"content": "a"}, "")])])
    assert isinstance(event, OpaqueDelta)


def test_nothing_after_the_end_mark_counts() -> None:
    stream = new_stream()
    events = stream.decode(
        [
            frame([choice({"content": "a"}, "stop")]),
            Frame(b"[DONE]"),
            frame([choice({"content": "b"})]),
        ]
    )
    assert len(events) == 2
    assert stream.is_done


def test_an_answer_whose_other_choice_did_not_finish_is_lost() -> None:
    stream = new_stream(choices=2)
    frames = [
        frame([choice({"content": "A"})]),
        frame([choice({"content": "B"}, index=1)]),
        frame([choice({}, "stop")]),
    ]
    stream.decode(frames)
    assert not stream.is_finished
    with pytest.raises(Exception, match="ended before its answer did"):
        stream.close()


def test_a_server_that_ignores_n_is_whole_when_its_only_choice_finished() -> None:
    stream = new_stream(choices=2)
    stream.decode([frame([choice({"content": "A"}, "stop")])])
    assert stream.close() == []


def test_an_error_after_content_is_the_upstreams_fault_whatever_it_says() -> None:
    stream = new_stream()
    stream.decode(
        [
            frame([choice({"content": "a"})]),
            Frame(b'{"error":{"message":"bad request","code":400}}'),
        ]
    )
    assert type(stream.failure) is UpstreamFault
    assert stream.failure.status == 400


GARBAGE = {
    "a torn object": b'{"id": "broken',
    "a word": b"oops",
    "a list": b"[1]",
    "a number": b"1",
    "two objects and a tail": b'{"choices":[]}{"choices":[]}oops',
    "invalid UTF-8 between objects": b'{"choices":[]}\xff{"choices":[]}',
    "choices of a wrong shape": b'{"choices":{"index":0}}',
    "a delta of a wrong shape": b'{"choices":[{"delta":"a"}]}',
    "calls of a wrong shape": b'{"choices":[{"delta":{"tool_calls":{"id":"x"}}}]}',
    "nesting without end": b'{"choices":' + b"[" * 100_000,
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_fails_the_stream_once(data: bytes) -> None:
    stream = new_stream()
    events = stream.decode(
        [frame([choice({"content": "a"})]), Frame(data), frame([choice({"content": "b"})])]
    )
    assert isinstance(stream.failure, BadWire)
    assert [type(event) for event in events if not isinstance(event, Preamble)] == [OpaqueDelta]


def test_objects_and_the_end_mark_on_one_line_are_taken_apart() -> None:
    one, two = frame([choice({"content": "}{"})]).data, frame([choice({}, "stop")]).data
    stream = new_stream()
    events = stream.decode([Frame(one + b" data: " + two + b"[DONE]")])
    assert [event.raw for event in events] == [one, two]
    assert stream.is_done


# The limit, the arguments, and the tokens reported: is the finish `length`?
CUTS = {
    "arguments torn at the limit": (8, '{"p":"unfin', 8, "length"),
    "arguments torn before the limit are the model's own": (8, '{"p":"unfin', 7, "tool_calls"),
    "whole arguments at the limit": (8, '{"p":"fin"}', 8, "tool_calls"),
    "no limit": (None, '{"p":"unfin', 8, "tool_calls"),
    "no usage": (8, '{"p":"unfin', None, "tool_calls"),
    "no arguments": (8, "", 8, "tool_calls"),
}


@pytest.mark.parametrize("is_beside", [False, True], ids=["usage after", "usage beside"])
@pytest.mark.parametrize(("limit", "arguments", "tokens", "reason"), CUTS.values(), ids=CUTS.keys())
def test_a_tool_call_cut_by_the_limit_says_so(
    limit: int | None, arguments: str, tokens: int | None, reason: str, is_beside: bool
) -> None:
    # GW-008: servers say `tool_calls` although max_tokens cut the arguments off.
    call = {
        "index": 0,
        "id": "a1",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }
    usage = None if tokens is None else {"prompt_tokens": 5, "completion_tokens": tokens}
    frames = [frame([choice({"tool_calls": [call]})])]
    if is_beside:
        frames.append(frame([choice({}, "tool_calls")], usage=usage))
    else:
        frames += [frame([choice({}, "tool_calls")]), frame([], usage=usage)]
    stream = new_stream(token_limit=limit)
    events = stream.decode([*frames, Frame(b"[DONE]")]) + stream.close()
    assert [event.reason for event in events if isinstance(event, Finished)] == [reason]
    [finish] = [event for event in events if isinstance(event, Finished)]
    assert json.loads(finish.raw)["choices"][0]["finish_reason"] == reason
    assert isinstance(events[0], ToolCallDelta)
    assert stream.faults == ({"torn_tool_call": 1} if reason == "length" else {})
    assert len([event for event in events if isinstance(event, UsageReport)]) == (
        tokens is not None
    )
