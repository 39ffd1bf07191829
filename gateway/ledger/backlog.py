"""What waits in the spools: how much, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.ledger import segment
from gateway.ledger.records import Intent, decode
from gateway.ledger.spool_reader import Cursor, SpoolReader, SpoolRecords

_USUAL_FRAME_BYTES = 430
"""Of an intent and a settlement together, half; used until something was loaded."""


@dataclass(slots=True, kw_only=True)
class Backlog:
    """Records that are written and not loaded yet.

    Attributes:
        bytes: Their size, exactly.
        records: Their count, from the usual size of a record; counting them would mean to read all.
        age_ms: Since the oldest of them was written, by the wall clock; 0 when there is none.
    """

    bytes: int = 0
    records: int = 0
    age_ms: int = 0


def measure(
    directories: Iterable[Path],
    cursors: Mapping[str, Cursor],
    *,
    now_us: int,
    frame_bytes: float | None = None,
) -> Backlog:
    """Measure all directories; reads one record of each that has any.

    Args:
        directories: Spool directories.
        cursors: How far each is loaded, by name.
        now_us: Now, in microseconds since the epoch.
        frame_bytes: Mean size of a record with its frame, None when unknown.
    """
    backlog = Backlog()
    for directory in directories:
        cursor = cursors.get(directory.name, Cursor())
        size_bytes = waiting_bytes(directory, cursor)
        if size_bytes:
            backlog.bytes += size_bytes
            age_us = now_us - _oldest_us(directory, cursor, now_us=now_us)
            backlog.age_ms = max(backlog.age_ms, age_us // 1_000)
    if backlog.bytes:
        backlog.records = max(round(backlog.bytes / (frame_bytes or _USUAL_FRAME_BYTES)), 1)
    return backlog


def waiting_bytes(directory: Path, cursor: Cursor) -> int:
    """Bytes of a directory's segments beyond a cursor, headers not counted."""
    total = 0
    for number in segment.segment_numbers(directory):
        path = segment.segment_path(directory, number)
        size_bytes = path.stat().st_size if path.exists() else 0
        read_bytes = cursor.offset_bytes if number == cursor.number else 0
        total += max(size_bytes - max(read_bytes, segment.HEADER_BYTES), 0)
    return total


def _oldest_us(directory: Path, cursor: Cursor, *, now_us: int) -> int:
    """When the record at a cursor was written; now, when that is no record."""
    for taken in SpoolReader(directory, cursor).take(1):
        if isinstance(taken, SpoolRecords):
            try:
                record = decode(taken.payloads[0])
            except msgspec.DecodeError:
                return now_us
            return record.at_us if isinstance(record, Intent) else record.settled_at_us
    return now_us
