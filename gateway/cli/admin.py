"""How a command reaches the gateway of its configuration: the running one, else its database.

Writes go through the running gateway, which returns once every worker has acknowledged; without one
the command opens the database itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from gateway.channel import Channel
from gateway.process import admin_socket
from gateway.settings.loader import LoadedConfig

T = TypeVar("T")
CALL_TIMEOUT_S = 60.0


@asynccontextmanager
async def running_gateway(config: LoadedConfig) -> AsyncGenerator[Channel | None]:
    """A channel to the running gateway, None when none runs."""
    sock = admin_socket.connect(config.spool_dir)
    if sock is None:
        yield None
        return
    channel = Channel(sock, {}, name="gateway")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.run)
        yield channel
        channel.close()
        tasks.cancel_scope.cancel()
