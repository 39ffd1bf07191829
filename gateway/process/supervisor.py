"""`serve`: one supervisor keeps the ledger process, the workers and the engines running.

    supervisor ── ledger process   loads spools, alone writes the database
               ├─ worker 0..N      answer clients; each with a spool of its own
               └─ engine           one per local model; a socket pair to each worker

A child that dies is started again with a growing pause. Keys change here: the ledger process writes
the row, then every worker acknowledges the new directory before the command returns, so that a
revoked key is dead everywhere when `fareway keys revoke` says so. A new configuration gets workers
of its own; the old ones are wound down beside them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from gateway.access.people import METHODS as PEOPLE_METHODS
from gateway.access.people import new_code
from gateway.auth.directory import KeyRecord
from gateway.budgets.messages import BudgetRules
from gateway.channel import ChannelError, Method, RemoteError, method
from gateway.clock import Clock
from gateway.ledger.views import KeyCreation, KeyRevocation
from gateway.limits.memory import LimitMemory
from gateway.process import admin_socket, stored_budgets, stored_keys
from gateway.process.backoff import Backoff
from gateway.process.budget_board import BudgetBoard
from gateway.process.child import Child
from gateway.process.egress_board import EgressBoard
from gateway.process.engines import EngineSupervisor
from gateway.process.keeper import Keeper, wait_first
from gateway.process.key_board import KeyBoard
from gateway.process.last_known import LastKnownFile
from gateway.process.launch import LEDGER_MODULE, HeadStart
from gateway.process.ledger_start import LedgerStarter
from gateway.process.listeners import Listeners
from gateway.process.machine_notes import MachineNotes, node_of
from gateway.process.machine_watch import MachineWatch
from gateway.process.messages import (
    DATABASE_UNAVAILABLE,
    EngineSpeed,
    LedgerStart,
    ServiceStatus,
)
from gateway.process.notice_board import METHODS as NOTICE_METHODS
from gateway.process.notice_board import NoticeBoard
from gateway.process.preflight import ServeError
from gateway.process.reload import Reloader
from gateway.process.worker_fleet import WorkerFleet
from gateway.process.worker_set import SetFailed, Surroundings
from gateway.settings.database import connection_url, redis_password
from gateway.settings.declared_budgets import declared_budgets
from gateway.settings.loader import LoadedConfig
from gateway.settings.storage import SQLITE_PREFIX
from gateway.telemetry.desk import MetricsDesk
from gateway.telemetry.snapshot import Snapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")

CALL_TIMEOUT_S = 30.0
SPEEDS_TIMEOUT_S = 2.0
DRAIN_S = 30.0
LEDGER_WAIT_S = 15.0
"""How long a call waits for a ledger process that is being started."""
_LEDGER_STARTS = "the ledger process is being started again"
LEDGER_NICENESS = 10
"""What is in the journal is safe; requests come first where there are not enough cores."""
FORCED_STOP_S = 2.0
"""Longest time that the ledger may still load after a second signal; the rest comes at a start."""
FINANCE_TIMEOUT_S = 600.0
"""Reading a large file, comparing a month of many attempts, or adding them up anew."""

_LEDGER_READS = (
    "list_keys",
    "spend_report",
    "recent_requests",
    "load_attempts",
    "load_request",
    "export_open",
    "export_next",
    "export_close",
    "budget_reports",
    "flush",
    "stats",
)
"""Methods of the ledger process that workers and the admin socket reach unchanged, beside those
about people."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs the service until it is told to stop.

    Attributes:
        loaded: The configuration to begin with; everything in it is built.
        config_path: The file it came from, None for the built-in defaults.
        engines: Keeps the engines.
        listeners: Bound, listening sockets.
        environ: The environment, for reloads.
        clock: For restart pauses.
        on_ready: Called once with the base URL, when every worker answers.
        head_start: Children that are under way already.
        on_set_up: Called with the link that makes the first administrator, while there is nobody.
    """

    loaded: LoadedConfig
    config_path: Path | None
    engines: EngineSupervisor
    listeners: Listeners
    environ: Mapping[str, str]
    clock: Clock
    on_ready: Callable[[str], None]
    head_start: HeadStart = field(default_factory=HeadStart)
    on_set_up: Callable[[str], None] = lambda _link: None
    _board: KeyBoard = field(init=False)
    _budgets: BudgetBoard = field(init=False)
    _notices: NoticeBoard = field(init=False)
    _egress: EgressBoard = field(init=False)
    _fleet: WorkerFleet = field(init=False)
    _reloader: Reloader = field(init=False)
    _ledger: Keeper = field(init=False)
    _starter: LedgerStarter = field(init=False)
    _desk: MetricsDesk = field(init=False)
    _machines: MachineNotes = field(init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _forced: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Put the parts together; nothing runs yet.

        Raises:
            SettingsError: A secret that budgets need cannot be read.
        """
        self._board = KeyBoard(members=self._living_workers)
        self._budgets = BudgetBoard(
            members=self._living_workers,
            ledger=self._ready_ledger,
            monotonic_s=self.clock.monotonic_s,
            declared=declared_budgets(self.loaded, environ=self.environ),
        )
        self._machines = MachineNotes(
            settings=lambda: self._fleet.served.settings,
            node=node_of(self.loaded),
            engine_stats=self.engines.stats,
            tell=lambda note: self._call_ledger("finance", note, result_type=type(None)),
            clock=self.clock,
        )
        self._egress = EgressBoard(self.loaded, self.environ, self.clock, self._ready_ledger)
        self._notices = NoticeBoard.of(self.loaded, self.environ, ledger=self._ready_ledger)
        self._desk = MetricsDesk(
            workers=lambda: [child.channel for child in self._living_workers()],
            pids=self._pids,
            ledger_stats=self._ledger_stats,
            budget_reports=self._budgets.reports,
            engine_stats=self.engines.stats,
            machine_series=self._machines.series,
        )
        self._fleet = WorkerFleet(
            around=Surroundings(
                board=self._board,
                budgets=self._budgets,
                engines=self.engines,
                listeners=self.listeners,
                clock=self.clock,
                methods=self._methods(),
                log_format=self.loaded.settings.telemetry.log_format,
                limits=LimitMemory.make(),
            ),
            declared=lambda loaded: declared_budgets(loaded, environ=self.environ),
        )
        serve = partial(self._notices.replace, self._fleet.replace)
        self._reloader = Reloader(
            config_path=self.config_path,
            environ=self.environ,
            clock=self.clock,
            served=lambda: self._fleet.served,
            replace=partial(self._egress.replace, serve),
        )
        url = self.loaded.database_url
        self._starter = LedgerStarter(
            order=self._ledger_order,
            board=self._board,
            budgets=self._budgets,
            notices=self._notices,
            monotonic_s=self.clock.monotonic_s,
            file=None
            if url.startswith(SQLITE_PREFIX)
            else LastKnownFile(folder=self.loaded.spool_dir, database_url=url, clock=self.clock),
        )
        self._ledger = Keeper(
            module=LEDGER_MODULE,
            name="ledger",
            methods={"news": method(type(None), self._take_news)},
            set_up=self._starter.set_up,
            backoff=Backoff(monotonic_s=self.clock.monotonic_s),
            niceness=LEDGER_NICENESS,
        )

    @property
    def url(self) -> str:
        """The base URL that clients use."""
        return self.listeners.url

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stopping.is_set()

    async def wait_until_stopping(self) -> None:
        """Wait until it is told to end."""
        await self._stopping.wait()

    def stop(self) -> None:
        """Ask `run` to drain and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop`, SIGTERM or SIGINT; then drain and return.

        Raises:
            ServeError: A child could not be started at all, or another gateway has the spool.
        """
        failure: ServeError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_signals)
            try:
                await self._run(tasks)
            except ServeError as error:
                failure = error  # raised outside, so that the task group does not wrap it
            except (admin_socket.AlreadyRunning, SetFailed) as error:
                failure = ServeError(str(error))
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run(self, tasks: TaskGroup) -> None:
        async with admin_socket.listening(self.loaded.spool_dir, self._methods(), tasks=tasks):
            # The socket first: from here on whoever changes keys does so through us.
            url = self.loaded.database_url
            stored = stored_keys.read(url)
            if stored is not None:
                await self._starter.take_keys(stored)
                if not self._budgets.declared.budgets and stored_budgets.are_none(url):
                    await self._budgets.publish(BudgetRules())
            tasks.start_soon(self._fleet.run, self.loaded, self.head_start)
            tasks.start_soon(
                self.engines.run, lambda: [child.channel for child in self._living_workers()]
            )
            # A new database, one that only the ledger process can judge, or one with budgets.
            goes_first = stored is None or self._budgets.rules is None
            if goes_first:
                tasks.start_soon(self._ledger.run)
                wait = self._starter.wait if stored is None else self._starter.wait_for_budgets
                await self._unless_stopping(lambda: wait(self._ledger))
            await self._unless_stopping(self._fleet.open)
            if not goes_first:  # now, so that on one core it does not hold clients up
                tasks.start_soon(self._ledger.run)
            if not self._stopping.is_set():
                self.on_ready(self.url)
                tasks.start_soon(self._unless_stopping, self._offer_set_up)
                tasks.start_soon(self._unless_stopping, lambda: self._starter.keep(self._ledger))
                tasks.start_soon(self._unless_stopping, self._machines.run)
                tasks.start_soon(self._unless_stopping, self._watch_machines)
                await self._unless_stopping(self._reloader.run)
            await self._drain()
        await self._stop_ledger()

    async def _watch_machines(self) -> None:
        watch = MachineWatch(
            served=lambda: self._fleet.served,
            environ=self.environ,
            note=self._machines.take,
            clock=self.clock,
        )
        await watch.run()

    async def _offer_set_up(self) -> None:
        """While nobody was ever made here, offer a one-time link that makes an administrator."""
        login = self.loaded.settings.login
        if login.oidc is not None or login.passwords == "never":
            return
        code, digest = new_code(secrets.token_bytes)
        base = login.public_url or self.url  # a stop closes the sockets that know it
        await self._ledger.ready.wait()
        try:
            is_offered = await self._call_ledger("offer_set_up", digest, result_type=bool)
        except ChannelError as error:
            logger.warning("no link for the first administrator: %s", error)
            return
        if is_offered:
            self.on_set_up(f"{base}/ui/set-password?code={code}")

    async def _unless_stopping(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run something to its end, or until this is told to stop."""
        failure: ServeError | SetFailed | None = None
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await self._stopping.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop)
            try:
                await run()
            except (ServeError, SetFailed) as error:
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _watch_signals(self) -> None:
        watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with anyio.open_signal_receiver(*watched) as signals:
            async for number in signals:
                if number is signal.SIGHUP:
                    self._reloader.ask()
                    continue
                if self._stopping.is_set():
                    logger.warning("%s again: ending at once", number.name)
                    self._forced.set()
                    for child in self._living_workers():
                        child.process.kill()
                self._stopping.set()

    def _ledger_order(self) -> LedgerStart:
        settings = self.loaded.settings
        return LedgerStart(
            database_url=connection_url(self.loaded, environ=self.environ),
            spool_dir=str(self.loaded.spool_dir),
            log_format=settings.telemetry.log_format,
            keep_events_months=settings.retention.events_months,
            cost_tags=settings.finance.cost_tags,
            check_hour=settings.storage.check_hour,
            redis_url=settings.storage.redis,
            redis_password=redis_password(self.loaded, environ=self.environ),
            egress=self._egress.ledger_list,
        )

    async def _take_news(self, _params: None, _fds: Sequence[int]) -> None:
        """Take keys and budgets as they are now: some machine has changed them."""
        await self._ready_ledger()
        await self._board.refresh(
            lambda: self._call_ledger("load_keys", None, result_type=list[KeyRecord])
        )
        await self._budgets.catch_up()

    def _living_workers(self) -> Sequence[Child]:
        return self._fleet.children()

    async def _drain(self) -> None:
        # Ours are closed first: the port is refused as soon as the workers have closed theirs.
        self.listeners.close()
        await self._fleet.drain(DRAIN_S)

    async def _stop_ledger(self) -> None:
        with anyio.move_on_after(LEDGER_WAIT_S):  # after a short life it may still be starting
            await wait_first(
                self._ledger.ready, self._ledger.faulted, self._starter.unreachable, self._forced
            )
        self._ledger.is_ending = True
        if self._ledger.child is None:
            return  # what the spools hold is loaded with the next start
        async with anyio.create_task_group() as tasks:

            async def hurry() -> None:
                await self._forced.wait()
                await anyio.sleep(FORCED_STOP_S)
                tasks.cancel_scope.cancel()

            tasks.start_soon(hurry)
            try:
                self._machines.look()
                await self._machines.note()
                await self._call_ledger("stop", None, result_type=type(None))
            except ChannelError as error:
                logger.warning("the ledger process did not stop cleanly: %s", error)
            tasks.cancel_scope.cancel()

    async def _call_ledger(
        self,
        name: str,
        params: object,
        *,
        result_type: type[T],
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> T:
        child = await self._ready_ledger()
        return await child.channel.call(name, params, result_type=result_type, timeout_s=timeout_s)

    async def _ready_ledger(self) -> Child:
        with anyio.move_on_after(LEDGER_WAIT_S):
            await self._ledger.ready.wait()
        child = self._ledger.child
        if child is None:
            raise self._no_ledger()
        return child

    def _no_ledger(self) -> RemoteError:
        if self._starter.outage:
            return RemoteError(DATABASE_UNAVAILABLE, self._starter.outage)
        return RemoteError("ledger_unavailable", _LEDGER_STARTS)

    def _methods(self) -> Mapping[str, Method]:
        """What workers and the admin socket may call."""
        return {
            "status": method(type(None), self._status),
            "create_key": method(KeyCreation, self._create_key),
            "revoke_key": method(KeyRevocation, self._revoke_key),
            **{
                name: Method(params_type=object, run=self._forwarder(name, FINANCE_TIMEOUT_S))
                for name in ("finance", "rebuild_sums", "verify")
            },
            **self._budgets.methods(),
            "metrics": method(type(None), self._metrics),
            "last_metrics": method(Snapshot, self._last_metrics),
            **{
                name: Method(params_type=object, run=self._forwarder(name))
                for name in (*_LEDGER_READS, *PEOPLE_METHODS, *NOTICE_METHODS)
            },
        }

    def _forwarder(
        self, name: str, timeout_s: float = CALL_TIMEOUT_S
    ) -> Callable[[object, Sequence[int]], Awaitable[object]]:
        async def forward(params: object, _fds: Sequence[int]) -> object:
            return await self._call_ledger(name, params, result_type=object, timeout_s=timeout_s)

        return forward

    async def _create_key(self, creation: KeyCreation, _fds: Sequence[int]) -> None:
        await self._change_keys("create_key", creation)

    async def _revoke_key(self, revocation: KeyRevocation, _fds: Sequence[int]) -> None:
        await self._change_keys("revoke_key", revocation)

    async def _change_keys(self, name: str, params: object) -> None:
        # The lock is not held while the ledger starts: it tells its keys under that lock, and on a
        # busy start the last workers join under it before the ledger is started at all.
        child = await self._ready_ledger()
        async with self._board.lock:
            if child is not self._ledger.child:
                raise self._no_ledger()
            keys = await child.channel.call(
                name, params, result_type=list[KeyRecord], timeout_s=CALL_TIMEOUT_S
            )
            await self._board.publish(keys)

    async def _status(self, _params: None, _fds: Sequence[int]) -> ServiceStatus:
        return ServiceStatus(
            url=self.url,
            pids=self._pids(),
            engines=self.engines.states(),
            revision=self._board.revision,
            speeds=await self._speeds(),
            config_digest=self._fleet.served.digest,
            reload_fault=self._reloader.fault,
        )

    async def _metrics(self, _params: None, _fds: Sequence[int]) -> bytes:
        return await self._desk.text()

    async def _last_metrics(self, snapshot: Snapshot, _fds: Sequence[int]) -> None:
        self._desk.take_last(snapshot)

    async def _ledger_stats(self) -> Mapping[str, object]:
        return await self._call_ledger("stats", None, result_type=dict[str, object])

    def _pids(self) -> dict[str, int]:
        pids = {"supervisor": os.getpid(), **self.engines.pids()}
        children = [*self._living_workers(), *([self._ledger.child] if self._ledger.child else [])]
        return pids | {child.name: child.process.pid for child in children}

    async def _speeds(self) -> dict[str, EngineSpeed]:
        """Measured speeds as the first worker that answers knows them; workers measure alike."""
        for child in self._living_workers():
            try:
                return await child.channel.call(
                    "speeds", None, result_type=dict[str, EngineSpeed], timeout_s=SPEEDS_TIMEOUT_S
                )
            except ChannelError as error:
                logger.warning("%s did not tell its engines' speeds: %s", child.name, error)
        return {}
