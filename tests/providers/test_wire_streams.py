"""Recorded and constructed streams of every vendor on the OpenAI wire, at every split.

Each stream goes the whole way from reads to the client's bytes. What comes out is put together as an
SDK does it and compared with what a reader of the upstream's bytes finds in them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from gateway.dialects.openai_answer import AnswerEncoder, FinalFacts
from gateway.relay.frames import StreamFrames
from providers.codecs.openai_reads import ChatReads
from providers.contract import Event
from providers.errors import ProviderError
from tests.gateway.stream_reading import Assembled, assemble
from tests.providers.golden import (
    NAMES,
    choices_of,
    expected,
    new_stream,
    one_by_one,
    turns,
    wire_of,
)

FINAL = FinalFacts(deployment="up/m1", attempts=1, request_id="0af1")
MEANT = [name for name in NAMES if "means" in expected(name)]
VENDORS = (
    "azure", "bedrock", "cerebras", "deepseek", "fireworks", "groq", "llamacpp", "lmstudio", "mlx", "ollama", "openai",
    "openrouter", "sglang", "tgi", "together", "trt", "vllm",
)  # fmt: skip


@dataclass
class Played:
    """What one stream came to."""

    events: list[Event]
    sent: bytes
    last: bytes
    ends: str
    faults: dict[str, int]
    usage: dict[str, int] | None


def play(reads: Iterable[bytes], name: str, *, asks: bool = False, keeps: bool = False) -> Played:
    """Feed reads as the provider and the relay do."""
    stream = new_stream(choices=choices_of(name))
    fed = ChatReads(stream=stream)
    frames = StreamFrames(
        make_encoder=lambda: AnswerEncoder(answer_id="chatcmpl-own", created=17, model="m"),
        wants_usage=asks,
        keeps_usage=keeps,
    )
    played = Played([], b"", b"", "ok", stream.faults, None)

    def take(events: list[Event]) -> None:
        played.events += one_by_one(events)
        played.sent += frames.take(events)

    try:
        for read in reads:
            for found in turns(fed, read):
                take(found)
            if stream.failure is not None:
                raise stream.failure
            if stream.is_done:
                break
        else:
            take(fed.end())
        take(stream.close())
        played.sent += frames.release()
        played.last = frames.last_usage("0.5", FINAL)
    except ProviderError as error:
        played.ends = type(error).__name__
    if frames.usage is not None:
        played.usage = {str(meter): units for meter, units in frames.usage.usage.meters()}
    return played


@functools.cache
def unsplit(name: str) -> Played:
    return play([wire_of(name)], name)


def test_every_vendor_is_here() -> None:
    assert len(NAMES) >= 50
    assert [vendor for vendor in VENDORS if not any(n.startswith(vendor) for n in NAMES)] == []


def shown(found: Assembled) -> dict[str, object]:
    """What the client's SDK makes of it, in the words of `means`."""
    deltas = [
        choice.get("delta") or {} for chunk in found.chunks for choice in chunk.get("choices") or []
    ]
    return {
        "texts": {str(index): text for index, text in found.texts.items() if text},
        "reasons": {str(index): reason for index, reason in found.reasons.items()},
        "tools": {f"{i}/{j}": text for (i, j), text in found.tool_arguments.items()},
        "reasoning": "".join(
            delta.get("reasoning_content") or delta.get("reasoning") or "" for delta in deltas
        ),
    }


@pytest.mark.parametrize("name", MEANT)
def test_the_client_sees_what_the_upstream_meant(name: str) -> None:
    means = dict(expected(name)["means"])
    means["texts"] = {index: text for index, text in means["texts"].items() if text}
    played = unsplit(name)
    assert played.ends == means.pop("ends")
    if (counts := means.pop("usage")) is not None:
        assert played.usage == {meter: count for meter, count in counts.items() if count}
    found = assemble(played.sent)
    assert found.usages == [], "usage in a content chunk that nobody asked for"
    assert shown(found) == means


@pytest.mark.parametrize("name", MEANT)
def test_who_asks_for_usage_gets_it_once_with_the_same_content(name: str) -> None:
    asked = play([wire_of(name)], name, asks=True)
    assert asked.sent == unsplit(name).sent
    found = assemble(asked.last)
    has_usage = asked.usage is not None and asked.ends == "ok"
    assert len(found.usages) == has_usage
    if has_usage:
        assert found.usages[0]["cost_usd"] == "0.5"
        assert found.chunks[0]["choices"] == []


def check_split(name: str, *cuts: int) -> None:
    wire, whole = wire_of(name), unsplit(name)
    edges = [0, *cuts, len(wire)]
    played = play([wire[a:b] for a, b in zip(edges, edges[1:], strict=False)], name)
    assert played == whole, cuts


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_splits_gives_the_same_events_and_bytes(name: str) -> None:
    # GW-016, GW-018.
    wire = wire_of(name)
    ends = [at for at in range(len(wire)) if wire[at] in b"\r\n"][:24]
    for at in sorted({1, 2, 3, *ends, *(end + 1 for end in ends), *range(0, len(wire), 97)}):
        check_split(name, at)


@pytest.mark.parametrize("name", NAMES)
def test_byte_by_byte_gives_the_same_events_and_bytes(name: str) -> None:
    wire = wire_of(name)
    assert play((wire[at : at + 1] for at in range(len(wire))), name) == unsplit(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_split_gives_the_same_events_and_bytes(name: str) -> None:
    # GW-016, GW-018.
    wire = wire_of(name)
    for at in range(len(wire) + 1):
        check_split(name, at)
        check_split(name, at, min(at + 1, len(wire)))
