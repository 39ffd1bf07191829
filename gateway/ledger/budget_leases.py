"""Leases: durable reservations of a slab, granted to workers and given up as attempts are booked.

A bucket's `reserved` is the sum of its leases' amounts, always: each change of one changes the
other in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec
import sqlalchemy as sa

from gateway.budgets.messages import (
    BudgetState,
    Lease,
    LeaseReply,
    LeaseRequest,
    LeaseWant,
)
from gateway.budgets.rules import window_of_rule
from gateway.budgets.windows import Window
from gateway.ledger import budget_buckets, budget_pool, budget_schema
from gateway.ledger.budget_buckets import StoredBudget
from gateway.ledger.budget_deltas import Bucket, BudgetDeltas
from gateway.ledger.budget_pool import Filling
from gateway.ledger.budget_state import load_state
from gateway.ledger.budgets import load_budgets, load_revision

LEASE_S = 300.0
"""A lease that is not renewed for so long is marked as expired; it stays counted."""
SHARE = 100
"""A slab is at most this part of what remains."""
WORTH = 4
"""Ahead of need, less than this part of what is wanted is not worth a lease."""


class _Held(NamedTuple):
    """A lease's row, as far as giving up needs it."""

    lease_id: bytes
    bucket: Bucket
    amount_pico_usd: int


