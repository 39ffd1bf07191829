"""A spool directory as a whole: who writes in it, and what a dead writer left.

The lock is `flock` on the file `lock`, which the kernel releases when its holder dies, however it
dies. Whoever holds it may mend the last segment; nobody else changes a byte that was written.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from gateway.ledger import segment
from gateway.ledger.errors import SpoolLocked

_log = logging.getLogger(__name__)

LOCK_NAME = "lock"
RESERVE_NAME = "reserve"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLock:
    """The right to write in a directory, until released.

    Attributes:
        descriptor: The open, locked file.
    """

    descriptor: int

    def release(self) -> None:
        """Let the next writer in."""
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a directory holds after mending.

    Attributes:
        last_number: Number of the last segment, 0 when there is none.
        last_digest: SHA-256 of the last segment, `NO_DIGEST` when there is none.
        truncated_bytes: Length of the torn tail that was cut off.
    """

    last_number: int
    last_digest: bytes
    truncated_bytes: int


def acquire(directory: Path) -> DirectoryLock:
    """Take a directory's lock, making the directory when it does not exist.

    Raises:
        SpoolLocked: A living process holds it.
    """
    while True:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # The loader removed the empty directory in between.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno != errno.EWOULDBLOCK:
                raise
            raise SpoolLocked(
                f"another process writes in the spool directory {directory}"
            ) from error
        if _is_same_file(descriptor, path):
            return DirectoryLock(descriptor=descriptor)
        os.close(descriptor)  # Locked a file that was removed meanwhile; its lock protects nothing.


def recover(directory: Path) -> Recovered:
    """Cut the torn tail off the last segment; the caller holds the lock.

    A segment too short for its header never held a record and is removed. A tail that is a whole
    frame with a wrong checksum is no torn write: it is kept in a side file before it is cut.
    """
    while numbers := segment.segment_numbers(directory):
        path = segment.segment_path(directory, numbers[-1])
        data = path.read_bytes()
        if len(data) >= segment.HEADER_BYTES:
            end = _end_of_good(directory, path, data)
            if end < len(data):
                _truncate(path, end)
            return Recovered(
                last_number=numbers[-1],
                last_digest=segment.digest(data[:end]),
                truncated_bytes=len(data) - end,
            )
        path.unlink()
        _log.warning("removed %s: its writer died before the header was complete", path)
    return Recovered(last_number=0, last_digest=segment.NO_DIGEST, truncated_bytes=0)


def remove(directory: Path) -> None:
    """Remove a directory whose records are all in the database; the caller holds the lock.

    Side files with damaged bytes stay, and then the directory stays too.
    """
    for number in segment.segment_numbers(directory):
        segment.segment_path(directory, number).unlink(missing_ok=True)
    (directory / RESERVE_NAME).unlink(missing_ok=True)
    if {path.name for path in directory.iterdir()} == {LOCK_NAME}:
        (directory / LOCK_NAME).unlink()
        directory.rmdir()


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_damage(directory: Path, path: Path, *, start: int, damaged: bytes) -> Path:
    """Keep damaged bytes of a segment in a side file, named by segment and offset."""
    side = directory / f"{path.stem}-{start}.damaged"
    side.write_bytes(damaged)
    return side


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _end_of_good(directory: Path, path: Path, data: bytes) -> int:
    """Offset after the last good frame, or after the header."""
    tail = None
    for found in segment.scan(data):
        tail = found
    if not isinstance(tail, segment.Damage):
        return len(data)
    if tail.is_whole_frame:
        side = save_damage(directory, path, start=tail.start, damaged=data[tail.start : tail.end])
        _log.error("the last record of %s is damaged; kept in %s", path, side)
    _log.warning("cut %d torn bytes off %s", tail.end - tail.start, path)
    return tail.start


def _truncate(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
