"""Times in which a server of ours did not answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade():
    column = sa.Column("is_down", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("machine_sample", column)


def downgrade():
    op.execute(sa.text("DELETE FROM machine_sample WHERE is_down"))
    op.drop_column("machine_sample", "is_down")
