"""When a spool's records reach the disk, and that the event loop does not wait for it."""

from __future__ import annotations

import errno
import os
import threading

import anyio
import pytest

from gateway.ledger import segment
from gateway.ledger.errors import SpoolError, SpoolFull
from gateway.ledger.records import decode
from gateway.ledger.spool import Health
from gateway.ledger.spool_reader import Cursor, SpoolReader
from tests.gateway.ledger_samples import FakeClock, intent, open_spool, settlement
from tests.gateway.spool_disks import HeldFiles, QuotaFiles, close, records_in

pytestmark = pytest.mark.anyio


async def wait_until(holds) -> None:
    with anyio.fail_after(10):
        while not holds():
            await anyio.sleep(0.002)


def sizes_in(directory) -> list[int]:
    numbers = segment.segment_numbers(directory)
    return [segment.segment_path(directory, number).stat().st_size for number in numbers]


async def test_the_next_segment_is_made_before_it_is_needed(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=2_000)
    created = []
    create = writer._files.create
    writer._files.create = lambda path: created.append(threading.get_ident()) or create(path)
    written = [intent(n) for n in range(20)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for record in written:
            writer.append(record)
            await wait_until(lambda: writer.durable_position == writer.position)
            reader = SpoolReader(tmp_path / "w", Cursor(number=0))
            found = []
            while not reader.is_at_end:
                found += [decode(entry.payload) for entry, _ in reader]
            assert found == written[: written.index(record) + 1]
        await close(writer)
    assert len(created) >= 4
    assert threading.get_ident() not in created, "the loop never waits for a file to be made"
    assert records_in(tmp_path / "w") == written
    assert min(sizes_in(tmp_path / "w")) > segment.HEADER_BYTES, "no empty one is left"


async def test_closing_removes_the_file_that_was_made_ahead(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=2_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for n in range(4):
            writer.append(intent(n))
        await wait_until(lambda: len(sizes_in(tmp_path / "w")) == 2)
        assert sizes_in(tmp_path / "w")[1] == 0
        await wait_until(lambda: writer.durable_position == writer.position)
        await close(writer)
    assert len(sizes_in(tmp_path / "w")) == 1


async def test_a_segment_grows_on_while_the_next_one_is_being_made(tmp_path):
    files = HeldFiles()
    writer = open_spool(tmp_path / "w", files=files, segment_bytes=2_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for n in range(4):
            writer.append(intent(n))
        await wait_until(files.begun.is_set)
        for n in range(4, 20):
            writer.append(intent(n))
        assert segment.segment_numbers(tmp_path / "w") == [1]
        files.let_go.set()
        await wait_until(lambda: writer.durable_position == writer.position)
        writer.append(intent(20))
        assert min(sizes_in(tmp_path / "w")[:2]) > 300
        await close(writer)
    assert records_in(tmp_path / "w") == [intent(n) for n in range(21)]


async def test_what_cannot_be_made_ahead_is_tried_again_when_it_is_needed(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, segment_bytes=2_000)
    asked = []

    def refuse(path) -> int:
        asked.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    create, files.create = files.create, refuse
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for n in range(3):
            writer.append(intent(n))
        await wait_until(lambda: asked and writer.durable_position == writer.position)
        assert writer.health is Health.OK, "there is room yet"
        files.create = create
        for n in range(3, 12):
            writer.append(intent(n))
        await close(writer)
    assert records_in(tmp_path / "w") == [intent(n) for n in range(12)]


async def test_a_folder_that_cannot_be_synced_fails_for_good(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, segment_bytes=2_000)
    await_sync, folder = files.sync, writer._directory_descriptor

    def refuse(descriptor: int) -> None:
        if descriptor == folder and len(sizes_in(tmp_path / "w")) > 1:
            raise OSError(errno.EIO, "Input/output error")
        await_sync(descriptor)

    files.sync = refuse
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            for n in range(4):
                writer.append(intent(n))
    assert writer.health is Health.FAILED
    await close(writer)
    assert segment.segment_numbers(tmp_path / "w") == [1]


async def test_closing_waits_for_the_sync_under_way_and_syncs_the_rest(tmp_path):
    files = HeldFiles()
    writer = open_spool(tmp_path / "w", files=files)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        writer.append(intent(1))
        await wait_until(files.begun.is_set)
        writer.append(intent(2))
        tasks.start_soon(writer.close)
        await anyio.sleep(0.02)
        assert writer.durable_position < writer.position
        files.let_go.set()
        await close(writer)
    assert writer.durable_position == writer.position


async def test_who_waits_for_the_disk_learns_that_the_spool_failed(tmp_path):
    files = HeldFiles()
    writer = open_spool(tmp_path / "w", files=files, group_s=60.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        first = writer.append(intent(1))
        refused = []

        async def wait(position: int) -> None:
            with pytest.raises(SpoolError, match="failed for good"):
                await writer.durable(position)
            refused.append(position)

        async with anyio.create_task_group() as waiters:
            waiters.start_soon(wait, first + 1)
            await wait_until(files.begun.is_set)
            files.write_error = OSError(errno.EIO, "Input/output error")
            with pytest.raises(SpoolError):
                writer.append(intent(2))
            files.let_go.set()
    assert refused == [first + 1]
    await close(writer)


async def test_a_failed_write_ends_the_wait_for_a_sync_that_has_not_begun(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, group_s=60.0)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            await wait_until(lambda: not writer._sync.is_due)
            writer.append(intent(1))
            files.write_error = OSError(errno.EIO, "Input/output error")
            with pytest.raises(SpoolError):
                writer.append(intent(2))
    assert writer.health is Health.FAILED
    await close(writer)


async def test_what_is_appended_in_one_turn_of_the_loop_shares_a_sync(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, group_s=60.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        await anyio.sleep(0.01)
        files.synced.clear()
        async with anyio.create_task_group() as waiters:
            for n in range(50):
                waiters.start_soon(writer.durable, writer.append(intent(n)))
        assert len(files.synced) <= 2
        await close(writer)


async def test_the_digest_of_a_growing_segment_is_followed_by_the_thread(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=1_000_000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        written = [intent(n, reason="x" * 10_000) for n in range(150)]
        followed = set()
        for record in written:
            await writer.durable(writer.append(record))
            followed.add(writer._segment.digest.size_bytes)
        await close(writer)
    assert len(followed) >= 3, "in steps, while the segment grew"
    assert records_in(tmp_path / "w") == written
    first, second = (segment.segment_path(tmp_path / "w", number) for number in (1, 2))
    header = segment.read_header(second)
    assert header is not None
    assert header.previous_digest == segment.file_digest(first)


async def test_a_segment_that_cannot_be_read_back_fails_for_good(tmp_path):
    writer = open_spool(tmp_path / "w")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        os.truncate(segment.segment_path(tmp_path / "w", 1), segment.HEADER_BYTES)
        writer._segment.size_bytes = 600_000
        with pytest.raises(SpoolError, match="shorter than was written"):
            await writer.durable(writer.append(intent(1)))
    assert writer.health is Health.FAILED
    await close(writer)


async def test_a_wait_that_is_given_up_leaves_the_others_their_sync(tmp_path):
    files = HeldFiles()
    writer = open_spool(tmp_path / "w", files=files, group_s=60.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        position = writer.append(intent(1))
        told = []

        async def wait() -> None:
            await writer.durable(position)
            told.append(position)

        tasks.start_soon(wait)
        with anyio.move_on_after(0.02) as given_up:
            await writer.durable(position)
        assert given_up.cancelled_caught
        files.let_go.set()
        await wait_until(lambda: told == [position])
        await close(writer)


async def test_a_closed_spool_that_finds_room_stays_closed(tmp_path):
    files, clock = QuotaFiles(10_000), FakeClock()
    writer = open_spool(tmp_path / "w", files=files, clock=clock.clock, reserve_bytes=8_192)
    with pytest.raises(SpoolFull):
        for n in range(100):
            writer.append(intent(n))
    files.room = 10**6
    clock.pass_s(2)
    await close(writer)
    for record in (intent(200), settlement(1)):
        with pytest.raises(SpoolError, match="closed"):
            writer.append(record)
