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


def lines(labels: Sequence[str], series: Sequence[Series], *, label: str) -> Figure:
    """Lines over labels; `label` says what the labels are."""
    return {
        "kind": "lines",
        "unit": "USD",
        "label": label,
        "labels": list(labels),
        "series": [_series(one) for one in series],
    }


def _series(series: Series) -> Figure:
    return {
        "name": series.name,
        "dashed": series.is_dashed,
        "values": [None if one is None else one / PICO_PER_USD for one in series.amounts_pico_usd],
        "texts": ["" if one is None else shown(one).text for one in series.amounts_pico_usd],
    }
