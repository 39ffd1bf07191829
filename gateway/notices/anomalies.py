"""Days that stood out as notices: one for each day, team and model."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance.story import load_anomalies
from gateway.finance.story_messages import FoundAnomaly, ShowAnomalies
from gateway.notices.messages import AnomalyWatch
from gateway.notices.outbox import Notice
from gateway.notices.statements import Wanted
from pricing.money import format_usd

KIND = "anomaly"


def yesterday(now_us: int) -> str:
    """The last whole day in UTC."""
    return (from_microseconds(now_us).date() - timedelta(days=1)).isoformat()


def anomalies_of(
    connection: sa.Connection, watch: AnomalyWatch, day: str, *, now_us: int
) -> list[Wanted]:
    """A notice for each anomaly of a day; one that was made before is not made again."""
    query = ShowAnomalies(first_day=day, last_day=day, excess_pico_usd=watch.excess_pico_usd)
    return [
        Wanted(notice=_notice(one, now_us), recipients=watch.recipients)
        for one in load_anomalies(connection, query)
    ]


def _notice(one: FoundAnomaly, now_us: int) -> Notice:
    team = one.team or "no team"
    amount, expected = format_usd(one.amount_pico_usd), format_usd(one.expected_pico_usd)
    keys = [
        f"  key {share.key_id or 'none'}: {format_usd(share.amount_pico_usd)} USD,"
        f" expected {format_usd(share.expected_pico_usd)}"
        for share in one.keys
    ]
    lines = [
        f"On {one.day} (UTC) team {team} spent {amount} USD on model {one.model};",
        f"such days cost {expected} USD.",
        "",
        *keys,
        "",
    ]
    return Notice(
        kind=KIND,
        name=msgspec.json.encode([one.day, one.team, one.model]).decode(),
        at_us=now_us,
        subject=f"{team} spent {amount} USD on {one.model} on {one.day}, expected {expected}",
        body="\n".join(lines),
        document={
            "type": "spend.anomaly",
            "day": one.day,
            "team": one.team,
            "model": one.model,
            "amount_usd": amount,
            "expected_usd": expected,
            "excess_usd": format_usd(one.excess_pico_usd),
            "score_permille": one.score_permille,
            "keys": [share.key_id for share in one.keys],
        },
    )
