"""Tables of our own machines: from when to when they are paid for, and how long they computed.

Both hold facts that only grow: a term is extended and ends, a sample of an hour moves apart. What a
machine cost and who bears it is worked out of them (`gateway.finance.machines`), never stored.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger.columns import JSON_DOCUMENT, ROW_ID, InstantUs
from gateway.ledger.metadata import metadata


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


machine_term = sa.Table(
    "machine_term",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    _text("machine"),
    _text("pool"),
    _text("node"),
    _text("kind"),
    sa.Column("from_us", InstantUs, nullable=False),
    sa.Column("until_us", InstantUs, nullable=False),
    sa.Column("is_ended", sa.Boolean, nullable=False),
    sa.Column("terms", JSON_DOCUMENT, nullable=False),
    sa.CheckConstraint("until_us >= from_us", "order"),
    sa.CheckConstraint("kind IN ('engine', 'server')", "kind"),
    sa.Index(None, "machine"),
)
"""From when to when a machine was configured with the same price and the same way of sharing its
cost. `until_us` is the last moment at which it was seen so; only the newest term of a machine is
extended, until `is_ended`. Names are kept as text: there are few of these rows."""

machine_sample = sa.Table(
    "machine_sample",
    metadata,
    sa.Column("session", sa.LargeBinary(16), primary_key=True),
    sa.Column("hour_us", InstantUs, primary_key=True, autoincrement=False),
    _text("machine"),
    _text("deployment"),
    sa.Column("started_us", InstantUs, nullable=False),
    *(_whole(name) for name in ("first_up_us", "first_busy_us", "last_up_us", "last_busy_us")),
    sa.Column("is_down", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index(None, "machine"),
)
"""What an engine's meter said first and last within an hour: microseconds since its session began
at `started_us`. Taking the earliest and the latest gives the same in every order. A server that is
looked at has sessions, too: of times in which it was up, and of those in which it was down."""

TABLES = (machine_term, machine_sample)
"""All of them."""
