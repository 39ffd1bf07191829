"""Reading a spool directory from a cursor, also while its writer lives.

A reader never waits and never changes a file. What is incomplete at the end of the last segment
is left for the next read; what is damaged with good records after it, or in a segment that has a
successor, is handed over as damage, never skipped in silence. A last segment whose header is not
complete is not there yet: a writer makes its next file before it needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.ledger import segment

_BLOCK_BYTES = 2 * segment.RECORD_BYTES_MAX
"""Read at once; more than the longest frame."""
_FIRST_BLOCK_BYTES = 64 * 1024
_USUAL_RECORD_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a directory was read.

    Attributes:
        number: Segment number, 0 before the first.
        offset_bytes: Where the next frame starts; 0 stands before the header.
        session: The segment's session, so that a number used twice is noticed.
    """

    number: int = 0
    offset_bytes: int = 0
    session: bytes = segment.NO_SESSION


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolRecord:
    """A payload with a right checksum.

    Attributes:
        directory: Name of the spool directory.
        payload: The record's bytes.
        session: Its writer's.
        number: Segment number.
        start: Offset in the segment.
    """

    directory: str
    payload: bytes
    session: bytes
    number: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolDamage:
    """Bytes that are no record, or a break in the chain of digests.

    Attributes:
        directory: Name of the spool directory.
        reason: `bad_checksum`, `bad_header` or `broken_chain`.
        payload: The damaged bytes; empty for a broken chain.
        session: The segment's writer, zeros when its header is damaged.
        number: Segment number.
        start: Offset in the segment.
    """

    directory: str
    reason: str
    payload: bytes
    session: bytes
    number: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolRecords:
    """Records of one segment that follow each other; thousands of them cost no object each.

    Attributes:
        directory: Name of the spool directory.
        session: Their writer's.
        number: Segment number.
        starts: Offset of each in the segment.
        payloads: As many; checksums are right.
        end: Offset after the last.
    """

    directory: str
    session: bytes
    number: int
    starts: list[int]
    payloads: list[bytes]
    end: int

    def __getitem__(self, index: int) -> SpoolRecord:
        return SpoolRecord(
            directory=self.directory,
            payload=self.payloads[index],
            session=self.session,
            number=self.number,
            start=self.starts[index],
        )

    def part(self, first: int, last: int) -> SpoolRecords:
        """The records of a half-open range of indices."""
        return replace(
            self,
            starts=self.starts[first:last],
            payloads=self.payloads[first:last],
            end=(*self.starts, self.end)[last],
        )


SpoolEntry = SpoolRecord | SpoolDamage


