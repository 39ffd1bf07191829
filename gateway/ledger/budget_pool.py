"""Slabs that are reserved before anybody asks: the database's side of budgets with Redis.

A busy bucket is one row that every grant of every machine locks until its transaction is on disk.
With Redis, a grant also reserves some slabs more, each a lease of its own with nobody's session,
and their ids lie in Redis. Whoever takes an id there **claims** the lease: it gets a session by an
update of that row alone, which decides between machines, and between a claim and a taking back.
So nothing in Redis has to be true: an id that is lost there, found twice or much too late costs a
useless question, and what nobody claimed is taken back here, after a minute or as soon as a
request would be refused for want of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import sqlalchemy as sa

from gateway.budgets.messages import BudgetState, Lease, LeaseWant
from gateway.ledger import budget_buckets, budget_schema
from gateway.ledger.budget_deltas import Bucket

SESSION = b"fareway pool\0\0\0\0"
"""Stands for the session of a lease that nobody has claimed; no writer's, which are random."""
POOL_S = 60.0
"""A slab that nobody claimed in this time is taken back."""
SLABS = 8
"""So many are reserved at once: with what the grant itself took, at most 9 % of what remained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Somebody who would like to have an unclaimed lease.

    Attributes:
        lease_id: Of the lease.
        bucket: Whose it must be.
        at_least_pico_usd: What it must have.
        directory: Name of the worker's spool directory, with its node.
        session: Of its spool writer.
        number: Of the request.
        turn: How often the request had looked before.
    """

    lease_id: bytes
    bucket: Bucket
    at_least_pico_usd: int
    directory: str
    session: bytes
    number: int | None
    turn: int


@dataclass(slots=True, kw_only=True)
class Filling:
    """What a grant shall reserve for the pool, and what it did.

    Attributes:
        hot: Buckets that are asked about again and again.
        made: Reserved and unclaimed.
    """

    hot: frozenset[Bucket] = frozenset()
    made: list[Lease] = field(default_factory=list[Lease])


def fill(
    connection: sa.Connection,
    filling: Filling,
    want: LeaseWant,
    state: BudgetState,
    amount_pico_usd: int,
    *,
    now_us: int,
    new_id: Callable[[], bytes],
) -> None:
    """Reserve slabs for those who ask next, where its bucket is hot and has room for all of them.

    Args:
        connection: In the transaction of the grant.
        filling: Says where; gets what was made.
        want: What somebody has just got a lease for.
        state: Of the bucket, after that.
        amount_pico_usd: Of each slab; at most 1 % of what remains.
        now_us: Now.
        new_id: Makes ids of leases.
    """
    bucket = (want.budget_id, want.window_start_us)
    if bucket not in filling.hot or amount_pico_usd < max(want.at_least_pico_usd, 1):
        return
    is_reserved = budget_buckets.reserve(connection, bucket, amount_pico_usd * SLABS)
    assert is_reserved, "the grant has locked the bucket, and a few percent of its room fit"
    made = [
        Lease(
            lease_id=new_id(),
            budget_id=want.budget_id,
            window_start_us=state.window_start_us,
            window_end_us=state.window_end_us,
            amount_pico_usd=amount_pico_usd,
        )
        for _ in range(SLABS)
    ]
    for lease in made:
        insert(
            connection,
            lease,
            directory="",
            session=SESSION,
            now_us=now_us,
            expires_at_us=now_us + int(POOL_S * 1e6),
        )
    filling.made.extend(made)


def insert(
    connection: sa.Connection,
    lease: Lease,
    *,
    directory: str,
    session: bytes,
    now_us: int,
    expires_at_us: int,
) -> None:
    """Write a lease down, whose amount was reserved in the same transaction."""
    connection.execute(
        sa.insert(budget_schema.budget_lease).values(
            lease_id=lease.lease_id,
            budget_id=lease.budget_id,
            window_start_us=lease.window_start_us,
            window_end_us=lease.window_end_us,
            directory=directory,
            session=session,
            amount_pico_usd=lease.amount_pico_usd,
            granted_at_us=now_us,
            expires_at_us=expires_at_us,
        )
    )


