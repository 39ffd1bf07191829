"""What every worker must know before the command that changed it returns."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio

from gateway.channel import ChannelError
from gateway.process.child import Child

logger = logging.getLogger(__name__)

TELL_TIMEOUT_S = 30.0


async def tell(child: Child, name: str, update: object) -> None:
    """Have a worker take something.

    Raises:
        ChannelError: It did not.
    """
    await child.channel.call(name, update, result_type=type(None), timeout_s=TELL_TIMEOUT_S)


async def tell_all(members: Sequence[Child], name: str, update: object, *, what: str) -> None:
    """Have every worker take something; one that does not must not go on serving, and is ended.

    Args:
        members: The workers.
        name: Of the call.
        update: What they take.
        what: What it is called in the log.
    """

    async def tell_or_end(child: Child) -> None:
        try:
            await tell(child, name, update)
        except ChannelError:
            logger.exception("%s did not take the new %s; ending it", child.name, what)
            child.process.kill()
            await child.process.wait()

    async with anyio.create_task_group() as tasks:
        for child in members:
            tasks.start_soon(tell_or_end, child)
