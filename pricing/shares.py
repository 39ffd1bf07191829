"""Splitting an amount into parts that add up to it again, to the last unit."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def split(amount: int, weights: Sequence[int | Fraction]) -> tuple[int, ...]:
    """Split an amount by weights; the parts add up to it exactly.

    Each part is its exact share, cut to whole units towards zero; the units that are left go one
    each to the largest remainders, the earlier part first where they are equal. No part differs
    from its exact share by a whole unit.

    Args:
        amount: Whole units, for example picodollars; negative for money back.
        weights: At least 0, in the order of the parts, and not all 0.

    Raises:
        ValueError: A weight is negative, or none is above 0.
    """
    total = sum(weights, Fraction(0))
    if any(weight < 0 for weight in weights):
        raise ValueError("a weight must be >= 0")
    if not total:
        raise ValueError("a weight must be above 0")
    size = abs(amount)
    exact = [size * Fraction(weight) / total for weight in weights]
    parts = [int(share) for share in exact]
    left = size - sum(parts)
    by_remainder = sorted(range(len(parts)), key=lambda place: (parts[place] - exact[place], place))
    for place in by_remainder[:left]:
        parts[place] += 1
    return tuple(parts) if amount >= 0 else tuple(-part for part in parts)


def round_together(amounts: Sequence[Fraction]) -> tuple[int, ...]:
    """Round amounts to whole units so that their sum is the rounded sum.

    Each is rounded down or up; those with the largest remainders go up, the earlier first where
    they are equal.

    Args:
        amounts: Exact amounts, of any sign.
    """
    floors = [amount.numerator // amount.denominator for amount in amounts]
    left = round(sum(amounts, Fraction(0))) - sum(floors)
    by_remainder = sorted(
        range(len(floors)), key=lambda place: (floors[place] - amounts[place], place)
    )
    for place in by_remainder[:left]:
        floors[place] += 1
    return tuple(floors)
