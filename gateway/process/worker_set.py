"""The workers of one configuration: started together, opened together, wound down together.

A set is complete before any of its workers takes a request, so that workers serve one configuration
or the other and never a mixture that grows. Each listening socket has one holder; a worker that is
gone has its sockets held by a sibling until its successor is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from gateway.channel import ChannelError, Method
from gateway.clock import Clock
from gateway.limits.memory import LimitMemory
from gateway.process import snapshot
from gateway.process.backoff import Backoff
from gateway.process.budget_board import BudgetBoard
from gateway.process.child import Child
from gateway.process.engines import EngineSupervisor
from gateway.process.keeper import Keeper, wait_first
from gateway.process.key_board import KeyBoard
from gateway.process.launch import WORKER_MODULE, HeadStart
from gateway.process.listeners import Listeners
from gateway.process.messages import (
    ConfigSnapshot,
    Drain,
    Listen,
    Narrow,
    StopListening,
    WindDown,
    WorkerSetup,
)
from gateway.settings.loader import LoadedConfig

logger = logging.getLogger(__name__)

SET_UP_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every set of workers works with.

    Attributes:
        board: The keys.
        budgets: The budgets.
        engines: Links workers to engines.
        listeners: The sockets that clients connect to.
        clock: For restart pauses.
        methods: What a worker may call on the supervisor.
        log_format: Of every process's log lines.
        limits: The state of rate limits, which outlives workers and configurations.
    """

    board: KeyBoard
    budgets: BudgetBoard
    engines: EngineSupervisor
    listeners: Listeners
    clock: Clock
    methods: Mapping[str, Method]
    log_format: str
    limits: LimitMemory


class SetFailed(Exception):
    """A worker of a new set could not be made ready; the message says which and why."""


