"""When an entry of a closed month came, so that a week can be charged for it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def instant():
    return sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def upgrade():
    op.add_column("late_entry", sa.Column("noted_at_us", instant()))


def downgrade():
    op.drop_column("late_entry", "noted_at_us")
