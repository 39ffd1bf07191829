"""What requests for slabs were answered: kept with what they did, so that one can be said again.

An answer gets lost when a process is killed or a connection breaks. Whoever asked says the same
again under the same number, and gets what was done the first time, done once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.budgets.messages import Lease, LeaseReply, LeaseRequest
from gateway.ledger import budget_schema

KEEP_S = 900.0
"""Longer than workers ask again (`budgets.refills.REPEAT_S`)."""


class Part(IntEnum):
    """Which part of a request was answered; 0 and below are finds in Redis, by falling turn."""

    FIRST = 1
    AGAIN = 2
    """After the spools were loaded."""
    LAST_TRY = 3


def keep(
    connection: sa.Connection,
    *,
    session: bytes,
    number: int | None,
    part: int,
    reply: LeaseReply,
    now_us: int,
) -> None:
    """Note an answer in the transaction that does what it says."""
    if number is not None:
        connection.execute(
            sa.insert(budget_schema.lease_answer).values(
                session=session,
                number=number,
                part=part,
                at_us=now_us,
                reply=msgspec.msgpack.encode(reply),
            )
        )


def load(connection: sa.Connection, request: LeaseRequest) -> LeaseReply | None:
    """What a request was answered when it was said before; None where nothing was done then.

    A lease that is there no more, or has less, is answered as it is: nobody may spend what is not
    reserved.
    """
    table = budget_schema.lease_answer
    is_last = table.c.part == Part.LAST_TRY
    stored = connection.execute(
        sa.select(table.c.reply)
        .where(
            table.c.session == request.session,
            table.c.number == request.number,
            is_last if request.is_last_try else sa.not_(is_last),
        )
        .order_by(table.c.part)
    ).scalars()
    replies = [
        msgspec.msgpack.decode(one, type=LeaseReply)
        for one in cast("Sequence[bytes]", stored.all())
    ]
    if not replies:
        return None
    return LeaseReply(
        leases=_present(connection, [lease for reply in replies for lease in reply.leases]),
        rules_revision=max(reply.rules_revision for reply in replies),
        is_repeat=True,
    )


def forget(connection: sa.Connection, *, now_us: int) -> None:
    """Drop what nobody asks for any more."""
    table = budget_schema.lease_answer
    connection.execute(sa.delete(table).where(table.c.at_us < now_us - int(KEEP_S * 1e6)))


def _present(connection: sa.Connection, leases: Sequence[Lease]) -> tuple[Lease, ...]:
    table = budget_schema.budget_lease
    rows = connection.execute(
        sa.select(table.c.lease_id, table.c.amount_pico_usd)
        .where(table.c.lease_id.in_([lease.lease_id for lease in leases]))
        .with_for_update()
    ).all()
    left = dict(cast("Sequence[tuple[bytes, int]]", [tuple(row) for row in rows]))
    return tuple(
        [
            msgspec.structs.replace(lease, amount_pico_usd=left[lease.lease_id])
            for lease in leases
            if lease.lease_id in left
        ]
    )
