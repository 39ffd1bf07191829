"""Start a child process as early as possible: nothing is imported here that takes time.

`fareway serve` starts its first worker and the ledger process before it has read a line of its own
configuration, so that on two cores their imports run beside its own.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

WORKER_MODULE = "gateway.process.worker"
LEDGER_MODULE = "gateway.process.ledger_process"
INFO_LEVEL = 20
"""`logging.INFO`; that module takes a hundredth of a second to import."""


@dataclass(slots=True, kw_only=True)
class Launched:
    """A child that was started and not yet spoken to.

    Attributes:
        process: The process.
        control: Our end of its channel.
    """

    process: subprocess.Popen[bytes]
    control: socket.socket

    def give_up(self) -> None:
        """End it; nothing depends on it yet."""
        self.control.close()
        self.process.kill()
        self.process.wait()


@dataclass(slots=True, kw_only=True)
class HeadStart:
    """Children that are under way before anybody knows what they shall do.

    Attributes:
        launched: By module; whoever needs one takes it.
    """

    launched: dict[str, Launched] = field(default_factory=dict[str, Launched])

    def take(self, module: str) -> Launched | None:
        """The child that runs a module, once."""
        return self.launched.pop(module, None)

    def close(self) -> None:
        """End those that nobody took."""
        while self.launched:
            self.launched.popitem()[1].give_up()


def head_start() -> HeadStart:
    """Start a worker and the ledger process.

    Raises:
        OSError: The machine refuses.
    """
    started = HeadStart()
    try:
        for module in (WORKER_MODULE, LEDGER_MODULE):
            started.launched[module] = launch(module, log_level=INFO_LEVEL)
    except OSError:
        started.close()
        raise
    return started


def launch(module: str, *, log_level: int, arguments: Sequence[str] = ()) -> Launched:
    """Start `python -m module --control-fd N --log-level L`.

    Args:
        module: A module with a main of its own.
        log_level: Of the child's log lines.
        arguments: Further arguments.

    Raises:
        OSError: The machine refuses.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                module,
                "--control-fd",
                str(theirs.fileno()),
                "--log-level",
                str(log_level),
                *arguments,
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            # A Ctrl-C in the terminal reaches the supervisor alone, which drains its children.
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Launched(process=process, control=ours)
