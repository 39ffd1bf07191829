"""A gateway worker: `python -m gateway.process.worker --control-fd N`.

It answers clients on the listening socket that the supervisor hands it, writes its own spool, and
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import uvicorn
import uvloop

from gateway.app import Credentials, build_service, load_credentials
from gateway.channel import Channel, RemoteError, method
from gateway.clock import Clock, system_clock
from gateway.health import HealthBoard
from gateway.http.asgi import Application
from gateway.http.messages import AsgiApplication
from gateway.http.protocol import BoundedProtocol
from gateway.http.service import Service
from gateway.ledger.spool import Durability, SpoolWriter
from gateway.process.local_links import LocalLinks
from gateway.process.messages import (
    Drain,
    EngineFault,
    EngineLink,
    EngineSpeed,
    KeysUpdate,
    WorkerSetup,
)
from gateway.process.provider_setup import engine_links, set_up_providers
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig, load
from gateway.telemetry.logs import set_up_logging
from local_engine.api import EngineError
from providers.contract import Provider

logger = logging.getLogger(__name__)

ORPHAN_DRAIN_S = 5.0


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
    _parts: _Parts | None = None
    _configured: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Serve until drained, or until the supervisor is gone."""
        self._channel = Channel(
            self.control,
            {
                "configure": method(WorkerSetup, self._configure),
                "update_keys": method(KeysUpdate, self._update_keys),
                "add_engine": method(EngineLink, self._add_engine),
                "engine_fault": method(EngineFault, self._engine_fault),
                "drain": method(Drain, self._drain),
                "speeds": method(type(None), self._speeds),
            },
            name="supervisor",
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_supervisor)
            await self._configured.wait()
            if self._parts is not None:
                await self._parts.serve(self._ended)
            tasks.cancel_scope.cancel()

    async def _watch_supervisor(self) -> None:
        await self._channel.run()
        if not self._ended.is_set():
            logger.error("the supervisor is gone; ending")
            if self._parts is not None:
                # At once, so that the next supervisor can have the port while requests finish here.
                self._parts.stop_listening()
            await self._finish(ORPHAN_DRAIN_S)
        self._configured.set()

    async def _configure(self, setup: WorkerSetup, fds: Sequence[int]) -> None:
        if self._parts is not None or len(fds) != 1:
            raise RemoteError("invalid_state", "a worker is configured once, with one socket")
        path = None if setup.config_path is None else Path(setup.config_path)
        config = load(path, environ=self.environ)
        if config.digest != setup.config_digest:
            raise RemoteError(
                "config_changed", "the configuration changed while this worker started"
            )
        self._parts = _build_parts(
            config,
            setup,
            listener=socket.socket(fileno=fds[0]),
            environ=self.environ,
            clock=self.clock,
            channel=self._channel,
        )
        self._configured.set()
        await self._parts.started.wait()

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

    async def _update_keys(self, update: KeysUpdate, _fds: Sequence[int]) -> None:
        parts = self._configured_parts()
        parts.service.directory = parts.credentials.directory(update.keys, update.revision)

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
            with anyio.move_on_after(deadline_s):
                await parts.service.wait_idle()
            await parts.service.cut()
        self._ended.set()


@dataclass(slots=True, kw_only=True)
class _Parts:
    """What a configured worker runs."""

    service: Service
    credentials: Credentials
    providers: Mapping[str, Provider]
    links: LocalLinks
    spool: SpoolWriter
    listener: socket.socket
    started: asyncio.Event = field(default_factory=asyncio.Event)
    server: _Server = field(init=False)

    async def serve(self, ended: asyncio.Event) -> None:
        """Answer clients until told to end."""
        self.server = server = _Server(
            uvicorn.Config(
                Application(self.service, _make_pages),
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
                backlog=2048,
            ),
            self.started,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.spool.run)
            tasks.start_soon(self._stop_server, server, ended)
            await server.serve(sockets=[self.listener])
            tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await self.spool.close()
            await self.links.close()
            for provider in self.providers.values():
                await provider.close()

    def stop_listening(self) -> None:
        """Accept no more connections; requests on those that stand are still answered."""
        if self.started.is_set():
            for server in self.server.servers:
                server.close()

    async def _stop_server(self, server: uvicorn.Server, ended: asyncio.Event) -> None:
        await ended.wait()
        server.should_exit = True


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers of its own; signals are the supervisor's."""

    def __init__(self, config: uvicorn.Config, is_started: asyncio.Event) -> None:
        super().__init__(config)
        self._is_started = is_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell."""
        await super().startup(sockets)
        self._is_started.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve without touching signal handlers."""
        await self._serve(sockets)


def _build_parts(
    config: LoadedConfig,
    setup: WorkerSetup,
    *,
    listener: socket.socket,
    environ: Mapping[str, str],
    clock: Clock,
    channel: Channel,
) -> _Parts:
    health = HealthBoard(monotonic_s=clock.monotonic_s)
    credentials = load_credentials(config, environ)
    links = LocalLinks(links=engine_links(config), health=health)
    links.start()
    providers = set_up_providers(
        config, environ=environ, links=links.links, on_done=links.note_done
    )
    spool = SpoolWriter(
        config.spool_dir / f"worker-{setup.index}",
        durability=Durability(config.settings.storage.durability),
        clock=clock,
        session=secrets.token_bytes(16),
    )
    service = build_service(
        config=config,
        credentials=credentials,
        database_keys=setup.keys,
        revision=setup.revision,
        providers=providers,
        health=health,
        spool=spool,
        clock=clock,
        supervisor=channel,
    )
    return _Parts(
        service=service,
        credentials=credentials,
        providers=providers,
        links=links,
        spool=spool,
        listener=listener,
    )


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
    set_up_logging("worker", level=given.log_level)
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
