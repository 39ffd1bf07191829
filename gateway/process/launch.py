"""Start a child process; what is started early is kept until somebody needs it.

`fareway serve` starts its first worker before it has read a line of its own configuration, so that
on two cores their imports run beside each other; `fork` tells how.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Protocol

WORKER_MODULE = "gateway.process.worker"
LEDGER_MODULE = "gateway.process.ledger_process"
BOOT_MODULE = "gateway.boot"
INFO_LEVEL = 20
"""`logging.INFO`; that module takes a hundredth of a second to import."""


class RunningProcess(Protocol):
    """What is asked of a child process; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int:
        """Its id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status, minus the signal's number when one ended it, None until it was reaped."""
        ...

    def wait(self) -> int:
        """Wait for its end and reap it; the exit status."""
        ...

    def terminate(self) -> None:
        """SIGTERM, if it still runs."""
        ...

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        ...


@dataclass(slots=True, kw_only=True)
class Launched:
    """A child that was started and not yet spoken to.

    Attributes:
        process: The process.
        control: Our end of its channel.
    """

    process: RunningProcess
    control: socket.socket

    def give_up(self) -> None:
        """End it; nothing depends on it yet."""
        self.process.kill()  # first, or it still says that its supervisor is gone
        self.process.wait()
        self.control.close()


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


def launch(module: str, *, log_level: int) -> Launched:
    """Start `python -m gateway.boot module --control-fd N --log-level L`.

    Args:
        module: A module with a `main` that takes its arguments.
        log_level: Of the child's log lines.

    Raises:
        OSError: The machine refuses.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                BOOT_MODULE,
                module,
                "--control-fd",
                str(theirs.fileno()),
                "--log-level",
                str(log_level),
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
