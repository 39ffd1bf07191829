"""One lone fdatasync: what `durability: strict` cannot be faster than on this disk."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

RECORD_BYTES = 400
"""About an intent's record in the journal."""
ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSync:
    """Durations of one append and fdatasync, nobody else writing."""

    p50_ms: float
    p99_ms: float


def lone_fdatasync(folder: Path, *, rounds: int = ROUNDS) -> DiskSync:
    """Append a record and wait for the disk, again and again; the file is removed."""
    path = folder / "fdatasync.probe"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    took_ms: list[float] = []
    try:
        for _ in range(rounds):
            started_s = time.perf_counter()
            os.write(descriptor, b"r" * RECORD_BYTES)
            os.fdatasync(descriptor)
            took_ms.append((time.perf_counter() - started_s) * 1e3)
    finally:
        os.close(descriptor)
        path.unlink()
    quantiles = statistics.quantiles(took_ms, n=100)
    return DiskSync(p50_ms=quantiles[49], p99_ms=quantiles[98])
