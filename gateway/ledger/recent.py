"""The last requests, one line each: what the first page and `--recent` show; no content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.columns import QUALITIES, STATUSES
from gateway.ledger.schema import METERS
from gateway.ledger.views import RecentRequest
from pricing.usage import Meter

RECENT_MAX = 500
_ATTEMPTS_MAX = 8
_PROMPT_METERS = (Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE)
_ANSWER_METERS = (Meter.OUTPUT, Meter.REASONING)


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


def recent_requests(
    connection: sa.Connection,
    count: int,
    team: str | None = None,
    teams: Sequence[str] | None = None,
) -> tuple[RecentRequest, ...]:
    """The newest requests with a booked attempt, newest first.

    Args:
        connection: In a transaction.
        count: At most this many, and `RECENT_MAX`.
        team: Only this team's, None for all; empty means those without a team.
        teams: Only these teams', None for all.
    """
    at_most = max(min(count, RECENT_MAX), 0)
    table = schema.spend_event
    # Walks the index on time; a request has a handful of attempts.
    wanted = sa.select(table.c.request_id).order_by(table.c.at_us.desc())
    if team is not None or teams is not None:
        wanted = wanted.join(schema.team, schema.team.c.id == table.c.team_id)
    if team is not None:
        wanted = wanted.where(schema.team.c.name == team)
    if teams is not None:
        wanted = wanted.where(schema.team.c.name.in_(teams))
    newest = connection.execute(wanted.limit(at_most * _ATTEMPTS_MAX)).scalars()
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
                **{str(name): value for name, value in cast("Mapping[str, object]", row).items()},
                "key_id": row["key_name"],
                "units": {meter: row[f"{meter}_units"] for meter in METERS},
                "quality": QUALITIES[cast("int", row["quality"])].value,
                "status": STATUSES[cast("int", row["status"])].value,
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
