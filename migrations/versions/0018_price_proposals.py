"""Prices that bills imply, for a person to accept or reject."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TABLE = "price_proposal"
STATES = "'open', 'accepted', 'rejected', 'withdrawn'"


def text(name):
    return sa.Column(name, sa.Text, nullable=False)


def instant(name, *, nullable=True):
    kind = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    return sa.Column(name, kind, nullable=nullable)


def upgrade():
    row_id = sa.Integer().with_variant(sa.BigInteger(), "postgresql")
    document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.create_table(
        TABLE,
        sa.Column("id", row_id, nullable=False),
        instant("at_us", nullable=False),
        sa.Column("run_id", sa.BigInteger, nullable=False),
        *(text(name) for name in ("month", "account", "model", "meter", "price_key", "our_price")),
        sa.Column("is_mixed", sa.Boolean, nullable=False),
        *(text(name) for name in ("billed_price", "our_rate", "billed_rate")),
        sa.Column("evidence", document, nullable=False),
        text("state"),
        instant("decided_at_us"),
        text("decided_by"),
        text("reason"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{TABLE}"),
        sa.CheckConstraint(f"state IN ({STATES})", name=f"ck_{TABLE}_state"),
    )
    op.create_index(f"ix_{TABLE}_month", TABLE, ["month"])
    op.create_index(f"ix_{TABLE}_run_id", TABLE, ["run_id"])


def downgrade():
    op.drop_table(TABLE)
