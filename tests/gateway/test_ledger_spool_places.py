"""Where a spool's records go when their file may not grow, or is not where it was any more."""

from __future__ import annotations

import errno
import os
import shutil

import anyio
import pytest

from gateway.ledger import segment
from gateway.ledger.errors import SpoolError, SpoolFull
from gateway.ledger.spool import Health
from tests.gateway.ledger_samples import intent, open_spool, settlement
from tests.gateway.spool_disks import QuotaFiles, close, records_in

pytestmark = pytest.mark.anyio


class LimitedFiles(QuotaFiles):
    """Files of a largest size each, as RLIMIT_FSIZE has it."""

    def __init__(self, room: int, *, file_bytes: int) -> None:
        super().__init__(room)
        self.file_bytes = file_bytes

    def write(self, descriptor: int, data: bytes) -> int:
        rest = self.file_bytes - os.fstat(descriptor).st_size
        if rest <= 0:
            raise OSError(errno.EFBIG, "File too large")
        return super().write(descriptor, data[:rest])


async def test_what_a_file_may_not_take_goes_into_the_next_segment(tmp_path):
    files = LimitedFiles(10**6, file_bytes=10**6)
    writer = open_spool(tmp_path / "w", files=files)
    writer.append(intent(1))
    files.file_bytes = (tmp_path / "w" / "00000001.seg").stat().st_size + 10
    writer.append(settlement(1))
    assert writer.health is Health.OK
    writer.append(intent(2))
    assert segment.segment_numbers(tmp_path / "w") == [1, 2, 3]
    writer.append(settlement(2))
    assert records_in(tmp_path / "w") == [intent(1), settlement(1), intent(2), settlement(2)]
    await close(writer)


async def test_a_settlement_that_its_file_may_not_take_has_the_room_of_the_reserve(tmp_path):
    files = LimitedFiles(10**6, file_bytes=10**6)
    writer = open_spool(tmp_path / "w", files=files, reserve_bytes=8_192)
    writer.append(intent(1))
    files.file_bytes = (tmp_path / "w" / "00000001.seg").stat().st_size + 10
    files.room = 20
    with pytest.raises(SpoolFull):
        writer.append(intent(2))
    assert writer.health is Health.FULL
    writer.append(settlement(1))
    assert records_in(tmp_path / "w") == [intent(1), settlement(1)]
    await close(writer)


async def test_a_record_that_no_file_may_take_is_refused(tmp_path):
    files = LimitedFiles(10**6, file_bytes=segment.HEADER_BYTES + 50)
    writer = open_spool(tmp_path / "w", files=files)
    with pytest.raises(SpoolFull):
        writer.append(intent(1))
    assert writer.health is Health.FULL
    assert records_in(tmp_path / "w") == []
    await close(writer)


def move_folder(folder) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replace_folder(folder) -> None:
    move_folder(folder)
    folder.mkdir()


def delete_segment(folder) -> None:
    (folder / "00000001.seg").unlink()


LOSSES = {
    "the folder was moved": move_folder,
    "the folder was deleted": shutil.rmtree,
    "another folder is in its place": replace_folder,
    "the file was deleted": delete_segment,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
async def test_a_folder_that_is_not_there_any_more_is_noticed_without_a_request(tmp_path, lose):
    writer = open_spool(tmp_path / "w", look_s=0.01, segment_bytes=600)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        writer.append(intent(1))
        lose(tmp_path / "w")
        with anyio.fail_after(5):
            while writer.health is Health.OK:
                await anyio.sleep(0.005)
        assert "moved away or deleted" in writer.fault()
        with pytest.raises(SpoolError, match="moved away or deleted"):
            writer.append(intent(2))
        writer.append(settlement(1))  # where its intent is
        await close(writer)
    if lose is move_folder:
        assert records_in(tmp_path / "elsewhere") == [intent(1), settlement(1)]


async def test_a_folder_that_comes_back_is_used_again(tmp_path):
    writer = open_spool(tmp_path / "w")
    writer.append(intent(1))
    move_folder(tmp_path / "w")
    assert writer.fault()
    assert writer.health is Health.GONE
    (tmp_path / "elsewhere").rename(tmp_path / "w")
    assert writer.fault() == ""
    writer.append(intent(2))
    assert records_in(tmp_path / "w") == [intent(1), intent(2)]
    await close(writer)
