"""A Python module that runs as a child process and is reached over a channel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from gateway.channel import Channel, Method
from gateway.process.launch import Launched, RunningProcess, launch

KILL_AFTER_S = 5.0


class Process:
    """A child process whose end can be awaited; the kernel tells it, nobody polls.

    Args:
        child: The process; reaped here.
    """

    def __init__(self, child: RunningProcess) -> None:
        """Watch from here on; needs a running loop."""
        self._child = child
        self._ended = asyncio.Event()
        self._watched: int | None = None
        try:
            self._watched = os.pidfd_open(child.pid)
        except ProcessLookupError:  # reaped already: it ended before anybody watched
            self._end()
        else:
            asyncio.get_running_loop().add_reader(self._watched, self._end)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, minus the signal's number when one ended it, None while it runs."""
        return self._child.returncode

    async def wait(self) -> int:
        """Wait for its end; the exit status."""
        await self._ended.wait()
        status = self._child.returncode
        assert status is not None, "an ended process was reaped"
        return status

    def terminate(self) -> None:
        """SIGTERM, if it still runs."""
        self._child.terminate()

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        self._child.kill()

    def stand_back(self, niceness: int) -> None:
        """Let others go first from now on.

        Where Linux groups tasks by session, a process is weighed against those of its own session
        only, and the sessions among each other; each child has one of its own. Without the second
        step it would have as much of a core as a worker, in turns of milliseconds.
        Source: sched(7), "The autogroup feature".

        Args:
            niceness: Added to our own for each of its threads, and given to its session.
        """
        level = os.getpriority(os.PRIO_PROCESS, 0) + niceness
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), level)
        # Not there without the feature; without root's rights it can be set ten times a second.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/autogroup").write_text(str(niceness))

    def _end(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            os.close(self._watched)
            self._watched = None
        self._child.wait()  # at once: the descriptor is readable when there is a status
        self._ended.set()


@dataclass(slots=True, kw_only=True)
class Child:
    """A running child.

    Attributes:
        name: For log lines.
        process: The process.
        channel: Its end of the channel is the child's control descriptor.
    """

    name: str
    process: Process
    channel: Channel

    async def stop(self, *, grace_s: float) -> None:
        """End the child: close its channel, ask, then kill."""
        self.channel.close()
        if self.process.returncode is None:
            self.process.terminate()
        with anyio.move_on_after(grace_s):
            await self.process.wait()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


def spawn(module: str, *, name: str, methods: Mapping[str, Method]) -> Child:
    """Start a module; it logs what this process does.

    Args:
        module: A module with a `main` that takes its arguments.
        name: For log lines.
        methods: What the child may call on us.

    Raises:
        OSError: The machine refuses.
    """
    level = logging.getLogger().level
    return adopt(launch(module, log_level=level), name=name, methods=methods)


def adopt(launched: Launched, *, name: str, methods: Mapping[str, Method]) -> Child:
    """Take over a child that was started before.

    Args:
        launched: The child.
        name: For log lines.
        methods: What it may call on us.
    """
    return Child(
        name=name,
        process=Process(launched.process),
        channel=Channel(launched.control, methods, name=name),
    )
