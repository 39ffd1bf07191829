"""A worker's HTTP server: uvicorn, with sockets that come and go and connections that wind down."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import anyio
import uvicorn

from gateway.http.bounds import Closing
from gateway.http.messages import AsgiApplication
from gateway.http.protocol import BoundedProtocol
from gateway.process.door import Door
from gateway.process.listeners import BACKLOG

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections in their pools (60 s and less), so that it is they who
close: a server that closes may do so while a request is on its way."""

LOOK_EVERY_S = 0.1
_DATE_EVERY_S = 1.0


@dataclass(slots=True, kw_only=True)
class HttpServer:
    """Serves an application on sockets that are given and taken while it runs.

    Attributes:
        app: The application.
        new_id: Makes ids for requests that never reach the application, such as broken ones.
    """

    app: AsgiApplication
    new_id: Callable[[], bytes]
    _closing: Closing = field(default_factory=Closing)
    _uvicorn: _Server = field(init=False)
    _listening: dict[int, Door] = field(default_factory=dict[int, Door])

    def __post_init__(self) -> None:
        """Configure uvicorn; nothing is bound."""
        make_id = self.new_id

        class Protocol(BoundedProtocol):
            """The protocol of this server's connections."""

            closing = self._closing

            @staticmethod
            def new_id() -> bytes:
                """As this server makes them."""
                return make_id()

        self._uvicorn = _Server(
            uvicorn.Config(
                self.app,
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=BACKLOG,
            )
        )

    @property
    def started(self) -> asyncio.Event:
        """Set when connections can be served."""
        return self._uvicorn.is_started

    @property
    def connection_count(self) -> int:
        """Connections that stand."""
        return len(self._uvicorn.server_state.connections)

    async def run(self) -> None:
        """Serve until `stop`; connections that still stand then are closed."""
        await self._uvicorn.serve(sockets=[])

    def stop(self) -> None:
        """Let `run` return."""
        self._uvicorn.stop()

    def listen(self, number: int, listener: socket.socket) -> None:
        """Accept connections from a socket.

        Args:
            number: What the socket is called.
            listener: A listening socket, owned from here on.
        """
        self._stop_one(number)
        self._listening[number] = Door(listener, self._uvicorn.make_protocol)

    def stop_listening(self, numbers: list[int] | None = None) -> None:
        """Accept no more from these sockets, or from any; what was accepted stays."""
        for number in list(self._listening) if numbers is None else numbers:
            self._stop_one(number)

    def wind_down(self, idle_s: float, *, keeps_listening: bool = False) -> None:
        """Tell each connection with its next answer that it ends, close idle ones.

        Args:
            idle_s: How long a connection may ask nothing before it is closed untold.
            keeps_listening: Whether new connections are accepted, for one answer each, by a process
                that has no successor to take them.
        """
        if not keeps_listening:
            self.stop_listening()
        self._closing.begin(idle_s)
        for connection in list(self._uvicorn.server_state.connections):
            cast("BoundedProtocol", connection).begin_closing()

    async def wait_closed(self) -> None:
        """Return when no connection stands; only of use once no more are accepted."""
        while self._uvicorn.server_state.connections:  # noqa: ASYNC110 - uvicorn tells nobody
            await anyio.sleep(LOOK_EVERY_S)

    def _stop_one(self, number: int) -> None:
        server = self._listening.pop(number, None)
        if server is not None:
            server.close()


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers of its own, which are the supervisor's, and without ticks."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_started = asyncio.Event()
        self._is_stopped = asyncio.Event()

    def make_protocol(self) -> asyncio.Protocol:
        """A protocol for a new connection."""
        made = cast("type[BoundedProtocol]", self.config.http_protocol_class)
        return made(
            config=self.config,
            server_state=self.server_state,
            app_state={},  # of the lifespan protocol, which is off
        )

    def stop(self) -> None:
        """End the main loop at once."""
        self.should_exit = True
        self._is_stopped.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell."""
        await super().startup(sockets)
        self.is_started.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve without touching signal handlers."""
        await self._serve(sockets)

    async def main_loop(self) -> None:
        """Renew the date header each second; uvicorn's own loop wakes ten times as often."""
        while not await self.on_tick(0):
            with anyio.move_on_after(_DATE_EVERY_S):
                await self._is_stopped.wait()