def slab(want: LeaseWant, room_pico_usd: int) -> int | None:
    """How much to reserve for a want; None where there is no room for what waits.

    Args:
        want: What a worker would like to have.
        room_pico_usd: What can be reserved, at least 0.

    Returns:
        0 where nothing waits and what would be granted is not worth a lease.
    """
    share = min(want.wanted_pico_usd, room_pico_usd // SHARE)
    if want.at_least_pico_usd > 0:
        amount = max(want.at_least_pico_usd, share)
        return amount if amount <= room_pico_usd else None
    return share if share * WORTH >= want.wanted_pico_usd else 0


def grant(
    connection: sa.Connection,
    request: LeaseRequest,
    *,
    now_us: int,
    new_id: Callable[[], bytes],
    filling: Filling | None = None,
) -> LeaseReply:
    """Take what a worker gives back, renew its leases, and reserve what it wants where it fits.

    Args:
        connection: In a transaction that may write.
        request: The worker's.
        now_us: Now.
        new_id: Makes ids of leases.
        filling: What to reserve for those who ask next; None for nothing.
    """
    budget_buckets.lock_rules(connection, is_exclusive=False)
    budgets = load_budgets(connection)
    wants = [
        (want, window)
        for want in sorted(request.wants, key=lambda want: (want.budget_id, want.window_start_us))
        if (window := _window(budgets, want)) is not None
    ]
    budget_buckets.ensure(
        connection,
        budgets,
        {(want.budget_id, window.start_us): window for want, window in wants},
    )
    # In the loader's order, so that the two never wait for each other: leases, then buckets.
    table = budget_schema.budget_lease
    is_meant = (table.c.session == request.session) | table.c.lease_id.in_(request.returns.keys())
    held = _load(connection, is_meant)
    _renew(connection, request.session, now_us=now_us)
    buckets = {lease.bucket for lease in held if lease.lease_id in request.returns}
    _lock(connection, buckets | {(want.budget_id, window.start_us) for want, window in wants})
    give_up(connection, request.returns)
    leases: list[Lease] = []
    shortages: list[BudgetState] = []
    for want, window in wants:
        outcome = _grant_one(
            connection,
            request,
            want,
            window,
            now_us=now_us,
            new_id=new_id,
            filling=filling or Filling(),
        )
        if isinstance(outcome, Lease):
            leases.append(outcome)
        elif outcome is not None:
            shortages.append(outcome)
    return LeaseReply(
        leases=tuple(leases),
        shortages=tuple(shortages),
        rules_revision=load_revision(connection),
    )


def _window(budgets: Mapping[int, StoredBudget], want: LeaseWant) -> Window | None:
    """The window of a want; None where the worker's rules are not those in force."""
    budget = budgets.get(want.budget_id)
    if budget is None:
        return None
    window = window_of_rule(budget.rule, want.window_start_us)
    return window if window.start_us == want.window_start_us else None


def _grant_one(
    connection: sa.Connection,
    request: LeaseRequest,
    want: LeaseWant,
    window: Window,
    *,
    now_us: int,
    new_id: Callable[[], bytes],
    filling: Filling,
) -> Lease | BudgetState | None:
    """A lease, the bucket that is short, or None where nothing waits and nothing is worth it.

    What is read only says how much to ask for; the conditional update decides. Nobody is refused
    for want of what lies unclaimed.
    """
    bucket = (want.budget_id, window.start_us)
    amount = _reserve(connection, want, bucket)
    if amount is None and want.at_least_pico_usd:
        if budget_pool.take_back(connection, budget_pool.of_bucket(bucket)):
            amount = _reserve(connection, want, bucket)
        if amount is None:
            return load_state(connection, bucket)
    if not amount:
        return None
    lease = Lease(
        lease_id=new_id(),
        budget_id=want.budget_id,
        window_start_us=window.start_us,
        window_end_us=window.end_us,
        amount_pico_usd=amount,
    )
    budget_pool.insert(
        connection,
        lease,
        directory=request.directory,
        session=request.session,
        now_us=now_us,
        expires_at_us=lease_until_us(now_us),
    )
    if filling.hot:
        state = load_state(connection, bucket)
        share = slab(msgspec.structs.replace(want, at_least_pico_usd=0), state.room_pico_usd)
        budget_pool.fill(connection, filling, want, state, share or 0, now_us=now_us, new_id=new_id)
    return lease


def _reserve(connection: sa.Connection, want: LeaseWant, bucket: Bucket) -> int | None:
    """Reserve for a want; how much, 0 where nothing is worth it, None where there is no room."""
    amount = slab(want, load_state(connection, bucket).room_pico_usd)
    if amount and not budget_buckets.reserve(connection, bucket, amount):
        return None
    return amount


def lease_until_us(now_us: int) -> int:
    """Until when a lease that is granted or renewed now is not marked as expired."""
    return now_us + int(LEASE_S * 1e6)


def _lock(connection: sa.Connection, buckets: Iterable[Bucket]) -> None:
    """Lock buckets in their order until the transaction ends."""
    table = budget_schema.budget_bucket
    for budget_id, start_us in sorted(buckets):
        is_it = sa.and_(table.c.budget_id == budget_id, table.c.window_start_us == start_us)
        connection.execute(sa.select(table.c.budget_id).where(is_it).with_for_update())


def _renew(connection: sa.Connection, session: bytes, *, now_us: int) -> None:
    table = budget_schema.budget_lease
    connection.execute(
        sa.update(table)
        .where(table.c.session == session)
        .values(expires_at_us=lease_until_us(now_us))
    )


def book(connection: sa.Connection, deltas: BudgetDeltas) -> list[Bucket]:
    """Count booked entries in their buckets, and let leases give up what these entries held.

    Returns:
        The buckets whose spend has changed.
    """
    released = _take(connection, deltas.holds)
    for bucket in sorted(deltas.amounts.keys() | released.keys()):
        spent, exposed = deltas.amounts.get(bucket, (0, 0))
        budget_buckets.change(
            connection,
            bucket,
            spent_pico_usd=spent,
            exposed_pico_usd=exposed,
            released_pico_usd=released.get(bucket, 0),
        )
    return sorted(deltas.amounts)


def give_up(connection: sa.Connection, amounts: Mapping[bytes, int]) -> None:
    """Let leases give up amounts, each at most what it has left; unknown leases have nothing."""
    for bucket, amount in sorted(_take(connection, amounts).items()):
        budget_buckets.change(connection, bucket, released_pico_usd=amount)


def lock(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> None:
    """Lock leases that match until the transaction ends, as giving up does."""
    _load(connection, condition)


def release(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    """Let leases that match give up all that they have left; how many there were."""
    held = _load(connection, condition)
    give_up(connection, {lease.lease_id: lease.amount_pico_usd for lease in held})
    return len(held)


def _take(connection: sa.Connection, amounts: Mapping[bytes, int]) -> dict[Bucket, int]:
    """Lower leases by amounts, and say by how much each bucket's `reserved` has to fall."""
    table = budget_schema.budget_lease
    wanted = {lease_id: amount for lease_id, amount in amounts.items() if amount > 0}
    released: dict[Bucket, int] = {}
    for ids in _lists(sorted(wanted)):
        for lease in _load(connection, table.c.lease_id.in_(ids)):
            amount = min(lease.amount_pico_usd, wanted[lease.lease_id])
            is_it = table.c.lease_id == lease.lease_id
            if amount == lease.amount_pico_usd:
                connection.execute(sa.delete(table).where(is_it))
            else:
                left = table.c.amount_pico_usd - amount
                connection.execute(sa.update(table).where(is_it).values(amount_pico_usd=left))
            released[lease.bucket] = released.get(lease.bucket, 0) + amount
    return released


def _load(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[_Held]:
    """Leases that match, locked in the order of their ids until the transaction ends."""
    table = budget_schema.budget_lease
    columns = (
        table.c.lease_id,
        table.c.budget_id,
        table.c.window_start_us,
        table.c.amount_pico_usd,
    )
    rows = connection.execute(
        sa.select(*columns).where(condition).order_by(table.c.lease_id).with_for_update()
    ).all()
    return [
        _Held(lease_id, (budget_id, start_us), amount_pico_usd)
        for lease_id, budget_id, start_us, amount_pico_usd in cast(
            "Sequence[tuple[bytes, int, int, int]]", rows
        )
    ]


_IDS_MAX = 500


def _lists(ids: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (ids[start : start + _IDS_MAX] for start in range(0, len(ids), _IDS_MAX))
