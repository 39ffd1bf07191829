"""What the kernel says about processes and cores: CPU time, memory, who belongs to whom (Linux)."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NS_PER_S = 1_000_000_000
DEAD_THREADS_S = 0.02
"""What ticks and nanoseconds may differ by before threads that ended are the reason."""

_PPID, _UTIME, _STIME, _CUTIME, _CSTIME = 1, 11, 12, 13, 14
"""Fields of /proc/PID/stat after the command's closing bracket."""


def tree(root: int) -> list[int]:
    """A process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[_PPID]), []).append(int(entry.name))
    found, waiting = list[int](), [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system, threads that ended included; 0 when gone.

    The scheduler's nanoseconds of living threads are finer than the process's ticks, but lose
    threads that ended; the greater of the two is right within a tick.
    """
    fields = _stat(pid)
    if not fields:
        return 0.0
    ticks_s = (int(fields[_UTIME]) + int(fields[_STIME])) / TICKS_PER_S
    return max(ticks_s - DEAD_THREADS_S, _threads_s(pid))


def ended_children_s(pid: int) -> float:
    """CPU seconds of children that have ended and were waited for, in ticks; 0 when gone."""
    fields = _stat(pid)
    return (int(fields[_CUTIME]) + int(fields[_CSTIME])) / TICKS_PER_S if fields else 0.0


def _threads_s(pid: int) -> float:
    total_ns = 0
    try:
        for thread in (PROC / str(pid) / "task").iterdir():
            total_ns += _first_number(thread / "schedstat")
    except OSError:  # it ended meanwhile
        return 0.0
    return total_ns / NS_PER_S


def _first_number(path: Path) -> int:
    try:
        return int(path.read_text().split()[0])
    except (OSError, IndexError):
        return 0


def rss_bytes(pid: int) -> int:
    """Resident memory; 0 when the process is gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    sizes = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
    return sizes[0] * 1024 if sizes else 0


def role(pid: int) -> str:
    """What a process is to a reader: `worker`, `ledger_process`, `supervisor`, else its program."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    for word in words:
        if word.startswith("gateway.process."):
            return word.rpartition(".")[2]
    if any(Path(word).name == "fareway" for word in words[:3]):
        return "supervisor"
    return Path(words[0]).name or "unnamed"


def cores_busy_s(cores: Iterable[int]) -> float:
    """Seconds that the cores were busy so far, summed; time of other guests included."""
    wanted = {f"cpu{core}" for core in cores}
    busy = 0
    for line in (PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, idle, wait, *rest = (int(field) for field in fields[:8])
            del idle, wait
            busy += user + nice + system + sum(rest)
    return busy / TICKS_PER_S


def usable_cores() -> Sequence[int]:
    """The cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


@contextmanager
def on_core(core: int | None) -> Generator[None]:
    """Run the block, and what it starts, on one core; None leaves it to the kernel."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _stat(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
