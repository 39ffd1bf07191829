"""A histogram as a list: one count per bucket, the count beyond the last bound, then the sum."""

from __future__ import annotations

from bisect import bisect_left

from gateway.telemetry.families import FAMILIES


def new_histogram(family: str) -> list[float]:
    """An empty one.

    Args:
        family: Its name in `FAMILIES`.
    """
    return [0] * FAMILIES[family].width


def observe(histogram: list[float], bounds: tuple[float, ...], value: float) -> None:
    """Count a value.

    Args:
        histogram: Where.
        bounds: Upper bounds of its buckets, those of its family.
        value: In the family's unit.
    """
    histogram[bisect_left(bounds, value)] += 1
    histogram[-1] += value
