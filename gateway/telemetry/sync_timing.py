"""How long the disk takes: the spool's system calls, with a watch on `fdatasync`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.ledger.spool import KernelFiles
from gateway.telemetry.families import SYNC_BUCKETS_S
from gateway.telemetry.histogram import new_histogram, observe
from gateway.telemetry.snapshot import Series


class TimedFiles(KernelFiles):
    """The real system calls; each sync is timed, failed ones too.

    Args:
        monotonic_s: The clock.
    """

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        # One sync at a time writes here, from a thread; a scrape may miss the newest.
        self._syncs = new_histogram("fareway_spool_sync_seconds")

    def sync(self, descriptor: int) -> None:
        """`fdatasync(2)`."""
        begun_s = self._monotonic_s()
        try:
            super().sync(descriptor)
        finally:
            took_s = self._monotonic_s() - begun_s
            observe(self._syncs, SYNC_BUCKETS_S, took_s)

    def series(self) -> Iterator[Series]:
        """The durations."""
        yield Series("fareway_spool_sync_seconds", (), self._syncs.copy())
