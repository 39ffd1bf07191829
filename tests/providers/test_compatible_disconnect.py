"""Clients that leave: which upstreams are read on, and that reading on misses nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from providers.compatible import OpenAiCompatibleProvider, load_catalog
from providers.contract import (
    AttemptFacts,
    ChatRequest,
    Event,
    Finished,
    OnDisconnect,
    OpaqueDelta,
    UsageReport,
    WholeAnswer,
)
from providers.registry import CompatibleDescription, build_providers
from tests.providers.compatible_harness import (
    CONTENT,
    END,
    FINISH,
    SSE_HEAD,
    USAGE,
    chat,
    deadlines,
    running,
)
from tests.providers.golden import one_by_one
from tests.providers.permits import permit_of
from tests.providers.test_registry import now
from tests.support.scripted_upstream import Chat, Step, Wire

pytestmark = pytest.mark.anyio

RULES = {
    "openai_compatible": ("cancel", False),
    "openai": ("cancel", False),
    "together": ("cancel", True),
    "fireworks": ("cancel", True),
    "groq": ("drain", True),
    "cerebras": ("cancel", True),
    "openrouter": ("cancel", True),
}


def test_every_row_says_what_its_vendor_bills() -> None:
    rows = load_catalog()
    assert {
        name: (row.on_disconnect.value, row.sends_usage_unasked) for name, row in rows.items()
    } == RULES


@pytest.mark.parametrize("said", [None, *OnDisconnect])
def test_the_operators_word_goes_before_the_vendors_rule(said: OnDisconnect | None) -> None:
    found = build_providers(
        [
            CompatibleDescription(name=kind, kind=kind, base_url="http://h", on_disconnect=said)
            for kind in ("openai", "groq")
        ],
        clock=now,
    )
    rules = {name: provider.on_disconnect for name, provider in found.items()}
    ruled = {"openai": OnDisconnect.CANCEL, "groq": OnDisconnect.DRAIN}
    assert rules == (ruled if said is None else dict.fromkeys(ruled, said))
    assert found["groq"].sends_usage_unasked
    assert not found["openai"].sends_usage_unasked


async def read_with_cancellations(
    provider: OpenAiCompatibleProvider, request: ChatRequest, *, every_s: float
) -> tuple[list[Event], int]:
    """Iterate over an answer while each wait is cancelled after a while; how often it was."""
    events: list[Event] = []
    cancelled = 0
    async with provider.stream(
        "m", request, permit=permit_of(provider), deadlines=deadlines(), facts=AttemptFacts()
    ) as batches:
        while True:
            try:
                async with asyncio.timeout(every_s):
                    batch = await anext(batches)
            except TimeoutError:
                cancelled += 1
            except StopAsyncIteration:
                return events, cancelled
            else:
                events += one_by_one(batch)


WORDS = 51


async def test_a_stream_that_is_read_on_gives_its_exact_counts() -> None:
    # GW-061: fifty chunks and the usage come after the client has gone.
    paced = [Step(text=CONTENT, delay_s=0.004) for _ in range(WORDS)]
    script = Wire(steps=(Step(text=SSE_HEAD), *paced, Step(text=FINISH), Step(text=USAGE), END))
    async with running(script) as (provider, _):
        events, cancelled = await read_with_cancellations(provider, chat(), every_s=0.002)
    assert cancelled >= 10
    assert sum(isinstance(event, OpaqueDelta) for event in events) == WORDS
    [report] = [event for event in events if isinstance(event, UsageReport)]
    assert (report.usage.input_tokens, report.usage.output_tokens) == (100, 511)
    assert isinstance(events[-2], Finished)


BODY = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok " * 2000}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 900, "completion_tokens": 400},
    }
).encode()  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["asked for whole", "asked for as a stream"])
async def test_a_whole_answer_that_is_read_on_gives_its_exact_counts(stream: bool) -> None:
    # GW-063: the body was on its way when the client left.
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    parts = [Step(data=BODY[at : at + 500], delay_s=0.005) for at in range(0, len(BODY), 500)]
    async with running(Wire(steps=(Step(text=head), *parts))) as (provider, _):
        events, cancelled = await read_with_cancellations(
            provider, chat(stream=stream), every_s=0.002
        )
    assert cancelled >= 5
    reports = [
        event.usage if isinstance(event, WholeAnswer) else event
        for event in events
        if isinstance(event, WholeAnswer | UsageReport)
    ]
    assert [(one.usage.input_tokens, one.usage.output_tokens) for one in reports if one] == [
        (900, 400)
    ]


async def test_an_upstream_that_is_left_stops() -> None:
    script = Chat(text="word " * 500, frame_delay_s=0.005)
    async with running(script) as (provider, upstream):
        async with provider.stream(
            "m", chat(), permit=permit_of(provider), deadlines=deadlines(), facts=AttemptFacts()
        ) as batches:
            await anext(batches)
        async with asyncio.timeout(5):
            while upstream.calls_in_play:
                await asyncio.sleep(0.005)
        [line] = upstream.bill
    assert line.outcome == "client_left"
    assert line.completion_tokens < 500
