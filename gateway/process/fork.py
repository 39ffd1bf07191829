"""The first worker of `fareway serve`: a copy of this process, made before there is much in it.

Supervisor and worker need the same settings, policy and channel: two thirds of the modules of the
one, nearly all of the other. Imported before the process divides, they are paid for once; on one
core the gateway was ready after 560 ms instead of 830. What only one of the two needs, each imports
by itself afterwards, beside the other. A worker that is started later is a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from gateway import boot
from gateway.process.launch import INFO_LEVEL, WORKER_MODULE, HeadStart, Launched, launch

SHARED_MODULES = (
    "gateway.channel",
    "gateway.policy_proof",
    "gateway.process.listeners",
    "gateway.process.snapshot",
    "gateway.settings.declared_keys",
    "gateway.telemetry.logs",
    "gateway.telemetry.sources",
    "local_engine.api",
)
"""With what they import: what supervisor and worker both need, and nothing that one does not."""

_ARG_START, _ARG_END = 48 - 3, 49 - 3
"""Fields of `/proc/self/stat`, counted from the state. Source: proc_pid_stat(5)."""


@dataclass(slots=True, kw_only=True)
class ForkedProcess:
    """A copy of this process, as its parent sees it; reaped by `wait` alone.

    Attributes:
        pid: Its id.
        returncode: Exit status, minus the signal's number when one ended it, None until reaped.
    """

    pid: int
    returncode: int | None = None

    def wait(self) -> int:
        """Wait for its end; the exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        """SIGTERM, if it was not reaped."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, if it was not reaped."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        # Its id is nobody else's before it is reaped.
        if self.returncode is None:
            os.kill(self.pid, number)


def head_start() -> HeadStart:
    """Start a worker; does not return in the worker.

    Raises:
        OSError: The machine refuses.
        SystemExit: In the worker, with its exit status.
    """
    if not _may_divide():
        launched = launch(WORKER_MODULE, log_level=INFO_LEVEL)
        return HeadStart(launched={WORKER_MODULE: launched})
    for name in SHARED_MODULES:
        importlib.import_module(name)
    return HeadStart(launched={WORKER_MODULE: divide(WORKER_MODULE, log_level=INFO_LEVEL)})


def divide(module: str, *, log_level: int) -> Launched:
    """Run a module of ours in a copy of this process, with what is imported already.

    The copy has a session of its own and no standard input, as one that `launch` started.

    Args:
        module: A module with a `main` that takes its arguments.
        log_level: Of the child's log lines.

    Raises:
        OSError: The machine refuses.
        SystemExit: In the copy, with its exit status.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        gc.freeze()  # the collector would write to what is there, and so copy it
        pid = os.fork()
    except BaseException:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        return Launched(process=ForkedProcess(pid=pid), control=ours)
    ours.close()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    arguments = [module, "--control-fd", str(theirs.detach()), "--log-level", str(log_level)]
    show_as("fareway", *arguments)
    raise SystemExit(boot.main(arguments))


def show_as(*words: str) -> None:
    """Have `ps` show other words as this process's command line, as many as there is room for.

    The kernel shows the memory in which the command line was handed over; nobody reads it again.
    Source: proc_pid_cmdline(5).
    """
    with contextlib.suppress(OSError):  # no /proc: it goes by its parent's words
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        text = b""
        for word in words:
            longer = text + os.fsencode(word) + b"\0"
            if len(longer) > end - start:
                break
            text = longer
        if text:
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _may_divide() -> bool:
    """Whether a copy is a whole process: of several threads it would have one, and all locks."""
    return sys.platform == "linux" and threading.active_count() == 1
