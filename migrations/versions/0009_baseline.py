"""What attempts would have cost at a baseline named in advance, on events and in roll-ups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLES = tuple(
    f"{prefix}_{grain}" for prefix in ("rollup", "rollup_key", "rollup_tag") for grain in ("qh", "day")
)
COUNTS = ("compared_count", "uncompared_count")
AMOUNTS = ("baseline_cost_pico_usd", "compared_cost_pico_usd")
SUM_MAX = 9 * 10**18


def upgrade():
    op.add_column("spend_event", sa.Column("baseline", sa.Text))
    op.add_column("spend_event", sa.Column("baseline_cost_pico_usd", sa.BigInteger))
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    for table in TABLES:
        for name in (*COUNTS, *AMOUNTS):
            kind = "NUMERIC(38, 0)" if is_postgresql and name in AMOUNTS else "BIGINT"
            # Nothing was compared before: zero is what the cells hold. They are not built anew,
            # for their events may be gone.
            op.execute(
                f"ALTER TABLE {table} ADD COLUMN {name} {kind} NOT NULL DEFAULT 0"
                f" CONSTRAINT ck_{table}_{name}_range CHECK ({name} BETWEEN -{SUM_MAX} AND {SUM_MAX})"
            )
            if is_postgresql:
                op.execute(f"ALTER TABLE {table} ALTER COLUMN {name} DROP DEFAULT")


def downgrade():
    for table in TABLES:
        for name in (*COUNTS, *AMOUNTS):
            op.drop_column(table, name)
    for name in ("baseline_cost_pico_usd", "baseline"):
        op.drop_column("spend_event", name)