_CLAIM = """
    UPDATE budget_lease AS lease
    SET session = claim.session, directory = claim.directory,
        granted_at_us = $7::timestamptz, expires_at_us = $8::timestamptz
    FROM unnest($1::uuid[], $2::bytea[], $3::text[], $4::numeric[], $5::bigint[], $6::timestamptz[])
        AS claim (lease_id, session, directory, amount, budget_id, start)
    WHERE lease.lease_id IN (
        SELECT lease_id FROM budget_lease
        WHERE lease_id = ANY ($1::uuid[]) AND session = $9 AND expires_at_us > $7::timestamptz
        ORDER BY lease_id FOR UPDATE SKIP LOCKED
    )
    AND lease.lease_id = claim.lease_id AND lease.session = $9
    AND lease.budget_id = claim.budget_id AND lease.window_start_us = claim.start
    AND lease.amount_pico_usd >= claim.amount
    RETURNING lease.lease_id, lease.budget_id, lease.window_start_us, lease.window_end_us,
        lease.amount_pico_usd
"""
"""What another transaction claims or takes back is left to it: nobody waits, least in a circle."""


def claim(
    connection: sa.Connection, claims: Sequence[Claim], *, now_us: int, expires_at_us: int
) -> dict[bytes, Lease]:
    """Give unclaimed leases to whoever found their ids; on PostgreSQL.

    Args:
        connection: In a transaction that may write.
        claims: At most one for each lease.
        now_us: Now.
        expires_at_us: Until when they stay unless they are renewed.

    Returns:
        The leases that were still unclaimed and have what they must have, by id.
    """
    values = (
        [one.lease_id for one in claims],
        [one.session for one in claims],
        [one.directory for one in claims],
        [one.at_least_pico_usd for one in claims],
        [one.bucket[0] for one in claims],
        [one.bucket[1] for one in claims],
        now_us,
        expires_at_us,
        SESSION,
    )
    rows = connection.exec_driver_sql(_CLAIM, values).all()
    return {
        lease_id: Lease(
            lease_id=lease_id,
            budget_id=budget_id,
            window_start_us=start_us,
            window_end_us=end_us,
            amount_pico_usd=int(amount_pico_usd),
        )
        for lease_id, budget_id, start_us, end_us, amount_pico_usd in cast(
            "Sequence[tuple[bytes, int, int, int, int]]", rows
        )
    }


def take_back(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> int:
    """Free what unclaimed leases that match have reserved; how much that was.

    One that is just being claimed is left out.
    """
    table = budget_schema.budget_lease
    rows = connection.execute(
        sa.select(
            table.c.lease_id, table.c.budget_id, table.c.window_start_us, table.c.amount_pico_usd
        )
        .where(table.c.session == SESSION, condition)
        .order_by(table.c.lease_id)
        .with_for_update(skip_locked=True)
    ).all()
    freed: dict[Bucket, int] = {}
    for lease_id, budget_id, start_us, amount_pico_usd in cast(
        "Sequence[tuple[bytes, int, int, int]]", rows
    ):
        connection.execute(sa.delete(table).where(table.c.lease_id == lease_id))
        bucket = (budget_id, start_us)
        freed[bucket] = freed.get(bucket, 0) + amount_pico_usd
    for bucket, amount_pico_usd in sorted(freed.items()):
        budget_buckets.change(connection, bucket, released_pico_usd=amount_pico_usd)
    return sum(freed.values())


def of_bucket(bucket: Bucket) -> sa.ColumnElement[bool]:
    """The leases of one bucket."""
    table = budget_schema.budget_lease
    return sa.and_(table.c.budget_id == bucket[0], table.c.window_start_us == bucket[1])


def of_budget(budget_id: int) -> sa.ColumnElement[bool]:
    """The leases of one budget."""
    return budget_schema.budget_lease.c.budget_id == budget_id


def past(now_us: int) -> sa.ColumnElement[bool]:
    """The leases whose time is over."""
    return budget_schema.budget_lease.c.expires_at_us <= now_us
