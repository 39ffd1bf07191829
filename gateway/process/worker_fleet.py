"""All sets of workers: the one that serves, and those before it that still have connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from gateway.budgets.messages import BudgetDeclarations
from gateway.channel import ChannelError
from gateway.process.child import Child
from gateway.process.launch import HeadStart
from gateway.process.listeners import CannotListen
from gateway.process.messages import Narrow, WindDown
from gateway.process.worker_set import SetFailed, Surroundings, WorkerSet
from gateway.settings.loader import LoadedConfig

logger = logging.getLogger(__name__)

IDLE_S = 30.0
"""A connection of an old worker that asked nothing for so long is closed. A request that its client
sends in that very moment is lost, hence not sooner; every other connection is told first."""

IDLE_AFTER_POLICY_S = 1.0
"""The same where privacy, teams, keys, models or providers changed: the next request of a
connection that rests is not to be decided as before. One that its client sends in that very moment
is lost, and SDKs send it again."""

SETTLE_S = 60.0
"""Room for pauses and settlements, on top of the longest attempt, until an old worker must end."""

OLD_SETS_MAX = 3
"""Sets that are wound down at the same time; a further reload hurries the oldest."""

HURRIED_S = 30.0

FIRST_PATIENCE = 6
"""Failed starts of a worker before the gateway gives its start up. More than one, because workers
of a gateway that was killed may hold their spool directories for some seconds more."""


@dataclass(slots=True, kw_only=True)
class WorkerFleet:
    """Keeps the sets of workers.

    Attributes:
        around: What workers work with.
        declared: The budgets that a configuration declares.
    """

    around: Surroundings
    declared: Callable[[LoadedConfig], BudgetDeclarations]
    _sets: list[WorkerSet] = field(default_factory=list[WorkerSet])  # the oldest first
    _serving: WorkerSet | None = None
    _tasks: TaskGroup | None = None
    _started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def served(self) -> LoadedConfig:
        """The configuration that new connections are served with."""
        assert self._serving is not None, "asked for only while it runs"
        return self._serving.loaded

    def children(self) -> Sequence[Child]:
        """Every worker that lives and has been configured, of all sets."""
        return [child for one in self._sets for child in one.children()]

    async def run(self, loaded: LoadedConfig, head_start: HeadStart) -> None:
        """Start the first set, and keep whatever sets there are until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._serving = self._start(loaded, head_start, patience=FIRST_PATIENCE)
            self._started.set()
            await anyio.sleep_forever()

    async def open(self) -> None:
        """Wait until the first set is ready, and let clients in.

        Raises:
            SetFailed: It did not get ready.
        """
        await self._started.wait()
        assert self._serving is not None
        await self._serving.wait_ready()
        await self._serving.open()

    async def replace(self, loaded: LoadedConfig) -> None:
        """Serve another configuration, or go on as before.

        Raises:
            SetFailed: The new workers cannot be had, or its budgets; none of them took a request.
            SettingsError: A secret that its budgets need cannot be read.
        """
        old = self._serving
        assert old is not None
        declared = self.declared(loaded)
        try:
            self.around.listeners.grow(loaded.settings.server.workers)
        except CannotListen as error:
            raise SetFailed(str(error)) from error
        new = self._start(loaded, HeadStart(), patience=1)
        is_ready = False
        try:
            await new.wait_ready()
            await self._change_budgets(declared)
            is_ready = True
        finally:
            if not is_ready:
                new.abandon()
        # From here on nothing is taken back. Older sets go on with their connections, and what they
        # are asked is held to the newer policy as well as to their own.
        for one in self._sets:
            if one is not new:
                await one.narrow(Narrow(config=new.config))
        await new.open()
        self._serving = new
        total_s = old.loaded.settings.server.timeouts.total_s
        idle_s = IDLE_AFTER_POLICY_S if _may_decide_otherwise(old.loaded, loaded) else IDLE_S
        await old.wind_down(WindDown(idle_s=idle_s, deadline_s=total_s + SETTLE_S))
        await self._hurry()

    async def _change_budgets(self, declared: BudgetDeclarations) -> None:
        """Put a configuration's budgets in force, for old workers too: they are the ledger's."""
        try:
            await self.around.budgets.serve(declared)
        except ChannelError as error:
            raise SetFailed(f"its budgets cannot be set: {error}") from error

    async def drain(self, deadline_s: float) -> None:
        """Refuse what is new everywhere; return when what was in flight is done or cut."""
        async with anyio.create_task_group() as tasks:
            for one in self._sets:
                tasks.start_soon(one.drain, deadline_s)

    async def _hurry(self) -> None:
        """Bound the number of old sets."""
        old = [one for one in self._sets if one is not self._serving]
        for one in old[: max(0, len(old) - OLD_SETS_MAX)]:
            logger.warning("workers of an earlier configuration have %g s left", HURRIED_S)
            await one.wind_down(WindDown(idle_s=0.0, deadline_s=HURRIED_S))

    def _start(self, loaded: LoadedConfig, head_start: HeadStart, *, patience: int) -> WorkerSet:
        assert self._tasks is not None
        taken = {number for one in self._sets for number in one.spools}
        count = loaded.settings.server.workers
        free = [number for number in range(count + len(taken)) if number not in taken]
        made = WorkerSet.of(
            loaded,
            self.around,
            spools=free[:count],
            head_start=head_start,
            patience=patience,
        )
        self._sets.append(made)
        self._tasks.start_soon(self._keep, made)
        return made

    async def _keep(self, one: WorkerSet) -> None:
        try:
            await one.run()
        finally:
            self._sets.remove(one)


def _may_decide_otherwise(old: LoadedConfig, new: LoadedConfig) -> bool:
    """Whether a request may be refused or routed otherwise under the new configuration."""
    before, after = old.settings, new.settings
    return (before.privacy, before.teams, before.models, before.providers) != (
        after.privacy,
        after.teams,
        after.models,
        after.providers,
    )
