"""Days, months and years of a time zone, cut out of sums by quarter-hour and by UTC day.

A quarter of an hour lies in one local hour of every zone in use, also where the clock changes by
half an hour or a zone stands at +5:45. A UTC day may lie across a local midnight; it is used whole
only where no boundary of the report falls inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gateway.budgets.windows import day_start_us
from gateway.clock import from_microseconds
from gateway.ledger.errors import BadQuery
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.views import GroupBy

HOUR_US = 3_600_000_000
SPLIT_DAYS_MAX = 200
"""UTC days that are read by quarter-hours one by one; more, and the whole range is."""
MOVED_QUARTERS_MAX = 20_000
"""Quarter-hours that are read one by one to make local days; a year has 19,000 at +13:00."""
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


def _moved(day_us: int, offset_us: int) -> range:
    """Quarter-hours of a UTC day that do not lie in the local day of its date."""
    if offset_us >= 0:
        return range(day_us + DAY_US - offset_us, day_us + DAY_US, QUARTER_US)
    return range(day_us, day_us - offset_us, QUARTER_US)


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
class MovedQuarters:
    """How local days are made of UTC days: each local day takes over the UTC day of its date.

    Attributes:
        quarters_us: Quarter-hours that lie in a neighbouring local day, by their first instants.
        taken_from: Whose UTC day they lie in, as days from the local day that they belong to: -1
            east of Greenwich, where they are the end of the day before, 1 west of it.
        split_days: UTC days, by their first instants, that are read by quarter-hours throughout:
            those that the range ends in, and those on which the offset changes.
    """

    quarters_us: Sequence[int]
    taken_from: int
    split_days: Sequence[int]


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

    def split_days(self, units: Sequence[GroupBy]) -> list[int] | None:
        """UTC days that are not used whole, by their first instants.

        Returns:
            None where none should be: quarter-hours are read throughout.
        """
        if GroupBy.HOUR in units or (GroupBy.DAY in units and not self._has_utc_days()):
            return None
        cuts = {self.from_us, self.to_us}
        for unit in units:
            cuts.update(self.boundaries(unit) if unit in _UNITS else ())
        split = sorted({cut - cut % DAY_US for cut in cuts if cut % DAY_US})
        days = (self.to_us - self.from_us) // DAY_US
        return split if len(split) <= min(SPLIT_DAYS_MAX, days // 2) else None

    def moved_quarters(self, units: Sequence[GroupBy]) -> MovedQuarters | None:
        """How to make local days of UTC days and few quarter-hours, for reports by day alone.

        Returns:
            None where that is no use: days are UTC's, not all that is grouped by, or too many; or
            the zone has been on both sides of Greenwich.
        """
        found = stretches(self.zone, self.from_us, self.to_us) if units == [GroupBy.DAY] else []
        east = {one.offset_us > 0 for one in found if one.offset_us}
        if len(east) != 1:
            return None
        ends = (self.from_us, self.to_us, *(one.start_us for one in found[1:]))
        split = {end - end % DAY_US for end in ends if end % DAY_US}
        first_us, last_us = self.from_us - self.from_us % DAY_US, self.to_us - 1
        quarters: list[int] = []
        for one, end_us in zip(found, (*(one.start_us for one in found[1:]), last_us), strict=True):
            start_us = max(one.start_us - one.start_us % DAY_US, first_us)
            for day_us in range(start_us, end_us, DAY_US):
                if day_us not in split:
                    quarters += _moved(day_us, one.offset_us)
        if len(quarters) > MOVED_QUARTERS_MAX:
            return None
        taken_from = -1 if east == {True} else 1
        return MovedQuarters(quarters_us=quarters, taken_from=taken_from, split_days=sorted(split))

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
