"""What `ledger verify` checks of budgets: each bucket against its leases and against the events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import sqlalchemy as sa

from gateway.budgets.windows import Window
from gateway.clock import from_microseconds
from gateway.ledger import budget_schema
from gateway.ledger.budget_buckets import bounded, spent_in
from gateway.ledger.budget_deltas import Bucket
from gateway.ledger.budgets import load_budgets
from gateway.ledger.partitions import kept_from_us


def budget_faults(connection: sa.Connection) -> Iterator[str]:
    """Buckets that do not hold what their leases and the events say.

    Those of budgets that are no longer in force count nothing new, so only their leases are
    checked.
    """
    table = budget_schema.budget_bucket
    budgets, leased = load_budgets(connection), _leased(connection)
    from_us = kept_from_us(connection)
    rows = connection.execute(
        sa.select(
            table.c.budget_id,
            table.c.window_start_us,
            table.c.window_end_us,
            table.c.spent_pico_usd,
            table.c.reserved_pico_usd,
            table.c.exposed_pico_usd,
        ).order_by(table.c.budget_id, table.c.window_start_us)
    ).all()
    for budget_id, start_us, end_us, spent, reserved, exposed in cast("Sequence[_Row]", rows):
        name = f"budget {budget_id}, window of {from_microseconds(start_us).isoformat()}"
        leases = leased.pop((budget_id, start_us), 0)
        if reserved != leases:
            yield f"{name}: {reserved} is reserved, the leases say {leases}"
        if budget_id in budgets and start_us >= from_us:  # else some of its events were dropped
            window = Window(start_us=start_us, end_us=end_us)
            found = spent_in(connection, budgets[budget_id].rule, window, is_from_events=True)
            for what, holds, says in zip(_WHAT, (spent, exposed), found, strict=True):
                if holds != bounded(connection, says):
                    yield f"{name}: {holds} {what}, the events say {says}"
    for (budget_id, start_us), amount in sorted(leased.items()):
        at = from_microseconds(start_us).isoformat()
        yield f"budget {budget_id}: {amount} is leased for the window of {at}, which has no bucket"


_WHAT = ("is spent", "is exposed")
_Row = tuple[int, int, int, int, int, int]


def _leased(connection: sa.Connection) -> dict[Bucket, int]:
    table = budget_schema.budget_lease
    rows = connection.execute(
        sa.select(table.c.budget_id, table.c.window_start_us, table.c.amount_pico_usd)
    ).all()
    leased: dict[Bucket, int] = {}
    for budget_id, start_us, amount in cast("Sequence[tuple[int, int, int]]", rows):
        leased[budget_id, start_us] = leased.get((budget_id, start_us), 0) + amount
    return leased
