"""A gateway worker: `python -m gateway.process.worker --control-fd N`.

It answers clients on the listening sockets that the supervisor hands it, writes its own spool, and
holds a link to every engine. When the supervisor dies, its channel ends and the worker drains and
ends too. It imports no SQLAlchemy, no Typer and no torch; FastAPI only when a page asks for it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial

import anyio
import uvloop
from anyio.abc import TaskGroup

from gateway.app import (
    Credentials,
    asks_more,
    build_limiter,
    build_service,
    build_shared_limits,
    build_trails,
    load_credentials,
    narrow_permits,
)
from gateway.boot import spare_what_is_there
from gateway.budgets.holds import Holds
from gateway.budgets.messages import BudgetRules
from gateway.channel import Channel, ChannelError, RemoteError, method
from gateway.clock import Clock, from_microseconds, system_clock
from gateway.egress.destinations import Role, egress_list
from gateway.egress.lists import follow, narrow, refused
from gateway.health import HealthBoard
from gateway.http.asgi import Application
from gateway.http.messages import AsgiApplication
from gateway.http.service import Service
from gateway.ledger.spool import Durability, SpoolWriter
from gateway.limits.memory import LimitMemory
from gateway.limits.shared import CONNECT_S
from gateway.policy_certificate import certified_policy
from gateway.policy_proof import PolicyUnproved
from gateway.process import snapshot
from gateway.process.budget_link import make_holds
from gateway.process.http_server import LOOK_EVERY_S, HttpServer
from gateway.process.local_links import LocalLinks
from gateway.process.messages import (
    Drain,
    EngineFault,
    EngineLink,
    EngineSpeed,
    KeysUpdate,
    Listen,
    Narrow,
    RecallBudgets,
    StopListening,
    WindDown,
    WorkerSetup,
)
from gateway.process.provider_setup import engine_links, set_up_providers
from gateway.settings.document import Settings
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from gateway.telemetry.logs import set_up_logging
from gateway.telemetry.loop_watchdog import Look, LoopWatchdog
from gateway.telemetry.snapshot import Series, Snapshot
from gateway.telemetry.sync_timing import TimedFiles
from local_engine.api import EngineError
from providers.contract import Provider

logger = logging.getLogger(__name__)

SWITCH_S = 0.001

ORPHAN_DRAIN_S = 5.0
LINGER_S = 0.5
"""How long a drain waits for idle connections to ask once more and be told: a request that is on
its way to a closed connection would look like a failure to its client."""

LAST_METRICS_S = 2.0
RETURN_S = 2.0
"""How long the end waits for the ledger to take back what budgets were not spent."""
TELL_LIMITS_S = 0.2


@dataclass(slots=True, kw_only=True)
class Worker:
    """One worker process.

    Attributes:
        control: Descriptor of the channel to the supervisor.
        environ: The environment.
        clock: Time.
    """

    control: socket.socket
    environ: Mapping[str, str]
    clock: Clock
    _channel: Channel = field(init=False)
    _tasks: TaskGroup | None = None
    _parts: _Parts | None = None
    _settings: Settings | None = None
    _last_s: float | None = None
    _configured: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Serve until drained, or until the supervisor is gone."""
        self._channel = Channel(
            self.control,
            {
                "configure": method(WorkerSetup, self._configure),
                "update_keys": method(KeysUpdate, self._update_keys),
                "update_budgets": method(BudgetRules, self._update_budgets),
                "recall_budgets": method(RecallBudgets, self._recall_budgets),
                "add_engine": method(EngineLink, self._add_engine),
                "engine_fault": method(EngineFault, self._engine_fault),
                "listen": method(Listen, self._listen),
                "stop_listening": method(StopListening, self._stop_listening),
                "wind_down": method(WindDown, self._wind_down),
                "narrow": method(Narrow, self._narrow),
                "drain": method(Drain, self._drain),
                "speeds": method(type(None), self._speeds),
                "snapshot": method(type(None), self._snapshot),
            },
            name="supervisor",
        )
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._watch_supervisor)
            await self._configured.wait()
            if self._parts is not None:
                await self._parts.serve(self._ended)
            tasks.cancel_scope.cancel()

    async def _watch_supervisor(self) -> None:
        await self._channel.run()
        if not self._ended.is_set():
            logger.error("the supervisor is gone; ending")
            # Stops to listen first, so that the next supervisor can have the port meanwhile.
            await self._finish(ORPHAN_DRAIN_S)
        self._configured.set()

    async def _configure(self, setup: WorkerSetup, fds: Sequence[int]) -> None:
        if self._parts is not None:
            raise RemoteError("invalid_state", "a worker is configured once")
        try:
            config = snapshot.restore(setup.config)
        except snapshot.SnapshotMismatch as error:
            raise RemoteError("config_changed", str(error)) from error
        follow(egress_list(config.settings, Role.WORKER, today=self._today()))
        set_up_logging(
            f"worker-{setup.index}",
            level=logging.getLogger().level,
            log_format=setup.log_format,
            handles_content=True,
        )
        try:
            self._parts = _build_parts(
                config,
                setup,
                environ=self.environ,
                clock=self.clock,
                channel=self._channel,
                memory=LimitMemory(fds[0]) if fds else LimitMemory(),
            )
        except PolicyUnproved as error:
            raise RemoteError("policy_unproved", str(error)) from error
        self._settings = config.settings
        self._configured.set()
        await self._parts.server.started.wait()
        await self._parts.wait_limits()
        spare_what_is_there()

    async def _listen(self, request: Listen, fds: Sequence[int]) -> None:
        sockets = [socket.socket(fileno=fd) for fd in fds]
        if len(sockets) != len(request.numbers):
            for sock in sockets:
                sock.close()
            raise RemoteError("invalid_params", "each number comes with its socket")
        server = self._configured_parts().server
        for number, sock in zip(request.numbers, sockets, strict=True):
            server.listen(number, sock)

    async def _stop_listening(self, request: StopListening, _fds: Sequence[int]) -> None:
        self._configured_parts().server.stop_listening(request.numbers)

    async def _narrow(self, request: Narrow, _fds: Sequence[int]) -> None:
        """Keep what is in flight, and what standing connections still ask, to both policies."""
        parts = self._configured_parts()
        try:
            newer = snapshot.restore(request.config).settings
        except snapshot.SnapshotMismatch as error:
            raise RemoteError("config_changed", str(error)) from error
        narrow(egress_list(newer, Role.WORKER, today=self._today()))
        narrow_permits(parts.service.admission.permits, newer)
        if self._settings is None or asks_more(self._settings, newer):
            parts.service.is_superseded = True

    def _today(self) -> date:
        return from_microseconds(self.clock.wall_us()).date()

    async def _wind_down(self, request: WindDown, _fds: Sequence[int]) -> None:
        """Begin; the supervisor sees by this process's end when it is over."""
        parts = self._configured_parts()
        parts.server.wind_down(request.idle_s)
        is_first, self._last_s = (
            self._last_s is None,
            self.clock.monotonic_s() + request.deadline_s,
        )
        if is_first and self._tasks is not None:
            self._tasks.start_soon(self._end_wound_down, parts)

    async def _end_wound_down(self, parts: _Parts) -> None:
        while parts.server.connection_count or parts.service.in_flight:
            if self._last_s is not None and self.clock.monotonic_s() >= self._last_s:
                logger.warning("%d connections are cut", parts.server.connection_count)
                break
            await anyio.sleep(LOOK_EVERY_S)
        await self._finish(0.0)

    async def _speeds(self, _params: None, _fds: Sequence[int]) -> dict[str, EngineSpeed]:
        admission = self._configured_parts().service.admission
        found: dict[str, EngineSpeed] = {}
        for name in admission.fleet.local:
            speed = admission.health.speed(name)
            if speed is not None:
                found[name] = EngineSpeed(
                    prefill_tps=speed.prefill_tps, decode_tps=speed.decode_tps
                )
        return found

    async def _snapshot(self, _params: None, _fds: Sequence[int]) -> Snapshot:
        return await self._configured_parts().service.metrics.tell()

    async def _update_keys(self, update: KeysUpdate, _fds: Sequence[int]) -> None:
        parts = self._configured_parts()
        parts.service.directory = parts.credentials.directory(
            update.keys, update.revision, is_complete=update.is_complete
        )

    async def _update_budgets(self, rules: BudgetRules, _fds: Sequence[int]) -> None:
        self._configured_parts().holds.follow(rules)

    async def _recall_budgets(self, recall: RecallBudgets, _fds: Sequence[int]) -> dict[bytes, int]:
        return self._configured_parts().holds.recall(recall.buckets)

    async def _add_engine(self, link: EngineLink, fds: Sequence[int]) -> None:
        if len(fds) != 1:
            raise RemoteError("invalid_params", "an engine link comes with one socket")
        sock = socket.socket(fileno=fds[0])
        try:
            await self._configured_parts().links.add(link, sock)
        except EngineError as error:
            raise RemoteError("engine_gone", str(error)) from error

    async def _engine_fault(self, fault: EngineFault, _fds: Sequence[int]) -> None:
        self._configured_parts().links.note_fault(fault)

    async def _drain(self, drain: Drain, _fds: Sequence[int]) -> None:
        await self._finish(drain.deadline_s)

    def _configured_parts(self) -> _Parts:
        if self._parts is None:
            raise RemoteError("invalid_state", "this worker is not configured yet")
        return self._parts

    async def _finish(self, deadline_s: float) -> None:
        parts = self._parts
        if parts is not None:
            parts.service.is_draining = True
            # Newcomers are told why: a refused connection says nothing, and a load balancer knows
            # only after a while that this machine ends.
            parts.server.wind_down(LINGER_S, keeps_listening=True)
            with anyio.move_on_after(LINGER_S):
                await parts.server.wait_closed()
            with anyio.move_on_after(max(0.0, deadline_s - LINGER_S)):
                await parts.service.wait_idle()
            parts.server.stop_listening()
            await parts.service.cut()
            with anyio.move_on_after(RETURN_S):
                await parts.holds.close()
            await self._tell_last_metrics(parts)
        self._ended.set()

    async def _tell_last_metrics(self, parts: _Parts) -> None:
        """So that what was counted since the last scrape does not end with this process."""
        try:
            await self._channel.call(
                "last_metrics",
                parts.service.metrics.snapshot(),
                result_type=type(None),
                timeout_s=LAST_METRICS_S,
            )
        except ChannelError as error:
            logger.warning("the supervisor did not take the last metrics: %s", error)


