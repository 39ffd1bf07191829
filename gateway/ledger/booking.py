"""From records to rows: pure functions, and the checks that make a record bookable."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.records import AttemptStatus, CostLine, Intent, Record, Settlement
from gateway.ledger.schema import EVENT_PICO_USD_MAX, METERS
from pricing.usage import Quality

Value = int | bytes | str | bool | list[list[str | int]] | None
Row = dict[str, Value]
"""A row by column name."""
Values = tuple[int | bytes | str | bool | None, ...]
"""Columns of a row in a fixed order, as SQLite takes them."""

_COUNT_MAX = 2**53
_SMALL_MAX = 2**15 - 1

INTENT_COLUMNS = (
    "event_id",
    "at_us",
    "request_id",
    "attempt",
    "team_id",
    "project_id",
    "key_id",
    "model_id",
    "deployment_id",
    "tags_id",
    "cost_tags_id",
    "route",
    "is_stream",
    "reason",
    "price_version",
)
"""What an event takes from its intent, whatever happens to the attempt."""
SETTLED_COLUMNS = (
    "settled_at_us",
    "status",
    "is_lost",
    "quality",
    "lines",
    "cost_pico_usd",
    "provider_cost_pico_usd",
    "exposure_pico_usd",
    "http_status",
    "error_code",
    "upstream_request_id",
    "finish_reason",
    "ttft_us",
    "duration_us",
    *(f"{meter}_units" for meter in METERS),
)
EVENT_COLUMNS = (*INTENT_COLUMNS, "entry", *SETTLED_COLUMNS)
"""The order in which this module builds rows."""

_STATUS_CODES = {status.value: code for status, code in STATUS_CODES.items()}
_QUALITY_CODES = {quality.value: code for quality, code in QUALITY_CODES.items()}
_METERS = frozenset(METERS)
_UNKNOWN_QUALITY = Quality.UNKNOWN.value
_UNKNOWN_BILLING = AttemptStatus.UNKNOWN_BILLING.value
_NO_UNITS = (0,) * len(METERS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DimensionIds:
    """Interned ids of what an intent names; one object for equal names, compared by identity."""

    team_id: int
    project_id: int
    key_id: int
    model_id: int
    deployment_id: int
    tags_id: int
    cost_tags_id: int


def intent_values(intent: Intent, ids: DimensionIds) -> Values:
    """The part of a row that comes from the intent, in the order of `INTENT_COLUMNS`."""
    return (
        intent.event_id,
        intent.at_us,
        intent.request_id,
        intent.attempt,
        ids.team_id,
        ids.project_id,
        ids.key_id,
        ids.model_id,
        ids.deployment_id,
        ids.tags_id,
        ids.cost_tags_id,
        intent.route,
        intent.is_stream,
        intent.reason,
        intent.price_version,
    )


def kept_exposure(settlement: Settlement, exposure_pico_usd: int | None) -> int | None:
    """The exposure that stays on a settled event: only where the bill is unknown.

    That is also a stream that broke, or was cut, before anything could be counted: nothing is
    booked for it, and what it may still cost must not be forgotten.
    """
    is_unknown = settlement.quality == _UNKNOWN_QUALITY or settlement.status == _UNKNOWN_BILLING
    return exposure_pico_usd if is_unknown else None


def settled_values(settlement: Settlement, exposure_pico_usd: int | None) -> Values:
    """The part of a row that comes from the settlement, in the order of `SETTLED_COLUMNS`.

    Args:
        settlement: One without a `fault`.
        exposure_pico_usd: What `kept_exposure` says.
    """
    usage = settlement.usage
    return (
        settlement.settled_at_us,
        _STATUS_CODES[settlement.status],
        False,
        _QUALITY_CODES[settlement.quality],
        _lines_document(settlement.lines),
        settlement.cost_pico_usd,
        settlement.provider_cost_pico_usd,
        exposure_pico_usd,
        settlement.http_status,
        settlement.error_code,
        settlement.upstream_request_id,
        settlement.finish_reason,
        settlement.ttft_us,
        settlement.duration_us,
        *[usage.get(meter, 0) for meter in METERS],
    )


def lost_values(*, now_us: int, exposure_pico_usd: int | None) -> Values:
    """An attempt that will not settle: nothing booked, exposure kept (`finance_policy.md` 2.4)."""
    return (
        now_us,
        STATUS_CODES[AttemptStatus.UNKNOWN_BILLING],
        True,
        QUALITY_CODES[Quality.UNKNOWN],
        _lines_document(()),
        0,
        None,
        exposure_pico_usd,
        0,
        "lost",
        "",
        "",
        None,
        0,
        *_NO_UNITS,
    )


def row_of(values: Values) -> Row:
    """A row by column name; its lines stay a JSON text."""
    return dict(zip(EVENT_COLUMNS, values, strict=True))


def expires_at_us(intent: Intent, *, grace_s: float) -> int:
    """When an unsettled intent counts as lost although its writer lives."""
    return intent.at_us + int((intent.lifetime_s + grace_s) * 1e6)


def fault(record: Record) -> str | None:
    """Why a record cannot be booked, as a phrase; None when it can."""
    return _intent_fault(record) if isinstance(record, Intent) else _settlement_fault(record)


def _lines_document(lines: tuple[CostLine, ...]) -> str:
    return msgspec.json.encode(
        [
            (line.meter, line.units, line.rate_pico_usd, line.rate_per_units, line.cost_pico_usd)
            for line in lines
        ]
    ).decode()


def _intent_fault(intent: Intent) -> str | None:
    exposure = intent.exposure_pico_usd
    if len(intent.event_id) != 16 or len(intent.request_id) != 16:
        return "an id is not 16 bytes"
    if not 0 <= intent.at_us < _COUNT_MAX:
        return "the instant is out of range"
    if not 1 <= intent.attempt <= _SMALL_MAX:
        return "the attempt number is out of range"
    if exposure is not None and not 0 <= exposure <= EVENT_PICO_USD_MAX:
        return "the exposure is out of range"
    if not (math.isfinite(intent.lifetime_s) and 0 <= intent.lifetime_s <= 1e9):
        return "the lifetime is out of range"
    return None


def _settlement_fault(settlement: Settlement) -> str | None:
    if len(settlement.event_id) != 16:
        return "the id is not 16 bytes"
    if settlement.status not in _STATUS_CODES:
        return "the status is unknown"
    if settlement.quality not in _QUALITY_CODES:
        return "the quality is unknown"
    if not settlement.usage.keys() <= _METERS:
        return "a meter is unknown"
    lines = settlement.lines
    counts = (
        settlement.settled_at_us,
        settlement.duration_us,
        settlement.ttft_us or 0,
        *settlement.usage.values(),
        *[line.units for line in lines],
    )
    if min(counts) < 0 or max(counts) >= _COUNT_MAX:
        return "a count is out of range"
    return _amount_fault(settlement)


def _amount_fault(settlement: Settlement) -> str | None:
    lines = settlement.lines
    cost_pico_usd = settlement.cost_pico_usd
    amounts = (
        cost_pico_usd or 0,
        settlement.provider_cost_pico_usd or 0,
        *[line.rate_pico_usd for line in lines],
        *[line.rate_per_units for line in lines],
    )
    if min(amounts) < 0 or max(amounts) > EVENT_PICO_USD_MAX:
        return "an amount is out of range"
    if not 0 <= settlement.http_status <= _SMALL_MAX:
        return "the HTTP status is out of range"
    # An unpriced event has neither cost nor lines.
    total_pico_usd = sum([line.cost_pico_usd for line in lines])
    adds_up = not lines if cost_pico_usd is None else total_pico_usd == cost_pico_usd
    return None if adds_up else "the lines do not add up to the cost"
