"""What one round takes from the spools: read, checked and added up, in small steps.

With a backlog and a server to wait for, the next round's are taken while the server books this
one's, in the same thread: a step whenever the driver waits. A thread for it would be the slower
way, as the two would wait for each other's turn with the interpreter at every packet.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gateway.ledger.adoption import Adoption
from gateway.ledger.batches import Batch
from gateway.ledger.spool_reader import Cursor, SpoolDamage, SpoolReader, SpoolRecords

_STEP_RECORDS = 1_024
"""Records that are read in one step, some two milliseconds."""

Entries = list[SpoolRecords | SpoolDamage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What one round took from one directory."""

    directory: Path
    before: Cursor | None
    after: Cursor
    entries: Entries
    is_at_end: bool
    dead_session: bytes | None

    @property
    def name(self) -> str:
        """Of the directory."""
        return self.directory.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one round took from all directories.

    Attributes:
        chunks: By directory.
        batch: All of it, as far as it goes without the database.
        is_ahead: Whether it was taken while the round before it was booked.
    """

    chunks: list[Chunk]
    batch: Batch
    is_ahead: bool = False

    @property
    def entries(self) -> Entries:
        """Of all directories."""
        return [entry for chunk in self.chunks for entry in chunk.entries]


class Taking(Iterator[None]):
    """Takes the next records of every directory, an equal share each, a step at a time.

    Args:
        directories: Of the spools.
        cursors: How far each is loaded, by name.
        adoption: Whose writers are gone.
        records_max: How many to take in all.
        is_ahead: Whether that is before the round before is booked.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        cursors: dict[str, Cursor],
        adoption: Adoption,
        *,
        records_max: int,
        is_ahead: bool,
    ) -> None:
        self._adoption = adoption
        self._cursors = cursors
        self._share = max(records_max // max(len(directories), 1), 1)
        self._steps = self._take(directories, is_ahead=is_ahead)
        self._taken: Taken | None = None

    def __next__(self) -> None:
        try:
            next(self._steps)
        except StopIteration as end:
            self._taken = self._taken or cast("Taken", end.value)
            raise

    def finish(self) -> Taken | None:
        """Take all that is left to take.

        Returns:
            None where a step has failed before: the spools are as they were.

        Raises:
            OSError: A spool cannot be read.
        """
        for _ in self:
            pass
        return self._taken

    def close(self) -> None:
        """Take nothing more."""
        self._steps.close()

    def _take(self, directories: Sequence[Path], *, is_ahead: bool) -> Generator[None, None, Taken]:
        chunks: list[Chunk] = []
        for directory in directories:
            chunk = yield from self._read(directory)
            chunks.append(chunk)
        batch = Batch(entries=[entry for chunk in chunks for entry in chunk.entries])
        yield from batch.fill()
        return Taken(chunks=chunks, batch=batch, is_ahead=is_ahead)

    def _read(self, directory: Path) -> Generator[None, None, Chunk]:
        dead_session = self._adoption.adopt(directory)
        before = self._cursors.get(directory.name)
        reader = SpoolReader(directory, before or Cursor())
        entries: Entries = []
        left = self._share
        while left > 0 and not reader.is_at_end:
            wanted = min(left, _STEP_RECORDS)
            found = reader.take(wanted)
            entries += found
            left -= wanted
            yield
            if sum(map(_count, found)) < wanted:
                break  # The end of a segment, and a round goes no further.
        return Chunk(
            directory=directory,
            before=before,
            after=reader.cursor,
            entries=entries,
            is_at_end=reader.is_at_end,
            dead_session=dead_session,
        )


def _count(entry: SpoolRecords | SpoolDamage) -> int:
    return len(entry.payloads) if isinstance(entry, SpoolRecords) else 1
