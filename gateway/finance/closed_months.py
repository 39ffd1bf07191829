"""Months that are soft or closed: listed, and their digests recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import sqlalchemy as sa

from gateway.finance.close_messages import ListCloses, ListedClose, VerifiedClose, VerifyCloses
from gateway.ledger.finance_tables import period_close
from gateway.ledger.month_digest import month_digest
from gateway.ledger.periods import CLOSED


def verify_closes(connection: sa.Connection, _query: VerifyCloses) -> tuple[VerifiedClose, ...]:
    """Every closed month with its digest as closed and as its rows are now."""
    table = period_close
    closed = sa.select(table.c.month, table.c.ledger_digest).where(table.c.state == CLOSED)
    rows = connection.execute(closed.order_by(table.c.month)).all()
    found: list[VerifiedClose] = []
    for month, stored in cast("Sequence[tuple[str, bytes]]", rows):
        digest = month_digest(connection, month)[0]
        found.append(
            VerifiedClose(
                month=month,
                closed_digest=stored.hex(),
                digest=digest.hex(),
                is_same=digest == stored,
            )
        )
    return tuple(found)


def list_closes(connection: sa.Connection, _query: ListCloses) -> tuple[ListedClose, ...]:
    """Months that are soft or closed, newest first; nothing is computed anew."""
    table = period_close
    at_us = sa.func.coalesce(
        table.c.closed_at_us, table.c.soft_at_us, type_=table.c.soft_at_us.type
    )
    wanted = sa.select(table.c.month, table.c.state, at_us).order_by(table.c.month.desc())
    rows = cast("Sequence[tuple[str, str, int]]", connection.execute(wanted).all())
    return tuple(ListedClose(month=month, state=state, at_us=at_us) for month, state, at_us in rows)
