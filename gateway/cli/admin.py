"""How a command reaches the gateway of its configuration: the running one, else its database.

Writes go through the running gateway, which returns once every worker has acknowledged; without one
the command opens the database itself.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import anyio

from gateway.channel import Channel, ChannelError
from gateway.process import admin_socket
from gateway.settings.loader import LoadedConfig

T = TypeVar("T")
CALL_TIMEOUT_S = 60.0
CATCH_UP_S = 10.0
"""How long a report waits for what is not loaded yet; longer than for the database's lock."""


class NoGateway(Exception):
    """No gateway of this configuration runs on this machine."""


async def call_gateway(
    config: LoadedConfig,
    name: str,
    params: object = None,
    *,
    result_type: type[T],
    timeout_s: float = CALL_TIMEOUT_S,
) -> T:
    """Call a method of the running gateway.

    Args:
        config: Whose gateway.
        name: A method of the supervisor.
        params: What it takes.
        result_type: What it answers.
        timeout_s: Longest wait for the answer.

    Raises:
        NoGateway: None runs.
        ChannelError: The call failed, or the gateway refused.
    """
    sock = admin_socket.connect(config.spool_dir)
    if sock is None:
        raise NoGateway
    channel = Channel(sock, {}, name="gateway")
    results: list[T] = []
    failures: list[ChannelError] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.run)
        try:
            results.append(
                await channel.call(name, params, result_type=result_type, timeout_s=timeout_s)
            )
        except ChannelError as error:
            failures.append(error)  # raised outside, so that the task group does not wrap it
        channel.close()
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return results[0]


class CaughtUp(Enum):
    """What became of asking a running gateway to load what it wrote."""

    DONE = "done"
    BEHIND = "behind"
    """It was not done in time."""
    NO_GATEWAY = "no_gateway"
    """There was nobody to ask."""


async def catch_up_state(config: LoadedConfig) -> CaughtUp:
    """Have the running gateway load what it wrote up to now.

    Args:
        config: Whose gateway.
    """
    try:
        await call_gateway(config, "flush", result_type=type(None), timeout_s=CATCH_UP_S)
    except NoGateway:
        return CaughtUp.NO_GATEWAY
    except ChannelError:
        return CaughtUp.BEHIND
    return CaughtUp.DONE


async def catch_up(config: LoadedConfig) -> bool:
    """As `catch_up_state`; False when it is not done in time. Without a gateway that is no fault.

    Args:
        config: Whose gateway.
    """
    return await catch_up_state(config) is not CaughtUp.BEHIND
