"""What a batch of settlements adds to the sums, straight from the records.

Events that share a quarter of an hour, every name, status, quality and price are first added up on
their own: per event one group is looked up and only what is not zero is touched. `ledger verify`
and the tests recompute all of it from the rows, with `RollUps.add` and `MeterSums.add`.
"""

from __future__ import annotations

from gateway.ledger.booking import DimensionIds, Named
from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.meter_sums import MeterRate, MeterSums
from gateway.ledger.price_label import is_nominal
from gateway.ledger.records import AttemptStatus, CostLine, Intent, Settlement
from gateway.ledger.roll_ups import SUM_COLUMNS, RollUps
from gateway.ledger.schema import AMOUNTS, COUNTS, METERS
from pricing.usage import Quality

_AT = {column: index for index, column in enumerate(SUM_COLUMNS)}
_REQUESTS, _ATTEMPTS, _UNPRICED, _LISTED, _REPORTED, _UNBOUNDED, _COMPARED, _UNCOMPARED = (
    _AT[column] for column in COUNTS
)
(
    _COST,
    _LIST_COST,
    _PROVIDER_COST,
    _ESTIMATED,
    _NOMINAL,
    _EXPOSURE,
    _SAVED,
    _BASELINE_COST,
    _COMPARED_COST,
) = (_AT[column] for column in AMOUNTS)
_METER_AT = {meter: _AT[f"{meter}_units"] for meter in METERS}
_CERTAIN = frozenset({Quality.EXACT.value, Quality.PROVIDER_COST.value})
_UNKNOWN_BILLING = AttemptStatus.UNKNOWN_BILLING.value
_UNKNOWN_QUALITY = Quality.UNKNOWN.value

_Place = tuple[int, Named, str, str, str]
"""Quarter of an hour, names, status, quality, version of the price."""
_LineRate = tuple[str, int, int, int | None, int | None]
"""A `MeterRate` without the version of the price."""


class SettledSums:
    """Sums of events by what they share; ids of names are looked at by `fold` only."""

    def __init__(self) -> None:
        self._groups: dict[_Place, tuple[list[int], dict[_LineRate, list[int]]]] = {}

    def add(
        self, settlement: Settlement, intent: Intent, named: Named, exposure_pico_usd: int | None
    ) -> None:
        """Count an event in.

        Args:
            settlement: Of the event.
            intent: Likewise.
            named: What the intent names.
            exposure_pico_usd: What the event's row keeps.
        """
        status, quality = settlement.status, settlement.quality
        place = (intent.at_us // QUARTER_US, named, status, quality, intent.price_version)
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = ([0] * len(SUM_COLUMNS), {})
        sums, lines = group
        sums[_ATTEMPTS] += 1
        if intent.attempt == 1:
            sums[_REQUESTS] += 1
        for meter, units in settlement.usage.items():
            sums[_METER_AT[meter]] += units
        _add_costs(sums, settlement)
        if exposure_pico_usd is not None:
            sums[_EXPOSURE] += exposure_pico_usd
        elif status == _UNKNOWN_BILLING or quality == _UNKNOWN_QUALITY:
            sums[_UNBOUNDED] += 1
        for line in settlement.lines:
            _add_line(lines, line)

    def fold(self, roll_ups: RollUps, meters: MeterSums) -> None:
        """Add everything to the cells of the roll-ups."""
        for (quarter, named, status, quality, version), (amounts, lines) in self._groups.items():
            ids = named.ids
            assert ids is not None, "looked up before"
            at_us = quarter * QUARTER_US
            cost_pico_usd = amounts[_COST]
            amounts[_ESTIMATED] = 0 if quality in _CERTAIN else cost_pico_usd
            amounts[_NOMINAL] = cost_pico_usd if is_nominal(version) else 0
            quality_code = QUALITY_CODES[Quality(quality)]
            dimensions = (
                *_dimensions(ids),
                ids.tags_id,
                STATUS_CODES[AttemptStatus(status)],
                quality_code,
            )
            roll_ups.add_sums(at_us, ids.key_id, ids.cost_tag_ids, dimensions, amounts)
            place = (at_us - at_us % DAY_US, *_dimensions(ids), quality_code)
            for rate, sums in lines.items():
                meters.add_amounts(place, MeterRate(*rate, version), sums)


def _dimensions(ids: DimensionIds) -> tuple[int, int, int, int]:
    return (ids.team_id, ids.project_id, ids.model_id, ids.deployment_id)


def _add_costs(sums: list[int], settlement: Settlement) -> None:
    cost_pico_usd = settlement.cost_pico_usd
    if cost_pico_usd is None:
        sums[_UNPRICED] += 1
    else:
        sums[_COST] += cost_pico_usd
    if settlement.list_cost_pico_usd is not None:
        sums[_LISTED] += 1
        sums[_LIST_COST] += settlement.list_cost_pico_usd
    elif cost_pico_usd is not None:
        sums[_LIST_COST] += cost_pico_usd
    if settlement.provider_cost_pico_usd is not None:
        sums[_REPORTED] += 1
        sums[_PROVIDER_COST] += settlement.provider_cost_pico_usd
    if settlement.cache_saved_pico_usd is not None:
        sums[_SAVED] += settlement.cache_saved_pico_usd
    if settlement.baseline:
        _add_baseline(sums, settlement)


def _add_baseline(sums: list[int], settlement: Settlement) -> None:
    if settlement.baseline_cost_pico_usd is None:
        sums[_UNCOMPARED] += 1
    else:
        sums[_COMPARED] += 1
        sums[_BASELINE_COST] += settlement.baseline_cost_pico_usd
        sums[_COMPARED_COST] += settlement.cost_pico_usd or 0


def _add_line(cells: dict[_LineRate, list[int]], line: CostLine) -> None:
    """Count a line in, amounts in the order of `METER_SUMS`."""
    cost_pico_usd, list_cost_pico_usd = line.cost_pico_usd, line.list_cost_pico_usd
    if list_cost_pico_usd is None:
        list_cost_pico_usd = cost_pico_usd
        rate = (line.meter, line.rate_pico_usd, line.rate_per_units, None, None)
    else:
        rate = (
            line.meter,
            line.rate_pico_usd,
            line.rate_per_units,
            line.list_rate_pico_usd,
            line.list_rate_per_units,
        )
    cell = cells.get(rate)
    if cell is None:
        cells[rate] = [1, line.units, cost_pico_usd, list_cost_pico_usd]
    else:
        cell[0] += 1
        cell[1] += line.units
        cell[2] += cost_pico_usd
        cell[3] += list_cost_pico_usd
