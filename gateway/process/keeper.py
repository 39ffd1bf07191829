"""Keep one child running: start, set up, wait for its end, start again with a growing pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio

from gateway.channel import ChannelError, Method
from gateway.process.backoff import Backoff
from gateway.process.child import KILL_AFTER_S, Child, spawn

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Keeps one child.

    Attributes:
        module: What the child runs.
        name: For log lines.
        methods: What it may call on us.
        set_up: Its first calls; the child counts as ready when this returns.
        backoff: Pauses between starts.
        child: The running child that has been set up, None while there is none.
        ready: Set while there is one.
        is_ending: Set before the child is told to end, so that it is not started again.
        fault: Why it could not be set up the last time, empty when it could.
    """

    module: str
    name: str
    methods: Mapping[str, Method]
    set_up: Callable[[Child], Awaitable[None]]
    backoff: Backoff
    child: Child | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_ending: bool = False
    fault: str = ""

    async def run(self) -> None:
        """Keep the child until `is_ending`, or until cancelled."""
        while not self.is_ending:
            try:
                await self._run_once()
            except OSError:
                logger.exception("%s cannot be started", self.name)
            if not self.is_ending:
                pause_s = self.backoff.next_s()
                logger.error("%s ended; starting it again in %.1f s", self.name, pause_s)
                await anyio.sleep(pause_s)

    async def _run_once(self) -> None:
        child = await spawn(self.module, name=self.name, methods=self.methods)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.channel.run)
                try:
                    await self.set_up(child)
                except ChannelError as error:
                    self.fault = str(error)
                    logger.error("%s: %s", self.name, error)  # noqa: TRY400 - the child logged why
                else:
                    self.fault = ""
                    self.child = child
                    self.ready.set()
                    await child.process.wait()
                tasks.cancel_scope.cancel()
        finally:
            self.child = None
            self.ready.clear()
            with anyio.CancelScope(shield=True):
                await child.stop(grace_s=KILL_AFTER_S)
