"""Public prices and cache savings on events; roll-ups by day, key and cost tag, rebuilt from events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

METERS = (
    "input", "cache_read", "cache_write", "output", "reasoning",
    "images", "audio_ms", "gpu_us", "requests",
)
UNITS = tuple(f"{meter}_units" for meter in METERS)
COUNTS = (
    "request_count", "attempt_count", "unpriced_count",
    "list_cost_count", "provider_cost_count", "exposure_unknown_count",
)
AMOUNTS = (
    "cost_pico_usd", "list_cost_pico_usd", "provider_cost_pico_usd",
    "estimated_pico_usd", "nominal_pico_usd", "exposure_pico_usd", "cache_saved_pico_usd",
)
DIMENSIONS = ("team_id", "project_id", "model_id", "deployment_id", "tags_id")
CODES = ("status", "quality")
FAMILIES = ((None, "rollup"), ("key_id", "rollup_key"), ("cost_tag_id", "rollup_tag"))
GRAINS = (("qh", 900), ("day", 86_400))
SUM_MAX = 9 * 10**18
OLD_AMOUNTS = ("cost_pico_usd", "estimated_pico_usd", "nominal_pico_usd", "exposure_pico_usd")
OLD_COUNTS = ("request_count", "attempt_count", "unpriced_count")
OLD_TABLES = (
    ("rollup_qh", "bucket_us", 900, ("team_id", "project_id", "model_id", "deployment_id", "status")),
    ("rollup_day", "day_us", 86_400, ("key_id", "team_id", "deployment_id")),
)

# What an event adds. Codes: status 5 is unknown_billing; qualities 0 and 1 are certain, 4 unknown.
SUMS = {
    "request_count": "CASE WHEN e.attempt = 1 THEN 1 ELSE 0 END",
    "attempt_count": "1",
    "unpriced_count": "CASE WHEN e.cost_pico_usd IS NULL THEN 1 ELSE 0 END",
    "list_cost_count": "0",
    "provider_cost_count": "CASE WHEN e.provider_cost_pico_usd IS NULL THEN 0 ELSE 1 END",
    "exposure_unknown_count": (
        "CASE WHEN e.exposure_pico_usd IS NULL AND (e.status = 5 OR e.quality = 4) THEN 1 ELSE 0 END"
    ),
    **{name: f"e.{name}" for name in UNITS},
    "cost_pico_usd": "COALESCE(e.cost_pico_usd, 0)",
    "list_cost_pico_usd": "COALESCE(e.cost_pico_usd, 0)",
    "provider_cost_pico_usd": "COALESCE(e.provider_cost_pico_usd, 0)",
    "estimated_pico_usd": "CASE WHEN e.quality IN (0, 1) THEN 0 ELSE COALESCE(e.cost_pico_usd, 0) END",
    "nominal_pico_usd": (
        "CASE WHEN substr(e.price_version, 1, 8) = 'nominal:' THEN COALESCE(e.cost_pico_usd, 0) ELSE 0 END"
    ),
    "exposure_pico_usd": "COALESCE(e.exposure_pico_usd, 0)",
    "cache_saved_pico_usd": "0",
}


def instant():
    return sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def total():
    return sa.BigInteger().with_variant(sa.Numeric(38, 0), "postgresql")


def upgrade():
    for name in ("list_cost_pico_usd", "cache_saved_pico_usd"):
        op.add_column("spend_event", sa.Column(name, sa.BigInteger))
    op.create_table(
        "cost_tag",
        sa.Column("id", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_cost_tag"),
        sa.UniqueConstraint("name", "value", name="uq_cost_tag_name"),
    )
    for name, *_ in OLD_TABLES:
        op.drop_table(name)
    for of, prefix in FAMILIES:
        for grain, width_s in GRAINS:
            table = f"{prefix}_{grain}"
            key = [*([] if of is None else [of]), *DIMENSIONS, *CODES]
            _create(table, of, key)
            # No cost tag has been listed yet: their sums begin empty.
            if of != "cost_tag_id":
                _build(table, "bucket_us", width_s, key, (*COUNTS, *UNITS, *AMOUNTS))


def downgrade():
    for _, prefix in FAMILIES:
        for grain, _ in GRAINS:
            op.drop_table(f"{prefix}_{grain}")
    op.drop_table("cost_tag")
    op.execute("DELETE FROM meta WHERE name = 'cost_tags'")
    for table, bucket, width_s, key in OLD_TABLES:
        _create_old(table, bucket, key)
        _build(table, bucket, width_s, key, (*OLD_COUNTS, *UNITS, *OLD_AMOUNTS))
    for name in ("cache_saved_pico_usd", "list_cost_pico_usd"):
        op.drop_column("spend_event", name)


def _create(table, of, key):
    sums = (*COUNTS, *UNITS, *AMOUNTS)
    op.create_table(
        table,
        sa.Column("bucket_us", instant(), nullable=False),
        *(() if of is None else (sa.Column(of, sa.Integer, nullable=False),)),
        *(sa.Column(name, sa.Integer, nullable=False) for name in DIMENSIONS),
        *(sa.Column(name, sa.SmallInteger, nullable=False) for name in CODES),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*COUNTS, *UNITS)),
        *(sa.Column(name, total(), nullable=False) for name in AMOUNTS),
        *_ranges(table, sums),
        sa.PrimaryKeyConstraint("bucket_us", *key, name=f"pk_{table}"),
        sqlite_with_rowid=False,
    )


def _create_old(table, bucket, key):
    op.create_table(
        table,
        sa.Column(bucket, instant(), nullable=False),
        *(
            sa.Column(name, sa.SmallInteger if name == "status" else sa.Integer, nullable=False)
            for name in key
        ),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*OLD_COUNTS, *UNITS)),
        *(sa.Column(name, total(), nullable=False) for name in OLD_AMOUNTS),
        *_ranges(table, OLD_AMOUNTS),
        sa.PrimaryKeyConstraint(bucket, *key, name=f"pk_{table}"),
        sqlite_with_rowid=False,
    )


def _ranges(table, columns):
    return [
        sa.CheckConstraint(
            f"{name} BETWEEN -{SUM_MAX} AND {SUM_MAX}", name=f"ck_{table}_{name}_range"
        )
        for name in columns
    ]


def _build(table, bucket, width_s, key, sums):
    """Sum up the events that count: of each the highest entry."""
    if op.get_bind().dialect.name == "postgresql":
        start = f"to_timestamp(floor(extract(epoch FROM e.at_us) / {width_s}) * {width_s})"
    else:
        start = f"e.at_us - e.at_us % {width_s * 1_000_000}"
    columns = ", ".join((bucket, *key, *sums))
    selected = ", ".join((*(f"e.{name}" for name in key), *(f"SUM({SUMS[name]})" for name in sums)))
    groups = ", ".join(str(place) for place in range(1, len(key) + 2))
    op.execute(
        f"INSERT INTO {table} ({columns}) SELECT {start}, {selected} FROM spend_event e"
        " WHERE NOT EXISTS (SELECT 1 FROM spend_event l"
        " WHERE l.event_id = e.event_id AND l.entry > e.entry)"
        f" GROUP BY {groups}"
    )
