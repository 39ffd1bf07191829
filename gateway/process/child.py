"""Start a Python module as a child process that is reached over a channel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.channel import Channel, Method, socket_pair

KILL_AFTER_S = 5.0


@dataclass(slots=True, kw_only=True)
class Child:
    """A running child.

    Attributes:
        name: For log lines.
        process: The process.
        channel: Its end of the channel is the child's control descriptor.
    """

    name: str
    process: asyncio.subprocess.Process
    channel: Channel

    async def stop(self, *, grace_s: float) -> None:
        """End the child: close its channel, ask, then kill."""
        self.channel.close()
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


async def spawn(
    module: str, *, name: str, methods: Mapping[str, Method], arguments: Sequence[str] = ()
) -> Child:
    """Start `python -m module --control-fd N --log-level L`; it logs what this process does.

    Args:
        module: A module with a main of its own.
        name: For log lines.
        methods: What the child may call on us.
        arguments: Further arguments.
    """
    ours, theirs = socket_pair()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            "--control-fd",
            str(theirs.fileno()),
            "--log-level",
            str(logging.getLogger().level),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            # A Ctrl-C in the terminal reaches the supervisor alone, which drains its children.
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Child(name=name, process=process, channel=Channel(ours, methods, name=name))
