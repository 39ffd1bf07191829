"""Days, months and years of a time zone, cut out of sums by quarter-hour and by UTC day.

A quarter of an hour lies in one local hour of every zone in use, also where the clock changes by
half an hour or a zone stands at +5:45. A UTC day may lie across a local midnight; it is counted as
a whole in the local day, month or year that its noon is in, and only what a boundary parts from its
noon is read by quarter-hours and moved to where it belongs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.budgets.windows import day_start_us
from gateway.clock import from_microseconds
from gateway.ledger.errors import BadQuery
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.views import GroupBy

HOUR_US = 3_600_000_000
HALF_DAY_US = DAY_US // 2
_EPOCH = date(1970, 1, 1)


def zone_of(name: str) -> ZoneInfo:
    """A time zone by its IANA name.

    Raises:
        BadQuery: There is none.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadQuery(
            f"{name!r} is no time zone; give an IANA name such as Europe/Berlin", param="zone"
        ) from error


def midnight_us(day: date, zone: ZoneInfo) -> int:
    """The first instant of a local day, microseconds since the epoch; as budgets have it."""
    return day_start_us(day, zone.key)


def local_day(at_us: int, zone: ZoneInfo) -> date:
    """The local day of an instant."""
    return from_microseconds(at_us).astimezone(zone).date()


