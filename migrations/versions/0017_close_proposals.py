"""Hard closes of months that wait for a second person."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

TABLE = "close_proposal"
STATES = "'open', 'confirmed', 'withdrawn', 'replaced', 'void'"


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
        TABLE,
        sa.Column("id", row_id, nullable=False),
        text("month"),
        instant("at_us", nullable=False),
        text("proposed_by"),
        document("accepted"),
        document("figures"),
        sa.Column("ledger_digest", sa.LargeBinary(32), nullable=False),
        text("state"),
        instant("decided_at_us"),
        text("decided_by"),
        text("reason"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{TABLE}"),
        sa.CheckConstraint(f"state IN ({STATES})", name=f"ck_{TABLE}_state"),
    )
    is_open = sa.text("state = 'open'")
    op.create_index(
        f"uq_{TABLE}_open",
        TABLE,
        ["month"],
        unique=True,
        sqlite_where=is_open,
        postgresql_where=is_open,
    )


def downgrade():
    op.drop_table(TABLE)
