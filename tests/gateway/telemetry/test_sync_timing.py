"""The disk's answers are timed, failed ones too."""

from __future__ import annotations

import os

import pytest

from gateway.telemetry.sync_timing import TimedFiles
from tests.gateway.ledger_samples import FakeClock

NOT_OPEN = 10**6


def test_each_sync_is_timed_and_done(tmp_path):
    files = TimedFiles(FakeClock().clock.monotonic_s)
    descriptor = files.create(tmp_path / "segment")
    try:
        files.write(descriptor, b"x")
        files.sync(descriptor)
        files.sync(descriptor)
    finally:
        os.close(descriptor)
    (series,) = files.series()
    assert sum(series.values[:-1]) == 2


def test_a_failed_sync_is_timed_and_still_fails():
    times = iter((1.0, 1.25))
    files = TimedFiles(lambda: next(times))
    with pytest.raises(OSError):
        files.sync(NOT_OPEN)
    (series,) = files.series()
    assert (sum(series.values[:-1]), series.values[-1]) == (1, 0.25)
