"""The format on disk: headers, frames, damage."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger import segment
from gateway.ledger.segment import Damage, Frame, Header

HEADER = Header(number=7, created_at_us=12_345, session=b"s" * 16, previous_digest=b"d" * 32)


def make_segment(payloads: list[bytes]) -> bytes:
    return segment.encode_header(HEADER) + b"".join(map(segment.encode_frame, payloads))


def payloads_of(data: bytes) -> list[bytes]:
    return [found.payload for found in segment.scan(data) if isinstance(found, Frame)]


def test_header_comes_back_as_it_was():
    data = segment.encode_header(HEADER)
    assert len(data) == segment.HEADER_BYTES
    assert segment.decode_header(data + b"more") == HEADER


@pytest.mark.parametrize("at", range(segment.HEADER_BYTES))
def test_no_changed_byte_of_a_header_goes_unnoticed(at: int):
    data = bytearray(segment.encode_header(HEADER))
    data[at] ^= 0x40
    assert segment.decode_header(bytes(data)) is None


def test_crc32c_is_the_castagnoli_polynomial():
    assert segment.checksum(b"123456789") == 0xE3069283  # the check value of RFC 3720, B.4


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8))
def test_scan_gives_every_payload_back(payloads: list[bytes]):
    data = make_segment(payloads)
    found = list(segment.scan(data))
    assert [one.payload for one in found if isinstance(one, Frame)] == payloads
    assert len(found) == len(payloads)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5), st.data())
def test_cut_at_any_byte_loses_only_the_record_that_was_cut(payloads, data):
    whole = make_segment(payloads)
    cut = data.draw(st.integers(segment.HEADER_BYTES, len(whole)))
    kept = payloads_of(whole[:cut])
    ends = [one.end for one in segment.scan(whole)]
    assert kept == payloads[: sum(end <= cut for end in ends)]


@given(
    st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5),
    st.data(),
)
def test_a_flipped_bit_costs_at_most_its_own_record_and_is_told(payloads, data):
    whole = bytearray(make_segment(payloads))
    at = data.draw(st.integers(segment.HEADER_BYTES, len(whole) - 1))
    hit = next(
        index for index, one in enumerate(segment.scan(bytes(whole))) if one.start <= at < one.end
    )
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    found = list(segment.scan(bytes(whole)))
    assert any(isinstance(one, Damage) for one in found)
    assert payloads_of(bytes(whole)) == payloads[:hit] + payloads[hit + 1 :]
    assert [found[0].start, *(one.end for one in found)] == [
        segment.HEADER_BYTES,
        *(one.start for one in found[1:]),
        len(whole),
    ]


def test_damage_in_the_middle_is_told_apart_from_a_torn_tail():
    first, second = segment.encode_frame(b"first"), segment.encode_frame(b"second")
    broken = bytearray(first)
    broken[-1] ^= 1
    header = segment.encode_header(HEADER)
    middle, good = segment.scan(header + bytes(broken) + second)
    assert isinstance(middle, Damage)
    assert not middle.is_tail
    assert isinstance(good, Frame)
    (whole,) = segment.scan(header + bytes(broken))
    assert isinstance(whole, Damage)
    assert whole.is_tail
    assert whole.is_whole_frame
    (torn,) = segment.scan(header + first[:-1])
    assert isinstance(torn, Damage)
    assert torn.is_tail
    assert not torn.is_whole_frame


def test_an_empty_frame_or_one_over_the_cap_is_no_frame():
    zeros = segment.encode_header(HEADER) + bytes(4_096)
    assert [type(found) for found in segment.scan(zeros)] == [Damage]
    big = segment.encode_header(HEADER) + segment.encode_frame(bytes(segment.RECORD_BYTES_MAX + 1))
    assert all(isinstance(found, Damage) for found in segment.scan(big[:2_000]))
    exact = segment.encode_header(HEADER) + segment.encode_frame(b"x" * segment.RECORD_BYTES_MAX)
    assert len(payloads_of(exact)) == 1


def test_segments_are_listed_in_order_and_strangers_ignored(tmp_path):
    for name in ("00000010.seg", "00000002.seg", "x.seg", "lock", "00000003.seg.bak"):
        (tmp_path / name).touch()
    assert segment.segment_numbers(tmp_path) == [2, 10]
    assert segment.segment_numbers(tmp_path / "missing") == []


def test_the_header_of_a_segment_that_is_gone_is_none(tmp_path):
    assert segment.read_header(tmp_path / "00000001.seg") is None


def test_the_digest_of_a_file_is_that_of_its_bytes_and_none_when_it_is_gone(tmp_path):
    path = tmp_path / "00000001.seg"
    path.write_bytes(make_segment([b"one", b"two"]))
    assert segment.file_digest(path) == segment.digest(path.read_bytes())
    assert segment.file_digest(tmp_path / "00000002.seg") is None


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6), st.data())
def test_taking_frames_gives_what_a_scan_gives_up_to_the_first_damage(payloads, data):
    whole = bytearray(make_segment(payloads))
    at = data.draw(st.integers(segment.HEADER_BYTES, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(0, 255))
    count_max = data.draw(st.integers(0, 7))
    expected = []
    for found in segment.scan(bytes(whole)):
        if not isinstance(found, Frame) or len(expected) == count_max:
            break
        expected.append(found)
    taken = segment.take_frames(bytes(whole), segment.HEADER_BYTES, count_max=count_max)
    assert taken.payloads == [frame.payload for frame in expected]
    assert taken.starts == [frame.start for frame in expected]
    assert taken.end == (expected[-1].end if expected else segment.HEADER_BYTES)


@given(st.binary(max_size=600_000), st.lists(st.integers(0, 600_000), max_size=4))
def test_a_running_digest_is_that_of_the_whole_wherever_it_stopped(tmp_path_factory, data, stops):
    path = tmp_path_factory.mktemp("digest") / "file"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    running = segment.RunningDigest()
    for stop in sorted(min(stop, len(data)) for stop in stops):
        running = running.follow(descriptor, stop)
        assert (running.size_bytes, running.value()) == (stop, segment.digest(data[:stop]))
    assert running.follow(descriptor, len(data)).value() == segment.digest(data)
    os.close(descriptor)


def test_a_digest_of_more_than_there_is_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"short")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(OSError, match="shorter than was written"):
        segment.RunningDigest().follow(descriptor, 6)
    os.close(descriptor)
