"""How long machines were up and busy: intervals and meters, brought to the hours of UTC; pure.

An interval is half-open, `(start_us, end_us)`. Merged intervals are sorted and lie apart. An
engine's meter is read now and then; between two readings its busy time is taken to have passed
evenly, so that what falls on both sides of a full hour adds up to what was metered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

HOUR_US = 3_600_000_000

Interval = tuple[int, int]


def merged(intervals: Iterable[Interval], *, gap_us: int = 0) -> list[Interval]:
    """Intervals without overlap, sorted.

    Args:
        intervals: In any order; empty ones count as a moment.
        gap_us: Two that are at most so far apart become one.
    """
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start - found[-1][1] <= gap_us:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def without(intervals: Sequence[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """What merged intervals cover and other merged ones do not."""
    left: list[Interval] = []
    taken = [one for one in taken if one[0] < one[1]]  # a moment takes nothing
    for start, end in intervals:
        first = max(0, bisect_right(taken, (start, start)) - 1)
        for from_us, to_us in taken[first:]:
            if from_us >= end:
                break
            if from_us > start:
                left.append((start, from_us))
            start = max(start, to_us)
        if start < end:
            left.append((start, end))
    return left


def overlap_us(within: Sequence[Interval], start_us: int, end_us: int) -> int:
    """How much of an interval merged ones cover."""
    first = max(0, bisect_right(within, (start_us, start_us)) - 1)
    covered = 0
    for start, end in within[first:]:
        if start >= end_us:
            break
        covered += max(0, min(end, end_us) - max(start, start_us))
    return covered


def hours_of(start_us: int, end_us: int) -> Iterator[Interval]:
    """The hours of UTC that an interval touches, each cut to it."""
    while start_us < end_us:
        edge = min(end_us, start_us - start_us % HOUR_US + HOUR_US)
        yield start_us, edge
        start_us = edge


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An engine's meter from a start on.

    Attributes:
        started_us: When it began.
        readings: Microseconds up and busy since then, by up; never falling.
        is_down: Whether it is a time in which a server did not answer.
    """

    started_us: int
    readings: tuple[tuple[int, int], ...]
    is_down: bool = False

    @staticmethod
    def of(
        started_us: int, readings: Iterable[tuple[int, int]], *, is_down: bool = False
    ) -> Session:
        """Put readings in order; busy time never passes up time, and neither goes back."""
        kept = [(0, 0)]
        for up_us, busy_us in sorted(set(readings)):
            last_up_us, last_busy_us = kept[-1]
            most = last_busy_us + up_us - last_up_us  # a microsecond may be rounded too much
            kept.append((up_us, min(max(busy_us, last_busy_us), most)))
        return Session(started_us=started_us, readings=tuple(kept), is_down=is_down)

    @property
    def interval(self) -> Interval:
        """From when to when it is known to have been up."""
        return self.started_us, self.started_us + self.readings[-1][0]

    def busy_us(self, start_us: int, end_us: int) -> int:
        """Busy time within an interval; at most its length."""
        return self._busy_until(end_us) - self._busy_until(start_us)

    def _busy_until(self, at_us: int) -> int:
        up_us = max(0, at_us - self.started_us)
        place = bisect_right(self.readings, (up_us, 2**63))
        before = self.readings[place - 1]
        if place == len(self.readings):
            return before[1]
        after = self.readings[place]
        gained = (after[1] - before[1]) * (up_us - before[0]) // (after[0] - before[0])
        return before[1] + gained
