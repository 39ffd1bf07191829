"""The ledger: dimensions, open intents, events, roll-ups, cursors, quarantine, keys, audit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

METERS = (
    "input", "cache_read", "cache_write", "output", "reasoning",
    "images", "audio_ms", "gpu_us", "requests",
)
TOTALS = ("cost_pico_usd", "estimated_pico_usd", "nominal_pico_usd", "exposure_pico_usd")
TOTAL_MAX = 9 * 10**18
APPEND_ONLY = ("spend_event", "audit_log")
TABLES = (
    "meta", "audit_log", "api_key", "quarantine", "spool_cursor", "rollup_day", "rollup_qh",
    "spend_event", "attempt_intent", "tag_set", "deployment", "model", "api_key_name", "project",
    "team",
)


def instant():
    return sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def id16():
    return sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")


def total():
    return sa.BigInteger().with_variant(sa.Numeric(38, 0), "postgresql")


def document():
    return sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def row_id():
    return sa.Column("id", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False)


def text(name):
    return sa.Column(name, sa.Text, nullable=False)


def reference(name):
    return sa.Column(name, sa.Integer, nullable=False)


def code(name):
    return sa.Column(name, sa.SmallInteger, nullable=False)


def units(name):
    return sa.Column(name, sa.BigInteger, nullable=False)


def key(table, *columns):
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def unique(table, *columns):
    return sa.UniqueConstraint(*columns, name=f"uq_{table}_{columns[0]}")


def sums(table):
    yield from (units(name) for name in ("request_count", "attempt_count", "unpriced_count"))
    yield from (units(f"{meter}_units") for meter in METERS)
    yield from (sa.Column(name, total(), nullable=False) for name in TOTALS)
    for name in TOTALS:
        yield sa.CheckConstraint(
            f"{name} BETWEEN -{TOTAL_MAX} AND {TOTAL_MAX}", name=f"ck_{table}_{name}_range"
        )


def upgrade():
    _create_dimensions()
    _create_events()
    _create_roll_ups()
    _create_spool_state()
    _create_keys()
    for table in APPEND_ONLY:
        _make_append_only(table)


def downgrade():
    if op.get_bind().dialect.name == "postgresql":
        for table in APPEND_ONLY:
            op.execute(f"DROP TRIGGER {table}_append_only ON {table}")
        op.execute("DROP FUNCTION refuse_change()")
    for table in TABLES:
        op.drop_table(table)


def _create_dimensions():
    for table, names, details in (
        ("team", ("name",), ()),
        ("project", ("team", "name"), ()),
        ("api_key_name", ("key_id",), ()),
        ("model", ("name",), ()),
        ("deployment", ("name",), ("provider", "upstream_model")),
    ):
        op.create_table(
            table,
            row_id(),
            *(text(name) for name in (*names, *details)),
            key(table, "id"),
            unique(table, *names),
        )
    op.create_table(
        "tag_set",
        row_id(),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("tags", document(), nullable=False),
        key("tag_set", "id"),
        unique("tag_set", "sha256"),
    )


def _create_events():
    op.create_table(
        "attempt_intent",
        sa.Column("event_id", id16(), nullable=False),
        text("directory"),
        sa.Column("session", sa.LargeBinary(16), nullable=False),
        sa.Column("at_us", instant(), nullable=False),
        sa.Column("expires_at_us", instant(), nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        key("attempt_intent", "event_id"),
    )
    op.create_index("ix_attempt_intent_expires_at_us", "attempt_intent", ["expires_at_us"])
    op.create_index("ix_attempt_intent_directory", "attempt_intent", ["directory"])
    op.create_table(
        "spend_event",
        sa.Column("event_id", id16(), nullable=False),
        code("entry"),
        sa.Column("at_us", instant(), nullable=False),
        sa.Column("settled_at_us", instant(), nullable=False),
        sa.Column("request_id", id16(), nullable=False),
        code("attempt"),
        *(
            reference(f"{name}_id")
            for name in ("team", "project", "key", "model", "deployment", "tags", "cost_tags")
        ),
        text("route"),
        sa.Column("is_stream", sa.Boolean, nullable=False),
        text("reason"),
        code("status"),
        sa.Column("is_lost", sa.Boolean, nullable=False),
        code("quality"),
        *(units(f"{meter}_units") for meter in METERS),
        text("price_version"),
        sa.Column("lines", document(), nullable=False),
        *(
            sa.Column(name, sa.BigInteger)
            for name in ("cost_pico_usd", "provider_cost_pico_usd", "exposure_pico_usd")
        ),
        code("http_status"),
        text("error_code"),
        text("upstream_request_id"),
        text("finish_reason"),
        sa.Column("ttft_us", sa.BigInteger),
        units("duration_us"),
        key("spend_event", "event_id", "entry", "at_us"),
        *(
            sa.CheckConstraint(f"{meter}_units >= 0", name=f"ck_spend_event_{meter}_units_claim")
            for meter in METERS
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_spend_event_at_us", "spend_event", ["at_us"])
    op.create_index("ix_spend_event_request_id", "spend_event", ["request_id"])


def _create_roll_ups():
    for table, bucket, references, codes in (
        ("rollup_qh", "bucket_us", ("team_id", "project_id", "model_id", "deployment_id"), ("status",)),
        ("rollup_day", "day_us", ("key_id", "team_id", "deployment_id"), ()),
    ):
        op.create_table(
            table,
            sa.Column(bucket, instant(), nullable=False),
            *(reference(name) for name in references),
            *(code(name) for name in codes),
            *sums(table),
            key(table, bucket, *references, *codes),
            sqlite_with_rowid=False,
        )


def _create_spool_state():
    op.create_table(
        "spool_cursor",
        text("directory"),
        units("number"),
        units("offset_bytes"),
        sa.Column("session", sa.LargeBinary(16), nullable=False),
        key("spool_cursor", "directory"),
    )
    op.create_table(
        "quarantine",
        row_id(),
        sa.Column("at_us", instant(), nullable=False),
        text("directory"),
        sa.Column("session", sa.LargeBinary(16), nullable=False),
        units("number"),
        units("offset_bytes"),
        text("reason"),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        key("quarantine", "id"),
        unique("quarantine", "directory", "session", "number", "offset_bytes", "reason"),
    )


def _create_keys():
    op.create_table(
        "api_key",
        text("key_id"),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        *(text(name) for name in ("team", "project", "name")),
        sa.Column("models", document()),
        sa.Column("created_at_us", instant(), nullable=False),
        sa.Column("expires_at_us", instant()),
        sa.Column("disabled_at_us", instant()),
        key("api_key", "key_id"),
    )
    in_use = sa.text("disabled_at_us IS NULL")
    op.create_index(
        "uq_api_key_name_in_use",
        "api_key",
        ["team", "name"],
        unique=True,
        sqlite_where=in_use,
        postgresql_where=in_use,
    )
    op.create_table(
        "audit_log",
        sa.Column("seq", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False),
        sa.Column("at_us", instant(), nullable=False),
        *(text(name) for name in ("actor", "action", "object")),
        sa.Column("details", document(), nullable=False),
        sa.Column("previous_hash", sa.LargeBinary(32), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        key("audit_log", "seq"),
        unique("audit_log", "previous_hash"),
    )
    op.create_table("meta", text("name"), text("value"), key("meta", "name"))


def _make_append_only(table):
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )
