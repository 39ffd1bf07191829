"""A roll-up by meter and rate, by UTC day, filled from the lines of the events that are there."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

DIMENSIONS = ("team_id", "project_id", "model_id", "deployment_id")
SUMS = ("line_count", "units", "cost_pico_usd", "list_cost_pico_usd")
RATE = (
    "meter", "rate_pico_usd", "rate_per_units", "list_rate_pico_usd", "list_rate_per_units",
    "price_version",
)  # fmt: skip
SUM_MAX = 9 * 10**18
DAY_S = 86_400

# Values of a line: meter, units, rate, its units, cost; then the same three at the public price.
SQLITE = {
    "day": f"e.at_us - e.at_us % {DAY_S * 1_000_000}",
    "source": "spend_event e, json_each(e.lines) AS line",
    "value": "json_extract(line.value, '$[{}]')",
    "same": "IS",
}
POSTGRESQL = {
    "day": f"to_timestamp(floor(extract(epoch FROM e.at_us) / {DAY_S}) * {DAY_S})",
    "source": "spend_event e CROSS JOIN LATERAL jsonb_array_elements(e.lines) AS line(value)",
    "value": "(line.value ->> {})::bigint",
    "same": "IS NOT DISTINCT FROM",
}


def instant():
    return sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")


def total():
    return sa.BigInteger().with_variant(sa.Numeric(38, 0), "postgresql")


def row_id():
    return sa.Integer().with_variant(sa.BigInteger(), "postgresql")


def upgrade():
    rate = op.create_table(
        "meter_rate",
        sa.Column("id", row_id(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        *(
            sa.Column(
                name,
                sa.Text if name in ("meter", "price_version") else sa.BigInteger,
                nullable=name.startswith("list_"),
            )
            for name in RATE
        ),
        sa.PrimaryKeyConstraint("id", name="pk_meter_rate"),
        sa.UniqueConstraint("sha256", name="uq_meter_rate_sha256"),
    )
    op.create_table(
        "rollup_meter_day",
        sa.Column("bucket_us", instant(), nullable=False),
        *(sa.Column(name, sa.Integer, nullable=False) for name in DIMENSIONS),
        sa.Column("quality", sa.SmallInteger, nullable=False),
        sa.Column("meter_rate_id", sa.Integer, nullable=False),
        *(
            sa.Column(name, total() if name.endswith("_usd") else sa.BigInteger, nullable=False)
            for name in SUMS
        ),
        *(
            sa.CheckConstraint(
                f"{name} BETWEEN -{SUM_MAX} AND {SUM_MAX}", name=f"ck_rollup_meter_day_{name}_range"
            )
            for name in SUMS
        ),
        sa.PrimaryKeyConstraint(
            "bucket_us", *DIMENSIONS, "quality", "meter_rate_id", name="pk_rollup_meter_day"
        ),
        sqlite_with_rowid=False,
    )
    _fill(rate)


def downgrade():
    op.drop_table("rollup_meter_day")
    op.drop_table("meter_rate")


def _fill(rate):
    """Sum up the lines of the events that count: of each event the highest entry."""
    bind = op.get_bind()
    words = POSTGRESQL if bind.dialect.name == "postgresql" else SQLITE
    counting = (
        f"FROM {words['source']} {{}} WHERE NOT EXISTS (SELECT 1 FROM spend_event l"
        " WHERE l.event_id = e.event_id AND l.entry > e.entry)"
    )
    read = _columns(words)
    selected = ", ".join(f"{expression} AS {name}" for name, expression in read.items())
    distinct = op.get_bind().execute(sa.text(f"SELECT DISTINCT {selected} {counting.format('')}"))
    rates = sorted((tuple(row) for row in distinct.all()), key=repr)
    if not rates:
        return
    op.bulk_insert(rate, [{**dict(zip(RATE, one)), "sha256": _digest(one)} for one in rates])
    is_rate = " AND ".join(f"r.{name} {words['same']} {read[name]}" for name in RATE)
    value = words["value"]
    cost, listed = value.format(4), value.format(7)
    sums = ("COUNT(*)", f"SUM({value.format(1)})", f"SUM({cost})", f"SUM(COALESCE({listed}, {cost}))")
    key = (*(f"e.{name}" for name in (*DIMENSIONS, "quality")), "r.id")
    groups = ", ".join(str(place) for place in range(1, len(key) + 2))
    op.execute(
        f"INSERT INTO rollup_meter_day (bucket_us, {', '.join(DIMENSIONS)}, quality, meter_rate_id,"
        f" {', '.join(SUMS)}) SELECT {words['day']}, {', '.join((*key, *sums))}"
        f" {counting.format(f'JOIN meter_rate r ON {is_rate}')} GROUP BY {groups}"
    )


def _columns(words):
    """What a line says of its rate, by the column of `meter_rate`."""
    value = words["value"]
    listed = f"CASE WHEN {value.format(7)} IS NOT NULL THEN {{}} END"
    return {
        "meter": value.format(0).removesuffix("::bigint"),
        "rate_pico_usd": value.format(2),
        "rate_per_units": value.format(3),
        "list_rate_pico_usd": listed.format(value.format(5)),
        "list_rate_per_units": listed.format(value.format(6)),
        "price_version": "e.price_version",
    }


def _digest(rate):
    """As the loader computes it: of the values as a JSON array without spaces."""
    document = json.dumps(rate, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(document.encode()).digest()
