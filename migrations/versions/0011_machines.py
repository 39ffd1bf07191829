"""Our own machines: from when to when they are paid for, and what their meters said."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def instant(name):
    kind = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    return sa.Column(name, kind, nullable=False)


def texts(*names):
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def upgrade():
    op.create_table(
        "machine_term",
        sa.Column("id", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False),
        *texts("machine", "pool", "node", "kind"),
        instant("from_us"),
        instant("until_us"),
        sa.Column("is_ended", sa.Boolean, nullable=False),
        sa.Column(
            "terms", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False
        ),
        sa.CheckConstraint("until_us >= from_us", name="ck_machine_term_order"),
        sa.CheckConstraint("kind IN ('engine', 'server')", name="ck_machine_term_kind"),
        sa.PrimaryKeyConstraint("id", name="pk_machine_term"),
    )
    op.create_index("ix_machine_term_machine", "machine_term", ["machine"])
    op.create_table(
        "machine_sample",
        sa.Column("session", sa.LargeBinary(16), nullable=False),
        instant("hour_us"),
        *texts("machine", "deployment"),
        instant("started_us"),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("first_up_us", "first_busy_us", "last_up_us", "last_busy_us")
        ),
        sa.PrimaryKeyConstraint("session", "hour_us", name="pk_machine_sample"),
    )
    op.create_index("ix_machine_sample_machine", "machine_sample", ["machine"])


def downgrade():
    op.drop_table("machine_sample")
    op.drop_table("machine_term")
