"""Privacy tags that a key's requests carry."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade():
    document = sa.JSON().with_variant(JSONB(), "postgresql")
    op.add_column("api_key", sa.Column("tags", document))


def downgrade():
    # A key must not go on without the tags that it was made with.
    is_postgresql = op.get_bind().dialect.name == "postgresql"
    now = "CURRENT_TIMESTAMP" if is_postgresql else str(time.time_ns() // 1000)
    op.execute(
        f"UPDATE api_key SET disabled_at_us = {now}"
        " WHERE tags IS NOT NULL AND disabled_at_us IS NULL"
    )
    op.drop_column("api_key", "tags")
