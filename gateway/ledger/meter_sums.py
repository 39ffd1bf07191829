"""What the lines of events add to the roll-up by meter: pure sums, shared like those of `roll_ups`.

A line says that some units of a meter were charged at a rate. Its cell is the UTC day, the owner,
the place, the quality, and the meter at its exact rate, so that quantity times rate can be shown
and checked. Units that no line charges (of attempts without a price, of meters that a price does
not charge) are in the other roll-ups only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from gateway.ledger.booking import Value
from gateway.ledger.grains import DAY_US
from gateway.ledger.roll_ups import whole
from gateway.ledger.schema import METER_DIMENSIONS, METER_SUMS


class MeterRate(NamedTuple):
    """A meter at a rate, as a line of an event charged it.

    Attributes:
        meter: Name of a `Meter`.
        rate_pico_usd: What is charged for every `rate_per_units` units.
        rate_per_units: At least 1.
        list_rate_pico_usd: The public price of every `list_rate_per_units` units; None where none
            is known apart from what is charged.
        list_rate_per_units: At least 1; None like the list rate.
        price_version: As events have it.
    """

    meter: str
    rate_pico_usd: int
    rate_per_units: int
    list_rate_pico_usd: int | None
    list_rate_per_units: int | None
    price_version: str


MeterPlace = tuple[int, ...]
"""The first microsecond of a UTC day, then the values of `schema.METER_DIMENSIONS`."""
MeterCells = dict[tuple[MeterPlace, MeterRate], list[int]]
"""Amounts in the order of `schema.METER_SUMS`."""


class MeterSums:
    """Deltas by cell.

    Attributes:
        cells: What was added so far.
    """

    def __init__(self) -> None:
        self.cells: MeterCells = {}

    def add(self, row: Mapping[str, Value], *, sign: int = 1) -> None:
        """Count the lines of an event in, or out with `sign` -1; they may be a JSON text."""
        lines = row["lines"]
        if isinstance(lines, str):
            lines = cast("list[list[str | int]]", msgspec.json.decode(lines))
        at_us = whole(row, "at_us")
        place = (at_us - at_us % DAY_US, *(whole(row, name) for name in METER_DIMENSIONS))
        version = str(row["price_version"])
        for line in cast("Sequence[Sequence[int]]", lines):
            _, units, rate_pico_usd, per_units, cost_pico_usd, *listed = line
            list_rate, list_per_units, list_cost_pico_usd = listed or (None, None, cost_pico_usd)
            rate = MeterRate(
                str(line[0]), rate_pico_usd, per_units, list_rate, list_per_units, version
            )
            amounts = (1, units, cost_pico_usd, list_cost_pico_usd)
            self.add_amounts(place, rate, [sign * amount for amount in amounts])

    def add_amounts(self, place: MeterPlace, rate: MeterRate, amounts: Sequence[int]) -> None:
        """Add to a cell."""
        cell = self.cells.setdefault((place, rate), [0] * len(METER_SUMS))
        for index, amount in enumerate(amounts):
            cell[index] += amount

    def rates(self) -> Iterable[MeterRate]:
        """Every rate that a cell is of, once, in an order that all loaders share."""
        return sorted({rate for _, rate in self.cells}, key=_order)


def _order(rate: MeterRate) -> tuple[object, ...]:
    return tuple((value is not None, value) for value in rate)
