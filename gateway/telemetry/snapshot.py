"""A process's numbers at one moment, how they travel between processes and how they add up.

A worker that ends takes its numbers with it, and a sum that goes backwards looks to Prometheus like
a restart of everything. So what ended workers counted stays in the sum; their gauges do not.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.telemetry.families import FAMILIES, Kind


class Series(msgspec.Struct, frozen=True, array_like=True):
    """One metric with one set of label values.

    Attributes:
        family: Name in `FAMILIES`.
        labels: Values in the order of the family's label names.
        values: `Family.width` numbers.
    """

    family: str
    labels: tuple[str, ...]
    values: list[float]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one worker counted.

    Attributes:
        source: Names the process for as long as it runs and never again; empty in tests.
        series: In no order.
    """

    source: str = ""
    series: list[Series] = []


class Totals:
    """Adds snapshots up."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[str, ...]], list[float]] = {}

    def add(self, series: Iterable[Series], *, is_alive: bool = True) -> None:
        """Add what a process told; a series that no family describes is left out.

        Args:
            series: The process's numbers; not kept and not changed.
            is_alive: Gauges of an ended process are left out.
        """
        for one in series:
            family = FAMILIES.get(one.family)
            if family is None or not _fits(one):
                continue
            if not is_alive and family.kind in (Kind.GAUGE, Kind.MAXIMUM):
                continue
            key = (one.family, one.labels)
            known = self._values.get(key)
            if known is None:
                self._values[key] = list(one.values)
            elif family.kind is Kind.MAXIMUM:
                known[0] = max(known[0], one.values[0])
            else:
                for place, value in enumerate(one.values):
                    known[place] += value

    def series(self) -> list[Series]:
        """The sums."""
        return [
            Series(family, labels, list(values))
            for (family, labels), values in self._values.items()
        ]


def _fits(series: Series) -> bool:
    family = FAMILIES[series.family]
    return len(series.labels) == len(family.labels) and len(series.values) == family.width