@dataclass(slots=True, kw_only=True)
class _Parts:
    """What a configured worker runs."""

    service: Service
    holds: Holds
    credentials: Credentials
    providers: Mapping[str, Provider]
    links: LocalLinks
    spool: SpoolWriter
    server: HttpServer
    watchdog: LoopWatchdog

    async def serve(self, ended: asyncio.Event) -> None:
        """Answer clients until told to end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.spool.run)
            tasks.start_soon(self.holds.run)
            if (shared := self.service.limits.shared) is not None:
                tasks.start_soon(shared.run)
            tasks.start_soon(self._stop_server, ended)
            self.watchdog.start(asyncio.get_running_loop())
            await self.server.run()
            self.watchdog.stop()
            if shared is not None:
                with anyio.move_on_after(TELL_LIMITS_S):
                    await shared.wait_told()
            tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.spool.close()
            await self.links.close()
            for provider in self.providers.values():
                await provider.close()
            if self.service.trails is not None:
                await self.service.trails.close()

    async def wait_limits(self) -> None:
        """Let limits be shared from the first request on, if Redis can be reached at all."""
        shared = self.service.limits.shared
        if shared is not None:
            with anyio.move_on_after(CONNECT_S):
                await shared.wait_tried()

    async def _stop_server(self, ended: asyncio.Event) -> None:
        await ended.wait()
        self.server.stop()


def _build_parts(
    config: LoadedConfig,
    setup: WorkerSetup,
    *,
    environ: Mapping[str, str],
    clock: Clock,
    channel: Channel,
    memory: LimitMemory,
) -> _Parts:
    health = HealthBoard(monotonic_s=clock.monotonic_s)
    credentials = load_credentials(config, environ)
    links = LocalLinks(links=engine_links(config), health=health)
    links.start()
    providers = set_up_providers(
        config, environ=environ, links=links.links, on_done=links.note_done
    )
    files = TimedFiles(clock.monotonic_s)
    directory, session = f"worker-{setup.index}", secrets.token_bytes(16)
    spool = SpoolWriter(
        config.spool_dir / directory,
        durability=Durability(config.settings.storage.durability),
        clock=clock,
        session=session,
        files=files,
    )
    holds = make_holds(channel, clock=clock, directory=directory, session=session)
    if setup.budgets is not None:
        holds.follow(setup.budgets)
    policy, certificate = certified_policy(config, keys=credentials.certificate_keys)
    service = build_service(
        config=config,
        policy=policy,
        credentials=credentials,
        database_keys=setup.keys,
        revision=setup.revision,
        has_all_keys=setup.is_complete,
        providers=providers,
        health=health,
        spool=spool,
        clock=clock,
        supervisor=channel,
        holds=holds,
        trails=build_trails(config, environ, clock),
        limits=build_limiter(
            config,
            clock=clock,
            memory=memory,
            seat=setup.index,
            shared=build_shared_limits(config, environ, clock, machine=memory.machine_id),
        ),
    )
    service.certificate = certificate
    service.metrics.add_source(files.series)
    service.metrics.add_source(_egress_series)
    return _Parts(
        service=service,
        holds=holds,
        credentials=credentials,
        providers=providers,
        links=links,
        spool=spool,
        server=HttpServer(app=Application(service, _make_pages), new_id=service.new_id),
        watchdog=LoopWatchdog(
            partial(_note_look, service),
            is_busy=lambda: service.in_flight > 0,
            is_close=lambda: service.overload.is_on,
            monotonic_s=clock.monotonic_s,
            thread_s=time.thread_time,
        ),
    )


def _egress_series() -> Sequence[Series]:
    return [Series("fareway_egress_refusals_total", ("process",), [refused()])]


def _note_look(service: Service, look: Look) -> None:
    service.metrics.note_stall(look.late_s, look.late_computed_s)
    service.overload.note(look.turn_s, look.turn_computed_s)


def _make_pages(service: Service) -> AsgiApplication:
    from gateway.http.pages import make_pages  # FastAPI is loaded when a page is first asked for

    return make_pages(service)


class _Arguments(argparse.Namespace):
    control_fd: int
    log_level: int


def main(arguments: Sequence[str]) -> int:
    """Run a worker; the supervisor is the only caller."""
    parser = argparse.ArgumentParser(prog="gateway.process.worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--log-level", type=int, default=logging.INFO)
    given = parser.parse_args(arguments, namespace=_Arguments())
    set_up_logging("worker", level=given.log_level, handles_content=True)
    # Threads check large bodies and sync the journal; none of them shall keep the loop waiting for
    # the 5 ms that the interpreter gives a thread by default.
    sys.setswitchinterval(SWITCH_S)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Worker(
        control=socket.socket(fileno=given.control_fd),
        environ=process_environ(),
        clock=system_clock(),
    )
    uvloop.run(worker.run())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
