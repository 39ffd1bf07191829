"""Rate limits of keys made with `keys create`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade():
    document = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("api_key", sa.Column("limits", document))


def downgrade():
    op.drop_column("api_key", "limits")
