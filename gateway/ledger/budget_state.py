"""Where one bucket stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import sqlalchemy as sa

from gateway.budgets.messages import BudgetState
from gateway.ledger import budget_schema
from gateway.ledger.budget_deltas import Bucket


def load_state(connection: sa.Connection, bucket: Bucket) -> BudgetState:
    """Where a bucket that exists stands."""
    table = budget_schema.budget_bucket
    row = connection.execute(
        sa.select(
            table.c.budget_id,
            table.c.window_start_us,
            table.c.window_end_us,
            table.c.limit_pico_usd,
            table.c.spent_pico_usd,
            table.c.reserved_pico_usd,
            table.c.exposed_pico_usd,
        ).where(table.c.budget_id == bucket[0], table.c.window_start_us == bucket[1])
    ).one()
    names = BudgetState.__struct_fields__
    return BudgetState(**dict(zip(names, cast("Sequence[int]", row), strict=True)))
