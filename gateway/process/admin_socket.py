"""The admin socket: how commands reach the running gateway of a configuration.

A Unix socket in the spool directory, mode 0600: whoever may write the journal may administer. Its
path can be longer than the kernel's 107 bytes, so both ends name it through a descriptor of the
directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from gateway.channel import Channel, Method

SOCKET_NAME = "admin.sock"
ACCEPT_PAUSE_S = 0.5
_CONNECTIONS_MAX = 32

logger = logging.getLogger(__name__)


@contextmanager
def _short_path(directory: Path) -> Generator[str]:
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class AlreadyRunning(Exception):
    """Another gateway answers on the socket of this spool directory."""


def ensure_alone(directory: Path) -> None:
    """Refuse to run beside another gateway of the same spool directory.

    Raises:
        AlreadyRunning: It answers.
    """
    living = connect(directory)
    if living is not None:
        living.close()
        raise AlreadyRunning(
            f"a gateway is running already with the spool in {directory};"
            " stop it or set storage.spool_dir"
        )


@asynccontextmanager
async def listening(
    directory: Path, methods: Mapping[str, Method], *, tasks: TaskGroup
) -> AsyncGenerator[None]:
    """Answer calls until the context is left.

    Args:
        directory: The spool directory; made when missing.
        methods: What may be called.
        tasks: The caller's; a group of our own around the caller's lines would wrap what they
            raise.

    Raises:
        AlreadyRunning: A living gateway has the directory.
    """
    server = _bind(directory)
    scope = anyio.CancelScope()
    try:
        tasks.start_soon(_accept, server, methods, scope)
        yield
    finally:
        scope.cancel()
        server.close()
        _unlink(directory)


def _bind(directory: Path) -> socket.socket:
    directory.mkdir(parents=True, exist_ok=True)
    ensure_alone(directory)
    _unlink(directory)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.setblocking(False)
    mask = os.umask(0o177)
    try:
        with _short_path(directory) as path:
            server.bind(path)
    finally:
        os.umask(mask)
    server.listen(_CONNECTIONS_MAX)
    return server


def _unlink(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        (directory / SOCKET_NAME).unlink()


async def _accept(
    server: socket.socket, methods: Mapping[str, Method], scope: anyio.CancelScope
) -> None:
    loop = asyncio.get_running_loop()
    limit = asyncio.Semaphore(_CONNECTIONS_MAX)

    async def serve(connection: socket.socket) -> None:
        try:
            await Channel(connection, methods, name="admin").run()
        finally:
            limit.release()

    with scope:
        async with anyio.create_task_group() as tasks:
            while True:
                await limit.acquire()
                try:
                    connection = (await loop.sock_accept(server))[0]
                except OSError as error:  # out of descriptors, or the client is gone already
                    logger.warning("the admin socket: %s", error)
                    limit.release()
                    await anyio.sleep(ACCEPT_PAUSE_S)
                    continue
                tasks.start_soon(serve, connection)


def connect(directory: Path) -> socket.socket | None:
    """Connect to the running gateway, None when there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(directory) as path:
            sock.connect(path)
    except OSError:
        sock.close()
        return None
    return sock
