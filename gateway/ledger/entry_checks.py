"""What holds of each entry by itself: its lines, its cost, and the entry before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from gateway.ledger.booking import Row
from gateway.ledger.schema import METERS
from pricing.money import Rate, line_cost

_LINE_COLUMNS = 5
"""Of a line without a public price."""


def entry_faults(row: Row, previous: Row | None) -> Iterator[str]:
    """What is wrong with an entry.

    Args:
        row: The entry, columns as in `spend_event`.
        previous: The one before it, ordered by event and entry; None for the first.
    """
    yield from _line_faults(row)
    if row["entry"] == 0:
        return
    if previous is None or previous["event_id"] != row["event_id"]:
        yield f"event {_name(row)} has a later entry without a first one"
    elif not previous["is_lost"]:
        yield f"event {_name(row)} is settled twice"


def _line_faults(row: Row) -> Iterator[str]:
    """Whether each line is its units at its rate, and the cost is the lines' sum."""
    lines = cast("Sequence[tuple[str, int, int, int, int, int, int, int]]", row["lines"])
    charged: dict[str, int] = dict.fromkeys(METERS, 0)
    for meter, units, rate_pico_usd, per_units, cost_pico_usd, *listed in lines:
        if listed:
            yield from _list_line_faults(row, meter, units, listed)
        charged[meter] = charged.get(meter, 0) + units
        if per_units < 1 or rate_pico_usd < 0 or units < 0:
            yield f"event {_name(row)}: the {meter} line has a rate or count that cannot be"
        elif cost_pico_usd != line_cost(units, Rate(pico_usd=rate_pico_usd, per_units=per_units)):
            yield f"event {_name(row)}: the {meter} line is not its units at its rate"
    for meter, units in charged.items():
        if units and row.get(f"{meter}_units") != units:
            yield f"event {_name(row)}: the {meter} line charges other units than were counted"
    total = sum(line[4] for line in lines)
    if row["cost_pico_usd"] != total and (row["cost_pico_usd"] is not None or lines):
        yield f"event {_name(row)}: the cost is not the sum of its lines"
    listed = [line[7] for line in lines if len(line) > _LINE_COLUMNS]
    has_list_cost = row["list_cost_pico_usd"] is not None
    if has_list_cost != bool(listed) and lines:
        yield f"event {_name(row)}: its lines and its list cost do not belong together"
    elif has_list_cost and row["list_cost_pico_usd"] != sum(listed):
        yield f"event {_name(row)}: the list cost is not the sum of its lines"


def _list_line_faults(row: Row, meter: str, units: int, listed: Sequence[int]) -> Iterator[str]:
    """Whether a line's units at its public rate are its list cost."""
    rate_pico_usd, per_units, cost_pico_usd = listed
    if per_units < 1 or rate_pico_usd < 0:
        yield f"event {_name(row)}: the {meter} line has a public rate that cannot be"
    elif cost_pico_usd != line_cost(units, Rate(pico_usd=rate_pico_usd, per_units=per_units)):
        yield f"event {_name(row)}: the {meter} line is not its units at its public rate"


def _name(row: Row) -> str:
    return cast("bytes", row["event_id"]).hex()
