"""What is reserved for workers that were not heard of for long, and letting go of it by hand.

Their spools say what became of it. Where a spool is gone for good, nobody will ever know, and in a
window without an end the amount would stay counted for ever: an operator writes it off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import sqlalchemy as sa

from gateway.budgets.messages import ExpiredLeases, LeaseWriteOff
from gateway.ledger import budget_buckets, budget_leases, budget_pool, budget_schema
from gateway.ledger.audit import append_audit
from gateway.ledger.errors import UnknownLease


def load_expired(connection: sa.Connection, *, now_us: int) -> tuple[ExpiredLeases, ...]:
    """What is reserved and not renewed, by budget, window, directory and session."""
    return _load(connection, _are_expired(now_us))


def write_off(
    connection: sa.Connection, order: LeaseWriteOff, *, now_us: int
) -> tuple[ExpiredLeases, ...]:
    """Let expired leases of a directory give up what they have left; what that was.

    Raises:
        UnknownLease: The directory has none that have expired.
    """
    budget_buckets.lock_rules(connection, is_exclusive=False)
    is_meant = sa.and_(
        _are_expired(now_us), budget_schema.budget_lease.c.directory == order.directory
    )
    # Locked before it is told: another machine may renew it, or write it off at the same moment.
    budget_leases.lock(connection, is_meant)
    found = _load(connection, is_meant)
    if not found:
        raise UnknownLease(
            f"nothing that is reserved for {order.directory!r} has expired;"
            " `fareway budgets expired` shows what has"
        )
    budget_leases.release(connection, is_meant)
    for one in found:
        append_audit(
            connection,
            at_us=now_us,
            actor=order.actor,
            action="budget.write_off",
            subject=one.budget,
            details={
                "directory": one.directory,
                "session": one.session.hex(),
                "window_start_us": one.window_start_us,
                "leases": one.leases,
                "amount_pico_usd": str(one.amount_pico_usd),
                "renewed_at_us": one.renewed_at_us,
            },
        )
    return found


def _are_expired(now_us: int) -> sa.ColumnElement[bool]:
    table = budget_schema.budget_lease
    return sa.and_(table.c.expires_at_us <= now_us, table.c.session != budget_pool.SESSION)


def _load(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> tuple[ExpiredLeases, ...]:
    table, budget = budget_schema.budget_lease, budget_schema.budget
    rows = connection.execute(
        sa.select(
            budget.c.name,
            table.c.window_start_us,
            table.c.directory,
            table.c.session,
            table.c.amount_pico_usd,
            table.c.expires_at_us,
        )
        .join(budget, budget.c.id == table.c.budget_id)
        .where(condition)
        .order_by(budget.c.name, table.c.window_start_us, table.c.directory, table.c.session)
    ).all()
    found: dict[tuple[str, int, str, bytes], ExpiredLeases] = {}
    for name, start_us, directory, session, amount_pico_usd, expires_at_us in cast(
        "Sequence[tuple[str, int, str, bytes, int, int]]", rows
    ):
        owner = (name, start_us, directory, session)
        known = found.get(owner)
        found[owner] = ExpiredLeases(
            budget=name,
            window_start_us=start_us,
            directory=directory,
            session=session,
            leases=1 + (0 if known is None else known.leases),
            amount_pico_usd=amount_pico_usd + (0 if known is None else known.amount_pico_usd),
            renewed_at_us=expires_at_us - int(budget_leases.LEASE_S * 1e6),
        )
    return tuple(found.values())
