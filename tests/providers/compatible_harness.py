"""A provider over a scripted upstream, and what an attempt came to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from providers.compatible import Account, OpenAiCompatibleProvider, load_catalog
from providers.contract import (
    AttemptFacts,
    ChatRequest,
    Deadlines,
    Event,
    OpaqueDelta,
    UsageReport,
)
from providers.errors import (
    ProviderError,
)
from providers.transport import TransportOptions
from tests.providers.golden import one_by_one
from tests.providers.permits import permit_of
from tests.support.scripted_upstream import Answer, Chat, ScriptedUpstream, Step, Wire

KEY = "sk-canary-0123456789abcdef"


ROW = load_catalog()["openai_compatible"]


QUICK = TransportOptions(finish_grace_s=0.1, end_grace_s=0.05)


SSE_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


CONTENT = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


FINISH = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'


USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":511}}\n\n'


def deadlines(**limits: float) -> Deadlines:
    return Deadlines(
        **{
            "connect_s": 2.0,
            "first_token_s": 5.0,
            "between_tokens_s": 5.0,
            "total_s": 10.0,
            **limits,
        }
    )


def chat(*, stream: bool = True, **fields: str) -> ChatRequest:
    raw = {
        name: msgspec.Raw(value.encode())
        for name, value in {"messages": '[{"role":"user","content":"hi"}]', **fields}.items()
    }
    return ChatRequest(
        fields=raw, is_stream=stream, wants_usage=False, namespace=bytes(16), request_id="r1"
    )


def provider_at(
    base_url: str, *, options: TransportOptions = QUICK, **members: object
) -> OpenAiCompatibleProvider:
    account = Account(name="up", base_url=base_url, **{"api_key": KEY, **members})
    return OpenAiCompatibleProvider(
        account, ROW, clock=lambda: datetime(2026, 11, 30, tzinfo=UTC), transport_options=options
    )


@dataclass
class Outcome:
    events: list[Event] = field(default_factory=list)
    batches: int = 0
    error: ProviderError | None = None
    facts: AttemptFacts = field(default_factory=AttemptFacts)
    took_s: float = 0.0

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    @property
    def text(self) -> str:
        raws = [json.loads(event.raw) for event in self.events if isinstance(event, OpaqueDelta)]
        return "".join(raw["choices"][0]["delta"]["content"] for raw in raws)

    @property
    def usage(self) -> UsageReport | None:
        return next(
            (event for event in reversed(self.events) if isinstance(event, UsageReport)), None
        )


async def call(
    provider: OpenAiCompatibleProvider,
    request: ChatRequest | None = None,
    *,
    model: str = "m",
    limits: Deadlines | None = None,
    pause_s: float = 0.0,
) -> Outcome:
    outcome = Outcome()
    start = time.monotonic()
    try:
        async with provider.stream(
            model,
            request or chat(),
            permit=permit_of(provider, model),
            deadlines=limits or deadlines(),
            facts=outcome.facts,
        ) as batches:
            async for batch in batches:
                outcome.batches += 1
                outcome.events += one_by_one(batch)
                await asyncio.sleep(pause_s)
    except ProviderError as error:
        outcome.error = error
    outcome.took_s = time.monotonic() - start
    return outcome


@asynccontextmanager
async def running(
    *scripts: Answer | Chat | Wire, **members: object
) -> AsyncIterator[tuple[OpenAiCompatibleProvider, ScriptedUpstream]]:
    async with ScriptedUpstream({"m": list(scripts)}) as upstream:
        provider = provider_at(upstream.base_url, **members)
        try:
            yield provider, upstream
        finally:
            await provider.close()


def wire(*steps: Step | str, head: str = SSE_HEAD) -> Wire:
    return Wire(
        steps=(
            Step(text=head),
            *(step if isinstance(step, Step) else Step(text=step) for step in steps),
        )
    )


def chunk(text: str) -> str:
    return f"{len(text.encode()):x}\r\n{text}\r\n"


END = Step(ending="close")


CHUNKED_HEAD = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


WHOLE_STREAM = CONTENT + FINISH + "data: [DONE]\n\n"


def json_wire(body: bytes, **headers: str) -> Wire:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    return Wire(steps=(Step(text=head), Step(data=body)))


WHOLE = json.dumps(
    {
        "model": "m1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ok" * 1000},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
).encode()
