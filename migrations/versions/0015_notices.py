"""Notices that go out by e-mail and webhook, and how far each got."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def text(name):
    return sa.Column(name, sa.Text, nullable=False)


def instant(name, *, nullable=True):
    kind = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    return sa.Column(name, kind, nullable=nullable)


def document(name):
    kind = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    return sa.Column(name, kind, nullable=False)


def upgrade():
    row_id = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
    op.create_table(
        "notice",
        sa.Column("id", row_id, nullable=False),
        *(text(name) for name in ("kind", "name")),
        instant("at_us", nullable=False),
        *(text(name) for name in ("subject", "body")),
        *(document(name) for name in ("document", "attachments")),
        sa.PrimaryKeyConstraint("id", name="pk_notice"),
        sa.UniqueConstraint("kind", "name", name="uq_notice_kind"),
        sa.CheckConstraint("kind IN ('statement', 'anomaly')", name="ck_notice_kind"),
    )
    op.create_table(
        "notice_delivery",
        sa.Column("notice_id", sa.BigInteger, nullable=False, autoincrement=False),
        text("recipient"),
        sa.Column("tries", sa.Integer, nullable=False),
        *(instant(name) for name in ("next_try_at_us", "delivered_at_us")),
        text("failure"),
        sa.PrimaryKeyConstraint("notice_id", "recipient", name="pk_notice_delivery"),
    )
    op.create_index("ix_notice_delivery_next_try_at_us", "notice_delivery", ["next_try_at_us"])


def downgrade():
    op.drop_table("notice_delivery")
    op.drop_table("notice")
