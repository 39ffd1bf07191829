"""Reading a spool directory from a cursor, also while its writer lives.

A reader never waits and never changes a file. What is incomplete at the end of the last segment
is left for the next read; what is damaged with good records after it, or in a segment that has a
successor, is handed over as damage, never skipped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.ledger import segment


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
    """A payload with a right checksum; `session` is its writer's."""

    payload: bytes
    session: bytes
    number: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolDamage:
    """Bytes that are no record, or a break in the chain of digests.

    Attributes:
        reason: `bad_checksum`, `bad_header` or `broken_chain`.
        payload: The damaged bytes; empty for a broken chain.
        session: The segment's writer, zeros when its header is damaged.
        number: Segment number.
        start: Offset in the segment.
    """

    reason: str
    payload: bytes
    session: bytes
    number: int
    start: int


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
        """Whether the last iteration reached what the writer had written when it began."""

    def __iter__(self) -> Iterator[tuple[SpoolEntry, Cursor]]:
        """Entries from the cursor on, each with the cursor after it.

        `cursor` itself also moves over segment ends that hold no entry. One iteration reads the
        rest of one segment.
        """
        self.is_at_end = False
        numbers = segment.segment_numbers(self.directory)
        number = self._find_start(numbers)
        if number is None:
            self.is_at_end = True
            return
        path = segment.segment_path(self.directory, number)
        data = _read_from(path, self.cursor.offset_bytes)
        if data is None:
            return
        is_sealed = number < numbers[-1]
        yield from self._entries(number, data, is_final=is_sealed)
        if is_sealed:
            yield from self._enter(numbers[numbers.index(number) + 1], after=number)
        else:
            self.is_at_end = True

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
        header = self._header(number)
        return header.session if header else segment.NO_SESSION

    def _header(self, number: int) -> segment.Header | None:
        return segment.read_header(segment.segment_path(self.directory, number))

    def _entries(
        self, number: int, data: bytes, *, is_final: bool
    ) -> Iterator[tuple[SpoolEntry, Cursor]]:
        """Entries in bytes of one segment; an unfinished tail only when it is final."""
        base, session = self.cursor.offset_bytes, self.cursor.session
        start = 0
        if base == 0:
            if len(data) < segment.HEADER_BYTES and not is_final:
                return
            start = min(segment.HEADER_BYTES, len(data))
            after = self._move(start)
            if session == segment.NO_SESSION:
                yield (
                    SpoolDamage(
                        reason="bad_header",
                        payload=data[:start],
                        session=session,
                        number=number,
                        start=0,
                    ),
                    after,
                )
        for found in segment.scan(data, start):
            if isinstance(found, segment.Frame):
                entry: SpoolEntry = SpoolRecord(
                    payload=found.payload, session=session, number=number, start=base + found.start
                )
            elif found.is_tail and not is_final:
                return
            else:
                entry = SpoolDamage(
                    reason="bad_checksum",
                    payload=data[found.start : found.end],
                    session=session,
                    number=number,
                    start=base + found.start,
                )
            yield entry, self._move(base + found.end)

    def _enter(self, following: int, *, after: int) -> Iterator[tuple[SpoolEntry, Cursor]]:
        """Go to the beginning of the next segment, checking that it continues this one."""
        header = self._header(following)
        if header is None and self._is_short(following):
            self.is_at_end = True  # Its writer has not finished the header yet.
            return
        self.cursor = Cursor(
            number=following, session=header.session if header else segment.NO_SESSION
        )
        path = segment.segment_path(self.directory, after)
        is_continued = (
            header is not None
            and following == after + 1
            and path.exists()
            and segment.digest(path.read_bytes()) == header.previous_digest
        )
        if header is not None and not is_continued:
            damage = SpoolDamage(
                reason="broken_chain",
                payload=b"",
                session=header.session,
                number=following,
                start=0,
            )
            yield damage, self.cursor

    def _is_short(self, number: int) -> bool:
        path = segment.segment_path(self.directory, number)
        return not path.exists() or path.stat().st_size < segment.HEADER_BYTES

    def _move(self, offset_bytes: int) -> Cursor:
        self.cursor = replace(self.cursor, offset_bytes=offset_bytes)
        return self.cursor


def _read_from(path: Path, start: int) -> bytes | None:
    """A file from an offset to its end; None when it is gone."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return None
