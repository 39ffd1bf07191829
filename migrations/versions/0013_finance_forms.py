"""Forms of the dashboard that were acted on, so that none is acted on twice."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade():
    instant = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    op.create_table(
        "finance_form",
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("at_us", instant, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("form", name="pk_finance_form"),
    )


def downgrade():
    op.drop_table("finance_form")
