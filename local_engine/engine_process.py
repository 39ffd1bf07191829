"""The supervisor's side of an engine process: start it, talk to it, end it.

Restarting with back-off is the supervisor's decision and not made here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, assert_never, cast

import msgspec

from local_engine.control_channel import ControlChannel
from local_engine.errors import EngineError, EngineGone, ModelFileError
from local_engine.protocol import (
    AddLink,
    Configure,
    ControlMessage,
    Drain,
    EngineConfig,
    EngineStats,
    Fatal,
    ModelCard,
    Ping,
    Pong,
    Ready,
    encode_frame,
)

_SERVER_MODULE = "local_engine.server"

_Value = TypeVar("_Value")


class EngineControl:
    """Orders to one engine process; all methods belong to one event loop.

    Args:
        process: The engine.
        sock: This end of the control socket, owned from now on.
    """

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process = process
        # A union is a type to msgspec, which the stubs cannot say.
        union = cast("type[ControlMessage]", ControlMessage)
        self._channel = ControlChannel(
            sock, union, on_message=self._on_message, on_end=self._on_end
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._card: ModelCard | None = None
        self._fault: EngineError | None = None
        self._pings: deque[asyncio.Future[EngineStats]] = deque()
        self._readiness: list[asyncio.Future[None]] = []

    @property
    def card(self) -> ModelCard | None:
        """What the engine offers, None until it is ready."""
        return self._card

    @property
    def is_alive(self) -> bool:
        """Whether the engine has neither ended nor said that it will."""
        return self._fault is None and self._process.poll() is None

    async def wait_ready(self, *, timeout_s: float = 300.0) -> ModelCard:
        """Wait until the model is loaded.

        Raises:
            ModelFileError: the model cannot be served; a restart is pointless.
            EngineGone: the process ended, or was not ready in time.
        """
        loop = self._start()
        if self._card is None and self._fault is None:
            waiter: asyncio.Future[None] = loop.create_future()
            self._readiness.append(waiter)
            await self._within(waiter, timeout_s, "load its model")
        if self._fault is not None:
            raise self._fault
        assert self._card is not None
        return self._card

    async def add_link(self, sock: socket.socket) -> None:
        """Give the engine its end of a socket pair to one gateway worker.

        Args:
            sock: The caller keeps it, and closes it once this returns.

        Raises:
            EngineGone: the process ended.
        """
        self._start()
        self._channel.send(AddLink(), descriptor=sock.fileno())

    async def ping(self, *, timeout_s: float = 5.0) -> EngineStats:
        """Ask for a snapshot.

        Raises:
            EngineGone: the process ended, or did not answer in time.
        """
        loop = self._start()
        waiter: asyncio.Future[EngineStats] = loop.create_future()
        self._channel.send(Ping())
        self._pings.append(waiter)
        return await self._within(waiter, timeout_s, "answer")

    async def drain(self, *, deadline_s: float) -> None:
        """Let the engine refuse new requests, finish those in flight and exit.

        Raises:
            EngineGone: the process ended.
        """
        self._start()
        self._channel.send(Drain(deadline_s=deadline_s))

    async def terminate(self) -> None:
        """Send SIGTERM, which drains briefly; harmless when the process has ended."""
        if self._process.poll() is None:
            self._process.terminate()

    async def kill(self) -> None:
        """Send SIGKILL; harmless when the process has ended."""
        if self._process.poll() is None:
            self._process.kill()

    async def wait(self, *, timeout_s: float | None = None) -> int:
        """Wait for the process to end, and close the channel.

        Returns:
            The exit status, negative for a signal.

        Raises:
            TimeoutError: it has not ended in time.
        """
        loop = self._start()
        pid_fd = -1 if self._process.poll() is not None else os.pidfd_open(self._process.pid)
        if pid_fd >= 0:
            waiter: asyncio.Future[None] = loop.create_future()
            loop.add_reader(pid_fd, _resolve, waiter)
            try:
                await asyncio.wait_for(waiter, timeout_s)
            finally:
                loop.remove_reader(pid_fd)
                os.close(pid_fd)
        status = self._process.wait()
        self._channel.close()
        self._fail(EngineGone(f"the engine process ended with status {status}"))
        return status

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._channel.start(self._loop)
        return self._loop

    async def _within(self, waiter: asyncio.Future[_Value], timeout_s: float, what: str) -> _Value:
        try:
            return await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            raise EngineGone(f"the engine did not {what} within {timeout_s:g} s") from None

    def _on_message(self, message: ControlMessage) -> None:
        match message:
            case Ready(card=card):
                self._card = card
                self._wake_readiness()
            case Fatal(message=text, is_permanent=is_permanent):
                self._fail(ModelFileError(text) if is_permanent else EngineGone(text))
            case Pong(stats=stats):
                # One that timed out was cancelled, but its answer still comes in its turn.
                waiter = self._pings.popleft() if self._pings else None
                if waiter is not None and not waiter.done():
                    waiter.set_result(stats)
            case _:
                assert_never(message)

    def _on_end(self, reason: str) -> None:
        self._fail(EngineGone(reason))

    def _fail(self, fault: EngineError) -> None:
        # The first reason is the best one: later ones only follow from it.
        if self._fault is None:
            self._fault = fault
        self._wake_readiness()
        for waiter in self._pings:
            if not waiter.done():
                waiter.set_exception(self._fault)
        self._pings.clear()

    def _wake_readiness(self) -> None:
        for waiter in self._readiness:
            _resolve(waiter)
        self._readiness.clear()


class EngineProcess:
    """A running engine process.

    Attributes:
        control: Orders to it.
    """

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.control = EngineControl(process, sock)
        self._process = process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal, None while it runs."""
        return self._process.poll()


def spawn_engine(
    config: EngineConfig, *, module: str = _SERVER_MODULE, launcher: Sequence[str] = ()
) -> EngineProcess:
    """Start an engine process; it loads the model by itself, see `EngineControl.wait_ready`.

    The process is killed when the calling thread ends, so call this on a thread that lives as long
    as the engine shall.

    Args:
        config: Sent over the control socket, so that no secret is in the command line.
        module: Run with `python -m`.
        launcher: A module that runs another one, with its own options; it comes before `module`.

    Raises:
        OSError: the process cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        command: Sequence[str] = (
            *(sys.executable, "-m", *launcher, module),
            *("--control-fd", str(theirs.fileno())),
            *("--log-level", str(logging.getLogger().level)),
        )
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            # The child finds the very packages that this process runs, wherever it was started.
            cwd=Path(__file__).resolve().parents[1],
            # A Ctrl-C in the terminal is its parent's to handle, which drains it.
            start_new_session=True,
        )
    absolute = msgspec.structs.replace(config, path=str(Path(config.path).resolve()))
    try:
        ours.sendall(encode_frame(Configure(config=absolute)))
    except OSError:  # it ended at once
        ours.close()
        process.kill()
        process.wait()
        raise
    return EngineProcess(process, ours)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