class SpoolReader:
    """Reads one directory forward.

    Args:
        directory: May be missing or empty.
        cursor: Where to go on. When its segment is gone or is another writer's, reading starts at
            the first segment there is: a replay is harmless, a gap is not.
    """

    def __init__(self, directory: Path, cursor: Cursor) -> None:
        self.directory = directory
        self.cursor = cursor
        self.is_at_end = False
        """Whether the last `take` reached what the writer had written when it began."""

    def __iter__(self) -> Iterator[tuple[SpoolEntry, Cursor]]:
        """Entries of the rest of one segment, each with the cursor after it."""
        for taken in self.take(sys.maxsize):
            at = Cursor(number=taken.number, session=taken.session)
            if isinstance(taken, SpoolDamage):
                yield taken, replace(at, offset_bytes=taken.start + len(taken.payload))
                continue
            ends = (*taken.starts[1:], taken.end)
            for index, end in enumerate(ends):
                yield taken[index], replace(at, offset_bytes=end)

    def take(self, count_max: int) -> list[SpoolRecords | SpoolDamage]:
        """Move the cursor over at most so many entries of one segment, and hand them over.

        The cursor also moves from the end of a segment to the beginning of the next one.
        """
        self.is_at_end = False
        numbers = self._numbers()
        number = self._find_start(numbers)
        if number is None:
            self.is_at_end = True
            return []
        is_sealed = number < numbers[-1]
        taken: list[SpoolRecords | SpoolDamage] = []
        if self._take_segment(taken, count_max, is_sealed=is_sealed):
            if is_sealed:
                taken += self._enter(numbers[numbers.index(number) + 1], after=number)
            else:
                self.is_at_end = True
        return taken

    def _numbers(self) -> list[int]:
        """Segments whose header is written, as far as the last one is concerned."""
        numbers = segment.segment_numbers(self.directory)
        while numbers and self._size_bytes(numbers[-1]) < segment.HEADER_BYTES:
            numbers.pop()
        return numbers

    def _find_start(self, numbers: list[int]) -> int | None:
        """The segment to read; puts the cursor at its beginning when it is another."""
        at = self.cursor
        if at.number in numbers and at.session == self._session(at.number):
            return at.number
        if not numbers:
            return None
        self.cursor = Cursor(number=numbers[0], session=self._session(numbers[0]))
        return numbers[0]

    def _session(self, number: int) -> bytes:
        header = segment.read_header(self._path(number))
        return header.session if header else segment.NO_SESSION

    def _take_segment(
        self, taken: list[SpoolRecords | SpoolDamage], count_max: int, *, is_sealed: bool
    ) -> bool:
        """Add entries of the cursor's segment; whether its end was reached."""
        path = self._path(self.cursor.number)
        left = count_max
        block_bytes = _FIRST_BLOCK_BYTES + min(count_max * _USUAL_RECORD_BYTES, _BLOCK_BYTES)
        try:
            with path.open("rb") as file:
                if self.cursor.offset_bytes == 0:
                    taken += self._pass_header(file.read(segment.HEADER_BYTES))
                while left:
                    file.seek(self.cursor.offset_bytes)
                    block = file.read(block_bytes)
                    found = segment.take_frames(block, 0, count_max=left)
                    if found.payloads:
                        taken.append(self._pass_frames(found))
                        left -= len(found.payloads)
                    elif block:
                        # A frame longer than the block, one that is not whole yet, or damage.
                        damage = self._pass_damage(block + file.read(), is_sealed=is_sealed)
                        if damage is None:
                            return True
                        taken.append(damage)
                        left -= 1
                        block_bytes = _BLOCK_BYTES
                    else:
                        return True
        except FileNotFoundError:
            pass  # Deleted meanwhile: the next call looks for where to start.
        return False

    def _pass_header(self, data: bytes) -> Iterator[SpoolDamage]:
        if self.cursor.session == segment.NO_SESSION:
            yield self._damage("bad_header", data, 0)
        self._move(len(data))

    def _pass_frames(self, found: segment.Frames) -> SpoolRecords:
        base = self.cursor.offset_bytes
        records = SpoolRecords(
            directory=self.directory.name,
            session=self.cursor.session,
            number=self.cursor.number,
            starts=[base + start for start in found.starts],
            payloads=found.payloads,
            end=base + found.end,
        )
        self._move(records.end)
        return records

    def _pass_damage(self, data: bytes, *, is_sealed: bool) -> SpoolRecords | SpoolDamage | None:
        """What lies at the cursor, given the rest of the segment; None for an unfinished tail."""
        base = self.cursor.offset_bytes
        found = next(segment.scan(data, 0))
        if isinstance(found, segment.Frame):
            return self._pass_frames(
                segment.Frames(starts=[found.start], payloads=[found.payload], end=found.end)
            )
        if found.is_tail and not is_sealed:
            return None
        self._move(base + found.end)
        return self._damage("bad_checksum", data[: found.end], base)

    def _enter(self, following: int, *, after: int) -> Iterator[SpoolDamage]:
        """Go to the beginning of the next segment, checking that it continues this one."""
        header = segment.read_header(self._path(following))
        self.cursor = Cursor(
            number=following, session=header.session if header else segment.NO_SESSION
        )
        if header is None:
            return  # Told when it is read.
        digest = segment.file_digest(self._path(after)) if following == after + 1 else None
        if digest != header.previous_digest:
            yield self._damage("broken_chain", b"", 0)

    def _damage(self, reason: str, payload: bytes, start: int) -> SpoolDamage:
        return SpoolDamage(
            directory=self.directory.name,
            reason=reason,
            payload=payload,
            session=self.cursor.session,
            number=self.cursor.number,
            start=start,
        )

    def _size_bytes(self, number: int) -> int:
        path = self._path(number)
        return path.stat().st_size if path.exists() else 0

    def _path(self, number: int) -> Path:
        return segment.segment_path(self.directory, number)

    def _move(self, offset_bytes: int) -> None:
        self.cursor = replace(self.cursor, offset_bytes=offset_bytes)
