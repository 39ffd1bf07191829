"""An engine server in the test's own event loop, over real sockets and the fake runner."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

import anyio

from local_engine.api import EngineClient
from local_engine.control_channel import ControlChannel
from local_engine.loading import LoadedModel
from local_engine.protocol import (
    AddLink,
    ControlMessage,
    EngineConfig,
    Fatal,
    Ping,
    Pong,
    Ready,
)
from local_engine.server import EngineServer
from local_engine.step import StepPlan
from tests.local_engine.fake_model import ByteTokenizer, FakeRunner, render_chat

CONFIG = EngineConfig(
    model_id="fake",
    path="/nowhere",
    namespace_key=b"k" * 32,
    max_num_seqs=4,
    max_step_tokens=64,
    queued_requests_max=64,
    block_size=4,
    max_model_len=400,
)


def fake_load(
    *, on_execute: Callable[[StepPlan], None] | None = None, **runner_options
) -> Callable[[EngineConfig], LoadedModel]:
    """A loader of the fake model."""

    def load(config: EngineConfig) -> LoadedModel:
        options = {"n_blocks": 400, "block_size": config.block_size, "end_bias": -30.0}
        return LoadedModel(
            runner=FakeRunner(**{**options, **runner_options}, on_execute=on_execute),
            tokenizer=ByteTokenizer(),
            render_chat=render_chat,
            context_window=config.max_model_len or 4096,
            file_digest="00" * 32,
            device="cpu",
            dtype="float32",
        )

    return load


def slow(seconds: float) -> Callable[[StepPlan], None]:
    """Make every step take longer."""
    return lambda _: time.sleep(seconds)


class Supervisor:
    """The other end of the control socket, and a maker of links."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: list[ControlMessage] = []
        self.ended: str | None = None
        self._news = anyio.Event()
        self.channel = ControlChannel(
            sock,
            cast("type[ControlMessage]", ControlMessage),
            on_message=self._receive,
            on_end=self._end,
        )

    def _receive(self, message: ControlMessage) -> None:
        self.messages.append(message)
        self._news.set()

    def _end(self, reason: str) -> None:
        self.ended = reason
        self._news.set()

    async def wait_for(self, kind: type) -> ControlMessage:
        """The next message of a kind."""
        with anyio.fail_after(10):
            while True:
                for index, message in enumerate(self.messages):
                    if isinstance(message, kind):
                        return self.messages.pop(index)
                self._news = anyio.Event()
                await self._news.wait()

    async def stats(self):
        """A snapshot of the engine."""
        self.channel.send(Ping())
        return (await self.wait_for(Pong)).stats

    async def stats_when(self, wanted: Callable):
        """The first snapshot of which something is true."""
        with anyio.fail_after(10):
            while True:
                stats = await self.stats()
                if wanted(stats):
                    return stats
                await anyio.sleep(0.005)

    def raw_link(self) -> socket.socket:
        """A link as a bare socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self.channel.send(AddLink(), descriptor=theirs.fileno())
        return ours

    async def client(self) -> EngineClient:
        """A connected client on a link of its own."""
        client = EngineClient(self.raw_link())
        await client.connect(timeout_s=10)
        return client


class Running:
    """A server and its supervisor."""

    def __init__(self, server: EngineServer, supervisor: Supervisor) -> None:
        self.server = server
        self.supervisor = supervisor
        self.status: int | None = None
        self.ended = anyio.Event()


@contextlib.asynccontextmanager
async def serving(
    config: EngineConfig = CONFIG, *, load=None, wait_ready: bool = True
) -> AsyncIterator[Running]:
    """Serve until the block ends, then check that nothing is left behind."""
    import asyncio

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    supervisor = Supervisor(ours)
    server = EngineServer(
        theirs,
        config,
        load=load or fake_load(),
        clock_ns=time.monotonic_ns,
        random_seed=lambda: 7,
    )
    running = Running(server, supervisor)

    async def run() -> None:
        running.status = await server.run()
        running.ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        supervisor.channel.start(asyncio.get_running_loop())
        try:
            if wait_ready:
                await supervisor.wait_for(Ready)
            yield running
        finally:
            supervisor.channel.close()
            with anyio.move_on_after(15, shield=True):
                await running.ended.wait()
    assert server.join(), "the step thread did not end"
    for message in supervisor.messages:
        assert not isinstance(message, Fatal), message
