"""A provider without a wire: plays events, pauses and errors, as the embedded engine would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from pricing.usage import Usage
from providers.contract import (
    AttemptFacts,
    Batch,
    Capabilities,
    ChatRequest,
    Deadlines,
    EgressPermit,
    Finished,
    OnDisconnect,
    TextDelta,
    UsageReport,
)

Step = Batch | float | Exception
"""A batch is yielded, a number slept, an exception raised."""


@dataclass(kw_only=True)
class FakeProvider:
    """Implements `providers.contract.Provider`; one script per call, the last one for ever after."""

    name: str
    scripts: Sequence[Sequence[Step]]
    closing_usage: UsageReport | None = None
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    sends_usage_unasked: bool = False
    calls: list[ChatRequest] = field(default_factory=list)
    facts: list[AttemptFacts] = field(default_factory=list)
    permits: list[EgressPermit] = field(default_factory=list)
    left: int = 0

    def capabilities(self, model_id: str) -> Capabilities:
        return Capabilities()

    @asynccontextmanager
    async def stream(
        self,
        model_id: str,
        request: ChatRequest,
        *,
        permit: EgressPermit,
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> AsyncIterator[AsyncIterator[Batch]]:
        script = self.scripts[min(len(self.calls), len(self.scripts) - 1)]
        self.calls.append(request)
        self.permits.append(permit)
        self.facts.append(facts)
        facts.was_sent = True
        facts.upstream_model = "fake-model"
        try:
            yield self._play(script)
        finally:
            self.left += 1
            facts.closing_usage = self.closing_usage

    async def _play(self, script: Sequence[Step]) -> AsyncIterator[Batch]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, int | float):
                await anyio.sleep(step)
            else:
                yield step

    async def close(self) -> None:
        return None


def answer(*texts: str, reason: str = "stop", input_tokens: int = 4) -> list[Step]:
    """A whole answer in batches of one event."""
    usage = Usage(input_tokens=input_tokens, output_tokens=len(texts))
    return [
        *([TextDelta(text=text)] for text in texts),
        [Finished(reason=reason), UsageReport(usage=usage)],
    ]
