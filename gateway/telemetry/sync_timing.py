"""How long the disk takes: the spool's system calls, with a watch on `fdatasync`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from gateway.ledger.spool import KernelFiles
from gateway.telemetry.families import FAMILIES, SYNC_BUCKETS_S
from gateway.telemetry.snapshot import Series


class TimedFiles(KernelFiles):
    """The real system calls; each sync is timed, failed ones too.

    Args:
        monotonic_s: The clock.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        # One sync at a time writes here, from a thread; a scrape may miss the newest.
        self._syncs: list[float] = [0] * FAMILIES["fareway_spool_sync_seconds"].width

    def sync(self, descriptor: int) -> None:
        """`fdatasync(2)`."""
        begun_s = self._monotonic_s()
        try:
            super().sync(descriptor)
        finally:
            took_s = self._monotonic_s() - begun_s
            self._syncs[bisect_left(SYNC_BUCKETS_S, took_s)] += 1
            self._syncs[-1] += took_s

    def series(self) -> Iterator[Series]:
        """The durations."""
        yield Series("fareway_spool_sync_seconds", (), self._syncs.copy())
