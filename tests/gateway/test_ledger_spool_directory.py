"""A spool directory between its writers: taken, mended, removed."""

from __future__ import annotations

import fcntl
import os

import anyio
import anyio.to_thread
import pytest

from gateway.ledger import spool_directory
from gateway.ledger.errors import SpoolLocked
from tests.gateway.ledger_samples import intent, open_spool
from tests.gateway.test_ledger_spool import close, records_in

pytestmark = pytest.mark.anyio


async def test_a_removed_directory_is_not_written_to_by_a_late_writer(tmp_path):
    writer = open_spool(tmp_path / "w")
    await close(writer)
    lock = spool_directory.acquire(tmp_path / "w")
    assert spool_directory.remove(tmp_path / "w")
    lock.release()
    assert not (tmp_path / "w").exists()
    again = open_spool(tmp_path / "w", session=2)
    again.append(intent(1))
    assert records_in(tmp_path / "w") == [intent(1)]
    await close(again)


async def test_a_directory_with_damaged_bytes_aside_is_not_removed(tmp_path):
    await close(open_spool(tmp_path / "w"))
    (tmp_path / "w" / "00000001-80.damaged").write_bytes(b"evidence")
    assert not spool_directory.remove(tmp_path / "w")
    assert (tmp_path / "w" / "00000001-80.damaged").exists()


async def test_a_lock_on_a_file_that_was_replaced_protects_nothing_and_is_not_taken(
    tmp_path, monkeypatch
):
    real, path = fcntl.flock, tmp_path / "w" / spool_directory.LOCK_NAME
    replaced = []

    def replace_then_lock(descriptor: int, operation: int) -> None:
        if not replaced:
            path.unlink()
            path.touch()
            replaced.append(descriptor)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replace_then_lock)
    with pytest.raises(SpoolLocked):
        spool_directory.acquire(tmp_path / "w")
    lock = spool_directory.acquire(tmp_path / "w")
    assert os.path.samestat(os.fstat(lock.descriptor), path.stat())
    lock.release()


async def test_a_lock_that_cannot_be_made_is_not_taken(tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / spool_directory.LOCK_NAME).symlink_to(tmp_path / "gone" / "lock")
    with pytest.raises(SpoolLocked):
        spool_directory.acquire(tmp_path / "w")


async def test_a_file_in_place_of_the_directory_is_an_error_of_the_system(tmp_path):
    (tmp_path / "w").write_bytes(b"")
    with pytest.raises(FileExistsError):
        spool_directory.acquire(tmp_path / "w")


async def test_takers_and_removers_of_a_directory_never_hold_it_together(tmp_path):
    holders, most = [0], [0]

    def take_and_remove() -> None:
        for _ in range(200):
            try:
                lock = spool_directory.acquire(tmp_path / "w", wait_s=5)
            except SpoolLocked:
                continue
            holders[0] += 1
            most[0] = max(most[0], holders[0])
            holders[0] -= 1
            spool_directory.remove(tmp_path / "w")  # From within it on, the next may come.
            lock.release()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(anyio.to_thread.run_sync, take_and_remove)
    assert most == [1]
