"""Statements from the database: usage, late usage and adjustments of one team."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.clock import to_microseconds
from gateway.finance.adjustments import adjustments
from gateway.finance.machines.statement import machine_part
from gateway.finance.messages import UNATTRIBUTED, ListAdjustments
from gateway.finance.statement_messages import LateUsage, ShowStatement, TeamStatement, days_of
from gateway.ledger.finance_tables import period_close
from gateway.ledger.period_charges import Week, load_charges, load_late
from gateway.ledger.periods import next_month
from gateway.ledger.reports import spend_report
from gateway.ledger.views import GroupBy, PeriodSums, SpendQuery

WEEK = "week"
_OPEN = "open"


def load_statement(
    connection: sa.Connection, query: ShowStatement, *, now_us: int
) -> TeamStatement:
    """A team's statement of a month or a week.

    Args:
        connection: In a transaction; one state of the database is read.
        query: Whose and when.
        now_us: Microseconds since the epoch.

    Raises:
        Refused: There is no such period.
    """
    first, last = days_of(query.period)
    start, end = _bounds_us(query.period)
    report = spend_report(
        connection,
        SpendQuery(
            group_by=(GroupBy.PROJECT, GroupBy.MODEL),
            from_us=start,
            to_us=end,
            filters={GroupBy.TEAM: query.team},
            teams=query.teams,
        ),
    )
    is_seen = query.teams is None or query.team in query.teams
    usage = PeriodSums(
        booked_pico_usd=report.total.cost_pico_usd, late_pico_usd=0, adjusted_pico_usd=0
    )
    statement = TeamStatement(
        team=query.team,
        organisation=query.organisation,
        period=query.period,
        first_day=first.isoformat(),
        last_day=last.isoformat(),
        state=WEEK if _is_week(query.period) else _state(connection, query.period),
        as_of_us=now_us,
        report=report,
        sums=usage,
        cost_centres=tuple(one for one in query.cost_centres if one.team == query.team),
    )
    if not is_seen:
        return statement
    corrected = _with_corrections(connection, statement)
    if _is_week(query.period):  # what machines cost is worked out by the month
        return corrected
    machines = machine_part(connection, query.team, query.period, now_us=now_us)
    return msgspec.structs.replace(corrected, machines=machines)


def teams_of(connection: sa.Connection, period: str) -> tuple[str, ...]:
    """Every team with usage or corrections in a period, by name."""
    start, end = _bounds_us(period)
    report = spend_report(connection, SpendQuery(from_us=start, to_us=end))
    names = {row.group[0] for row in report.rows}
    names |= {place.team for place in load_charges(connection, _counted_in(period))}
    return tuple(sorted(names))


def _is_week(period: str) -> bool:
    return "W" in period


def _bounds_us(period: str) -> tuple[int, int]:
    """The first microsecond of a month or week and the first one after it, in UTC."""
    first, last = days_of(period)
    start, end = (
        to_microseconds(datetime.combine(day, time(0), tzinfo=UTC))
        for day in (first, last + timedelta(days=1))
    )
    return start, end


def _counted_in(period: str) -> str | Week:
    return Week(*_bounds_us(period)) if _is_week(period) else period


def _state(connection: sa.Connection, month: str) -> str:
    table = period_close
    found = connection.execute(sa.select(table.c.state).where(table.c.month == month))
    return cast("str | None", found.scalar_one_or_none()) or _OPEN


def _with_corrections(connection: sa.Connection, statement: TeamStatement) -> TeamStatement:
    team, period = statement.team, statement.period
    counted_in = _counted_in(period)
    parts = load_charges(connection, counted_in, [team]).values()
    late = [
        LateUsage(
            project=charge.place.project,
            provider=charge.place.provider,
            month=charge.month,
            amount_pico_usd=amount,
        )
        for charge, amount in load_late(connection, counted_in).items()
        if charge.place.team == team
    ]
    named = team or UNATTRIBUTED
    if isinstance(counted_in, Week):
        query = ListAdjustments(posted_us=counted_in, team=named)
    else:
        query = ListAdjustments(from_period=period, to_period=next_month(period), team=named)
    return TeamStatement(
        team=team,
        organisation=statement.organisation,
        period=period,
        first_day=statement.first_day,
        last_day=statement.last_day,
        state=statement.state,
        as_of_us=statement.as_of_us,
        report=statement.report,
        sums=PeriodSums(
            booked_pico_usd=sum(one.booked_pico_usd for one in parts),
            late_pico_usd=sum(one.late_pico_usd for one in parts),
            adjusted_pico_usd=sum(one.adjusted_pico_usd for one in parts),
        ),
        late=tuple(late),
        adjustments=adjustments(connection, query),
        cost_centres=statement.cost_centres,
    )
