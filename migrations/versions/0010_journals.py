"""Journals of closed months, as they were issued."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TABLE = "journal_document"


def upgrade():
    instant = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.create_table(
        TABLE,
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("number", sa.Text, nullable=False),
        sa.Column("at_us", instant, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("document", document, nullable=False),
        sa.PrimaryKeyConstraint("period", "revision", name=f"pk_{TABLE}"),
        sa.UniqueConstraint("number", name=f"uq_{TABLE}_number"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {TABLE}_append_only BEFORE UPDATE OR DELETE ON {TABLE} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {TABLE}_append_only_{verb.lower()} BEFORE {verb} ON {TABLE} "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE} is append-only'); END"
        )


def downgrade():
    op.drop_table(TABLE)
