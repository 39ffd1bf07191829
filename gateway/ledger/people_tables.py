"""Tables of people, their roles and sessions, and one-time codes (`finance_policy.md` 5.4, 5.5).

Of a person there is what logging in needs and a name; of a session or a code only its digest.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger.columns import InstantUs
from gateway.ledger.metadata import metadata

principal = sa.Table(
    "principal",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("login", sa.Text, unique=True),
    sa.Column("issuer", sa.Text),
    sa.Column("subject", sa.Text),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("password_hash", sa.Text),
    sa.Column("created_at_us", InstantUs, nullable=False),
    sa.Column("disabled_at_us", InstantUs),
    sa.Column("last_login_at_us", InstantUs),
    sa.UniqueConstraint("issuer", "subject"),
)
"""People. A row is never deleted: the audit log names its id."""

membership = sa.Table(
    "membership",
    metadata,
    sa.Column("principal_id", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("team", sa.Text, primary_key=True),
)
"""Who has which role; the team is empty for the organisation's roles."""

web_session = sa.Table(
    "web_session",
    metadata,
    sa.Column("digest", sa.LargeBinary(32), primary_key=True),
    sa.Column("principal_id", sa.Text),
    sa.Column("key_id", sa.Text, nullable=False),
    sa.Column("key_mark", sa.LargeBinary(32), nullable=False),
    sa.Column("created_at_us", InstantUs, nullable=False),
    sa.Column("seen_at_us", InstantUs, nullable=False),
    sa.Column("expires_at_us", InstantUs, nullable=False),
    sa.Index(None, "principal_id"),
    sa.Index(None, "expires_at_us"),
)
"""Who is logged in: a person, or the holder of a key. A session that has ended has no row."""

login_code = sa.Table(
    "login_code",
    metadata,
    sa.Column("digest", sa.LargeBinary(32), primary_key=True),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("principal_id", sa.Text, nullable=False),
    sa.Column("expires_at_us", InstantUs, nullable=False),
    sa.Index(None, "expires_at_us"),
)
"""One-time codes that were not used yet, and answers of the identity provider that were."""

TABLES = (principal, membership, web_session, login_code)
