"""What waits in the spools, and for how long."""

from __future__ import annotations

import pytest

from gateway.ledger import segment
from gateway.ledger.backlog import Backlog, measure
from gateway.ledger.spool_reader import Cursor, SpoolReader
from tests.gateway.ledger_samples import NOON_US, intent, open_spool, settlement

pytestmark = pytest.mark.anyio


async def write(directory, records) -> int:
    writer = open_spool(directory)
    for record in records:
        writer.append(record)
    await writer.close()
    return writer.position


async def test_nothing_written_is_no_backlog(tmp_path):
    await write(tmp_path / "w", [])
    assert measure([tmp_path / "w", tmp_path / "gone"], {}, now_us=NOON_US) == Backlog()


async def test_the_backlog_is_what_lies_beyond_the_cursors(tmp_path):
    sizes = [
        await write(tmp_path / name, [intent(n, at_us=NOON_US + n * 10**6) for n in range(10)])
        for name in "ab"
    ]
    directories = [tmp_path / "a", tmp_path / "b"]
    whole = measure(directories, {}, now_us=NOON_US + 60 * 10**6, frame_bytes=sizes[0] / 10)
    assert whole == Backlog(bytes=sum(sizes), records=20, age_ms=60_000)
    cursors = {}
    for directory, count in zip(directories, (10, 4), strict=True):
        reader = SpoolReader(directory, Cursor())
        reader.take(count)
        cursors[directory.name] = reader.cursor
    rest = measure(directories, cursors, now_us=NOON_US + 60 * 10**6, frame_bytes=sizes[0] / 10)
    assert rest.records == 6
    assert rest.age_ms == 56_000, "by the oldest that waits, the fifth"


async def test_a_settlement_that_waits_counts_from_its_own_instant(tmp_path):
    await write(tmp_path / "w", [settlement(1, settled_at_us=NOON_US)])
    found = measure([tmp_path / "w"], {}, now_us=NOON_US + 2_500_000)
    assert (found.records, found.age_ms) == (1, 2_500)


async def test_what_is_no_record_has_no_age(tmp_path):
    await write(tmp_path / "w", [])
    with segment.segment_path(tmp_path / "w", 1).open("ab") as file:
        file.write(segment.encode_frame(b"no record"))
    found = measure([tmp_path / "w"], {}, now_us=NOON_US)
    assert (found.records, found.age_ms) == (1, 0)


async def test_a_damaged_header_does_not_hide_the_age_of_what_follows(tmp_path):
    await write(tmp_path / "w", [intent(1, at_us=NOON_US)])
    path = segment.segment_path(tmp_path / "w", 1)
    data = bytearray(path.read_bytes())
    data[9] ^= 0xFF
    path.write_bytes(data)
    assert measure([tmp_path / "w"], {}, now_us=NOON_US + 10**6).age_ms == 1_000
