"""`serve`: one supervisor keeps the ledger process, the workers and the engines running.

    supervisor ── ledger process   loads spools, alone writes the database
               ├─ worker 0..N      answer clients; each with a spool of its own
               └─ engine           one per local model; a socket pair to each worker

A child that dies is started again with a growing pause. Keys change here: the ledger process writes
the row, then every worker acknowledges the new directory before the command returns, so that a
revoked key is dead everywhere when `fareway keys revoke` says so.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import anyio
from anyio.abc import TaskGroup

from gateway.auth.directory import KeyRecord
from gateway.channel import ChannelError, Method, RemoteError, method
from gateway.clock import Clock
from gateway.process import admin_socket
from gateway.process.backoff import Backoff
from gateway.process.child import Child
from gateway.process.engines import EngineSupervisor
from gateway.process.keeper import Keeper
from gateway.process.messages import (
    Drain,
    EngineSpeed,
    KeysUpdate,
    LedgerStart,
    ServiceStatus,
    WorkerSetup,
)
from gateway.settings.loader import LoadedConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

WORKER_MODULE = "gateway.process.worker"
LEDGER_MODULE = "gateway.process.ledger_process"
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 30.0
SPEEDS_TIMEOUT_S = 2.0
DRAIN_S = 30.0

_LEDGER_READS = ("list_keys", "spend_report", "recent_requests", "flush", "verify", "stats")
"""Methods of the ledger process that workers and the admin socket reach unchanged."""


class ServeError(Exception):
    """The service cannot start; the message says what to mend."""


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs the service until it is told to stop.

    Attributes:
        loaded: The configuration; everything in it is built.
        config_path: The file it came from, None for the built-in defaults.
        engines: Keeps the engines.
        listener: A bound, listening socket.
        clock: For restart pauses.
        on_ready: Called once with the base URL, when every worker answers.
    """

    loaded: LoadedConfig
    config_path: Path | None
    engines: EngineSupervisor
    listener: socket.socket
    clock: Clock
    on_ready: Callable[[str], None]
    _keys: list[KeyRecord] = field(default_factory=list[KeyRecord])
    _revision: int = 0
    _keys_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _workers: list[Keeper] = field(default_factory=list[Keeper])
    _ledger: Keeper | None = None

    @property
    def url(self) -> str:
        """The base URL that clients use."""
        host, port = cast("tuple[str, int]", self.listener.getsockname()[:2])
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stopping.is_set()

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
            except admin_socket.AlreadyRunning as error:
                failure = ServeError(str(error))
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run(self, tasks: TaskGroup) -> None:
        admin_socket.ensure_alone(self.loaded.spool_dir)
        self._ledger = self._keeper(LEDGER_MODULE, "ledger", {}, self._set_up_ledger)
        tasks.start_soon(self._ledger.run)
        await self._wait_for(self._ledger)
        self._workers = [
            self._keeper(
                WORKER_MODULE, f"worker-{index}", self._methods(), self._worker_setter(index)
            )
            for index in range(self.loaded.settings.server.workers)
        ]
        for keeper in self._workers:
            tasks.start_soon(keeper.run)
        tasks.start_soon(self._run_engines)
        async with admin_socket.listening(self.loaded.spool_dir, self._methods(), tasks=tasks):
            for keeper in self._workers:
                await self._wait_for(keeper)
            if not self._stopping.is_set():
                self.on_ready(self.url)
            await self._stopping.wait()
            await self._drain()
        await self._stop_ledger()

    def _keeper(
        self,
        module: str,
        name: str,
        methods: Mapping[str, Method],
        set_up: Callable[[Child], Awaitable[None]],
    ) -> Keeper:
        return Keeper(
            module=module,
            name=name,
            methods=methods,
            set_up=set_up,
            backoff=Backoff(monotonic_s=self.clock.monotonic_s),
        )

    async def _wait_for(self, keeper: Keeper) -> None:
        with anyio.move_on_after(START_TIMEOUT_S):
            async with anyio.create_task_group() as tasks:

                async def wait(event: asyncio.Event) -> None:
                    await event.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(wait, keeper.ready)
                tasks.start_soon(wait, self._stopping)
        if not keeper.ready.is_set() and not self._stopping.is_set():
            raise ServeError(
                f"{keeper.name} did not start within {START_TIMEOUT_S:g} s:"
                f" {keeper.fault or 'its log lines say why'}"
            )

    async def _watch_signals(self) -> None:
        watched = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        with anyio.open_signal_receiver(*watched) as signals:
            async for number in signals:
                if number is signal.SIGHUP:
                    logger.warning("reloading is not built yet; restart to take the new file")
                    continue
                if self._stopping.is_set():
                    logger.warning("%s again: ending at once", number.name)
                    for child in self._living_workers():
                        child.process.kill()
                self._stopping.set()

    async def _set_up_ledger(self, child: Child) -> None:
        start = LedgerStart(
            database_url=self.loaded.database_url, spool_dir=str(self.loaded.spool_dir)
        )
        keys = await child.channel.call(
            "start", start, result_type=list[KeyRecord], timeout_s=START_TIMEOUT_S
        )
        async with self._keys_lock:
            await self._publish(keys)

    def _worker_setter(self, index: int) -> Callable[[Child], Awaitable[None]]:
        async def set_up(child: Child) -> None:
            # Under the lock, so that no change of keys falls between the snapshot and the pool.
            async with self._keys_lock:
                setup = WorkerSetup(
                    index=index,
                    config_path=None if self.config_path is None else str(self.config_path),
                    config_digest=self.loaded.digest,
                    keys=self._keys,
                    revision=self._revision,
                )
                await child.channel.call(
                    "configure",
                    setup,
                    result_type=type(None),
                    timeout_s=START_TIMEOUT_S,
                    fds=[self.listener.fileno()],
                )
                self._workers[index].child = child
            await self.engines.link_worker(child.channel)

        return set_up

    async def _run_engines(self) -> None:
        await self.engines.run(lambda: [child.channel for child in self._living_workers()])

    def _living_workers(self) -> list[Child]:
        return [keeper.child for keeper in self._workers if keeper.child is not None]

    async def _drain(self) -> None:
        for keeper in self._workers:
            keeper.is_ending = True

        async def drain(child: Child) -> None:
            try:
                await child.channel.call(
                    "drain",
                    Drain(deadline_s=DRAIN_S),
                    result_type=type(None),
                    timeout_s=DRAIN_S + CALL_TIMEOUT_S,
                )
            except ChannelError as error:
                logger.warning("%s did not drain: %s", child.name, error)

        async with anyio.create_task_group() as tasks:
            for child in self._living_workers():
                tasks.start_soon(drain, child)

    async def _stop_ledger(self) -> None:
        assert self._ledger is not None, "the ledger starts first and stops last"
        self._ledger.is_ending = True
        if self._ledger.child is None:
            return  # it is being started; what the spools hold is loaded with the next start
        try:
            await self._call_ledger("stop", None, result_type=type(None))
        except (ChannelError, RemoteError) as error:
            logger.warning("the ledger process did not stop cleanly: %s", error)

    async def _call_ledger(self, name: str, params: object, *, result_type: type[T]) -> T:
        child = None if self._ledger is None else self._ledger.child
        if child is None:
            raise RemoteError("ledger_unavailable", "the ledger process is being started again")
        return await child.channel.call(
            name, params, result_type=result_type, timeout_s=CALL_TIMEOUT_S
        )

    async def _publish(self, keys: list[KeyRecord]) -> None:
        """Give every worker the new keys; call with the lock held."""
        self._keys = keys
        self._revision += 1
        update = KeysUpdate(keys=keys, revision=self._revision)

        async def tell(child: Child) -> None:
            try:
                await child.channel.call(
                    "update_keys", update, result_type=type(None), timeout_s=CALL_TIMEOUT_S
                )
            except ChannelError:
                # A worker that cannot learn that a key was revoked must not go on serving.
                logger.exception("%s did not take the new keys; ending it", child.name)
                child.process.kill()

        async with anyio.create_task_group() as tasks:
            for child in self._living_workers():
                tasks.start_soon(tell, child)

    def _methods(self) -> Mapping[str, Method]:
        """What workers and the admin socket may call."""
        return {
            "status": method(type(None), self._status),
            "create_key": method(KeyRecord, self._create_key),
            "revoke_key": method(str, self._revoke_key),
            **{
                name: Method(params_type=object, run=self._forwarder(name))
                for name in _LEDGER_READS
            },
        }

    def _forwarder(self, name: str) -> Callable[[object, Sequence[int]], Awaitable[object]]:
        async def forward(params: object, _fds: Sequence[int]) -> object:
            return await self._call_ledger(name, params, result_type=object)

        return forward

    async def _create_key(self, record: KeyRecord, _fds: Sequence[int]) -> None:
        async with self._keys_lock:
            keys = await self._call_ledger("create_key", record, result_type=list[KeyRecord])
            await self._publish(keys)

    async def _revoke_key(self, key_id: str, _fds: Sequence[int]) -> None:
        async with self._keys_lock:
            keys = await self._call_ledger("revoke_key", key_id, result_type=list[KeyRecord])
            await self._publish(keys)

    async def _status(self, _params: None, _fds: Sequence[int]) -> ServiceStatus:
        pids = {"supervisor": os.getpid(), **self.engines.pids()}
        for keeper in [*self._workers, *([self._ledger] if self._ledger else [])]:
            if keeper.child is not None:
                pids[keeper.name] = keeper.child.process.pid
        return ServiceStatus(
            url=self.url,
            pids=pids,
            engines=self.engines.states(),
            revision=self._revision,
            speeds=await self._speeds(),
        )

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


def bind(host: str, port: int) -> socket.socket:
    """Bind and listen.

    Raises:
        ServeError: The address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ServeError(
            f"cannot listen on {host}:{port}: {error.strerror};"
            " stop what uses it, or set server.port in fareway.yaml (`fareway init` writes one)"
        ) from error
    return listener
