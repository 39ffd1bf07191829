"""What events add to the roll-ups: pure sums, shared by the loader and by `ledger verify`."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.ledger.booking import DimensionIds, Row, Value
from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.price_label import is_nominal
from gateway.ledger.records import AttemptStatus, Intent, Settlement
from gateway.ledger.schema import METERS
from pricing.usage import Quality

QUARTER_US = 15 * 60 * 1_000_000
DAY_US = 24 * 3_600 * 1_000_000

SUM_COLUMNS = (
    "request_count",
    "attempt_count",
    "unpriced_count",
    *(f"{meter}_units" for meter in METERS),
    "cost_pico_usd",
    "estimated_pico_usd",
    "nominal_pico_usd",
    "exposure_pico_usd",
)
"""Columns of a roll-up that add up, in the order of `sums`."""
QH_KEY = ("bucket_us", "team_id", "project_id", "model_id", "deployment_id", "status")
DAY_KEY = ("day_us", "key_id", "team_id", "deployment_id")

_REQUESTS, _ATTEMPTS, _UNPRICED = range(3)
_METER_AT = {meter: index for index, meter in enumerate(METERS, start=3)}
_COST, _ESTIMATED, _NOMINAL, _EXPOSURE = range(3 + len(METERS), len(SUM_COLUMNS))
_CERTAIN = frozenset({QUALITY_CODES[Quality.EXACT], QUALITY_CODES[Quality.PROVIDER_COST]})
_CERTAIN_NAMES = frozenset({Quality.EXACT.value, Quality.PROVIDER_COST.value})


def sums(row: Mapping[str, Value]) -> tuple[int, ...]:
    """What an event adds to a roll-up, in the order of `SUM_COLUMNS`."""
    cost_pico_usd = whole(row, "cost_pico_usd")
    return (
        int(row["attempt"] == 1),
        1,
        int(row["cost_pico_usd"] is None),
        *(whole(row, f"{meter}_units") for meter in METERS),
        cost_pico_usd,
        0 if row["quality"] in _CERTAIN else cost_pico_usd,
        cost_pico_usd if is_nominal(str(row["price_version"])) else 0,
        whole(row, "exposure_pico_usd"),
    )


def qh_key(row: Mapping[str, Value]) -> tuple[int, ...]:
    """The quarter-hour cell of an event, in the order of `QH_KEY`."""
    at_us = whole(row, "at_us")
    return (at_us - at_us % QUARTER_US, *(whole(row, name) for name in QH_KEY[1:]))


def day_key(row: Mapping[str, Value]) -> tuple[int, ...]:
    """The day cell of an event, in the order of `DAY_KEY`."""
    at_us = whole(row, "at_us")
    return (at_us - at_us % DAY_US, *(whole(row, name) for name in DAY_KEY[1:]))


def whole(row: Mapping[str, Value], name: str) -> int:
    """An integer column; 0 for null."""
    value = row[name]
    assert value is None or isinstance(value, int)
    return value or 0


class RollUps:
    """Deltas by cell, summed in Python integers."""

    def __init__(self) -> None:
        self.quarter_hours: dict[tuple[int, ...], list[int]] = {}
        self.days: dict[tuple[int, ...], list[int]] = {}

    def add(self, row: Row, *, sign: int = 1) -> None:
        """Count an event in, or out with `sign` -1."""
        self.add_sums(qh_key(row), day_key(row), [sign * amount for amount in sums(row)])

    def add_sums(
        self, quarter_hour: tuple[int, ...], day: tuple[int, ...], amounts: list[int]
    ) -> None:
        """Add amounts to a cell of each kind."""
        for cells, key in ((self.quarter_hours, quarter_hour), (self.days, day)):
            cell = cells.get(key)
            cells[key] = (
                list(amounts)
                if cell is None
                else [old + added for old, added in zip(cell, amounts, strict=True)]
            )


class SettledSums:
    """The same sums for a batch of settlements, straight from the records.

    Events that share every dimension, quarter of an hour and status are first added up on their
    own: per event only what is not zero is touched. `ledger verify` and the tests recompute all of
    it from the rows with `RollUps.add`.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, DimensionIds, str], list[int]] = {}

    def add(
        self, intent: Intent, ids: DimensionIds, settlement: Settlement, exposure_pico_usd: int
    ) -> None:
        """Count an event in; `exposure_pico_usd` is what its row keeps, 0 for null."""
        place = (intent.at_us // QUARTER_US, ids, settlement.status)
        cell = self._cells.get(place)
        if cell is None:
            cell = self._cells[place] = [0] * len(SUM_COLUMNS)
        cell[_ATTEMPTS] += 1
        if intent.attempt == 1:
            cell[_REQUESTS] += 1
        for meter, units in settlement.usage.items():
            cell[_METER_AT[meter]] += units
        cost_pico_usd = settlement.cost_pico_usd
        if cost_pico_usd is None:
            cell[_UNPRICED] += 1
        else:
            cell[_COST] += cost_pico_usd
            if settlement.quality not in _CERTAIN_NAMES:
                cell[_ESTIMATED] += cost_pico_usd
            if is_nominal(intent.price_version):
                cell[_NOMINAL] += cost_pico_usd
        cell[_EXPOSURE] += exposure_pico_usd

    def fold(self, into: RollUps) -> None:
        """Add everything to the cells of the roll-ups."""
        for (quarter, ids, status), amounts in self._cells.items():
            quarter_us = quarter * QUARTER_US
            into.add_sums(
                (
                    quarter_us,
                    ids.team_id,
                    ids.project_id,
                    ids.model_id,
                    ids.deployment_id,
                    STATUS_CODES[AttemptStatus(status)],
                ),
                (quarter_us - quarter_us % DAY_US, ids.key_id, ids.team_id, ids.deployment_id),
                amounts,
            )
