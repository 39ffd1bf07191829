"""The embedded engine as a provider.

A link leads to one engine process, which serves one model; the supervisor replaces its client when
the engine restarts. Usage is exact, also of an attempt that was left early, and carries the machine
time that the engine metered.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from local_engine.api import (
    Accepted,
    Done,
    EngineBusy,
    EngineClient,
    EngineError,
    EngineGone,
    Generation,
    ModelCard,
    RequestRejected,
    TextDelta,
)
from pricing.usage import Usage
from providers import contract
from providers.codecs.engine_request import HONOURED_FIELDS, generate_request
from providers.contract import (
    ENGINE,
    AttemptFacts,
    Batch,
    Capabilities,
    ChatRequest,
    Deadlines,
    EgressPermit,
    Event,
    Finished,
    UsageReport,
)
from providers.errors import (
    BadRequest,
    BadWire,
    ConnectionLost,
    ContextTooLong,
    FirstTokenTimeout,
    Overloaded,
    ProviderError,
    StreamStalled,
    TotalTimeout,
    Unavailable,
    UpstreamFault,
)


@dataclass(slots=True, kw_only=True)
class EngineLink:
    """The way to one engine; changed by whoever supervises it.

    Attributes:
        client: The connected client, None while there is no engine.
        card: What the engine offers, kept over restarts; None until it was up once.
        retry_after_s: How long callers should wait while there is no client.
    """

    client: EngineClient | None = None
    card: ModelCard | None = None
    retry_after_s: float = 5.0


class LocalProvider:
    """The engines of this machine; implements `contract.Provider`."""

    def __init__(
        self,
        name: str,
        links: Mapping[str, EngineLink],
        *,
        on_done: Callable[[str, Done], None] | None = None,
    ) -> None:
        """Take the links; nothing is sent yet.

        Args:
            name: The name in the configuration.
            links: By model id; they may be without a client for now.
            on_done: Told the deployment and the engine's account of each generation.
        """
        self._name = name
        self._links = links
        self._on_done = on_done
        self._calls = itertools.count(1)

    @property
    def name(self) -> str:
        """The name in the configuration."""
        return self._name

    @property
    def on_disconnect(self) -> contract.OnDisconnect:
        """Cancel: the engine stops at once and still accounts for what it did."""
        return contract.OnDisconnect.CANCEL

    @property
    def sends_usage_unasked(self) -> bool:
        """No: usage comes to who asks for it, as on OpenAI's own wire."""
        return False

    def capabilities(self, model_id: str) -> Capabilities:
        """What the engine can do; its context window is known once it was up."""
        link = self._links.get(model_id)
        card = None if link is None else link.card
        return Capabilities(
            context_window_tokens=None if card is None else card.context_window,
            is_open=False,
            supported=HONOURED_FIELDS,
            multimodal=False,
        )

    @asynccontextmanager
    async def stream(
        self,
        model_id: str,
        request: ChatRequest,
        *,
        permit: EgressPermit,
        deadlines: Deadlines,
        facts: AttemptFacts,
    ) -> AsyncGenerator[AsyncIterator[Batch]]:
        """Generate; leaving the context aborts and fills `facts.closing_usage`.

        Raises:
            NotPermitted: The permit does not name the deployment as one of an engine of ours.
            ProviderError: The attempt failed; on entry, or while iterating.
        """
        deployment = f"{self._name}/{model_id}"
        permit.require(deployment, ENGINE)
        client = self._client(model_id, deployment)
        wanted = generate_request(
            request, call_id=f"{request.request_id}.{next(self._calls)}", adapted=facts.adapted
        )
        started = asyncio.get_running_loop().time()
        generation: Generation | None = None
        reader: _Reader | None = None
        try:
            async with client.generate(wanted) as generation:
                facts.was_sent = True
                facts.upstream_model = client.card.model_id
                reader = _Reader(
                    generation, deployment=deployment, deadlines=deadlines, started=started
                )
                yield reader
        except EngineError as fault:
            if not facts.was_sent and isinstance(fault, EngineGone):
                raise Unavailable(f"{deployment} is not running.") from fault
            raise _error(fault, deployment) from fault
        finally:
            if generation is not None and generation.done is not None:
                report = _report(generation.done)
                facts.gpu_busy_us = report.usage.gpu_us
                if self._on_done is not None:
                    self._on_done(deployment, generation.done)
                if reader is None or not reader.has_reported:
                    facts.closing_usage = report

    async def close(self) -> None:
        """Close the links' clients."""
        for link in self._links.values():
            client, link.client = link.client, None
            if client is not None:
                await client.close()

    def _client(self, model_id: str, deployment: str) -> EngineClient:
        link = self._links.get(model_id)
        client = None if link is None else link.client
        if client is None or not client.is_alive:
            raise Unavailable(
                f"{deployment} is not running.",
                retry_after_s=None if link is None else link.retry_after_s,
            )
        return client


