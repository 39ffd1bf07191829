"""The last requests, one line each: what the first page and `--recent` show; no content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.columns import QUALITIES, STATUSES
from gateway.ledger.schema import METERS
from pricing.usage import Meter

RECENT_MAX = 500
_ATTEMPTS_MAX = 8
_PROMPT_METERS = (Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE)
_ANSWER_METERS = (Meter.OUTPUT, Meter.REASONING)


class RecentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request; its last attempt says how it ended, amounts are of all attempts.

    Attributes:
        request_id: 32 hexadecimal digits.
        at_us: When its first attempt began, microseconds since the epoch.
        team: Empty for the administrator.
        project: Empty for none.
        key_id: Public id of the key.
        model: What was asked for.
        deployment: Where the last attempt went.
        reason: Why that deployment was chosen.
        attempts: How many there were.
        input_tokens: Prompt tokens, cached or not.
        cached_input_tokens: Those read from a cache.
        output_tokens: Generated tokens.
        cost_pico_usd: Sum over the attempts with a known price; None when none has one.
        is_estimated: Whether a count is not the upstream's own.
        ttft_us: Until the first content event, None when there was none.
        duration_us: Of the last attempt.
        status: An `AttemptStatus` value.
        error_code: Empty when all went well.
    """

    request_id: str
    at_us: int
    team: str
    project: str
    key_id: str
    model: str
    deployment: str
    reason: str
    attempts: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_pico_usd: int | None
    is_estimated: bool
    ttft_us: int | None
    duration_us: int
    status: str
    error_code: str


class _Attempt(msgspec.Struct, kw_only=True):
    """The columns of `_attempts`, in any order."""

    request_id: bytes
    attempt: int
    at_us: int
    team: str
    project: str
    key_id: str
    model: str
    deployment: str
    reason: str
    units: dict[str, int]
    cost_pico_usd: int | None
    quality: str
    ttft_us: int | None
    duration_us: int
    status: str
    error_code: str


def recent_requests(connection: sa.Connection, count: int) -> tuple[RecentRequest, ...]:
    """The newest requests with a booked attempt, newest first.

    Args:
        connection: In a transaction.
        count: At most this many, and `RECENT_MAX`.
    """
    at_most = min(count, RECENT_MAX)
    table = schema.spend_event
    # Walks the index on time; a request has a handful of attempts.
    newest = connection.execute(
        sa.select(table.c.request_id).order_by(table.c.at_us.desc()).limit(at_most * _ATTEMPTS_MAX)
    ).scalars()
    order = list(dict.fromkeys(cast("Sequence[bytes]", newest.all())))[:at_most]
    by_request: dict[bytes, list[_Attempt]] = {request_id: [] for request_id in order}
    for attempt in _attempts(connection, order):
        by_request[attempt.request_id].append(attempt)
    return tuple(_summary(by_request[request_id]) for request_id in order)


def _attempts(connection: sa.Connection, request_ids: Sequence[bytes]) -> list[_Attempt]:
    """Attempts of the requests by their highest entry, in order of attempt."""
    event = schema.spend_event
    later = event.alias()
    is_superseded = sa.exists().where(
        later.c.event_id == event.c.event_id, later.c.entry > event.c.entry
    )
    rows = connection.execute(
        sa.select(
            event,
            schema.team.c.name.label("team"),
            schema.project.c.name.label("project"),
            schema.api_key_name.c.key_id.label("key_name"),
            schema.model.c.name.label("model"),
            schema.deployment.c.name.label("deployment"),
        )
        .join(schema.team, schema.team.c.id == event.c.team_id)
        .join(schema.project, schema.project.c.id == event.c.project_id)
        .join(schema.api_key_name, schema.api_key_name.c.id == event.c.key_id)
        .join(schema.model, schema.model.c.id == event.c.model_id)
        .join(schema.deployment, schema.deployment.c.id == event.c.deployment_id)
        .where(event.c.request_id.in_(request_ids), ~is_superseded)
        .order_by(event.c.attempt)
    ).mappings()
    return [
        msgspec.convert(
            {
                **row,
                "key_id": row["key_name"],
                "units": {meter: row[f"{meter}_units"] for meter in METERS},
                "quality": QUALITIES[cast("int", row["quality"])],
                "status": STATUSES[cast("int", row["status"])],
            },
            _Attempt,
        )
        for row in rows
    ]


def _summary(attempts: Sequence[_Attempt]) -> RecentRequest:
    last = attempts[-1]
    costs = [one.cost_pico_usd for one in attempts if one.cost_pico_usd is not None]
    ttfts = [one.ttft_us for one in attempts if one.ttft_us is not None]
    return RecentRequest(
        request_id=last.request_id.hex(),
        at_us=attempts[0].at_us,
        team=last.team,
        project=last.project,
        key_id=last.key_id,
        model=last.model,
        deployment=last.deployment,
        reason=last.reason,
        attempts=len(attempts),
        input_tokens=_units(attempts, _PROMPT_METERS),
        cached_input_tokens=_units(attempts, (Meter.CACHE_READ,)),
        output_tokens=_units(attempts, _ANSWER_METERS),
        cost_pico_usd=sum(costs) if costs else None,
        is_estimated=any(one.quality not in ("exact", "provider_cost") for one in attempts),
        ttft_us=ttfts[-1] if ttfts else None,
        duration_us=last.duration_us,
        status=last.status,
        error_code=last.error_code,
    )


def _units(attempts: Sequence[_Attempt], meters: Sequence[Meter]) -> int:
    return sum(one.units[meter] for one in attempts for meter in meters)
