"""Disks of a fixed size, disks that hold, and what a spool on them contains."""

from __future__ import annotations

import errno
import os
import threading

from gateway.ledger.records import decode
from gateway.ledger.spool import KernelFiles
from gateway.ledger.spool_reader import Cursor, SpoolReader, SpoolRecord


class QuotaFiles(KernelFiles):
    """A disk of a fixed size: writes are cut short, then refused, as the kernel does."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held = 0
        self.sync_error: OSError | None = None
        self.write_error: OSError | None = None
        self.synced: list[int] = []

    def write(self, descriptor: int, data: bytes) -> int:
        if self.write_error:
            raise self.write_error
        self._free()
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = super().write(descriptor, data[: self.room])
        self.room -= done
        return done

    def sync(self, descriptor: int) -> None:
        if self.sync_error:
            raise self.sync_error
        self.synced.append(descriptor)
        super().sync(descriptor)

    def reserve(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self._free()
        if self.room < size_bytes - self.held:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= size_bytes - self.held
        self.held = size_bytes
        super().reserve(descriptor, size_bytes)

    def _free(self) -> None:
        """Take back what the reserve gave up."""
        if self.held and os.fstat(self.descriptor).st_size == 0:
            self.room += self.held
            self.held = 0


class HeldFiles(QuotaFiles):
    """A disk whose syncs begin, and end when they are let go."""

    def __init__(self) -> None:
        super().__init__(10**6)
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def sync(self, descriptor: int) -> None:
        self.begun.set()
        assert self.let_go.wait(10)
        super().sync(descriptor)


def records_in(directory) -> list:
    reader, found = SpoolReader(directory, Cursor()), []
    before = None
    while before != reader.cursor:
        before = reader.cursor
        for entry, _ in reader:
            assert isinstance(entry, SpoolRecord), entry
            found.append(decode(entry.payload))
    return found


async def close(*writers) -> None:
    for writer in writers:
        await writer.close()
