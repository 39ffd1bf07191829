"""What events add to the roll-ups: pure sums, shared by the loader and by `ledger verify`.

There are three families of sums, each by quarter-hour and by UTC day: of everything, of each key,
and of each cost tag that is listed. Within a family each event counts once per cell; a request with
two listed tags counts once under each of them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.booking import Row, Value
from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.price_label import is_nominal
from gateway.ledger.records import AttemptStatus
from pricing.usage import Quality

DIMENSIONS = (*schema.ROLL_UP_DIMENSIONS, *schema.ROLL_UP_CODES)
"""What every roll-up is by, apart from its time and what its family is of."""
SUM_COLUMNS = (*schema.COUNTS, *schema.UNITS, *schema.AMOUNTS)
"""Columns of a roll-up that add up, in the order of `sums`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RollUpTable:
    """One of the tables of sums.

    Attributes:
        table: Where it is.
        width_us: Of its cells in time.
        of: What its family is of; None for everything.
    """

    table: sa.Table
    width_us: int
    of: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that name a cell: its beginning first, `DIMENSIONS` last."""
        return ("bucket_us", *(() if self.of is None else (self.of,)), *DIMENSIONS)


ROLL_UPS = tuple(
    RollUpTable(table=table, width_us=width_us, of=of)
    for of, fine, coarse in (
        (None, schema.rollup_qh, schema.rollup_day),
        ("key_id", schema.rollup_key_qh, schema.rollup_key_day),
        ("cost_tag_id", schema.rollup_tag_qh, schema.rollup_tag_day),
    )
    for table, width_us in ((fine, QUARTER_US), (coarse, DAY_US))
)
"""Every table of sums, the finer one of each family first."""

Cells = dict[tuple[int, ...], list[int]]

_CERTAIN = frozenset({QUALITY_CODES[Quality.EXACT], QUALITY_CODES[Quality.PROVIDER_COST]})
_UNKNOWN_BILLING = STATUS_CODES[AttemptStatus.UNKNOWN_BILLING]
_UNKNOWN_QUALITY = QUALITY_CODES[Quality.UNKNOWN]


def sums(row: Mapping[str, Value]) -> tuple[int, ...]:
    """What an event adds to a roll-up, in the order of `SUM_COLUMNS`."""
    cost_pico_usd = whole(row, "cost_pico_usd")
    has_list_cost = row["list_cost_pico_usd"] is not None
    is_unknown = row["status"] == _UNKNOWN_BILLING or row["quality"] == _UNKNOWN_QUALITY
    is_compared = row["baseline_cost_pico_usd"] is not None
    return (
        int(row["attempt"] == 1),
        1,
        int(row["cost_pico_usd"] is None),
        int(has_list_cost),
        int(row["provider_cost_pico_usd"] is not None),
        int(is_unknown and row["exposure_pico_usd"] is None),
        int(is_compared),
        int(row["baseline"] is not None and not is_compared),
        *(whole(row, column) for column in schema.UNITS),
        cost_pico_usd,
        whole(row, "list_cost_pico_usd") if has_list_cost else cost_pico_usd,
        whole(row, "provider_cost_pico_usd"),
        0 if row["quality"] in _CERTAIN else cost_pico_usd,
        cost_pico_usd if is_nominal(str(row["price_version"])) else 0,
        whole(row, "exposure_pico_usd"),
        whole(row, "cache_saved_pico_usd"),
        whole(row, "baseline_cost_pico_usd"),
        cost_pico_usd if is_compared else 0,
    )


def whole(row: Mapping[str, Value], name: str) -> int:
    """An integer column; 0 for null."""
    value = row[name]
    assert value is None or isinstance(value, int)
    return value or 0


class RollUps:
    """Deltas by cell of each table of sums.

    Attributes:
        cells: Amounts in the order of `SUM_COLUMNS`, by the name of the table and the values of its
            `key`.
    """

    def __init__(self) -> None:
        self.cells: dict[str, Cells] = {one.table.name: {} for one in ROLL_UPS}

    def add(self, row: Row, cost_tag_ids: Sequence[int], *, sign: int = 1) -> None:
        """Count an event in, or out with `sign` -1.

        Args:
            row: Of the event.
            cost_tag_ids: Those of its cost tags that have sums of their own.
            sign: 1 or -1.
        """
        self.add_sums(
            whole(row, "at_us"),
            whole(row, "key_id"),
            cost_tag_ids,
            tuple(whole(row, name) for name in DIMENSIONS),
            [sign * amount for amount in sums(row)],
        )

    def add_sums(
        self,
        at_us: int,
        key_id: int,
        cost_tag_ids: Sequence[int],
        dimensions: tuple[int, ...],
        amounts: Sequence[int],
    ) -> None:
        """Add amounts to a cell of each table, and to one per cost tag.

        Args:
            at_us: Any instant of the cell's quarter of an hour.
            key_id: Of the key.
            cost_tag_ids: Of the listed cost tags.
            dimensions: In the order of `DIMENSIONS`.
            amounts: In the order of `SUM_COLUMNS`.
        """
        for one in ROLL_UPS:
            start_us = at_us - at_us % one.width_us
            cells = self.cells[one.table.name]
            if one.of is None:
                _add(cells, (start_us, *dimensions), amounts)
            elif one.of == "key_id":
                _add(cells, (start_us, key_id, *dimensions), amounts)
            else:
                for cost_tag_id in cost_tag_ids:
                    _add(cells, (start_us, cost_tag_id, *dimensions), amounts)


def _add(cells: Cells, place: tuple[int, ...], amounts: Sequence[int]) -> None:
    cell = cells.get(place)
    if cell is None:
        cells[place] = list(amounts)
    else:
        cells[place] = [*map(operator.add, cell, amounts)]
