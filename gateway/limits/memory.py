"""The state of all limits of one machine, in memory that its workers share.

The supervisor makes the memory and hands it to each worker; nobody asks anybody per request. One
lock guards it, a POSIX record lock, which the kernel frees when its holder dies. What a worker
leaves half-written when it is killed is one limit that was charged and one that was not, which time
mends.

    header   machine's id, number of seats
    heads    per record: the limit's digest, arrival times of its two buckets
    counts   per seat and record: requests in flight; each seat has one writer, which needs no lock

A record whose buckets are at rest and that nobody is in is as good as none, so it gives its place
to another limit, and the table is never cleaned.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from typing import Final

RECORDS: Final = 8192
WAYS: Final = 64
"""Records in which a limit may be, from its own place on."""

SEATS: Final = 2048
"""Workers that live at the same time, those of earlier configurations included."""

_HEADER_BYTES: Final = 4096
_HEAD_WORDS: Final = 6  # two of the digest, two for each bucket
_HEADS_BYTES: Final = RECORDS * _HEAD_WORDS * 8
_COLUMN_BYTES: Final = RECORDS * 4
_BYTES: Final = _HEADER_BYTES + _HEADS_BYTES + SEATS * _COLUMN_BYTES
_MACHINE: Final = slice(0, 16)
_SEATS_WORD: Final = 2

REQUESTS: Final = 2
TOKENS: Final = 4
"""Places of the two buckets in a head: an arrival time's microseconds, then its rest."""


class LimitMemory:
    """One machine's limits, as the process that made them sees them or one that was handed them.

    Attributes:
        fd: The memory's descriptor, for handing it on; None where this process is alone.
    """

    def __init__(self, fd: int | None = None) -> None:
        """Map what another process made, or make some of our own.

        Args:
            fd: A descriptor from `make`, owned from here on; None for memory of this process alone.
        """
        self.fd = fd
        self._map = mmap.mmap(-1 if fd is None else fd, _BYTES)
        whole = memoryview(self._map)
        self._header = whole[:_HEADER_BYTES].cast("q")
        heads_end = _HEADER_BYTES + _HEADS_BYTES
        self._heads = whole[_HEADER_BYTES:heads_end].cast("q")
        self._counts = whole[heads_end:].cast("I")
        self._places: dict[bytes, tuple[int, int, int]] = {}
        if fd is None:
            self._map[_MACHINE] = secrets.token_bytes(16)

    @classmethod
    def make(cls) -> LimitMemory:
        """Memory that other processes can be handed.

        Raises:
            OSError: The machine refuses.
        """
        fd = os.memfd_create("fareway-limits", os.MFD_CLOEXEC)
        os.ftruncate(fd, _BYTES)
        made = cls(fd)
        made._map[_MACHINE] = secrets.token_bytes(16)
        return made

    @property
    def machine_id(self) -> bytes:
        """16 random bytes, the same for every worker of the machine."""
        return self._map[_MACHINE]

    def take_seat(self, seat: int) -> None:
        """Have a seat's counts looked at from now on; the lock must be held where there are others.

        Raises:
            ValueError: There is no such seat.
        """
        if not 0 <= seat < SEATS:
            raise ValueError(f"workers have seats 0 to {SEATS - 1}, not {seat}")
        self._header[_SEATS_WORD] = max(self._header[_SEATS_WORD], seat + 1)

    def clear_seat(self, seat: int) -> None:
        """Give back what a worker that is gone had in flight; nobody else writes there."""
        if 0 <= seat < self._header[_SEATS_WORD]:
            start = seat * RECORDS
            self._counts[start : start + RECORDS] = memoryview(bytes(_COLUMN_BYTES)).cast("I")

    def try_lock(self) -> bool:
        """Take the lock unless somebody has it; held for microseconds, never across an await."""
        if self.fd is None:
            return True
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        return True

    def unlock(self) -> None:
        """Give the lock back."""
        if self.fd is not None:
            fcntl.lockf(self.fd, fcntl.LOCK_UN, 1)

    def place(self, digest: bytes, now_us: int) -> int | None:
        """The record of a limit, made where there is none; None when too many limits are in use.

        Nobody else gets it at the same instant, even if it is at rest.

        Args:
            digest: Its 16 bytes.
            now_us: The present, to tell which records are at rest.
        """
        heads = self._heads
        known = self._places.get(digest)
        if known is not None:
            place, high, low = known
            head = place * _HEAD_WORDS
            if heads[head] == high and heads[head + 1] == low:
                self._touch(head, now_us)
                return place
        else:
            high = int.from_bytes(digest[:8], "little", signed=True)
            low = int.from_bytes(digest[8:], "little", signed=True)
        place = self._find(high, low, now_us)
        if place is not None:
            self._touch(place * _HEAD_WORDS, now_us)
            self._places[digest] = (place, high, low)
        return place

    def _touch(self, head: int, now_us: int) -> None:
        """Let a record not look at rest now; a bucket at rest may as well have come to rest now."""
        if self._heads[head + REQUESTS] < now_us:
            self._heads[head + REQUESTS], self._heads[head + REQUESTS + 1] = now_us, 0

    def _find(self, high: int, low: int, now_us: int) -> int | None:
        heads, free = self._heads, None
        home = low % RECORDS
        for step in range(WAYS):
            place = (home + step) % RECORDS
            head = place * _HEAD_WORDS
            if heads[head] == high and heads[head + 1] == low:
                return place
            if free is None and self._is_at_rest(place, now_us):
                free = place
        if free is not None:
            head = free * _HEAD_WORDS
            for word in range(REQUESTS, _HEAD_WORDS):
                heads[head + word] = 0
            heads[head], heads[head + 1] = high, low
        return free

    def _is_at_rest(self, place: int, now_us: int) -> bool:
        head, heads = place * _HEAD_WORDS, self._heads
        is_busy = heads[head + REQUESTS] >= now_us or heads[head + TOKENS] >= now_us
        return not is_busy and not self.in_flight(place)

    def arrival(self, place: int, bucket: int, rate: int) -> int:
        """The arrival time of a bucket in 1/rate microseconds.

        Args:
            place: The record.
            bucket: `REQUESTS` or `TOKENS`.
            rate: Of the limit now; one that was changed keeps what it was busy with.
        """
        word = place * _HEAD_WORDS + bucket
        return self._heads[word] * rate + min(self._heads[word + 1], rate - 1)

    def set_arrival(self, place: int, bucket: int, rate: int, arrival: int) -> None:
        """Write an arrival time."""
        word = place * _HEAD_WORDS + bucket
        self._heads[word], self._heads[word + 1] = divmod(arrival, rate)

    def in_flight(self, place: int) -> int:
        """Requests of a limit in flight, of all workers of the machine."""
        return sum(self._counts[place : self._header[_SEATS_WORD] * RECORDS : RECORDS])

    def count(self, place: int, seat: int, change: int) -> None:
        """Count a request of a seat in or out; its worker is the only one that may."""
        self._counts[seat * RECORDS + place] += change
