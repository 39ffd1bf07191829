"""Days that cost more than such days do, by a robust score that one odd day cannot spoil.

The score is the distance from the median in units of the median absolute deviation (Iglewicz and
Hoaglin 1993: 0.6745 x distance / deviation, remarkable from 3.5 on). Weekdays are compared with
their own kind where there are enough of them. Integers throughout: a score is in thousandths.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

WEEK_DAYS = 7
HISTORY_DAYS = 56
HISTORY_DAYS_MIN = 14
SAME_WEEKDAYS_MIN = 4
SCORE_PERMILLE_MIN = 3_500
SCORE_PERMILLE_MAX = 1_000_000
"""Shown where the days before did not differ at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly(Generic[K]):
    """A day that cost much more than expected.

    Attributes:
        series: What the series is about, for example team and model.
        amount_pico_usd: What the day cost.
        expected_pico_usd: The median of such days.
        score_permille: The robust score in thousandths, at most `SCORE_PERMILLE_MAX`.
    """

    series: K
    amount_pico_usd: int
    expected_pico_usd: int
    score_permille: int

    @property
    def excess_pico_usd(self) -> int:
        """What it cost beyond the expected."""
        return self.amount_pico_usd - self.expected_pico_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution(Generic[K]):
    """What a part added to the excess of a day.

    Attributes:
        part: For example a key.
        amount_pico_usd: What it cost that day.
        expected_pico_usd: The median of such days.
    """

    part: K
    amount_pico_usd: int
    expected_pico_usd: int

    @property
    def excess_pico_usd(self) -> int:
        """What it cost beyond the expected; negative where it cost less."""
        return self.amount_pico_usd - self.expected_pico_usd


def find_anomalies(
    series: Mapping[K, Sequence[int]], *, excess_pico_usd_min: int
) -> tuple[Anomaly[K], ...]:
    """The series whose last day is remarkable, the largest excess first.

    Args:
        series: Daily amounts without gaps, the day in question last. One with fewer than
            `HISTORY_DAYS_MIN` days before it is too young to be judged and left out.
        excess_pico_usd_min: Smaller excesses are nobody's concern; above 0.

    Raises:
        ValueError: The least excess is not above 0.
    """
    if excess_pico_usd_min < 1:
        raise ValueError(f"the least excess must be above 0, got {excess_pico_usd_min}")
    found: list[Anomaly[K]] = []
    for name, days in series.items():
        if len(days) <= HISTORY_DAYS_MIN:
            continue
        amount, before = days[-1], _such_days(days)
        expected = median(before)
        excess = amount - expected
        score = _score_permille(excess, [abs(day - expected) for day in before])
        if excess >= excess_pico_usd_min and score >= SCORE_PERMILLE_MIN:
            found.append(
                Anomaly(
                    series=name,
                    amount_pico_usd=amount,
                    expected_pico_usd=expected,
                    score_permille=score,
                )
            )
    return tuple(sorted(found, key=lambda one: -one.excess_pico_usd))


def contributions(parts: Mapping[K, Sequence[int]], *, count: int) -> tuple[Contribution[K], ...]:
    """Who made a remarkable day: the parts with the largest excess, the largest first.

    Args:
        parts: Daily amounts of each part, as long as the series; a new part has zeros before.
        count: At most so many.
    """
    found = [
        Contribution(
            part=name, amount_pico_usd=days[-1], expected_pico_usd=median(_such_days(days))
        )
        for name, days in parts.items()
    ]
    raised = [one for one in found if one.excess_pico_usd > 0]
    return tuple(sorted(raised, key=lambda one: -one.excess_pico_usd)[:count])


def median(values: Sequence[int]) -> int:
    """The middle value, the lower one of two; 0 of none."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0


def _such_days(days: Sequence[int]) -> Sequence[int]:
    """The days before the last one that it is compared with."""
    before = days[-HISTORY_DAYS - 1 : -1]
    same = days[-1 - WEEK_DAYS :: -WEEK_DAYS][: HISTORY_DAYS // WEEK_DAYS]
    return same if len(same) >= SAME_WEEKDAYS_MIN else before


def _score_permille(excess: int, distances: Sequence[int]) -> int:
    if excess <= 0:
        return 0
    deviation = median(distances)
    if not deviation:
        return SCORE_PERMILLE_MAX
    return min(6_745 * excess // (10 * deviation), SCORE_PERMILLE_MAX)
