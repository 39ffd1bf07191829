"""The generic cell rate algorithm in exact integers; pure.

A bucket's whole state is one instant, the theoretical arrival time: until then it is busy with what
it took. It is kept in units of 1/rate microseconds, so that a unit of the limit, which takes
`60,000,000 / rate` microseconds, is a whole number for every rate and nothing is ever rounded.

Source: ITU-T I.371, annex A (virtual scheduling algorithm).
"""

from __future__ import annotations

from typing import Final

import msgspec

MINUTE_US: Final = 60_000_000


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """A limit per minute.

    Attributes:
        rate: Units per minute, at least 1.
        burst: Units that may be taken at once after a rest, at least 1.
    """

    rate: int
    burst: int

    def after(self, arrival: int, now_us: int, units: int) -> int:
        """The arrival time once `units` are taken, whether or not they may be.

        Args:
            arrival: The arrival time so far, in 1/rate microseconds.
            now_us: The present.
            units: How many are taken, at least 0.
        """
        return max(arrival, now_us * self.rate) + units * MINUTE_US

    def wait_us(self, after: int, now_us: int) -> int:
        """Microseconds after which what led to `after` may be taken; 0 when it may be now."""
        over = after - now_us * self.rate - self.burst * MINUTE_US
        return -(-over // self.rate) if over > 0 else 0

    def left(self, arrival: int, now_us: int) -> int:
        """Whole units that may be taken now."""
        busy = max(arrival - now_us * self.rate, 0)
        return max((self.burst * MINUTE_US - busy) // MINUTE_US, 0)

    def reset_us(self, arrival: int, now_us: int) -> int:
        """Microseconds until the whole burst may be taken."""
        return max(-(-(arrival - now_us * self.rate) // self.rate), 0)

    def corrected(self, arrival: int, now_us: int, units: int) -> int:
        """The arrival time after units that were taken turn out to be more, or fewer.

        What is given back never makes a bucket emptier than a rest would; what is added may be more
        than the burst, and is waited for.

        Args:
            arrival: The arrival time so far.
            now_us: The present.
            units: More where above 0, given back where below.
        """
        if units >= 0:
            return self.after(arrival, now_us, units)
        return max(arrival + units * MINUTE_US, min(arrival, now_us * self.rate))

    def undone(self, arrival: int, now_us: int, units: int, after: int) -> int:
        """The arrival time once units that were taken are given back, and never were used.

        Only what time has not paid for yet is given back: that keeps the limit for those that stay,
        in every window of time.

        Args:
            arrival: The arrival time so far.
            now_us: The present.
            units: How many they were.
            after: The arrival time that their taking led to.
        """
        unpaid = min(units * MINUTE_US, max(after - now_us * self.rate, 0))
        return max(arrival - unpaid, min(arrival, now_us * self.rate))

    def shared(self, parts: int) -> Bucket:
        """One of so many equal shares of this limit, at least 1."""
        return Bucket(max(self.rate // parts, 1), max(self.burst // parts, 1))
