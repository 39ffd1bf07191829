"""Time, ids and randomness as parameters: the process passes real ones, tests pass their own."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HALVES = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where a process gets its time from.

    Attributes:
        wall_us: Microseconds since the epoch; for instants, never for durations.
        monotonic_s: Seconds on a clock that never goes back; for durations.
    """

    wall_us: Callable[[], int]
    monotonic_s: Callable[[], float]


def from_microseconds(at_us: int) -> datetime:
    """The aware UTC instant of microseconds since the epoch, exactly."""
    return _EPOCH + timedelta(microseconds=at_us)


def to_microseconds(at: datetime) -> int:
    """Microseconds since the epoch of an aware instant, exactly."""
    return (at - _EPOCH) // _MICROSECOND


def system_clock() -> Clock:
    """The machine's own clocks."""
    time_ns = time.time_ns
    return Clock(wall_us=lambda: time_ns() // 1000, monotonic_s=time.monotonic)


def uuid7_maker(clock: Clock, rng: random.Random) -> Callable[[], bytes]:
    """Make a source of UUIDv7 ids as 16 bytes: a millisecond stamp, then 74 random bits.

    Source: RFC 9562, section 5.7.
    """
    wall_us, random_bits, pack = clock.wall_us, rng.getrandbits, _HALVES.pack

    def new_id() -> bytes:
        stamp_ms = wall_us() // 1000 & (1 << 48) - 1
        return pack(stamp_ms << 16 | 0x7000 | random_bits(12), 0b10 << 62 | random_bits(62))

    return new_id
