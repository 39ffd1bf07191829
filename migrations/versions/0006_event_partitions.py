"""On PostgreSQL, events by month: one partition each, and a default one that stays empty."""

from __future__ import annotations

from datetime import UTC, date, datetime

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TABLE = "spend_event"
WHOLE = "spend_event_whole"
MONTHS_AHEAD = 3


def upgrade():
    if op.get_bind().dialect.name != "postgresql":
        return
    _put_aside()
    op.execute(
        f"CREATE TABLE {TABLE} (LIKE {WHOLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        " PARTITION BY RANGE (at_us)"
    )
    op.execute(
        f"ALTER TABLE {TABLE} ADD CONSTRAINT pk_{TABLE} PRIMARY KEY (event_id, entry, at_us)"
    )
    op.execute(
        f"CREATE INDEX ix_{TABLE}_at_us ON {TABLE} USING brin (at_us) WITH (pages_per_range = 32)"
    )
    for columns in ("request_id", "team_id, at_us", "deployment_id, at_us"):
        name = columns.partition(",")[0]
        op.execute(f"CREATE INDEX ix_{TABLE}_{name} ON {TABLE} ({columns})")
    op.execute(f"CREATE TABLE {TABLE}_default PARTITION OF {TABLE} DEFAULT")
    for first in _months():
        op.execute(
            f"CREATE TABLE {TABLE}_{first:%Y_%m} PARTITION OF {TABLE}"
            f" FOR VALUES FROM ('{first} 00:00:00+00') TO ('{_next(first)} 00:00:00+00')"
        )
    _take_over(f"INSERT INTO {TABLE} SELECT * FROM {WHOLE}")


def downgrade():
    if op.get_bind().dialect.name != "postgresql":
        return
    _put_aside()
    op.execute(f"CREATE TABLE {TABLE} (LIKE {WHOLE} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
    op.execute(
        f"ALTER TABLE {TABLE} ADD CONSTRAINT pk_{TABLE} PRIMARY KEY (event_id, entry, at_us)"
    )
    op.execute(f"CREATE INDEX ix_{TABLE}_at_us ON {TABLE} (at_us)")
    op.execute(f"CREATE INDEX ix_{TABLE}_request_id ON {TABLE} (request_id)")
    _take_over(f"INSERT INTO {TABLE} SELECT * FROM {WHOLE}")


def _put_aside():
    """Give the present table another name, and free the names of its key and indexes."""
    op.execute(f"ALTER TABLE {TABLE} RENAME TO {WHOLE}")
    op.execute(f"ALTER TABLE {WHOLE} DROP CONSTRAINT pk_{TABLE}")
    for name in ("at_us", "request_id", "team_id", "deployment_id"):
        op.execute(f"DROP INDEX IF EXISTS ix_{TABLE}_{name}")


def _take_over(move):
    op.execute(move)
    op.execute(f"DROP TABLE {WHOLE}")
    op.execute(
        f"CREATE TRIGGER {TABLE}_append_only BEFORE UPDATE OR DELETE ON {TABLE}"
        " FOR EACH ROW EXECUTE FUNCTION refuse_change()"
    )


def _months():
    """Every month that has events, and those from this one on that are made ahead."""
    found = op.get_bind().execute(
        sa.text(f"SELECT DISTINCT to_char(at_us AT TIME ZONE 'UTC', 'YYYY-MM-01') FROM {WHOLE}")
    )
    months = {date.fromisoformat(row[0]) for row in found}
    ahead = datetime.now(UTC).date().replace(day=1)
    for _ in range(MONTHS_AHEAD + 1):
        months.add(ahead)
        ahead = _next(ahead)
    return sorted(months)


def _next(first):
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)
