"""Keep one child running: start, set up, wait for its end, start again with a growing pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio

from gateway.channel import ChannelError, Method
from gateway.process.backoff import Backoff
from gateway.process.child import KILL_AFTER_S, Child, adopt, spawn
from gateway.process.launch import Launched

logger = logging.getLogger(__name__)


async def wait_first(*events: asyncio.Event) -> None:
    """Return as soon as one of the events is set."""
    async with anyio.create_task_group() as tasks:

        async def wait(event: asyncio.Event) -> None:
            await event.wait()
            tasks.cancel_scope.cancel()

        for event in events:
            tasks.start_soon(wait, event)


def _no_trace() -> None:
    """What is to be cleared up behind a child that leaves nothing."""


async def _nothing() -> None:
    """What follows the loss of a child that nobody else depends on."""


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Keeps one child.

    Attributes:
        module: What the child runs.
        name: For log lines.
        methods: What it may call on us.
        set_up: Its first calls; the child counts as ready when this returns.
        backoff: Pauses between starts.
        niceness: How far the child stands back for others once it is set up; somebody may wait for
            that, on a busy machine too.
        first: A child that is under way already; later ones are started here.
        on_loss: Called after a child that had been set up is gone.
        on_end: Called as soon as a child's process has ended, before another is started.
        child: The running child that has been set up, None while there is none.
        ready: Set while there is one.
        patience: Starts that may fail before `faulted` is set; trying goes on after that too.
        faulted: Set once so many starts in a row failed.
        is_ending: Set before the child is told to end, so that it is not started again.
        fault: Why it could not be set up the last time, empty when it could.
    """

    module: str
    name: str
    methods: Mapping[str, Method]
    set_up: Callable[[Child], Awaitable[None]]
    backoff: Backoff
    niceness: int = 0
    first: Launched | None = None
    on_loss: Callable[[], Awaitable[None]] = _nothing
    on_end: Callable[[], None] = _no_trace
    child: Child | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    patience: int = 1
    faulted: asyncio.Event = field(default_factory=asyncio.Event)
    is_ending: bool = False
    fault: str = ""
    _failed_starts: int = 0
    _scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Keep the child until it ended after `is_ending` was set, `abandon`, or cancellation."""
        self._scope = anyio.CancelScope()
        with self._scope:
            while not self.is_ending:
                try:
                    await self._run_once()
                except OSError as error:
                    logger.exception("%s cannot be started", self.name)
                    self._note_fault(str(error))
                if not self.is_ending:
                    pause_s = self.backoff.next_s()
                    logger.error("%s ended; starting it again in %.1f s", self.name, pause_s)
                    await anyio.sleep(pause_s)

    def abandon(self) -> None:
        """End `run`, and the child with it, in whatever state they are."""
        self.is_ending = True
        if self._scope is not None:
            self._scope.cancel()

    def _start(self) -> Child:
        launched, self.first = self.first, None
        if launched is not None:
            return adopt(launched, name=self.name, methods=self.methods)
        return spawn(self.module, name=self.name, methods=self.methods)

    async def _run_once(self) -> None:
        child = self._start()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(child.channel.run)
                try:
                    await self.set_up(child)
                except ChannelError as error:
                    logger.error("%s: %s", self.name, error)  # noqa: TRY400 - the child logged why
                    self._note_fault(str(error))
                else:
                    if self.niceness:
                        child.process.stand_back(self.niceness)
                    self.fault, self._failed_starts = "", 0
                    self.child = child
                    self.ready.set()
                    await child.process.wait()
                tasks.cancel_scope.cancel()
        finally:
            was_set_up = self.child is not None
            self.child = None
            self.ready.clear()
            with anyio.CancelScope(shield=True):
                await child.stop(grace_s=KILL_AFTER_S)
                self.on_end()
        if was_set_up and not self.is_ending:
            await self.on_loss()

    def _note_fault(self, fault: str) -> None:
        self.fault = fault
        self._failed_starts += 1
        if self._failed_starts >= self.patience:
            self.faulted.set()