class _Reader:
    """Batches of one generation, each wait under the deadline that comes first.

    Attributes:
        has_reported: Whether the usage was handed on.
    """

    def __init__(
        self, generation: Generation, *, deployment: str, deadlines: Deadlines, started: float
    ) -> None:
        self.has_reported = False
        self._generation = generation
        self._deployment = deployment
        self._between_tokens_s = deadlines.between_tokens_s
        self._total_at = started + deadlines.total_s
        self._first_token_at = started + deadlines.first_token_s
        self._has_content = False

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        """The next batch with an event in it.

        Raises:
            ProviderError: The generation failed or a deadline passed.
        """
        while True:
            batch = await self._wait()
            events: list[Event] = []
            for event in batch:
                match event:
                    case TextDelta():
                        if event.text:
                            events.append(contract.TextDelta(text=event.text))
                    case Done():
                        events += self._finish(event)
                    case Accepted():
                        pass
            if events:
                self._has_content = True
                return events

    async def _wait(self) -> list[Accepted | TextDelta | Done]:
        now = asyncio.get_running_loop().time()
        wait_at = now + self._between_tokens_s if self._has_content else self._first_token_at
        try:
            async with asyncio.timeout_at(min(wait_at, self._total_at)):
                return await anext(self._generation)
        except TimeoutError:
            raise self._timeout_error(wait_at) from None
        except EngineError as fault:
            raise _error(fault, self._deployment) from fault

    def _timeout_error(self, wait_at: float) -> ProviderError:
        if self._total_at <= wait_at:
            return TotalTimeout(f"{self._deployment} took longer than the total deadline.")
        if self._has_content:
            return StreamStalled(f"{self._deployment} fell silent in the middle of its answer.")
        return FirstTokenTimeout(f"{self._deployment} gave no content within the deadline.")

    def _finish(self, done: Done) -> list[Event]:
        if done.finish_reason == "abort":
            # Nobody here aborted: the engine failed or is being stopped.
            raise UpstreamFault(f"{self._deployment} broke off its answer.")
        self.has_reported = True
        return [Finished(reason=done.finish_reason), _report(done)]


def _report(done: Done) -> UsageReport:
    usage = done.usage
    return UsageReport(
        usage=Usage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_read_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            gpu_us=round(done.busy_s * 1e6),
        )
    )


def _error(fault: EngineError, deployment: str) -> ProviderError:
    """Map what the engine raises; its sentences for callers never repeat a prompt."""
    match fault:
        case RequestRejected(code="context_length_exceeded"):
            return ContextTooLong(fault.message, code=fault.code, param=fault.param)
        case RequestRejected():
            return BadRequest(fault.message, code=fault.code, param=fault.param)
        case EngineBusy():
            return Overloaded(f"{deployment} is busy.", retry_after_s=fault.retry_after_s)
        case EngineGone():
            return ConnectionLost(f"The engine of {deployment} died.")
        case _:
            return BadWire(f"{deployment} broke the engine's protocol.")
