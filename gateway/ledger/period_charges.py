"""What a month is charged for: what was booked in it, what came late, and what was corrected.

The three parts are those that the close of a month tells, so they sum to its figures:

    booked    what happened in the month and came before it was closed
    late      usage of closed months that is counted in this one, less what it takes the place of
    adjusted  adjustments of the month

Reports by day of charge show late usage on its own day; here it counts in the month that was open.
Months are calendar months in UTC. Nobody closes a week: late usage counts in that in which it came,
an adjustment in that in which it was posted. So the weeks of all time sum to its months.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import sqlalchemy as sa

from gateway.ledger import report_names
from gateway.ledger.booking import Row
from gateway.ledger.finance_tables import spend_adjustment
from gateway.ledger.periods import (
    LatePart,
    came_late,
    late_in,
    late_of_days,
    month_bounds_us,
    month_of,
)
from gateway.ledger.reports import spend_report
from gateway.ledger.views import GroupBy, PeriodSums, SpendQuery

UNATTRIBUTED = "unattributed"
"""What adjustments call the team of spend that belongs to none."""
_NAMED = (GroupBy.TEAM, GroupBy.PROJECT, GroupBy.PROVIDER)


class ChargePlace(NamedTuple):
    """Whose charge it is, and for whom.

    Attributes:
        team: Empty for spend of no team.
        project: Empty for none.
        provider: Name in the configuration; empty where an adjustment names none.
    """

    team: str
    project: str
    provider: str


class Week(NamedTuple):
    """A week, or any other stretch of time that nobody closes: `[start_us, end_us)`."""

    start_us: int
    end_us: int


class LateCharge(NamedTuple):
    """Usage of a closed month that is counted in a later one.

    Attributes:
        place: Whose it is.
        month: In which it happened.
    """

    place: ChargePlace
    month: str


Charges = Mapping[ChargePlace, PeriodSums]


def load_charges(
    connection: sa.Connection, period: str | Week, teams: Sequence[str] | None = None
) -> Charges:
    """What a month or a week is charged for.

    Args:
        connection: In a transaction; one state of the database is read.
        period: A month `YYYY-MM`, or a week.
        teams: Only these teams', None for all.
    """
    parts: defaultdict[ChargePlace, list[int]] = defaultdict(lambda: [0, 0, 0])
    start_us, end_us = period if isinstance(period, Week) else month_bounds_us(period)
    query = SpendQuery(
        group_by=_NAMED, from_us=start_us, to_us=end_us, teams=None if teams is None else (*teams,)
    )
    for row in spend_report(connection, query).rows:
        parts[ChargePlace(*row.group)][0] += row.sums.cost_pico_usd
    for charge, amount in _late(connection, late_of_days(connection, start_us, end_us)).items():
        if teams is None or charge.place.team in teams:
            parts[charge.place][0] -= amount
    for charge, amount in load_late(connection, period).items():
        if teams is None or charge.place.team in teams:
            parts[charge.place][1] += amount
    for place, amount in _adjusted(connection, period):
        if teams is None or place.team in teams:
            parts[place][2] += amount
    return {
        place: PeriodSums(booked_pico_usd=booked, late_pico_usd=late, adjusted_pico_usd=adjusted)
        for place, (booked, late, adjusted) in sorted(parts.items())
        if booked or late or adjusted
    }


def load_late(connection: sa.Connection, period: str | Week) -> Mapping[LateCharge, int]:
    """Usage of closed months that is counted in a month or a week, in picodollars."""
    if isinstance(period, Week):
        return _late(connection, came_late(connection, *period))
    return _late(connection, late_in(connection, period))


def _late(connection: sa.Connection, parts: Iterable[LatePart]) -> Mapping[LateCharge, int]:
    sums: defaultdict[tuple[int, int, int, str], int] = defaultdict(int)
    for part in parts:
        row = part.row
        key = (_id(row, "team_id"), _id(row, "project_id"), _id(row, "deployment_id"))
        month = month_of(cast("int", row["at_us"]))
        sums[*key, month] += part.sign * (cast("int | None", row["cost_pico_usd"]) or 0)
    words = [
        _words(connection, by, {key[place] for key in sums}) for place, by in enumerate(_NAMED)
    ]
    found: defaultdict[LateCharge, int] = defaultdict(int)
    for (team, project, deployment, month), amount in sums.items():
        names = (words[0](team), words[1](project), words[2](deployment))
        found[LateCharge(ChargePlace(*names), month)] += amount
    return {charge: amount for charge, amount in sorted(found.items()) if amount}


def _words(connection: sa.Connection, by: GroupBy, ids: set[int | str]) -> Callable[[int], str]:
    word = report_names.words_of(connection, by, cast("set[int]", ids))
    return lambda id_: word(id_)[0]


def _id(row: Row, name: str) -> int:
    return cast("int", row[name])


def _adjusted(connection: sa.Connection, period: str | Week) -> Iterable[tuple[ChargePlace, int]]:
    table = spend_adjustment
    columns = (table.c.team, table.c.project, table.c.account, table.c.amount_pico_usd)
    is_counted = table.c.period == period
    if isinstance(period, Week):
        is_counted = sa.and_(table.c.at_us >= period.start_us, table.c.at_us < period.end_us)
    rows = connection.execute(sa.select(*columns).where(is_counted)).all()
    for team, project, account, amount in cast("Sequence[tuple[str, str, str, int]]", rows):
        name = "" if team == UNATTRIBUTED else team
        yield ChargePlace(name, project, account), amount
