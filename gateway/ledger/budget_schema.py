"""Tables of budgets: what may be spent, where each window stands, what is held, who was told."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger.columns import JSON_DOCUMENT, ROW_ID, Id16, InstantUs, PicoTotal
from gateway.ledger.schema import metadata


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _code(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger, nullable=False)


budget = sa.Table(
    "budget",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    *(_text(name) for name in ("name", "scope", "team", "project", "key_id")),
    sa.Column("cost_tag_name", sa.Text),
    sa.Column("cost_tag_value", sa.Text),
    sa.Column("limit_pico_usd", PicoTotal, nullable=False),
    *(_text(name) for name in ("time_window", "time_zone")),
    _code("fiscal_month"),
    _text("on_exceed"),
    sa.Column("alerts_at", JSON_DOCUMENT, nullable=False),
    _text("source"),
    sa.Column("created_at_us", InstantUs, nullable=False),
    sa.Column("retired_at_us", InstantUs),
    sa.CheckConstraint("limit_pico_usd >= 0", "limit_claim"),
    sa.Index(
        "uq_budget_name_in_force",
        "name",
        unique=True,
        sqlite_where=sa.text("retired_at_us IS NULL"),
        postgresql_where=sa.text("retired_at_us IS NULL"),
    ),
)
"""What may be spent by whom. Whom and when it counts never changes in a row: a budget that is set
anew in that is another one."""

budget_bucket = sa.Table(
    "budget_bucket",
    metadata,
    sa.Column("budget_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("window_start_us", InstantUs, primary_key=True, autoincrement=False),
    sa.Column("window_end_us", InstantUs, nullable=False),
    *(
        sa.Column(f"{name}_pico_usd", PicoTotal, nullable=False)
        for name in ("limit", "spent", "reserved", "exposed")
    ),
    sa.CheckConstraint("reserved_pico_usd >= 0", "reserved_claim"),
    sqlite_with_rowid=False,
    postgresql_with={"fillfactor": 50},
)
"""One window of a budget. Reservations never take the sum of the last three past the limit."""

budget_lease = sa.Table(
    "budget_lease",
    metadata,
    sa.Column("lease_id", Id16, primary_key=True),
    sa.Column("budget_id", sa.Integer, nullable=False),
    sa.Column("window_start_us", InstantUs, nullable=False),
    sa.Column("window_end_us", InstantUs, nullable=False),
    _text("directory"),
    sa.Column("session", sa.LargeBinary(16), nullable=False),
    sa.Column("amount_pico_usd", PicoTotal, nullable=False),
    sa.Column("granted_at_us", InstantUs, nullable=False),
    sa.Column("expires_at_us", InstantUs, nullable=False),
    sa.CheckConstraint("amount_pico_usd > 0", "amount_claim"),
    sa.Index(None, "session"),
    sa.Index("ix_budget_lease_bucket", "budget_id", "window_start_us"),
)
"""What is still reserved of a slab; the row goes with the last of it."""

lease_answer = sa.Table(
    "lease_answer",
    metadata,
    sa.Column("session", sa.LargeBinary(16), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("part", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("at_us", InstantUs, nullable=False),
    sa.Column("reply", sa.LargeBinary, nullable=False),
    sa.Index(None, "at_us"),
)
"""What a worker was granted by a request, for as long as it may ask again for want of an answer."""

budget_alert = sa.Table(
    "budget_alert",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("budget_id", sa.Integer, nullable=False),
    sa.Column("window_start_us", InstantUs, nullable=False),
    _code("percent"),
    sa.Column("at_us", InstantUs, nullable=False),
    sa.Column("cleared_at_us", InstantUs),
    sa.Column("document", JSON_DOCUMENT, nullable=False),
    sa.Index(
        "uq_budget_alert_standing",
        "budget_id",
        "window_start_us",
        "percent",
        unique=True,
        sqlite_where=sa.text("cleared_at_us IS NULL"),
        postgresql_where=sa.text("cleared_at_us IS NULL"),
    ),
)
"""A crossing of a threshold; it stands until use has fallen well below, and is told once."""

alert_delivery = sa.Table(
    "alert_delivery",
    metadata,
    sa.Column("alert_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("webhook", sa.Text, primary_key=True),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("next_try_at_us", InstantUs),
    sa.Column("delivered_at_us", InstantUs),
    _text("failure"),
    sa.Index(
        "ix_alert_delivery_due",
        "next_try_at_us",
        sqlite_where=sa.text("next_try_at_us IS NOT NULL"),
        postgresql_where=sa.text("next_try_at_us IS NOT NULL"),
    ),
)
"""An alert on its way to one webhook, written with the alert; due while it has a next try."""
