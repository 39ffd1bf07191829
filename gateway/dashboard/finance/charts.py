"""Charts as data: what the script draws, and what stands in the table beside it.

A drawing takes numbers, and only here does an amount become a float: to say how high a bar is. What
is told of it is text that was made from the exact amount.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.dashboard.finance.amounts import shown
from pricing.money import PICO_PER_USD

K = TypeVar("K", bound=Hashable)

_HOUR_US = 3_600_000_000
Figure = dict[str, object]
"""What is in the page as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of amounts.

    Attributes:
        name: What it is.
        amounts_pico_usd: One per label; None where there is none yet.
        is_dashed: Whether a line of it is dashed: what is not measured.
    """

    name: str
    amounts_pico_usd: Sequence[int | None]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """One bar of a waterfall, in picodollars.

    Attributes:
        label: What it is.
        start: Where it begins: where the bar before it ended; 0 for a total.
        end: Where it ends.
        is_total: Whether it is a sum and no change.
    """

    label: str
    start: int
    end: int
    is_total: bool = False


def parts(costs: Mapping[K, int], drawn: Sequence[K], *, count: int) -> list[int]:
    """The amounts of one label per series; what is not drawn alone is the last one together.

    Args:
        costs: By group.
        drawn: Groups with a series of their own.
        count: Series; one more than `drawn` where others are left.
    """
    amounts = [costs.get(group, 0) for group in drawn]
    if count > len(drawn):
        amounts.append(sum(costs.values()) - sum(amounts))
    return amounts


def bars(labels: Sequence[str], series: Sequence[Series], *, is_stacked: bool = True) -> Figure:
    """Bars by label."""
    return {
        "kind": "bars",
        "unit": "USD",
        "stacked": is_stacked,
        "labels": list(labels),
        "series": [_series(one) for one in series],
    }


def areas(labels: Sequence[str], series: Sequence[Series]) -> Figure:
    """Amounts over labels, one upon the other."""
    return {
        "kind": "areas",
        "unit": "USD",
        "labels": list(labels),
        "series": [_series(one) for one in series],
    }


def hours(labels: Sequence[str], names: Sequence[str], spans_us: Sequence[Sequence[int]]) -> Figure:
    """Hours over labels, one upon the other.

    Args:
        labels: What the hours are of.
        names: One per series.
        spans_us: Microseconds by series and label.
    """
    return {
        "kind": "areas",
        "unit": "hours",
        "labels": list(labels),
        "series": [
            {
                "name": name,
                "dashed": False,
                "values": [one / _HOUR_US for one in spans],
                "texts": [f"{one / _HOUR_US:.1f}" for one in spans],
            }
            for name, spans in zip(names, spans_us, strict=True)
        ],
    }


def lines(labels: Sequence[str], series: Sequence[Series], *, label: str) -> Figure:
    """Lines over labels; `label` says what the labels are."""
    return {
        "kind": "lines",
        "unit": "USD",
        "label": label,
        "labels": list(labels),
        "series": [_series(one) for one in series],
    }


def waterfall(falls: Sequence[Fall]) -> Figure:
    """Bars that each begin where the one before ended.

    A bar is drawn as three that are stacked, the first unseen: a bar may pass through 0, and
    what is above 0 is stacked apart from what is below.
    """
    bottoms: list[int] = []
    above: list[int] = []
    below: list[int] = []
    for one in falls:
        low, high = min(one.start, one.end), max(one.start, one.end)
        bottoms.append(max(low, 0) + min(high, 0))
        above.append(max(high, 0) - max(low, 0))
        below.append(min(low, 0) - min(high, 0))
    return {
        "kind": "waterfall",
        "unit": "USD",
        "labels": [one.label for one in falls],
        "kinds": [
            "total" if one.is_total else "less" if one.end < one.start else "more" for one in falls
        ],
        "series": [
            _series(Series(name="From", amounts_pico_usd=bottoms)),
            _series(Series(name="Above 0", amounts_pico_usd=above)),
            _series(Series(name="Below 0", amounts_pico_usd=below)),
        ],
        "texts": [shown(one.end - one.start).text for one in falls],
    }


def _series(series: Series) -> Figure:
    return {
        "name": series.name,
        "dashed": series.is_dashed,
        "values": [None if one is None else one / PICO_PER_USD for one in series.amounts_pico_usd],
        "texts": ["" if one is None else shown(one).text for one in series.amounts_pico_usd],
    }
