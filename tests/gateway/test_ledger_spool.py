"""The writer of a spool: what is on disk when, and what happens when the disk does not want."""

from __future__ import annotations

import errno
import os

import anyio
import pytest

from gateway.ledger import segment, spool_directory
from gateway.ledger.errors import RecordTooLarge, SpoolError, SpoolFull, SpoolLocked
from gateway.ledger.spool import Durability, Health, KernelFiles
from tests.gateway.ledger_samples import FakeClock, intent, open_spool, settlement
from tests.gateway.spool_disks import QuotaFiles, close, records_in

pytestmark = pytest.mark.anyio


async def test_what_was_appended_is_with_the_kernel_at_once(tmp_path):
    writer = open_spool(tmp_path / "w")
    assert writer.append(intent(1)) < writer.append(settlement(1)) == writer.position
    assert records_in(tmp_path / "w") == [intent(1), settlement(1)]
    assert writer.durable_position == 0
    await close(writer)


async def test_a_second_writer_is_locked_out_until_the_first_is_gone(tmp_path, monkeypatch):
    writer = open_spool(tmp_path / "w")
    monkeypatch.setattr("gateway.ledger.spool._LOCK_WAIT_S", 0.03)
    with pytest.raises(SpoolLocked, match="another process"):
        open_spool(tmp_path / "w", session=2)
    await close(writer)
    await close(open_spool(tmp_path / "w", session=2))


async def test_group_makes_records_durable_without_anyone_waiting(tmp_path):
    writer = open_spool(tmp_path / "w")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        position = writer.append(intent(1))
        await writer.before_dispatch(position)
        assert writer.durable_position < position, "group does not delay the dispatch"
        with anyio.fail_after(5):
            while writer.durable_position < position:
                await anyio.sleep(0.002)
        await close(writer)


