"""What a process that holds prompts does first: leave no dumps, and die with its parent."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def guard_process() -> None:
    """Switch core dumps off and, on Linux, ask to be killed when the parent thread ends.

    Raises:
        OSError: the kernel refused.

    Source: prctl(2).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_PDEATHSIG, signal.SIGKILL)):
            if libc.prctl(option, int(value), 0, 0, 0) != 0:
                errno = ctypes.get_errno()
                raise OSError(errno, os.strerror(errno))
