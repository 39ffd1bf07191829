"""The admin socket: how commands reach the running gateway of a configuration.

A Unix socket in the spool directory, mode 0600: whoever may write the journal may administer. Its
path can be longer than the kernel's 107 bytes, so both ends name it through a descriptor of the
directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio

from gateway.channel import Channel, Method

SOCKET_NAME = "admin.sock"
_CONNECTIONS_MAX = 32


@contextmanager
def _short_path(directory: Path) -> Generator[str]:
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


@asynccontextmanager
async def listening(directory: Path, methods: Mapping[str, Method]) -> AsyncGenerator[None]:
    """Answer calls until the context is left.

    Args:
        directory: The spool directory; made when missing.
        methods: What may be called.
    """
    server = _bind(directory)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_accept, server, methods)
            yield
            tasks.cancel_scope.cancel()
    finally:
        server.close()
        _unlink(directory)


def _bind(directory: Path) -> socket.socket:
    directory.mkdir(parents=True, exist_ok=True)
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


async def _accept(server: socket.socket, methods: Mapping[str, Method]) -> None:
    loop = asyncio.get_running_loop()
    limit = asyncio.Semaphore(_CONNECTIONS_MAX)

    async def serve(connection: socket.socket) -> None:
        try:
            await Channel(connection, methods, name="admin").run()
        finally:
            limit.release()

    async with anyio.create_task_group() as tasks:
        while True:
            await limit.acquire()
            connection = (await loop.sock_accept(server))[0]
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
