"""A spool directory as a whole: who writes in it, and what a dead writer left.

The lock is `flock` on the file `lock`, which the kernel releases when its holder dies, however it
dies. Whoever holds it may mend the last segment; nobody else changes a byte that was written.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path

from gateway.ledger import segment
from gateway.ledger.errors import SpoolLocked

_log = logging.getLogger(__name__)

LOCK_NAME = "lock"
RESERVE_NAME = "reserve"
_RETRY_LOCK_S = 0.01
_ROOM_BYTES = 64 * 1024
# So much has to be free before a full disk counts as one with room again.


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
        last_session: Its writer, `NO_SESSION` when there is none.
        truncated_bytes: Length of the torn tail that was cut off.
    """

    last_number: int
    last_digest: bytes
    last_session: bytes
    truncated_bytes: int


def acquire(directory: Path, *, wait_s: float = 0.0) -> DirectoryLock:
    """Take a directory's lock, making the directory when it does not exist.

    Args:
        directory: The spool directory.
        wait_s: How long to wait for the present holder; blocks.

    Raises:
        SpoolLocked: Another process holds it still.
    """
    give_up_at_s = time.monotonic() + wait_s
    while True:
        lock = _try_lock(directory)
        if lock is not None:
            return lock
        if time.monotonic() >= give_up_at_s:
            raise SpoolLocked(f"another process writes in {directory}")
        time.sleep(_RETRY_LOCK_S)


def _try_lock(directory: Path) -> DirectoryLock | None:
    """The lock; None when it is held, or when the directory went away while we took it."""
    path = directory / LOCK_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, FileExistsError):
        if directory.is_file():
            raise
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock on a file that was removed meanwhile protects nothing.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return DirectoryLock(descriptor=descriptor)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def is_in_place(directory: Path, *, folder: int, file: int) -> bool:
    """Whether a directory is where it was opened, and a file in it still has a name.

    Args:
        directory: Where it was.
        folder: Its descriptor.
        file: The descriptor of one of its files.
    """
    try:
        is_same = os.path.samestat(directory.stat(), os.fstat(folder))
    except OSError:
        return False  # nothing there, or no way to it
    return is_same and os.fstat(file).st_nlink > 0


def is_disk_full(folder: int) -> bool:
    """Whether the file system says that it has no room; not all say, and a quota does not show.

    Args:
        folder: Descriptor of a directory on it.
    """
    found = os.fstatvfs(folder)
    blocks = found.f_bavail if os.geteuid() else found.f_bfree  # root has the last ones too
    return found.f_blocks > 0 and blocks * found.f_frsize < _ROOM_BYTES


def recover(directory: Path) -> Recovered:
    """Cut the torn tail off the last segment; the caller holds the lock.

    A segment too short for its header never held a record and is removed. A tail that is a whole
    frame with a wrong checksum is no torn write: it is kept in a side file before it is cut.
    """
    while numbers := segment.segment_numbers(directory):
        path = segment.segment_path(directory, numbers[-1])
        data = path.read_bytes()
        if len(data) >= segment.HEADER_BYTES:
            header = segment.decode_header(data)
            end = _end_of_good(directory, path, data)
            if end < len(data):
                _truncate(path, end)
            return Recovered(
                last_number=numbers[-1],
                last_digest=segment.digest(data[:end]),
                last_session=header.session if header else segment.NO_SESSION,
                truncated_bytes=len(data) - end,
            )
        path.unlink()
        _log.info("removed %s: its writer died before it was needed", path)
    return Recovered(
        last_number=0,
        last_digest=segment.NO_DIGEST,
        last_session=segment.NO_SESSION,
        truncated_bytes=0,
    )


def remove(directory: Path) -> bool:
    """Remove a directory whose records are all in the database; the caller holds the lock.

    Side files with damaged bytes stay, and then the directory stays too.

    Returns:
        Whether the directory is gone.
    """
    for number in segment.segment_numbers(directory):
        segment.segment_path(directory, number).unlink(missing_ok=True)
    (directory / RESERVE_NAME).unlink(missing_ok=True)
    if {path.name for path in directory.iterdir()} != {LOCK_NAME}:
        return False
    (directory / LOCK_NAME).unlink()
    # From here on our lock protects nothing: a new writer may come, or come and go.
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not directory.exists()


def save_damage(directory: Path, path: Path, *, start: int, damaged: bytes) -> Path:
    """Keep damaged bytes of a segment in a side file, named by segment and offset."""
    side = directory / f"{path.stem}-{start}.damaged"
    side.write_bytes(damaged)
    return side


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
