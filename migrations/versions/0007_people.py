"""People, their roles and sessions, one-time codes; who made a key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TABLES = ("login_code", "web_session", "membership", "principal")


def text(name, *, nullable=False):
    return sa.Column(name, sa.Text, nullable=nullable)


def digest(name):
    return sa.Column(name, sa.LargeBinary(32), nullable=False)


def instant(name, *, nullable=False):
    kind = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    return sa.Column(name, kind, nullable=nullable)


def key(table, *columns):
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def upgrade():
    op.create_table(
        "principal",
        text("id"),
        text("kind"),
        *(text(name, nullable=True) for name in ("login", "issuer", "subject")),
        text("name"),
        text("password_hash", nullable=True),
        instant("created_at_us"),
        instant("disabled_at_us", nullable=True),
        instant("last_login_at_us", nullable=True),
        key("principal", "id"),
        sa.UniqueConstraint("login", name="uq_principal_login"),
        sa.UniqueConstraint("issuer", "subject", name="uq_principal_issuer"),
    )
    op.create_table(
        "membership",
        *(text(name) for name in ("principal_id", "role", "team")),
        key("membership", "principal_id", "role", "team"),
    )
    op.create_table(
        "web_session",
        digest("digest"),
        text("principal_id", nullable=True),
        text("key_id"),
        digest("key_mark"),
        *(instant(name) for name in ("created_at_us", "seen_at_us", "expires_at_us")),
        key("web_session", "digest"),
    )
    op.create_index("ix_web_session_principal_id", "web_session", ["principal_id"])
    op.create_index("ix_web_session_expires_at_us", "web_session", ["expires_at_us"])
    op.create_table(
        "login_code",
        digest("digest"),
        text("purpose"),
        text("principal_id"),
        instant("expires_at_us"),
        key("login_code", "digest"),
    )
    op.create_index("ix_login_code_expires_at_us", "login_code", ["expires_at_us"])
    op.add_column("api_key", text("owner", nullable=True))


def downgrade():
    op.drop_column("api_key", "owner")
    for table in TABLES:
        op.drop_table(table)
