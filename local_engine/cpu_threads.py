"""How many threads the engine should compute with on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TOPOLOGY: Final = Path("/sys/devices/system/cpu")
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def count_usable_cores(*, topology: Path = _TOPOLOGY, quota: Path = _QUOTA) -> int:
    """Count physical cores that this process may use, at least 1.

    Two threads of one core share its arithmetic units and slow each other down, and threads beyond
    a container's quota are paused while the others wait for them at a barrier.

    Args:
        topology: Folder of the kernel's description of processors.
        quota: The control group's processor quota: microseconds per period, or `max`.
    """
    cores = {_siblings(topology, cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, min(len(cores), _whole_processors(quota, default=len(cores))))


def _siblings(topology: Path, cpu: int) -> str:
    """A text that is the same for all threads of one core."""
    try:
        return (topology / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:  # not every container shows it; then each thread counts as a core
        return str(cpu)


def _whole_processors(quota: Path, *, default: int) -> int:
    try:
        allowed, period = quota.read_text().split()
    except (OSError, ValueError):
        return default
    return default if allowed == "max" else int(allowed) // int(period)
