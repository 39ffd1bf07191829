"""Commitments and prepaid credits, as they were recorded and corrected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TABLE = "commitment"
PICO_USD_MAX = 9 * 10**18


def upgrade():
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        TABLE,
        sa.Column("id", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False),
        sa.Column(
            "at_us",
            sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql"),
            nullable=False,
        ),
        *_texts("actor", "name"),
        sa.Column("revision", sa.Integer, nullable=False),
        *_texts("kind", "provider"),
        sa.Column(
            "deployments", sa.JSON().with_variant(postgresql.JSONB(), "postgresql"), nullable=False
        ),
        *_texts("currency", "amount"),
        sa.Column(
            "amount_pico_usd",
            sa.BigInteger().with_variant(sa.Numeric(38, 0), "postgresql"),
            nullable=False,
        ),
        *_texts(
            "rate_day", "rate_source", "first_day", "last_day", "counts_from", "invoice", "reason"
        ),
        sa.Column("is_withdrawn", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{TABLE}"),
        sa.UniqueConstraint("name", "revision", name=f"uq_{TABLE}_name"),
        sa.CheckConstraint("kind IN ('credit', 'spend', 'throughput')", name=f"ck_{TABLE}_kind"),
        sa.CheckConstraint(
            f"amount_pico_usd BETWEEN -{PICO_USD_MAX} AND {PICO_USD_MAX}",
            name=f"ck_{TABLE}_amount_pico_usd_range",
        ),
    )
    if is_postgresql:
        op.execute(
            f"CREATE TRIGGER {TABLE}_append_only BEFORE UPDATE OR DELETE ON {TABLE}"
            " FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {TABLE}_append_only_{verb.lower()} BEFORE {verb} ON {TABLE}"
            f" BEGIN SELECT RAISE(ABORT, '{TABLE} is append-only'); END"
        )


def downgrade():
    op.drop_table(TABLE)


def _texts(*names):
    return [sa.Column(name, sa.Text, nullable=False) for name in names]
