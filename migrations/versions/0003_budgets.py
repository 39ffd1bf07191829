"""Budgets: what may be spent, where each window stands, what is reserved, and who was told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = ("alert_delivery", "budget_alert", "budget_lease", "budget_bucket", "budget")


def instant():
    return sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def total():
    return sa.BigInteger().with_variant(sa.Numeric(38, 0), "postgresql")


def document():
    return sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def row_id():
    return sa.Column("id", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False)


def text(name):
    return sa.Column(name, sa.Text, nullable=False)


def upgrade():
    op.create_table(
        "budget",
        row_id(),
        *(text(name) for name in ("name", "scope", "team", "project", "key_id")),
        sa.Column("cost_tag_name", sa.Text),
        sa.Column("cost_tag_value", sa.Text),
        sa.Column("limit_pico_usd", total(), nullable=False),
        *(text(name) for name in ("time_window", "time_zone")),
        sa.Column("fiscal_month", sa.SmallInteger, nullable=False),
        text("on_exceed"),
        sa.Column("alerts_at", document(), nullable=False),
        text("source"),
        sa.Column("created_at_us", instant(), nullable=False),
        sa.Column("retired_at_us", instant()),
        sa.PrimaryKeyConstraint("id", name="pk_budget"),
        sa.CheckConstraint("limit_pico_usd >= 0", name="ck_budget_limit_claim"),
    )
    in_force = sa.text("retired_at_us IS NULL")
    op.create_index(
        "uq_budget_name_in_force",
        "budget",
        ["name"],
        unique=True,
        sqlite_where=in_force,
        postgresql_where=in_force,
    )
    op.create_table(
        "budget_bucket",
        sa.Column("budget_id", sa.Integer, nullable=False),
        sa.Column("window_start_us", instant(), nullable=False),
        sa.Column("window_end_us", instant(), nullable=False),
        *(
            sa.Column(f"{name}_pico_usd", total(), nullable=False)
            for name in ("limit", "spent", "reserved", "exposed")
        ),
        sa.PrimaryKeyConstraint("budget_id", "window_start_us", name="pk_budget_bucket"),
        sa.CheckConstraint("reserved_pico_usd >= 0", name="ck_budget_bucket_reserved_claim"),
        sqlite_with_rowid=False,
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "budget_lease",
        sa.Column(
            "lease_id",
            sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql"),
            nullable=False,
        ),
        sa.Column("budget_id", sa.Integer, nullable=False),
        sa.Column("window_start_us", instant(), nullable=False),
        sa.Column("window_end_us", instant(), nullable=False),
        text("directory"),
        sa.Column("session", sa.LargeBinary(16), nullable=False),
        sa.Column("amount_pico_usd", total(), nullable=False),
        sa.Column("granted_at_us", instant(), nullable=False),
        sa.Column("expires_at_us", instant(), nullable=False),
        sa.PrimaryKeyConstraint("lease_id", name="pk_budget_lease"),
        sa.CheckConstraint("amount_pico_usd > 0", name="ck_budget_lease_amount_claim"),
    )
    op.create_index("ix_budget_lease_session", "budget_lease", ["session"])
    op.create_index("ix_budget_lease_bucket", "budget_lease", ["budget_id", "window_start_us"])
    _create_alerts()


def _create_alerts():
    op.create_table(
        "budget_alert",
        row_id(),
        sa.Column("budget_id", sa.Integer, nullable=False),
        sa.Column("window_start_us", instant(), nullable=False),
        sa.Column("percent", sa.SmallInteger, nullable=False),
        sa.Column("at_us", instant(), nullable=False),
        sa.Column("cleared_at_us", instant()),
        sa.Column("document", document(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_budget_alert"),
    )
    standing = sa.text("cleared_at_us IS NULL")
    op.create_index(
        "uq_budget_alert_standing",
        "budget_alert",
        ["budget_id", "window_start_us", "percent"],
        unique=True,
        sqlite_where=standing,
        postgresql_where=standing,
    )
    op.create_table(
        "alert_delivery",
        sa.Column("alert_id", sa.Integer, nullable=False),
        text("webhook"),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_try_at_us", instant()),
        sa.Column("delivered_at_us", instant()),
        text("failure"),
        sa.PrimaryKeyConstraint("alert_id", "webhook", name="pk_alert_delivery"),
    )
    due = sa.text("next_try_at_us IS NOT NULL")
    op.create_index(
        "ix_alert_delivery_due",
        "alert_delivery",
        ["next_try_at_us"],
        sqlite_where=due,
        postgresql_where=due,
    )


def downgrade():
    for table in TABLES:
        op.drop_table(table)
