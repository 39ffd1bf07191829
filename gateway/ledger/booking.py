"""From records to rows: pure functions, and the checks that make a record bookable."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from gateway.ledger.columns import QUALITY_CODES, STATUS_CODES
from gateway.ledger.records import AttemptStatus, CostLine, Intent, Record, Settlement
from gateway.ledger.schema import METERS
from pricing.usage import Quality

Value = int | bytes | str | bool | list[list[str | int]] | None
Row = dict[str, Value]
"""A row by column name."""
Values = tuple[int | bytes | str | bool | None, ...]
"""Columns of a row in a fixed order, as SQLite takes them."""

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
    "list_cost_pico_usd",
    "cache_saved_pico_usd",
    "baseline",
    "baseline_cost_pico_usd",
    *(f"{meter}_units" for meter in METERS),
)
EVENT_COLUMNS = (*INTENT_COLUMNS, "entry", *SETTLED_COLUMNS)
"""The order in which this module builds rows."""

_STATUS_CODES = {status.value: code for status, code in STATUS_CODES.items()}
_QUALITY_CODES = {quality.value: code for quality, code in QUALITY_CODES.items()}
_PLACE = {meter: place for place, meter in enumerate(METERS)}
_UNKNOWN_QUALITY = Quality.UNKNOWN.value
_UNKNOWN_BILLING = AttemptStatus.UNKNOWN_BILLING.value
_encode = msgspec.json.Encoder().encode
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
    cost_tag_ids: tuple[int, ...] = ()
    """Those of the cost tags that have sums of their own."""


@dataclass(slots=True, eq=False)
class Named:
    """Names that intents of a batch share, by one of these intents; compared by identity.

    Attributes:
        intent: Any of them.
        ids: Known once the names were looked up.
        columns: The ids as `INTENT_COLUMNS` has them.
    """

    intent: Intent
    ids: DimensionIds | None = None
    columns: tuple[int, ...] = ()

    def found(self, ids: DimensionIds) -> None:
        """Note the ids."""
        self.ids = ids
        self.columns = (
            ids.team_id,
            ids.project_id,
            ids.key_id,
            ids.model_id,
            ids.deployment_id,
            ids.tags_id,
            ids.cost_tags_id,
        )


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


def before_names(intent: Intent) -> Values:
    """What stands in a row before the ids of the names."""
    return (intent.event_id, intent.at_us, intent.request_id, intent.attempt)


def after_names(intent: Intent, settlement: Settlement, exposure_pico_usd: int | None) -> Values:
    """What stands in a row after the ids of the names: of an attempt that was open, so entry 0."""
    return (
        intent.route,
        intent.is_stream,
        intent.reason,
        intent.price_version,
        0,
        *settled_values(settlement, exposure_pico_usd),
    )


def exposure_of(intent: Intent) -> int | None:
    """What an attempt may cost at most; what it held for that where no quote says more."""
    if intent.exposure_pico_usd is None and intent.hold_pico_usd > 0:
        return intent.hold_pico_usd
    return intent.exposure_pico_usd


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
        settlement.list_cost_pico_usd,
        settlement.cache_saved_pico_usd,
        settlement.baseline or None,
        settlement.baseline_cost_pico_usd,
        *_units(settlement.usage),
    )


def _units(usage: Mapping[str, int]) -> list[int]:
    units = [0] * len(METERS)
    for meter, count in usage.items():
        units[_PLACE[meter]] = count
    return units


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
        None,
        None,
        None,
        None,
        *_NO_UNITS,
    )


def row_of(values: Values) -> Row:
    """A row by column name; its lines stay a JSON text."""
    return dict(zip(EVENT_COLUMNS, values, strict=True))


def expires_at_us(intent: Intent, *, grace_s: float) -> int:
    """When an unsettled intent counts as lost although its writer lives."""
    return intent.at_us + int((intent.lifetime_s + grace_s) * 1e6)


def fault(record: Record) -> str | None:
    """Why a record that was decoded cannot be booked, as a phrase; None when it can."""
    if isinstance(record, Intent):
        return None if math.isfinite(record.lifetime_s) else "the lifetime is no number"
    if record.status not in _STATUS_CODES:
        return "the status is unknown"
    if record.quality not in _QUALITY_CODES:
        return "the quality is unknown"
    if not record.usage.keys() <= _PLACE.keys():
        return "a meter is unknown"
    total_pico_usd = listed_pico_usd = listed = 0
    for line in record.lines:
        if line.meter not in _PLACE:
            return "a line's meter is unknown"
        total_pico_usd += line.cost_pico_usd
        list_cost_pico_usd = line.list_cost_pico_usd
        if list_cost_pico_usd is not None:
            listed_pico_usd += list_cost_pico_usd
            listed += 1
    # An unpriced event has neither cost nor lines.
    is_unpriced = record.cost_pico_usd is None
    adds_up = not record.lines if is_unpriced else total_pico_usd == record.cost_pico_usd
    if not adds_up:
        return "the lines do not add up to the cost"
    # All lines have a public price, which add up, or none has.
    if record.list_cost_pico_usd is None:
        if listed:
            return "a line has a public price, the entry has none"
    elif listed != len(record.lines) or listed_pico_usd != record.list_cost_pico_usd:
        return "the lines do not add up to the list cost"
    return None if record.baseline_cost_pico_usd is None else _baseline_fault(record)


def _baseline_fault(record: Settlement) -> str | None:
    """What is compared has both costs, and names what it is compared with."""
    if not record.baseline:
        return "a baseline cost names no baseline"
    return "a baseline cost stands beside no cost" if record.cost_pico_usd is None else None


def _lines_document(lines: tuple[CostLine, ...]) -> str:
    """Meter, units, rate, its units, cost; then the same three at the public price, if any."""
    return _encode(
        [
            (line.meter, line.units, line.rate_pico_usd, line.rate_per_units, line.cost_pico_usd)
            if line.list_cost_pico_usd is None
            else (
                line.meter,
                line.units,
                line.rate_pico_usd,
                line.rate_per_units,
                line.cost_pico_usd,
                line.list_rate_pico_usd,
                line.list_rate_per_units,
                line.list_cost_pico_usd,
            )
            for line in lines
        ]
    ).decode()
