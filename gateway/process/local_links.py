"""A worker's links to engines: connect, measure once, hand over to the provider, replace.

A GPU-hour price is quoted from measured speed, so every new link generates a few tokens first;
until that is done the deployment counts as starting.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from gateway.health import HealthBoard
from gateway.privacy.permit import operator_permit
from gateway.process.messages import EngineFault
from gateway.process.messages import EngineLink as LinkMessage
from local_engine.api import Done, EngineClient, EngineError, GenerateRequest
from providers.contract import ENGINE, EgressPermit
from providers.native.local import EngineLink

logger = logging.getLogger(__name__)

STARTING = "its engine is starting"
WARM_UP_S = 10.0
"""Longest time that a new link waits for its measurement; traffic measures on from there."""

WARM_UP_TOKENS = 5
FRESH_TOKENS_MIN = 32
"""Prompts with fewer tokens to compute say more about the step than about the speed."""

_WARM_UP_PROMPT = "The quick brown fox jumps over the lazy dog. " * 6


@dataclass(slots=True, kw_only=True)
class LocalLinks:
    """Links per provider and model.

    Attributes:
        links: By provider name, then by model id; shared with the providers.
        health: Told what is there.
        permit: Of the measurement, which carries nobody's request: every engine of the
            configuration.
    """

    links: Mapping[str, Mapping[str, EngineLink]]
    health: HealthBoard
    permit: EgressPermit = field(init=False)

    def __post_init__(self) -> None:
        """Write the permit."""
        engines = {
            f"{provider}/{model_id}": ENGINE
            for provider, models in self.links.items()
            for model_id in models
        }
        self.permit = operator_permit("warm-up", engines)

    def start(self) -> None:
        """Note that no engine is there yet."""
        for provider, models in self.links.items():
            for model_id in models:
                self.health.set_fault(f"{provider}/{model_id}", STARTING)

    async def _warm_up(self, deployment: str, client: EngineClient) -> None:
        """Measure one small generation.

        Raises:
            NotPermitted: The deployment is no engine of the configuration.
        """
        self.permit.require(deployment, ENGINE)
        request = GenerateRequest(
            id="warm-up",
            # A namespace of its own: nothing that a tenant sends can meet this prefix.
            namespace=secrets.token_bytes(16),
            prompt=_WARM_UP_PROMPT,
            max_tokens=WARM_UP_TOKENS,
            temperature=0.0,
            ignore_eos=True,
        )
        try:
            with anyio.move_on_after(WARM_UP_S):
                async with client.generate(request) as generation:
                    async for _batch in generation:
                        pass
                if generation.done is not None:
                    self.note_done(deployment, generation.done)
        except EngineError as error:
            logger.warning("%s could not be measured: %s", deployment, error)

    async def add(self, message: LinkMessage, sock: socket.socket) -> None:
        """Connect a link, put it in the place of the one before, and measure the engine.

        Raises:
            EngineError: The engine does not answer.
        """
        deployment = f"{message.provider}/{message.model_id}"
        link = self.links[message.provider][message.model_id]
        client = EngineClient(sock)
        card = await client.connect()
        old, link.client, link.card = link.client, client, card
        self.health.set_fault(deployment, None)
        if old is not None:
            await old.close()
        # Last: it takes long on an engine that others keep busy, which could serve meanwhile.
        await self._warm_up(deployment, client)

    def note_fault(self, fault: EngineFault) -> None:
        """Note that an engine is not there, and why."""
        self.health.set_fault(f"{fault.provider}/{fault.model_id}", fault.reason)

    def note_done(self, deployment: str, done: Done) -> None:
        """Learn from a generation how many tokens a busy second makes.

        Busy time is shared out between prompt and output by how long each took.
        """
        took_s = done.e2e_s - done.queue_s
        if done.prefill_s is None or took_s <= 0 or done.busy_s <= 0:
            return
        prefill_busy_s = done.busy_s * min(1.0, done.prefill_s / took_s)
        decode_busy_s = done.busy_s - prefill_busy_s
        fresh_tokens = done.usage.prompt_tokens - done.usage.cached_tokens
        self.health.note_speed(
            deployment,
            prefill_tps=fresh_tokens / prefill_busy_s
            if fresh_tokens >= FRESH_TOKENS_MIN and prefill_busy_s > 0
            else None,
            decode_tps=(done.usage.output_tokens - 1) / decode_busy_s
            if done.usage.output_tokens > 1 and decode_busy_s > 0
            else None,
        )

    async def close(self) -> None:
        """Close every link."""
        for models in self.links.values():
            for link in models.values():
                client, link.client = link.client, None
                if client is not None:
                    await client.close()
