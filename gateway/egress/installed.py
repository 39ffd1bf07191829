"""The one guard of this process: put in force once, for the rest of its life."""

from __future__ import annotations

import socket
import sys
from typing import cast

from gateway.egress.guard import Arguments, Guard
from gateway.egress.loops import bind_loop

_guard: Guard | None = None
"""A process has one guard as it has one interpreter: what it binds cannot be had twice."""


def installed() -> Guard | None:
    """The guard of this process, None where nobody installed one."""
    return _guard


def begin(*, may_spawn: bool) -> Guard:
    """Close this process's network until it is told its list; again is harmless.

    Args:
        may_spawn: Whether it starts child processes.
    """
    return installed() or install(Guard(may_spawn=may_spawn))


def install(guard: Guard) -> Guard:
    """Put a guard in force for the rest of this process's life.

    uvloop is bound where it has been imported, and cannot be imported later.

    Raises:
        RuntimeError: There is one already.
    """
    global _guard  # noqa: PLW0603 - see there
    if _guard is not None:
        raise RuntimeError("this process has its guard")
    _guard = guard
    if "uvloop" in sys.modules:
        bind_loop(cast("type", vars(sys.modules["uvloop"])["Loop"]), guard)
    else:
        guard.forbid_loop()
    handlers = guard.handlers

    def hook(event: str, args: Arguments) -> None:
        handler = handlers.get(event)
        if handler is not None:
            handler(args)

    sys.addaudithook(hook)
    setattr(socket, "getaddrinfo", guard.look_up)  # noqa: B010 - its stub has other enumerations
    return guard
