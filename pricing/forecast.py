"""What the coming days will cost, from the days before: weekdays, level and a damped trend.

A forecast is no bill, but it is shown beside bills, so it too is whole picodollars. The method is
old and plain: additive seasons by weekday and exponential smoothing with a damped trend (Holt 1957;
Gardner and McKenzie 1985), with its errors measured on the very history that it is made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

WEEK_DAYS = 7
HISTORY_DAYS = 28
HISTORY_DAYS_MIN = 7
HORIZON_DAYS_MAX = 400
_LEVEL_PERCENT = 30
_TREND_PERCENT = 10
_DAMPING_PERCENT = 90
_SCALE = 1_000
"""Smoothing works in thousandths, so that cutting to integers adds nothing that is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Between which amounts the sum will lie, by the errors of the past.

    Attributes:
        percent: How often it held in the past.
        low_pico_usd: At least 0.
        high_pico_usd: At least the low one.
    """

    percent: int
    low_pico_usd: int
    high_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the coming days will cost.

    Attributes:
        days_pico_usd: Each coming day, at least 0.
        total_pico_usd: Their sum.
        bands: Of the sum, narrow first; none where the history is too short to measure errors.
        error_permille: Mean absolute error of the sums in the past in thousandths of the sums;
            None where the history is too short, or cost nothing.
        history_days: Days that it was made from.
    """

    days_pico_usd: tuple[int, ...]
    total_pico_usd: int
    bands: tuple[Band, ...]
    error_permille: int | None
    history_days: int


def forecast(history_pico_usd: Sequence[int], *, days: int) -> Forecast:
    """Continue a series of days.

    Args:
        history_pico_usd: Every day until yesterday, without gaps, the newest last; the last
            `HISTORY_DAYS` make the forecast, those before only measure its errors.
        days: Coming days, 0 to `HORIZON_DAYS_MAX`.

    Raises:
        ValueError: `days` is out of range, or the history is shorter than a week.
    """
    if not 0 <= days <= HORIZON_DAYS_MAX:
        raise ValueError(f"days must be 0 to {HORIZON_DAYS_MAX}, got {days}")
    if len(history_pico_usd) < HISTORY_DAYS_MIN:
        raise ValueError(
            f"a forecast needs {HISTORY_DAYS_MIN} days of history, got {len(history_pico_usd)}"
        )
    coming = _continue(history_pico_usd, days)
    total = sum(coming)
    errors = _past_errors(history_pico_usd, days)
    # Errors of single days add up like independent ones: with the square root of their number.
    spread = sorted(abs(error) // isqrt(count * _SCALE**2) for count, error, _ in errors)
    bands = tuple(_band(percent, total, spread, days) for percent in (80, 95) if spread and days)
    sums = sum(abs(actual) for _, _, actual in errors)
    return Forecast(
        days_pico_usd=tuple(coming),
        total_pico_usd=total,
        bands=bands,
        error_permille=sum(abs(e) for _, e, _ in errors) // _SCALE * 1000 // sums if sums else None,
        history_days=min(len(history_pico_usd), HISTORY_DAYS),
    )


def _continue(history: Sequence[int], days: int) -> list[int]:
    used = list(history[-HISTORY_DAYS:])
    seasons = _seasons(used)
    level, trend = (used[0] - seasons[0]) * _SCALE, 0
    for place, amount in enumerate(used):
        before = level + trend * _DAMPING_PERCENT // 100
        seen = (amount - seasons[place % WEEK_DAYS]) * _SCALE
        new = before + (seen - before) * _LEVEL_PERCENT // 100
        damped = trend * _DAMPING_PERCENT // 100
        trend = damped + (new - level - damped) * _TREND_PERCENT // 100
        level = new
    coming: list[int] = []
    step = trend
    for place in range(len(used), len(used) + days):
        step = step * _DAMPING_PERCENT // 100
        level += step
        coming.append(max(level // _SCALE + seasons[place % WEEK_DAYS], 0))
    return coming


def _seasons(used: Sequence[int]) -> list[int]:
    """What each weekday, counted from the first day, differs from the mean."""
    mean = sum(used) // len(used)
    by_weekday = [used[first::WEEK_DAYS] for first in range(WEEK_DAYS)]
    return [sum(same) // len(same) - mean for same in by_weekday]


def _past_errors(history: Sequence[int], days: int) -> list[tuple[int, int, int]]:
    """Of forecasts that could have been made: how many days, the sum's error, the true sum.

    Errors are in thousandths of a picodollar.
    """
    found: list[tuple[int, int, int]] = []
    for origin in range(2 * WEEK_DAYS, len(history)):
        count = min(days, len(history) - origin)
        if count:
            actual = sum(history[origin : origin + count])
            guessed = sum(_continue(history[:origin], count))
            found.append((count, (actual - guessed) * _SCALE, actual))
    return found


def _band(percent: int, total: int, spread: Sequence[int], days: int) -> Band:
    """Around the sum: the error that so many per cent of the past ones did not pass."""
    place = -(-len(spread) * percent // 100) - 1
    width = spread[place] * isqrt(days * _SCALE**2) // _SCALE
    return Band(percent=percent, low_pico_usd=max(total - width, 0), high_pico_usd=total + width)
