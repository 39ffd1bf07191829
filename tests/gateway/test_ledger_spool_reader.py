"""Reading spools: beside a living writer, after a dead one, and through damage."""

from __future__ import annotations

import pytest

from gateway.ledger import segment
from gateway.ledger.records import decode
from gateway.ledger.spool_reader import (
    Cursor,
    SpoolDamage,
    SpoolReader,
    SpoolRecord,
    SpoolRecords,
)
from tests.gateway.ledger_samples import intent, open_spool, settlement

pytestmark = pytest.mark.anyio


def read_all(directory, cursor=None) -> tuple[list, Cursor]:
    reader, found = SpoolReader(directory, cursor or Cursor()), []
    while True:
        before = reader.cursor
        found += [entry for entry, _ in reader]
        if reader.cursor == before:
            return found, before


def ids(entries) -> list[int]:
    return [
        int.from_bytes(decode(entry.payload).event_id, "big")
        for entry in entries
        if isinstance(entry, SpoolRecord)
    ]


def corrupt(path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


async def write(directory, numbers, *, session=1, **limits) -> None:
    writer = open_spool(directory, session=session, **limits)
    for n in numbers:
        writer.append(intent(n))
    await writer.close()


async def test_nothing_to_read_is_the_end(tmp_path):
    reader = SpoolReader(tmp_path / "missing", Cursor())
    assert list(reader) == []
    assert reader.is_at_end


async def test_every_record_can_be_resumed_after(tmp_path):
    await write(tmp_path / "w", range(9), segment_bytes=1_200)
    entries, end = read_all(tmp_path / "w")
    assert ids(entries) == list(range(9))
    cursors = [Cursor()]
    reader = SpoolReader(tmp_path / "w", Cursor())
    while len(cursors) <= 9:
        cursors += [cursor for _, cursor in reader]
    for n, cursor in enumerate(cursors):
        rest, last = read_all(tmp_path / "w", cursor)
        assert ids(rest) == list(range(n, 9))
        assert last == end


async def test_a_living_writers_records_appear_as_they_are_written(tmp_path):
    writer = open_spool(tmp_path / "w", segment_bytes=900)
    cursor = Cursor()
    for n in range(6):
        writer.append(intent(n))
        entries, cursor = read_all(tmp_path / "w", cursor)
        assert ids(entries) == [n]
    await writer.close()


@pytest.mark.parametrize("cut", range(0, 1000, 17))
async def test_a_half_written_record_waits_for_its_end(tmp_path, cut):
    await write(tmp_path / "w", range(2))
    path = segment.segment_path(tmp_path / "w", 1)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(whole) - 1 - cut, 0)])
    entries, cursor = read_all(tmp_path / "w")
    path.write_bytes(whole)
    more, _ = read_all(tmp_path / "w", cursor)
    assert ids(entries) + ids(more) == [0, 1]


async def test_damage_in_the_middle_is_handed_over_and_the_rest_read(tmp_path):
    await write(tmp_path / "w", range(3))
    path = segment.segment_path(tmp_path / "w", 1)
    frames = list(segment.scan(path.read_bytes()))
    corrupt(path, frames[1].start + 20)
    entries, _ = read_all(tmp_path / "w")
    assert ids(entries) == [0, 2]
    (damage,) = [entry for entry in entries if isinstance(entry, SpoolDamage)]
    assert (damage.reason, damage.start) == ("bad_checksum", frames[1].start)
    assert damage.payload == path.read_bytes()[frames[1].start : frames[1].end]


async def test_a_damaged_tail_of_a_finished_segment_is_handed_over(tmp_path):
    await write(tmp_path / "w", range(5), segment_bytes=900)
    path = segment.segment_path(tmp_path / "w", 1)
    corrupt(path, path.stat().st_size - 1)
    entries, _ = read_all(tmp_path / "w")
    reasons = [entry.reason for entry in entries if isinstance(entry, SpoolDamage)]
    assert reasons == ["bad_checksum", "broken_chain"]
    assert len(ids(entries)) == 4


async def test_a_damaged_header_costs_no_record(tmp_path):
    await write(tmp_path / "w", range(5), segment_bytes=900)
    corrupt(segment.segment_path(tmp_path / "w", 2), 9)
    entries, _ = read_all(tmp_path / "w")
    damage = [entry for entry in entries if isinstance(entry, SpoolDamage)]
    assert damage[0].reason == "bad_header"
    assert len(damage[0].payload) == segment.HEADER_BYTES
    assert ids(entries) == list(range(5))