@dataclass(slots=True, kw_only=True)
class WorkerSet:
    """Workers that serve one configuration.

    Attributes:
        loaded: The configuration.
        around: What they work with.
        keepers: One per worker, in the order of their indices.
    """

    loaded: LoadedConfig
    around: Surroundings
    keepers: list[Keeper] = field(default_factory=list[Keeper])
    _config: ConfigSnapshot = field(init=False)
    _spools: Sequence[int] = ()
    _patience: int = 1
    _is_open: bool = False
    _narrowings: list[Narrow] = field(default_factory=list[Narrow])
    _holders: dict[int, Child] = field(default_factory=dict[int, Child])
    _holding: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(
        cls,
        loaded: LoadedConfig,
        around: Surroundings,
        *,
        spools: Sequence[int],
        head_start: HeadStart | None = None,
        patience: int = 1,
    ) -> WorkerSet:
        """Make a set; `run` starts it.

        Args:
            loaded: The configuration.
            around: What the workers work with.
            spools: A spool directory's number for each worker.
            head_start: Where a worker may be under way already.
            patience: Starts of a worker that may fail before `wait_ready` gives up.
        """
        made = cls(loaded=loaded, around=around, _spools=spools, _patience=patience)
        made._config = snapshot.take(loaded)
        made.keepers += [made._keeper(index, head_start) for index in range(len(spools))]
        return made

    @property
    def config(self) -> ConfigSnapshot:
        """What the workers are told of their configuration."""
        return self._config

    @property
    def spools(self) -> Sequence[int]:
        """The numbers of the spool directories that are in use."""
        return self._spools

    def children(self) -> list[Child]:
        """The workers that live and have been configured."""
        return [keeper.child for keeper in self.keepers if keeper.child is not None]

    async def run(self) -> None:
        """Keep the workers until all have ended on request, or until cancelled."""
        async with anyio.create_task_group() as tasks:
            for keeper in self.keepers:
                tasks.start_soon(keeper.run)

    async def wait_ready(self) -> None:
        """Wait until every worker is configured and linked to its engines.

        Raises:
            SetFailed: One is not ready in time, or failed too often.
        """
        with anyio.move_on_after(SET_UP_TIMEOUT_S):
            for keeper in self.keepers:
                await wait_first(keeper.ready, keeper.faulted)
        for keeper in self.keepers:
            if not keeper.ready.is_set():
                raise SetFailed(
                    f"{keeper.name} could not be started:"
                    f" {keeper.fault or f'it was not ready within {SET_UP_TIMEOUT_S:g} s'}"
                )

    async def open(self) -> None:
        """Accept connections, on every worker that lives and on all that come."""
        self._is_open = True
        await self._spread()

    async def narrow(self, request: Narrow) -> None:
        """Hold the workers to a newer configuration's policy too; one that cannot be is ended."""
        self._narrowings.append(request)
        async with anyio.create_task_group() as tasks:
            for child in self.children():
                tasks.start_soon(self._tell_end, child, "narrow", request, CALL_TIMEOUT_S)

    async def wind_down(self, request: WindDown) -> None:
        """Accept no more; workers end by themselves when their connections have."""
        await self._end(lambda child: self._tell_end(child, "wind_down", request, CALL_TIMEOUT_S))

    async def drain(self, deadline_s: float) -> None:
        """Refuse what is new, and return when what was in flight is done or cut."""
        timeout_s = deadline_s + CALL_TIMEOUT_S
        request = Drain(deadline_s=deadline_s)
        await self._end(lambda child: self._tell_end(child, "drain", request, timeout_s))

    def abandon(self) -> None:
        """End every worker at once."""
        self._is_open = False
        for keeper in self.keepers:
            keeper.abandon()

    async def _end(self, tell: Callable[[Child], Coroutine[None, None, None]]) -> None:
        self._is_open = False
        async with anyio.create_task_group() as tasks:
            for keeper in self.keepers:
                keeper.is_ending = True
                if keeper.child is None:
                    keeper.abandon()  # it is being started and serves nobody
                else:
                    tasks.start_soon(tell, keeper.child)

    async def _tell_end(self, child: Child, name: str, request: object, timeout_s: float) -> None:
        try:
            await child.channel.call(name, request, result_type=type(None), timeout_s=timeout_s)
        except ChannelError as error:
            logger.warning("%s did not take %s: %s", child.name, name, error)
            child.process.kill()

    def _keeper(self, index: int, head_start: HeadStart | None) -> Keeper:
        return Keeper(
            module=WORKER_MODULE,
            name=f"worker-{self._spools[index]}",
            methods=self.around.methods,
            set_up=lambda child: self._set_up(index, child),
            backoff=Backoff(monotonic_s=self.around.clock.monotonic_s),
            first=None if head_start is None else head_start.take(WORKER_MODULE),
            on_loss=self._spread,
            # What it had in flight is over; its spool's number is its seat, too.
            on_end=lambda: self.around.limits.clear_seat(self._spools[index]),
            patience=self._patience,
        )

    async def _set_up(self, index: int, child: Child) -> None:
        board, keeper = self.around.board, self.keepers[index]
        limits_fd = self.around.limits.fd
        assert limits_fd is not None, "the supervisor made it to be handed on"
        keys, revision = await board.current()
        budgets = self.around.budgets
        known = budgets.rules
        await child.channel.call(
            "configure",
            WorkerSetup(
                index=self._spools[index],
                config=self._config,
                keys=keys,
                revision=revision,
                is_complete=board.is_complete,
                budgets=known,
                log_format=self.around.log_format,
            ),
            result_type=type(None),
            timeout_s=SET_UP_TIMEOUT_S,
            fds=[limits_fd],
        )

        for request in self._narrowings:
            await child.channel.call(
                "narrow", request, result_type=type(None), timeout_s=CALL_TIMEOUT_S
            )

        def enter() -> None:
            keeper.child = child

        async with budgets.joining(child, known=known):
            await board.join(child, revision=revision, enter=enter)
        async with anyio.create_task_group() as tasks:
            # Beside each other: a successor serves before a busy engine's speed was measured.
            tasks.start_soon(self._spread)
            await self.around.engines.link_worker(child.channel)

    async def _spread(self) -> None:
        """Give every listening socket to its worker, or to another one while that is gone."""
        async with self._holding:
            if not self._is_open:
                return
            living = {
                index: keeper.child
                for index, keeper in enumerate(self.keepers)
                if keeper.child is not None
            }
            wanted = self._wanted(living)
            for child in living.values():
                gained = [
                    number
                    for number, holder in wanted.items()
                    if holder is child and self._holders.get(number) is not child
                ]
                await self._give(child, gained)
            for child in living.values():
                lost = [
                    number
                    for number, holder in self._holders.items()
                    if holder is child and wanted[number] is not child
                ]
                await self._take(child, lost)
            self._holders = wanted

    def _wanted(self, living: Mapping[int, Child]) -> dict[int, Child]:
        if not living:
            return {}  # connections wait in the sockets for whoever comes first
        indices = sorted(living)
        wanted: dict[int, Child] = {}
        for number in range(len(self.around.listeners.sockets)):
            home = number % len(self.keepers)
            wanted[number] = living.get(home) or living[indices[number % len(indices)]]
        return wanted

    async def _give(self, child: Child, numbers: list[int]) -> None:
        sockets = self.around.listeners.sockets
        # Descriptors travel a few at a time; the kernel takes at most 253 with one message.
        for start in range(0, len(numbers), 16):
            part = numbers[start : start + 16]
            try:
                await child.channel.call(
                    "listen",
                    Listen(numbers=part),
                    result_type=type(None),
                    timeout_s=CALL_TIMEOUT_S,
                    fds=[sockets[number].fileno() for number in part],
                )
            except (ChannelError, OSError) as error:
                # It is gone, which spreads its sockets anew, or it hangs and serves nobody; or all
                # sockets were closed, because this is the end.
                logger.warning("%s does not listen: %s", child.name, error)
                child.process.kill()
                return

    async def _take(self, child: Child, numbers: list[int]) -> None:
        if not numbers:
            return
        try:
            await child.channel.call(
                "stop_listening",
                StopListening(numbers=numbers),
                result_type=type(None),
                timeout_s=CALL_TIMEOUT_S,
            )
        except ChannelError as error:
            logger.warning("%s still listens for another: %s", child.name, error)
