"""The system calls of a spool's writer, in one place so that a disk can be made to fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class SpoolFiles(Protocol):
    """The system calls that can fail for want of space or of a working disk."""

    def create(self, path: Path) -> int:
        """`open(2)` of a new file for appending and reading back: its descriptor."""
        ...

    def write(self, descriptor: int, data: bytes, /) -> int:
        """`write(2)`: the count of bytes taken."""
        ...

    def sync(self, descriptor: int) -> None:
        """`fdatasync(2)`."""
        ...

    def reserve(self, descriptor: int, size_bytes: int) -> None:
        """`posix_fallocate(3)` from the start of the file."""
        ...


class KernelFiles:
    """The real system calls."""

    def create(self, path: Path) -> int:
        """`open(2)`; a file of that name is an error."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    write = staticmethod(os.write)
    """`write(2)`; no method around it, for it is called twice per request."""

    def sync(self, descriptor: int) -> None:
        """`fdatasync(2)`."""
        os.fdatasync(descriptor)

    def reserve(self, descriptor: int, size_bytes: int) -> None:
        """`posix_fallocate(3)`."""
        os.posix_fallocate(descriptor, 0, size_bytes)