async def test_strict_waits_for_the_disk_before_the_dispatch(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", durability=Durability.STRICT, files=files)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        position = writer.append(intent(1))
        assert files.synced == []
        await writer.before_dispatch(position)
        assert files.synced
        assert writer.durable_position >= position
        await writer.durable(position)
        await close(writer)


async def test_many_waiters_share_syncs(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", durability=Durability.STRICT, files=files)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        async with anyio.create_task_group() as waiters:
            for n in range(100):
                waiters.start_soon(writer.durable, writer.append(intent(n)))
        assert len(files.synced) < 20
        await close(writer)


async def test_segments_roll_over_and_are_chained_by_digest(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=2_000)
    written = [intent(n) for n in range(12)]
    for record in written:
        writer.append(record)
    await close(writer)
    numbers = segment.segment_numbers(tmp_path / "w")
    assert len(numbers) > 2
    previous = segment.NO_DIGEST
    for number in numbers:
        data = segment.segment_path(tmp_path / "w", number).read_bytes()
        header = segment.decode_header(data)
        assert header is not None
        assert (header.number, header.previous_digest) == (number, previous)
        assert len(data) <= 2_000
        previous = segment.digest(data)
    assert records_in(tmp_path / "w") == written


async def test_a_record_larger_than_a_segment_gets_one_of_its_own(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=200)
    writer.append(intent(1))
    writer.append(intent(2))
    await close(writer)
    assert records_in(tmp_path / "w") == [intent(1), intent(2)]


async def test_a_record_over_the_cap_is_refused_and_leaves_nothing(tmp_path):
    writer = open_spool(tmp_path / "w")
    with pytest.raises(RecordTooLarge):
        writer.append(intent(1, reason="x" * (segment.RECORD_BYTES_MAX + 1)))
    writer.append(intent(2))
    assert records_in(tmp_path / "w") == [intent(2)]
    await close(writer)


async def test_the_next_writer_goes_on_in_a_new_segment_of_a_new_session(tmp_path):
    first = open_spool(tmp_path / "w", session=1)
    first.append(intent(1))
    await close(first)
    second = open_spool(tmp_path / "w", session=2)
    second.append(intent(2))
    assert segment.segment_numbers(tmp_path / "w") == [1, 2]
    assert records_in(tmp_path / "w") == [intent(1), intent(2)]
    await close(second)


@pytest.mark.parametrize("cut", range(segment.FRAME_BYTES + 1, 60))
async def test_a_torn_tail_is_cut_off_when_the_directory_is_taken_over(tmp_path, cut):
    writer = open_spool(tmp_path / "w")
    writer.append(intent(1))
    keep = writer.append(intent(2)) and segment.segment_path(tmp_path / "w", 1)
    await close(writer)
    whole = keep.read_bytes()
    frames = list(segment.scan(whole))
    keep.write_bytes(whole[: frames[1].start + cut])
    following = open_spool(tmp_path / "w", session=2)
    assert keep.read_bytes() == whole[: frames[1].start]
    assert records_in(tmp_path / "w") == [intent(1)]
    assert not list((tmp_path / "w").glob("*.damaged"))
    await close(following)


async def test_a_damaged_last_record_is_kept_aside_before_it_is_cut(tmp_path):
    writer = open_spool(tmp_path / "w")
    writer.append(intent(1))
    await close(writer)
    path = segment.segment_path(tmp_path / "w", 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    recovered = spool_directory.recover(tmp_path / "w")
    (side,) = (tmp_path / "w").glob("*.damaged")
    assert side.read_bytes() == bytes(data[segment.HEADER_BYTES :])
    assert recovered.truncated_bytes == len(data) - segment.HEADER_BYTES


@pytest.mark.parametrize("size", [0, 1, segment.HEADER_BYTES - 1])
async def test_a_segment_that_died_before_its_header_is_removed(tmp_path, size):
    writer = open_spool(tmp_path / "w")
    writer.append(intent(1))
    await close(writer)
    segment.segment_path(tmp_path / "w", 2).write_bytes(bytes(size))
    following = open_spool(tmp_path / "w", session=2)
    assert records_in(tmp_path / "w") == [intent(1)]
    await close(following)


async def test_full_disk_refuses_intents_but_takes_settlements_of_what_is_under_way(tmp_path):
    files = QuotaFiles(120_000)
    clock = FakeClock()
    writer = open_spool(tmp_path / "w", files=files, clock=clock.clock, reserve_bytes=8_192)
    under_way = []
    with pytest.raises(SpoolFull, match="no room"):
        for n in range(1_000):
            writer.append(intent(n))
            under_way.append(n)
    assert writer.health is Health.FULL
    assert "no room" in writer.health_reason
    with pytest.raises(SpoolFull):
        writer.append(intent(5_000))
    for n in under_way:
        writer.append(settlement(n))
    assert len(under_way) > 20
    found = records_in(tmp_path / "w")
    assert found == [intent(n) for n in under_way] + [settlement(n) for n in under_way]
    files.room = 200_000
    with pytest.raises(SpoolFull):
        writer.append(intent(5_000))
    clock.pass_s(1.0)
    writer.append(intent(5_000))
    assert writer.health is Health.OK
    assert writer.health_reason == ""
    await close(writer)


async def test_still_full_after_a_while_stays_full(tmp_path):
    files, clock = QuotaFiles(20_000), FakeClock()
    writer = open_spool(tmp_path / "w", files=files, clock=clock.clock, reserve_bytes=4_000)
    with pytest.raises(SpoolFull):
        for n in range(100):
            writer.append(intent(n))
    files.room = 0
    clock.pass_s(2.0)
    with pytest.raises(SpoolFull):
        writer.append(intent(200))
    with pytest.raises(SpoolFull):
        for n in range(1_000):
            writer.append(settlement(n))
    await close(writer)


async def test_asking_for_the_fault_finds_the_room_without_a_request(tmp_path):
    files, clock = QuotaFiles(10_000), FakeClock()
    writer = open_spool(tmp_path / "w", files=files, clock=clock.clock, reserve_bytes=8_192)
    assert writer.fault() == ""
    with pytest.raises(SpoolFull):
        for n in range(100):
            writer.append(intent(n))
    assert "no room" in writer.fault()
    clock.pass_s(2)
    assert "no room" in writer.fault()
    files.room = 10**6
    assert "no room" in writer.fault(), "not tried again at once"
    clock.pass_s(2)
    assert writer.fault() == ""
    assert writer.health is Health.OK
    await close(writer)


async def test_the_reserve_grows_with_the_attempts_under_way(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, reserve_bytes=4_096)
    for n in range(10):
        writer.append(intent(n))
    assert files.held == 32_768
    for n in range(10):
        writer.append(settlement(n))
    writer.append(intent(11))
    assert files.held == 32_768
    await close(writer)


async def test_a_disk_without_room_for_the_reserve_starts_full(tmp_path):
    writer = open_spool(tmp_path / "w", files=QuotaFiles(1_000), reserve_bytes=4_000)
    assert writer.health is Health.FULL
    with pytest.raises(SpoolFull):
        writer.append(intent(1))
    await close(writer)


async def test_a_disk_without_room_for_a_header_lets_go_of_the_directory(tmp_path):
    with pytest.raises(SpoolFull):
        open_spool(tmp_path / "w", files=QuotaFiles(10))
    assert segment.segment_numbers(tmp_path / "w") == []
    await close(open_spool(tmp_path / "w"))


async def test_no_room_for_the_next_segment_is_full_too(tmp_path):
    files = QuotaFiles(10_000)
    writer = open_spool(tmp_path / "w", files=files, segment_bytes=600, reserve_bytes=8_192)
    writer.append(intent(1))
    files.room = 10
    with pytest.raises(SpoolFull):
        writer.append(intent(2))
    assert segment.segment_numbers(tmp_path / "w") == [1]
    writer.append(settlement(1))
    assert records_in(tmp_path / "w") == [intent(1), settlement(1)]
    await close(writer)


async def test_no_room_for_another_name_is_full_too(tmp_path):
    """A file system without free inodes refuses to create."""
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, segment_bytes=600)
    writer.append(intent(1))

    def refuse(path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    files.create = refuse
    with pytest.raises(SpoolFull):
        writer.append(intent(2))
    assert writer.health is Health.FULL
    assert records_in(tmp_path / "w") == [intent(1)]
    await close(writer)


async def test_a_directory_that_went_away_fails_for_good(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=600)
    writer.append(intent(1))
    (tmp_path / "w").rename(tmp_path / "elsewhere")
    with pytest.raises(SpoolError, match="No such file"):
        writer.append(intent(2))
    assert writer.health is Health.FAILED
    await close(writer)


async def test_a_segment_grows_on_while_too_many_files_are_open(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, segment_bytes=600)
    writer.append(intent(1))
    create = files.create

    def refuse(path) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    files.create = refuse
    writer.append(intent(2))
    writer.append(settlement(1))
    assert segment.segment_numbers(tmp_path / "w") == [1]
    files.create = create
    writer.append(settlement(2))
    assert segment.segment_numbers(tmp_path / "w") == [1, 2]
    assert records_in(tmp_path / "w") == [intent(1), intent(2), settlement(1), settlement(2)]
    await close(writer)


async def test_failed_sync_is_never_trusted_again(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, durability=Durability.STRICT)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        position = writer.append(intent(1))
        files.sync_error = OSError(errno.EIO, "Input/output error")
        with pytest.raises(SpoolError, match="failed for good: Input/output error"):
            await writer.before_dispatch(position)
    files.sync_error = None
    assert writer.health is Health.FAILED
    assert "must be replaced" in writer.health_reason
    for record in (intent(2), settlement(1)):
        with pytest.raises(SpoolError):
            writer.append(record)
    with pytest.raises(SpoolError):
        await writer.durable(position)
    await close(writer)
    assert writer.durable_position == 0


async def test_a_write_error_that_is_not_about_room_fails_for_good(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files)
    files.write_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(SpoolError):
        writer.append(intent(1))
    assert writer.health is Health.FAILED
    await close(writer)


async def test_a_partial_write_that_cannot_be_taken_back_fails_for_good(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files)

    def break_the_descriptor(descriptor: int, data: bytes) -> int:
        os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    files.write = break_the_descriptor
    with pytest.raises(SpoolError, match="failed for good"):
        writer.append(intent(1))
    assert writer.health is Health.FAILED
    await close(writer)


async def test_an_unusable_reserve_is_an_error_of_the_system(tmp_path):
    class Broken(KernelFiles):
        def reserve(self, descriptor: int, size_bytes: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        open_spool(tmp_path / "w", files=Broken())
    await close(open_spool(tmp_path / "w"))


async def test_a_reserve_that_becomes_unusable_fails_for_good(tmp_path):
    files, clock = QuotaFiles(10_000), FakeClock()
    writer = open_spool(tmp_path / "w", files=files, clock=clock.clock, reserve_bytes=8_192)
    writer.append(intent(1))
    files.room = 0
    with pytest.raises(SpoolFull):
        writer.append(intent(2))

    def refuse(descriptor: int, size_bytes: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    files.reserve = refuse
    clock.pass_s(5)
    assert "Read-only file system" in writer.fault()
    with pytest.raises(SpoolError, match="failed for good"):
        writer.append(intent(2))
    await close(writer)


async def test_a_full_segment_that_cannot_be_read_back_fails_for_good(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=600)
    writer.append(intent(1))
    os.truncate(segment.segment_path(tmp_path / "w", 1), segment.HEADER_BYTES)
    with pytest.raises(SpoolError, match="shorter than was written"):
        writer.append(intent(2))
    assert writer.health is Health.FAILED
    await close(writer)


async def test_closing_syncs_ends_the_run_and_may_be_repeated(tmp_path):
    files = QuotaFiles(10**6)
    writer = open_spool(tmp_path / "w", files=files, segment_bytes=600)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            await anyio.sleep(0)
            for n in range(3):
                writer.append(intent(n))
            await close(writer, writer)
    assert writer.durable_position == writer.position
    with pytest.raises(SpoolError, match="closed"):
        writer.append(settlement(1))
