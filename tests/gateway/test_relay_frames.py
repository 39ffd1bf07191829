"""From events to the client's bytes: what is held, what passes, and that nothing is lost or added."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai_answer import DONE, AnswerEncoder, FinalFacts
from gateway.relay.frames import StreamFrames
from pricing.usage import Usage
from providers.contract import (
    Finished,
    OpaqueDelta,
    OpaqueRun,
    Preamble,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from tests.gateway.stream_reading import assemble, parse_sse

FINAL = FinalFacts(deployment="up/m", attempts=2, request_id="0af1")
USAGE = Usage(input_tokens=7, cache_read_tokens=3, output_tokens=5)


def frames(*, usage: bool = False, keeps: bool = False) -> StreamFrames:
    return StreamFrames(
        keeps_usage=keeps,
        make_encoder=lambda: AnswerEncoder(answer_id="chatcmpl-own", created=17, model="m"),
        wants_usage=usage,
    )


def chunk(delta: dict, *, index: int = 0, reason: str | None = None, **more) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    made = {"id": "up-1", "created": 5, "model": "big", "choices": [choice], **more}
    return json.dumps(made, ensure_ascii=False).encode()


ROLE = Preamble(raw=chunk({"role": "assistant", "content": ""}))
HELLO = OpaqueDelta(raw=chunk({"content": "Hello"}))
STOP = Finished(reason="stop", raw=chunk({}, reason="stop"))
ALONE = UsageReport(
    usage=USAGE, raw=b'{"id":"up-1","choices":[],"usage":{"prompt_tokens":10,"other":1}}'
)


def test_role_chunks_wait_for_the_first_content():
    made = frames()
    assert made.take([ROLE]) == b""
    assert made.take([ROLE]) == b""
    sent = made.take([HELLO])
    assert [json.loads(event["data"])["choices"][0]["delta"] for event in parse_sse(sent)[0]] == [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
    ]
    assert made.take([ROLE]) != b"", "nothing waits behind the first content"


def test_a_finish_alone_does_not_release_what_is_held():
    made = frames()
    assert made.take([ROLE, STOP, ALONE]) == b""
    assert made.content_events == 0
    assert made.reasons == {0: "stop"}
    assert made.finish_reason == "stop"
    assert made.release().count(b"data: ") == 2


USAGE_CHUNKS = {
    "asked for: at the end, with cost and facts": (True, True),
    "not asked for: not at all": (False, False),
}


@pytest.mark.parametrize(("asked", "comes"), USAGE_CHUNKS.values(), ids=USAGE_CHUNKS.keys())
def test_a_usage_chunk_of_its_own(asked, comes):
    made = frames(usage=asked)
    sent = made.take([HELLO, STOP, ALONE])
    assert b"usage" not in sent
    last = made.last_usage("0.5", FINAL)
    assert bool(last) is comes
    if comes:
        found = assemble(last)
        assert found.usages == [{"prompt_tokens": 10, "other": 1, "cost_usd": "0.5"}]
        assert found.fareway == [{"deployment": "up/m", "attempts": 2, "request_id": "0af1"}]
        assert found.ids == {"up-1"}


def test_a_usage_that_came_inside_a_content_chunk_is_told_at_the_end_under_the_same_id():
    made = frames(usage=True)
    raw = chunk({"content": "x"}, reason="stop", usage={"prompt_tokens": 10})
    made.take(
        [OpaqueDelta(raw=raw), Finished(reason="stop"), UsageReport(usage=USAGE, is_alone=False)]
    )
    last = assemble(made.last_usage("0.5", FINAL))
    assert last.ids == {"up-1"}
    assert (last.chunks[0]["model"], last.chunks[0]["created"]) == ("big", 5)
    assert last.usages[0]["prompt_tokens"] == 10
    assert last.usages[0]["cost_usd"] == "0.5"


def test_a_chunk_whose_id_is_no_text_gets_an_id_of_ours():
    made = frames(usage=True)
    raw = b'{"id":7,"choices":[{"index":0,"delta":{"content":"x"}}]}'
    made.take([OpaqueDelta(raw=raw), UsageReport(usage=USAGE, is_alone=False)])
    assert assemble(made.last_usage(None, FINAL)).ids == {"chatcmpl-own"}


COUNTED = chunk({"content": "x"}, reason="stop", usage={"prompt_tokens": 10, "queue_time": 0.020})
INSIDE = UsageReport(
    usage=USAGE, is_alone=False, reported=b'{"prompt_tokens":10,"queue_time":0.020}'
)

# Did the client ask; does the vendor tell everybody: is it beside the content, and in a last chunk?
USAGE_INSIDE = {
    "asked for: once, at the end": (True, False, False, True),
    "asked for, and told to everybody: once, at the end": (True, True, False, True),
    "not asked for: not at all": (False, False, False, False),
    "not asked for, and told to everybody: where the vendor puts it": (False, True, True, False),
}


@pytest.mark.parametrize(
    ("asked", "keeps", "stays", "comes"), USAGE_INSIDE.values(), ids=USAGE_INSIDE.keys()
)
def test_a_usage_inside_a_content_chunk(asked, keeps, stays, comes):
    made = frames(usage=asked, keeps=keeps)
    sent = made.take([HELLO, OpaqueDelta(raw=COUNTED), Finished(reason="stop"), INSIDE])
    assert (b"usage" in sent) is stays
    assert assemble(sent).texts == {0: "Hellox"}
    assert assemble(sent).reasons == {0: "stop"}
    last = made.last_usage("0.5", FINAL)
    assert bool(last) is comes
    if comes:
        # The vendor's own members and spellings survive.
        assert b'"usage":{"prompt_tokens":10,"queue_time":0.020,"cost_usd":"0.5"}' in last


def test_an_upstreams_own_cost_inside_a_content_chunk_does_not_pass_for_ours():
    made = frames(keeps=True)
    counts = {"prompt_tokens": 10, "cost_usd": "99", "cost": 0.5}
    inside = chunk({"content": "x"}, reason="stop", usage=counts)
    report = UsageReport(usage=USAGE, is_alone=False, reported=json.dumps(counts).encode())
    sent = made.take([OpaqueDelta(raw=inside), Finished(reason="stop"), report])
    assert assemble(sent).usages == [{"prompt_tokens": 10, "cost": 0.5}]


def test_a_usage_chunk_that_a_vendor_sends_to_everybody_reaches_who_did_not_ask():
    made = frames(keeps=True)
    made.take([HELLO, STOP, ALONE])
    assert assemble(made.last_usage("0.5", FINAL)).usages[0]["cost_usd"] == "0.5"


def test_a_usage_inside_a_role_chunk_is_taken_out_of_it():
    made = frames()
    role = chunk({"role": "assistant"}, usage={"prompt_tokens": 10})
    made.take([Preamble(raw=role), UsageReport(usage=USAGE, is_alone=False)])
    assert b"usage" not in made.take([HELLO])


def test_of_a_usage_inside_and_a_usage_alone_the_last_is_told():
    for reports, told in (([ALONE, INSIDE], 0.020), ([INSIDE, ALONE], None)):
        made = frames(usage=True)
        for report in reports:
            made.take([OpaqueDelta(raw=COUNTED), report] if report is INSIDE else [report])
        [usage] = assemble(made.last_usage("0.5", FINAL)).usages
        assert usage.get("queue_time") == told


def events_of(*raws: bytes) -> bytes:
    return b"".join(b"data: " + raw + b"\n\n" for raw in raws)


def test_a_run_of_frames_passes_as_the_same_bytes():
    made = frames()
    run = events_of(*(chunk({"content": text}) for text in "abc"))
    assert made.take([ROLE]) == b""
    first = made.take([OpaqueRun(raw=run, count=3)])
    assert first == events_of(ROLE.raw) + run
    assert made.take([OpaqueRun(raw=run, count=3)]) is run
    assert made.output_tokens_estimate == 6


def test_the_usage_chunk_behind_a_run_has_the_id_of_its_last_frame():
    for count in (1, 3):
        made = frames(usage=True)
        raws = [chunk({"content": "x"}, id=f"up-{number}") for number in range(count)]
        made.take([OpaqueRun(raw=events_of(*raws), count=count), UsageReport(usage=USAGE)])
        assert assemble(made.last_usage(None, FINAL)).ids == {f"up-{count - 1}"}


def test_without_a_report_there_is_no_usage_chunk():
    made = frames(usage=True)
    made.take([HELLO, STOP])
    assert made.last_usage("0.5", FINAL) == b""


def test_the_last_report_counts():
    made = frames(usage=True)
    made.take([HELLO, UsageReport(usage=Usage(input_tokens=1), is_alone=False), ALONE])
    assert made.usage is ALONE


def test_events_without_frames_become_chunks():
    made = frames(usage=True)
    sent = made.take([TextDelta(text="Héllo "), TextDelta(text="b", index=1)])
    sent += made.take(
        [TextDelta(text="you"), Finished(reason="stop"), Finished(reason="length", index=1)]
    )
    sent += made.take([UsageReport(usage=USAGE)]) + made.last_usage("0.000001", FINAL) + DONE
    found = assemble(sent)
    assert found.texts == {0: "Héllo you", 1: "b"}
    assert found.reasons == {0: "stop", 1: "length"}
    assert found.roles == {0: "assistant", 1: "assistant"}
    assert found.ids == {"chatcmpl-own"}
    assert found.is_done
    assert found.usages[0]["prompt_tokens_details"] == {"cached_tokens": 3}


ESTIMATES = {
    "one token per event of a stream": ([HELLO, HELLO, STOP], 2),
    "nothing where nothing passed": ([ROLE, STOP], 0),
}


@pytest.mark.parametrize(("events", "tokens"), ESTIMATES.values(), ids=ESTIMATES.keys())
def test_what_an_answer_without_counts_is_estimated_as(events, tokens):
    made = frames()
    made.take(events)
    assert made.output_tokens_estimate == tokens


# Whatever JSON allows inside a string, U+2028 and raw control characters behind escapes included.
texts = st.text(min_size=1, max_size=12)
indexes = st.integers(0, 2)
usages = st.builds(
    Usage,
    input_tokens=st.integers(0, 10**6),
    cache_read_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**6),
)


def spaced(data: bytes, gaps: str) -> bytes:
    """The same JSON with white space between its tokens, line ends included."""
    return data.replace(b'{"id"', b"{" + gaps.encode() + b'"id"') + gaps.encode()


white = st.text(alphabet=" \t\n\r", max_size=3)
framed = st.one_of(
    st.builds(
        lambda text, index, gap: (
            OpaqueDelta(raw=spaced(chunk({"content": text}, index=index), gap)),
            ("text", index, text),
        ),
        texts, indexes, white,
    ),
    st.builds(
        lambda text, index, gap: (
            ToolCallDelta(
                raw=spaced(
                    chunk({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}, index=index),
                    gap,
                )
            ),
            ("call", index, text),
        ),
        texts, indexes, white,
    ),
    st.just((ROLE, None)),
)  # fmt: skip
bare = st.builds(
    lambda text, index: (TextDelta(text=text, index=index), ("text", index, text)), texts, indexes
)


@st.composite
def scripts(draw):
    """Events of one answer, framed or not, cut into batches, and what they mean."""
    is_framed = draw(st.booleans())
    content = draw(st.lists(framed if is_framed else bare, max_size=12))
    reasons = draw(st.dictionaries(indexes, st.sampled_from(["stop", "length"]), min_size=1))
    events = [event for event, _ in content]
    for index, reason in reasons.items():
        raw = chunk({}, index=index, reason=reason) if is_framed else None
        events.append(Finished(reason=reason, index=index, raw=raw))
    usage = draw(usages)
    report = json.dumps({"id": "up-1", "choices": [], "usage": {"prompt_tokens": 1}}).encode()
    events.append(UsageReport(usage=usage, raw=report if is_framed else None))
    cuts = sorted(draw(st.sets(st.integers(0, len(events)))))
    batches = [events[a:b] for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    return batches, [meaning for _, meaning in content if meaning], reasons


@given(script=scripts(), asked=st.booleans())
def test_the_clients_bytes_mean_what_the_events_meant(script, asked):
    batches, content, reasons = script
    made = frames(usage=asked)
    sent = b""
    for batch in batches:
        sent += made.take(batch)
    assert bool(sent) is bool(content), "only content releases what is held"
    sent += made.release() + made.last_usage("0.1", FINAL) + DONE
    found = assemble(sent)
    assert found.is_done
    assert found.reasons == reasons
    assert len(found.usages) == asked
    for kind, shown in (
        ("text", found.texts),
        ("call", {i: t for (i, _), t in found.tool_arguments.items()}),
    ):
        for index in range(3):
            meant = "".join(text for k, i, text in content if (k, i) == (kind, index))
            assert shown.get(index, "") == meant
