"""What requests for slabs of budgets were answered, so that one can be said again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TABLE = "lease_answer"


def instant():
    return sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade():
    op.create_table(
        TABLE,
        sa.Column("session", sa.LargeBinary(16), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("part", sa.SmallInteger, nullable=False),
        sa.Column("at_us", instant(), nullable=False),
        sa.Column("reply", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("session", "number", "part", name=f"pk_{TABLE}"),
    )
    op.create_index(f"ix_{TABLE}_at_us", TABLE, ["at_us"])


def downgrade():
    op.drop_table(TABLE)
