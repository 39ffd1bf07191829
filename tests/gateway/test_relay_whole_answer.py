"""Whole answers: an upstream's in one piece, or what an engine's events make."""

from __future__ import annotations

import json

import pytest

from gateway.dialects.openai_answer import AnswerEncoder
from gateway.relay.whole_answer import WholeParts
from pricing.usage import Usage
from providers.contract import (
    Finished,
    OpaqueDelta,
    OpaqueRun,
    Preamble,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    WholeAnswer,
)

USAGE = Usage(input_tokens=7, cache_read_tokens=3, output_tokens=5)
ENCODER = AnswerEncoder(answer_id="chatcmpl-own", created=17, model="m")


def whole(raw: bytes, *, usage: UsageReport | None = None, content: bool = True) -> WholeAnswer:
    return WholeAnswer(raw=raw, usage=usage, finish_reasons=["stop", "length"], has_content=content)


def test_events_make_an_answer():
    made = WholeParts()
    batches = (
        [TextDelta(text="Héllo "), TextDelta(text="b", index=1)],
        [TextDelta(text="you"), Finished(reason="length", index=1), Finished(reason="stop")],
        [UsageReport(usage=USAGE)],
    )
    assert [made.take(batch) for batch in batches] == [False] * 3, "more may follow"
    assert made.finish_reason == "length"
    assert made.body(b"0.1") is None
    answer = json.loads(made.encoded(ENCODER, b"0.000001"))
    shown = [(c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]]
    assert shown == [(0, "Héllo you", "stop"), (1, "b", "length")]
    assert answer["usage"]["cost_usd"] == "0.000001"
    assert answer["object"] == "chat.completion"


def test_an_answer_without_any_text_is_empty():
    made = WholeParts()
    made.take([Finished(reason="stop"), UsageReport(usage=USAGE)])
    assert json.loads(made.encoded(ENCODER, None))["choices"][0]["message"]["content"] == ""


def test_a_whole_answer_keeps_every_byte_but_the_cost():
    raw = b'{"id":"x","choices":[{"odd": 1.00}],"usage":{"prompt_tokens":10}}'
    made = WholeParts()
    report = UsageReport(usage=USAGE, reported=b'{"prompt_tokens":10}')
    assert made.take([whole(raw, usage=report)]), "nothing follows it"
    assert made.body(b"0.25") == raw.replace(b"10}}", b'10,"cost_usd":"0.25"}}')
    assert made.usage is report
    assert made.finish_reason == "stop"
    assert made.content_events == 1


def test_a_whole_answer_without_usage_passes_as_it_is():
    made = WholeParts()
    made.take([whole(b'{ "id": 1 }', content=False)])
    assert made.body(b"0.25") == b'{ "id": 1 }'
    assert made.content_events == 0


@pytest.mark.parametrize("cost_usd", [b"0.25", None], ids=["known", "unknown"])
def test_counts_that_cannot_be_read_carry_our_cost_all_the_same(cost_usd):
    made = WholeParts()
    made.take([whole(b'{"id":1,"usage":{"prompt_tokens":"10","cost_usd":"99"}}')])
    usage = json.loads(made.body(cost_usd) or b"")["usage"]
    assert usage.pop("cost_usd", None) == (cost_usd and cost_usd.decode())
    assert usage == {"prompt_tokens": "10"}


EVENTS = {
    "nothing": ([], 0, False),
    "a role or a filter's word": ([Preamble(raw=b"{}"), Preamble()], 0, False),
    "an end": ([Finished(reason="stop")], 0, False),
    "counts": ([UsageReport(usage=USAGE)], 0, True),
    "one token per event": ([TextDelta(text="a"), TextDelta(text="b", index=1)], 2, True),
    "one per frame": (
        [OpaqueDelta(raw=b"{}"), ToolCallDelta(raw=b"{}"), OpaqueRun(raw=b"", count=3)],
        5,
        True,
    ),
    "a whole answer by its length": ([whole(b" " * 400)], 100, True),
    "a short whole answer is at least a token": ([whole(b"{}")], 1, True),
    "an empty whole answer is none": ([whole(b" " * 400, content=False)], 0, False),
}


@pytest.mark.parametrize(("events", "tokens", "passed"), EVENTS.values(), ids=EVENTS.keys())
def test_what_an_answer_without_counts_is_estimated_as(events, tokens, passed):
    made = WholeParts()
    made.take(events)
    assert made.output_tokens_estimate == tokens
    assert made.has_passed is passed
