"""From records to rows and sums: pure functions, shared by the loader and by `ledger verify`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.price_label import is_nominal
from gateway.ledger.records import AttemptStatus, Intent, Record, Settlement
from gateway.ledger.schema import EVENT_PICO_USD_MAX, METERS
from pricing.usage import Quality

Value = int | bytes | str | bool | list[list[str | int]] | None
Row = dict[str, Value]
"""A row by column name."""

QUARTER_US = 15 * 60 * 1_000_000
DAY_US = 24 * 3_600 * 1_000_000
_COUNT_MAX = 2**53
_SMALL_MAX = 2**15 - 1

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

_UNKNOWN_BILLING = STATUS_CODES[AttemptStatus.UNKNOWN_BILLING]
_CERTAIN = frozenset({QUALITY_CODES[Quality.EXACT], QUALITY_CODES[Quality.PROVIDER_COST]})


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionIds:
    """Interned ids of what an intent names."""

    team_id: int
    project_id: int
    key_id: int
    model_id: int
    deployment_id: int
    tags_id: int
    cost_tags_id: int


def fault(record: Record) -> str | None:
    """Why a record cannot be booked, as a phrase; None when it can."""
    return _intent_fault(record) if isinstance(record, Intent) else _settlement_fault(record)


def intent_columns(intent: Intent, ids: DimensionIds) -> Row:
    """What an event takes from its intent, whatever happens to the attempt."""
    return {
        "event_id": intent.event_id,
        "at_us": intent.at_us,
        "request_id": intent.request_id,
        "attempt": intent.attempt,
        "team_id": ids.team_id,
        "project_id": ids.project_id,
        "key_id": ids.key_id,
        "model_id": ids.model_id,
        "deployment_id": ids.deployment_id,
        "tags_id": ids.tags_id,
        "cost_tags_id": ids.cost_tags_id,
        "route": intent.route,
        "is_stream": intent.is_stream,
        "reason": intent.reason,
        "price_version": intent.price_version,
    }


def settled_columns(settlement: Settlement, *, exposure_pico_usd: int | None) -> Row:
    """What an event takes from its settlement; exposure only where the bill is unknown.

    That is also a stream that broke, or was cut, before anything could be counted: nothing is
    booked for it, and what it may still cost must not be forgotten.
    """
    is_unknown = (
        settlement.status == AttemptStatus.UNKNOWN_BILLING or settlement.quality == Quality.UNKNOWN
    )
    return {
        "settled_at_us": settlement.settled_at_us,
        "status": STATUS_CODES[AttemptStatus(settlement.status)],
        "is_lost": False,
        "quality": QUALITY_CODES[Quality(settlement.quality)],
        **{f"{meter}_units": settlement.usage.get(meter, 0) for meter in METERS},
        "lines": [
            [
                line.meter,
                line.units,
                line.rate_pico_usd,
                line.rate_per_units,
                line.cost_pico_usd,
            ]
            for line in settlement.lines
        ],
        "cost_pico_usd": settlement.cost_pico_usd,
        "provider_cost_pico_usd": settlement.provider_cost_pico_usd,
        "exposure_pico_usd": exposure_pico_usd if is_unknown else None,
        "http_status": settlement.http_status,
        "error_code": settlement.error_code,
        "upstream_request_id": settlement.upstream_request_id,
        "finish_reason": settlement.finish_reason,
        "ttft_us": settlement.ttft_us,
        "duration_us": settlement.duration_us,
    }


def lost_columns(*, now_us: int, exposure_pico_usd: int | None) -> Row:
    """An attempt that will not settle: nothing booked, exposure kept (`finance_policy.md` 2.4)."""
    return {
        "settled_at_us": now_us,
        "status": _UNKNOWN_BILLING,
        "is_lost": True,
        "quality": QUALITY_CODES[Quality.UNKNOWN],
        **{f"{meter}_units": 0 for meter in METERS},
        "lines": [],
        "cost_pico_usd": 0,
        "provider_cost_pico_usd": None,
        "exposure_pico_usd": exposure_pico_usd,
        "http_status": 0,
        "error_code": "lost",
        "upstream_request_id": "",
        "finish_reason": "",
        "ttft_us": None,
        "duration_us": 0,
    }


def expires_at_us(intent: Intent, *, grace_s: float) -> int:
    """When an unsettled intent counts as lost although its writer lives."""
    return intent.at_us + int((intent.lifetime_s + grace_s) * 1e6)


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

    def add(self, row: Mapping[str, Value], *, sign: int = 1) -> None:
        """Count an event in, or out with `sign` -1."""
        amounts = sums(row)
        for cells, key in ((self.quarter_hours, qh_key(row)), (self.days, day_key(row))):
            cell = cells.setdefault(key, [0] * len(amounts))
            for index, amount in enumerate(amounts):
                cell[index] += sign * amount


def _intent_fault(intent: Intent) -> str | None:
    ids_fit = len(intent.event_id) == 16 and len(intent.request_id) == 16
    exposure = intent.exposure_pico_usd
    claims = {
        "an id is not 16 bytes": ids_fit,
        "the instant is out of range": 0 <= intent.at_us < _COUNT_MAX,
        "the attempt number is out of range": 1 <= intent.attempt <= _SMALL_MAX,
        "the exposure is out of range": exposure is None or 0 <= exposure <= EVENT_PICO_USD_MAX,
        "the lifetime is out of range": math.isfinite(intent.lifetime_s)
        and 0 <= intent.lifetime_s <= 1e9,
    }
    return next((phrase for phrase, holds in claims.items() if not holds), None)


def _settlement_fault(settlement: Settlement) -> str | None:
    numbers = (
        settlement.settled_at_us,
        settlement.duration_us,
        settlement.ttft_us or 0,
        *settlement.usage.values(),
        *(line.units for line in settlement.lines),
    )
    amounts = (
        settlement.cost_pico_usd or 0,
        settlement.provider_cost_pico_usd or 0,
        *(line.rate_pico_usd for line in settlement.lines),
        *(line.rate_per_units for line in settlement.lines),
    )
    claims = {
        "the id is not 16 bytes": len(settlement.event_id) == 16,
        "the status is unknown": settlement.status in STATUS_CODES,
        "the quality is unknown": settlement.quality in QUALITY_CODES,
        "a meter is unknown": all(meter in METERS for meter in settlement.usage),
        "a count is out of range": all(0 <= number < _COUNT_MAX for number in numbers),
        "an amount is out of range": all(0 <= amount <= EVENT_PICO_USD_MAX for amount in amounts),
        "the HTTP status is out of range": 0 <= settlement.http_status <= _SMALL_MAX,
        "the lines do not add up to the cost": _adds_up(settlement),
    }
    return next((phrase for phrase, holds in claims.items() if not holds), None)


def _adds_up(settlement: Settlement) -> bool:
    """Whether the lines sum to the cost; an unpriced event has neither."""
    if settlement.cost_pico_usd is None:
        return not settlement.lines
    return sum(line.cost_pico_usd for line in settlement.lines) == settlement.cost_pico_usd
