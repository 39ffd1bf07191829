"""The month's story from the database: the bridge between two months, and days that stood out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import cast

import sqlalchemy as sa

from gateway.clock import to_microseconds
from gateway.finance.errors import Refused
from gateway.finance.story_messages import (
    DAYS_MAX,
    BridgeEffects,
    BridgeReport,
    FoundAnomaly,
    KeyShare,
    ProductEffects,
    ShowAnomalies,
    ShowBridge,
)
from gateway.ledger import schema
from gateway.ledger.periods import month_bounds_us
from gateway.ledger.reports import spend_report
from gateway.ledger.views import GroupBy, SpendQuery
from pricing.anomalies import HISTORY_DAYS, contributions, find_anomalies
from pricing.bridge import Effects, Line, bridge
from pricing.usage import Meter

KEYS_TOLD = 5
_DAY = timedelta(days=1)


def load_bridge(connection: sa.Connection, query: ShowBridge) -> BridgeReport:
    """Why a month's usage cost more or less than another's; the parts sum to the difference."""
    teams = _teams(query)
    found = bridge(_lines(connection, query.before, teams), _lines(connection, query.after, teams))
    before, after = (_cost(connection, month, teams) for month in (query.before, query.after))
    # Lines sum to what was booked; what a row without lines may cost is said and not explained.
    other = (after - before) - found.effects.total_pico_usd
    products = [
        ProductEffects(
            deployment=name, effects=_effects(effects), change_pico_usd=effects.total_pico_usd
        )
        for name, effects in found.by_product.items()
    ]
    products.sort(key=lambda one: (-abs(one.change_pico_usd), one.deployment))
    return BridgeReport(
        before=query.before,
        after=query.after,
        team=query.team,
        before_pico_usd=before,
        after_pico_usd=after,
        effects=_effects(found.effects, other),
        products=tuple(products),
    )


def load_anomalies(connection: sa.Connection, query: ShowAnomalies) -> tuple[FoundAnomaly, ...]:
    """Days on which a team spent much more on a model than on such days, newest first.

    Raises:
        Refused: The days are none, or too many.
    """
    first, last = _days(query)
    start = first - HISTORY_DAYS * _DAY - _DAY
    days = [start + place * _DAY for place in range((last - start).days + 1)]
    by = (GroupBy.TEAM, GroupBy.MODEL)
    costs = _daily(connection, by, days, {}, teams=query.teams)
    found: list[FoundAnomaly] = []
    for place in range((first - start).days, len(days)):
        series = {name: _until(amounts, place) for name, amounts in costs.items()}
        for one in find_anomalies(series, excess_pico_usd_min=query.excess_pico_usd):
            team, model = one.series
            filters = {GroupBy.TEAM.value: team, GroupBy.MODEL.value: model}
            keys = _daily(connection, (GroupBy.KEY,), days[: place + 1], filters)
            found.append(
                FoundAnomaly(
                    day=days[place].isoformat(),
                    team=team,
                    model=model,
                    amount_pico_usd=one.amount_pico_usd,
                    expected_pico_usd=one.expected_pico_usd,
                    excess_pico_usd=one.excess_pico_usd,
                    score_permille=one.score_permille,
                    keys=tuple(
                        KeyShare(
                            key_id=share.part[0],
                            amount_pico_usd=share.amount_pico_usd,
                            expected_pico_usd=share.expected_pico_usd,
                        )
                        for share in contributions(keys, count=KEYS_TOLD)
                    ),
                )
            )
    return tuple(sorted(found, key=lambda one: one.day, reverse=True))


def _days(query: ShowAnomalies) -> tuple[date, date]:
    try:
        first, last = date.fromisoformat(query.first_day), date.fromisoformat(query.last_day)
        _ = first - (HISTORY_DAYS + 1) * _DAY, last + _DAY
    except (ValueError, OverflowError) as error:
        raise Refused(f"{query.first_day} to {query.last_day}: {error}") from error
    if not 0 <= (last - first).days < DAYS_MAX:
        raise Refused(f"{first} to {last} is not one to {DAYS_MAX} days")
    return first, last


def _until(amounts: Sequence[int], place: int) -> Sequence[int]:
    """A series up to a day, without the days before its first cost: it was not there yet."""
    begun = next((index for index, amount in enumerate(amounts[: place + 1]) if amount), place)
    return amounts[begun : place + 1]


def _daily(
    connection: sa.Connection,
    by: tuple[str, ...],
    days: Sequence[date],
    filters: Mapping[str, str],
    *,
    teams: tuple[str, ...] | None = None,
) -> dict[tuple[str, ...], list[int]]:
    """Cost of each day by group, without gaps."""
    query = SpendQuery(
        group_by=(GroupBy.DAY, *by),
        from_us=_start_us(days[0]),
        to_us=_start_us(days[-1] + _DAY),
        filters={**filters},
        teams=teams,
    )
    places = {day.isoformat(): place for place, day in enumerate(days)}
    costs: defaultdict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * len(days))
    for row in spend_report(connection, query).rows:
        costs[row.group[1:]][places[row.group[0]]] += row.sums.cost_pico_usd
    return dict(costs)


def _start_us(day: date) -> int:
    return to_microseconds(datetime.combine(day, time(0), tzinfo=UTC))


def _teams(query: ShowBridge) -> tuple[str, ...] | None:
    """Whose usage is told; a team that may not be seen is as one that spent nothing."""
    if query.team is None:
        return query.teams
    return (query.team,) if query.teams is None or query.team in query.teams else ()


def _lines(
    connection: sa.Connection, month: str, teams: tuple[str, ...] | None
) -> Iterator[Line[str]]:
    """What each deployment used on each meter; added up by day in SQL, which holds it exactly."""
    table, rate, deployment = schema.rollup_meter_day, schema.meter_rate, schema.deployment
    start_us, end_us = month_bounds_us(month)
    statement = (
        sa.select(
            deployment.c.name,
            rate.c.meter,
            sa.func.sum(table.c.units),
            sa.func.sum(table.c.cost_pico_usd),
        )
        .select_from(
            table.join(rate, rate.c.id == table.c.meter_rate_id).join(
                deployment, deployment.c.id == table.c.deployment_id
            )
        )
        .where(table.c.bucket_us >= start_us, table.c.bucket_us < end_us)
        .group_by(table.c.bucket_us, deployment.c.name, rate.c.meter)
    )
    if teams is not None:
        named = sa.select(schema.team.c.id).where(schema.team.c.name.in_(teams))
        statement = statement.where(table.c.team_id.in_(named))
    rows = connection.execute(statement).all()
    for name, meter, units, cost in cast("Sequence[tuple[str, str, int, int]]", rows):
        yield Line(product=name, meter=Meter(meter), units=int(units), cost_pico_usd=int(cost))


def _cost(connection: sa.Connection, month: str, teams: tuple[str, ...] | None) -> int:
    start_us, end_us = month_bounds_us(month)
    query = SpendQuery(from_us=start_us, to_us=end_us, teams=teams)
    return spend_report(connection, query).total.cost_pico_usd


def _effects(effects: Effects, other: int = 0) -> BridgeEffects:
    return BridgeEffects(
        volume_pico_usd=effects.volume_pico_usd,
        mix_pico_usd=effects.mix_pico_usd,
        output_share_pico_usd=effects.output_share_pico_usd,
        cache_rate_pico_usd=effects.cache_rate_pico_usd,
        price_pico_usd=effects.price_pico_usd,
        other_pico_usd=other,
    )