async def test_a_finished_segment_shorter_than_its_header_is_damage(tmp_path):
    await write(tmp_path / "w", range(2))
    await write(tmp_path / "w", range(2, 4), session=2)
    path = segment.segment_path(tmp_path / "w", 1)
    path.write_bytes(path.read_bytes()[:30])
    entries, _ = read_all(tmp_path / "w")
    reasons = [entry.reason for entry in entries if isinstance(entry, SpoolDamage)]
    assert reasons == ["bad_header", "broken_chain"]
    assert ids(entries) == [2, 3]


async def test_a_missing_segment_breaks_the_chain(tmp_path):
    await write(tmp_path / "w", range(9), segment_bytes=900)
    segment.segment_path(tmp_path / "w", 2).unlink()
    entries, _ = read_all(tmp_path / "w")
    (damage,) = [entry for entry in entries if isinstance(entry, SpoolDamage)]
    assert (damage.reason, damage.number) == ("broken_chain", 3)


async def test_a_next_segment_without_a_header_yet_is_not_entered(tmp_path):
    await write(tmp_path / "w", range(2))
    following = segment.segment_path(tmp_path / "w", 2)
    following.write_bytes(b"")
    reader = SpoolReader(tmp_path / "w", Cursor())
    assert len(list(reader)) == 2
    assert reader.is_at_end
    assert reader.cursor.number == 1


async def test_a_cursor_into_another_writers_segment_starts_over(tmp_path):
    await write(tmp_path / "w", range(3), session=1)
    _, cursor = read_all(tmp_path / "w")
    for path in (tmp_path / "w").iterdir():
        path.unlink()
    await write(tmp_path / "w", range(10, 15), session=2)
    entries, _ = read_all(tmp_path / "w", cursor)
    assert ids(entries) == list(range(10, 15))


async def test_a_segment_that_is_deleted_meanwhile_is_looked_for_again(tmp_path, monkeypatch):
    await write(tmp_path / "w", range(3))
    _, cursor = read_all(tmp_path / "w")
    reader = SpoolReader(tmp_path / "w", cursor)
    find = reader._find_start

    def find_then_lose(numbers):
        number = find(numbers)
        segment.segment_path(tmp_path / "w", 1).unlink()
        return number

    monkeypatch.setattr(reader, "_find_start", find_then_lose)
    assert list(reader) == []
    assert not reader.is_at_end


async def test_settlements_and_intents_keep_their_order(tmp_path):
    writer = open_spool(tmp_path / "w")
    written = [intent(1), settlement(1), intent(2)]
    for record in written:
        writer.append(record)
    entries, _ = read_all(tmp_path / "w")
    assert [decode(entry.payload) for entry in entries] == written
    assert {entry.session for entry in entries} == {writer.session}
    await writer.close()


async def test_a_record_longer_than_what_is_read_at_once_is_read_whole(tmp_path):
    writer = open_spool(tmp_path / "w")
    written = [intent(1), intent(2, reason="x" * 900_000), intent(3)]
    for record in written:
        writer.append(record)
    reader = SpoolReader(tmp_path / "w", Cursor())
    found = [taken.payloads for _ in range(4) for taken in reader.take(1)]
    assert [decode(payload) for (payload,) in found] == written
    assert reader.is_at_end
    await writer.close()


async def test_taking_stops_at_its_count_and_goes_on_there(tmp_path):
    await write(tmp_path / "w", range(10))
    reader = SpoolReader(tmp_path / "w", Cursor())
    assert [len(taken.payloads) for taken in reader.take(4)] == [4]
    assert not reader.is_at_end
    (rest,) = reader.take(100)
    assert ids([rest[index] for index in range(6)]) == [4, 5, 6, 7, 8, 9]
    assert reader.is_at_end
    part = rest.part(1, 3)
    assert part == SpoolRecords(
        directory="w",
        session=rest.session,
        number=1,
        starts=rest.starts[1:3],
        payloads=rest.payloads[1:3],
        end=rest.starts[3],
    )
    assert rest.part(3, 6).end == rest.end