def month_bounds(month: date, zone: ZoneInfo) -> tuple[int, int]:
    """First instant of a local month, given by any of its days, and the first one after it."""
    first = month.replace(day=1)
    return midnight_us(first, zone), midnight_us(_next_month(first), zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time in which a zone's offset does not change.

    Attributes:
        start_us: Its first instant.
        offset_us: Local time less UTC.
    """

    start_us: int
    offset_us: int


def stretches(zone: ZoneInfo, from_us: int, to_us: int) -> list[Stretch]:
    """The stretches that a range (not empty) consists of; the first begins with it.

    Raises:
        BadQuery: The zone's offset is no whole number of quarter-hours there.
    """
    found = [Stretch(start_us=from_us, offset_us=_offset_us(from_us, zone))]
    for day_us in (*range(from_us + DAY_US, to_us, DAY_US), to_us - 1):
        if _offset_us(day_us, zone) != found[-1].offset_us:
            before_us = max(found[-1].start_us, day_us - DAY_US)
            at_us = _change_us(zone, before_us, day_us)
            found.append(Stretch(start_us=at_us, offset_us=_offset_us(at_us, zone)))
    odd = next((one for one in found if one.offset_us % QUARTER_US), None)
    if odd is not None:
        at = from_microseconds(odd.start_us).date()
        raise BadQuery(f"{zone.key} was not a whole number of quarter-hours from UTC on {at}")
    return found


def offset_us(found: Sequence[Stretch], at_us: int) -> int:
    """Local time less UTC of an instant, by the stretches of its range."""
    return found[max(bisect_right(found, at_us, key=lambda one: one.start_us) - 1, 0)].offset_us


def _change_us(zone: ZoneInfo, before_us: int, after_us: int) -> int:
    """The first instant with the offset that `after_us` has, of two less than a day apart."""
    old = _offset_us(before_us, zone)
    while after_us - before_us > 1:
        middle_us = (before_us + after_us) // 2
        if _offset_us(middle_us, zone) == old:
            before_us = middle_us
        else:
            after_us = middle_us
    return after_us


def _offset_us(at_us: int, zone: ZoneInfo) -> int:
    offset = from_microseconds(at_us).astimezone(zone).utcoffset()
    assert offset is not None, "a zone has an offset at every instant"
    return offset // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a UTC day that lies in one unit of each kind; it is read by quarter-hours.

    Attributes:
        from_us: Its first instant.
        to_us: The first instant after it.
        noon_us: Where it is counted already, as its whole day is; None where its day is not.
    """

    from_us: int
    to_us: int
    noon_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How a range is made of whole UTC days, each counted where its noon is, and of few pieces.

    Attributes:
        first_us: The first instant of the first whole day; None from the beginning on.
        last_us: The first instant after the last one; None for no end.
        pieces: What the range has of the days that it ends in, and what a boundary parts from the
            noon of its day.
    """

    first_us: int | None
    last_us: int | None
    pieces: Sequence[Piece]

    def has_days(self) -> bool:
        """Whether any UTC day lies in the range as a whole."""
        return self.first_us is None or self.last_us is None or self.first_us < self.last_us


def cut_range(from_us: int | None, to_us: int | None, boundaries: Iterable[int] = ()) -> Cuts:
    """Cut a range of time.

    Args:
        from_us: Its first instant, None from the beginning on.
        to_us: The first instant after it, None for no end.
        boundaries: Instants inside it at which another unit begins.
    """
    first_us = None if from_us is None else from_us + -from_us % DAY_US
    last_us = None if to_us is None else to_us - to_us % DAY_US
    inside = sorted({cut_us for cut_us in boundaries if cut_us % DAY_US})
    ends = [(from_us, first_us), (last_us, to_us)]
    if first_us is not None and last_us is not None and first_us > last_us:
        ends = [(from_us, to_us)]  # within one day
    pieces = [
        Piece(from_us=start_us, to_us=end_us, noon_us=None)
        for one in ends
        for start_us, end_us in _segments(*one, inside)
    ]
    for day_us in sorted({cut_us - cut_us % DAY_US for cut_us in inside}):
        is_begun = first_us is None or first_us <= day_us
        if is_begun and (last_us is None or day_us < last_us):
            noon_us = day_us + HALF_DAY_US
            pieces += [
                Piece(from_us=start_us, to_us=end_us, noon_us=noon_us)
                for start_us, end_us in _segments(day_us, day_us + DAY_US, inside)
                if not start_us <= noon_us < end_us
            ]
    return Cuts(first_us=first_us, last_us=last_us, pieces=pieces)


def _segments(
    start_us: int | None, end_us: int | None, cuts: Sequence[int]
) -> Iterable[tuple[int, int]]:
    """A stretch of time from cut to cut; nothing of one that is empty or has no bounds."""
    if start_us is None or end_us is None or start_us >= end_us:
        return ()
    within = cuts[bisect_right(cuts, start_us) : bisect_left(cuts, end_us)]
    return pairwise((start_us, *within, end_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """A range of time in a zone, and how to cut it.

    Attributes:
        from_us: Its first instant, a quarter-hour.
        to_us: The first instant after it, a quarter-hour.
        zone: The reporting zone.
        fiscal_month: Month in which the fiscal year begins, 1 to 12.
    """

    from_us: int
    to_us: int
    zone: ZoneInfo
    fiscal_month: int = 1

    def starts(self, unit: GroupBy) -> list[date]:
        """First days of the local weeks, months or fiscal years that the range touches."""
        first, following = _UNITS[unit]
        day = first(local_day(self.from_us, self.zone), self.fiscal_month)
        last = local_day(self.to_us - 1, self.zone)
        days: list[date] = []
        while day <= last:
            days.append(day)
            day = following(day)
        return days

    def boundaries(self, unit: GroupBy) -> list[int]:
        """Instants at which another week, month or fiscal year begins within the range."""
        return [midnight_us(day, self.zone) for day in self.starts(unit)[1:]]

    def cuts(self, units: Sequence[GroupBy]) -> Cuts | None:
        """How to make the units of UTC days and as few quarter-hours as can be.

        Returns:
            None where that is no use: quarter-hours are read throughout.
        """
        if GroupBy.HOUR in units:
            return None
        boundaries = [cut_us for unit in units for cut_us in self._cuts(unit)]
        return cut_range(self.from_us, self.to_us, boundaries)

    def _cuts(self, unit: GroupBy) -> list[int]:
        """Instants inside the range at which another unit begins."""
        if unit is not GroupBy.DAY:
            return self.boundaries(unit)
        if self._has_utc_days():
            return []
        first = local_day(self.from_us, self.zone)
        count = (local_day(self.to_us - 1, self.zone) - first).days
        return [midnight_us(first + timedelta(days=n), self.zone) for n in range(1, count + 1)]

    def _has_utc_days(self) -> bool:
        found = stretches(self.zone, self.from_us, self.to_us)
        return not any(one.offset_us % DAY_US for one in found)


def hour_label(slot: int, offset_us: int) -> str:
    """A local hour with its offset, so that one that comes twice is two.

    Args:
        slot: Local hours since 1970-01-01T00:00.
        offset_us: Local time less UTC.
    """
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=slot)
    sign = "-" if offset_us < 0 else "+"
    hours, rest_us = divmod(abs(offset_us), HOUR_US)
    return f"{at:%Y-%m-%dT%H}:00{sign}{hours:02}:{rest_us // 60_000_000:02}"


def day_label(slot: int) -> str:
    """A local day, by its number since 1970-01-01."""
    return (_EPOCH + timedelta(days=slot)).isoformat()


def period_label(unit: GroupBy, first: date) -> str:
    """A week, month or fiscal year by its first day."""
    if unit is GroupBy.WEEK:
        year, week, _ = first.isocalendar()
        return f"{year}-W{week:02}"
    if unit is GroupBy.MONTH:
        return f"{first:%Y-%m}"
    last = _next_year(first) - timedelta(days=1)
    return f"{first:%Y-%m}..{last:%Y-%m}"


def _next_month(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1)


def _next_year(first: date) -> date:
    return first.replace(year=first.year + 1)


def _fiscal_start(day: date, fiscal_month: int) -> date:
    year = day.year if day.month >= fiscal_month else day.year - 1
    return date(year, fiscal_month, 1)


_UNITS: Mapping[GroupBy, tuple[Callable[[date, int], date], Callable[[date], date]]] = (
    MappingProxyType(
        {
            GroupBy.WEEK: (
                lambda day, _: day - timedelta(days=day.weekday()),
                lambda day: day + timedelta(days=7),
            ),
            GroupBy.MONTH: (lambda day, _: day.replace(day=1), _next_month),
            GroupBy.FISCAL_YEAR: (_fiscal_start, _next_year),
        }
    )
)
"""Of each unit: its first day by any of its days, and the first day of the next one."""
