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
    now_us = time.time_ns() // 1000
    revoke = sa.text(
        "UPDATE api_key SET disabled_at_us = :now_us"
        " WHERE tags IS NOT NULL AND disabled_at_us IS NULL"
    )
    op.execute(revoke.bindparams(sa.bindparam("now_us", now_us, sa.BigInteger)))
    op.drop_column("api_key", "tags")
