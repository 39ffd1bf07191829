"""What a team's use of machines really cost in a month, beside what it is charged for it."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.finance.machines.messages import RateKind, ShowMachines
from gateway.finance.machines.recording import terms_within
from gateway.finance.machines.report import machines_report, posted, waiting_proposals
from gateway.finance.messages import UNATTRIBUTED
from gateway.finance.statement_messages import MachinePart, MachineUse
from gateway.ledger.periods import month_bounds_us


def machine_part(
    connection: sa.Connection, team: str, month: str, *, now_us: int
) -> MachinePart | None:
    """A team's shares in what machines cost in a month; None where it has none.

    Args:
        connection: In a transaction.
        team: Empty for use by no team.
        month: `YYYY-MM`.
        now_us: No time after it is counted.
    """
    start_us, end_us = month_bounds_us(month)
    if next(terms_within(connection, start_us, end_us), None) is None:
        return None  # as nearly everywhere: nothing more is read
    query = ShowMachines(month=month, rate=RateKind.ACTUAL, teams=(team,))
    report = machines_report(connection, query, now_us=now_us)
    if not report.shares:
        return None
    pools = {share.pool for share in report.shares}
    named = team or UNATTRIBUTED
    return MachinePart(
        uses=tuple(
            MachineUse(
                pool=share.pool,
                project=share.project,
                deployment=share.deployment,
                is_slice=share.is_slice,
                is_nominal=share.is_nominal,
                used_us=share.used_us,
                booked_pico_usd=share.booked_pico_usd,
                actual_pico_usd=share.actual_pico_usd,
                ratio=share.ratio,
            )
            for share in report.shares
        ),
        approved_pico_usd=sum(
            amount
            for place, amount in posted(connection, month, pools)
            if place.team == named and place.pool in pools
        ),
        waiting=tuple(waiting_proposals(connection, month)),
        is_over=now_us >= end_us,
    )
