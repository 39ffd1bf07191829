"""Tables of the ledger, the subset in use (`finance_policy.md` 3.2).

Names of teams, keys and deployments are interned in dimension tables; facts hold small integers.
`spend_event` is append-only: triggers refuse updates and deletes. An event has one entry, or two:
entry 0 when an attempt settled or was given up as lost, entry 1 when a settlement came after it
had been given up. The highest entry counts, alone; roll-ups hold exactly that.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger import finance_tables, machine_tables, notice_tables, people_tables
from gateway.ledger.columns import JSON_DOCUMENT, ROW_ID, Id16, InstantUs, PicoTotal
from gateway.ledger.metadata import metadata
from pricing.usage import Meter

METERS = tuple(meter.value for meter in Meter)
"""Meter columns, named like the meters, in their order."""
UNITS = tuple(f"{meter}_units" for meter in METERS)
COUNTS = (
    "request_count",
    "attempt_count",
    "unpriced_count",
    "list_cost_count",
    "provider_cost_count",
    "exposure_unknown_count",
    "compared_count",
    "uncompared_count",
)
"""Counts of a roll-up: requests by their first attempts, so that they add up; attempts; those
without a price; with a public price of their own; with a cost that the provider told; those whose
bill is unknown and has no upper bound either; and, where a baseline is named for the model, those
that are compared with it, and those that cannot be."""
AMOUNTS = (
    "cost_pico_usd",
    "list_cost_pico_usd",
    "provider_cost_pico_usd",
    "estimated_pico_usd",
    "nominal_pico_usd",
    "exposure_pico_usd",
    "cache_saved_pico_usd",
    "baseline_cost_pico_usd",
    "compared_cost_pico_usd",
)
"""Amounts of a roll-up. The list cost of an event without a public price is its cost; the compared
cost is that of the attempts whose baseline cost is known."""
ROLL_UP_DIMENSIONS = ("team_id", "project_id", "model_id", "deployment_id", "tags_id")
ROLL_UP_CODES = ("status", "quality")
METER_DIMENSIONS = ("team_id", "project_id", "model_id", "deployment_id", "quality")
"""What the roll-up by meter is by, apart from its day and its meter at a rate."""
METER_SUMS = ("line_count", "units", "cost_pico_usd", "list_cost_pico_usd")
"""What it adds up: lines of events, their units, what is charged, and the same at public prices
(what is charged, where a line has no public price)."""
_SUM_MAX = 9 * 10**18
FINANCE_TABLES = finance_tables.TABLES
"""Tables of imports, reconciliation and closed months, which have a module of their own."""
MACHINE_TABLES = machine_tables.TABLES
"""Tables of our own machines, likewise."""
NOTICE_TABLES = notice_tables.TABLES
"""Tables of what goes out by e-mail and webhook, likewise."""
PEOPLE_TABLES = people_tables.TABLES
"""Tables of people and their sessions, likewise."""


def _dimension(name: str, *columns: sa.Column[str], is_unique_by: int = 1) -> sa.Table:
    return sa.Table(
        name,
        metadata,
        sa.Column("id", ROW_ID, primary_key=True),
        *columns,
        sa.UniqueConstraint(*(column.name for column in columns[:is_unique_by])),
    )


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _reference(name: str, *, is_key: bool = False) -> sa.Column[int]:
    """An interned dimension; enforced by the loader, as dimension rows are never deleted."""
    return sa.Column(name, sa.Integer, nullable=False, primary_key=is_key)


def _code(name: str, *, is_key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.SmallInteger, nullable=False, primary_key=is_key)


def _units(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _roll_up(name: str, *, of: str | None = None) -> sa.Table:
    """Sums by beginning of the time, by `of`, and by everything that reports combine freely."""
    return sa.Table(
        name,
        metadata,
        sa.Column("bucket_us", InstantUs, primary_key=True, autoincrement=False),
        *(() if of is None else (_reference(of, is_key=True),)),
        *(_reference(dimension, is_key=True) for dimension in ROLL_UP_DIMENSIONS),
        *(_code(code, is_key=True) for code in ROLL_UP_CODES),
        *(_units(column) for column in (*COUNTS, *UNITS)),
        *(sa.Column(column, PicoTotal, nullable=False) for column in AMOUNTS),
        *(
            # SQLite turns an overflowing sum into a float; this stops the batch before.
            sa.CheckConstraint(f"{column} BETWEEN -{_SUM_MAX} AND {_SUM_MAX}", f"{column}_range")
            for column in (*COUNTS, *UNITS, *AMOUNTS)
        ),
        sqlite_with_rowid=False,
    )


team = _dimension("team", _text("name"))
project = _dimension("project", _text("team"), _text("name"), is_unique_by=2)
api_key_name = _dimension("api_key_name", _text("key_id"))
model = _dimension("model", _text("name"))
deployment = _dimension("deployment", _text("name"), _text("provider"), _text("upstream_model"))
tag_set = sa.Table(
    "tag_set",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("sha256", sa.LargeBinary(32), nullable=False, unique=True),
    sa.Column("tags", JSON_DOCUMENT, nullable=False),
)

cost_tag = _dimension("cost_tag", _text("name"), _text("value"), is_unique_by=2)
"""Names and values of cost tags that have sums of their own."""

attempt_intent = sa.Table(
    "attempt_intent",
    metadata,
    sa.Column("event_id", Id16, primary_key=True),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("session", sa.LargeBinary(16), nullable=False),
    sa.Column("at_us", InstantUs, nullable=False),
    sa.Column("expires_at_us", InstantUs, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.Index(None, "expires_at_us"),
    sa.Index(None, "directory"),
)
"""Attempts dispatched and not settled; the intent itself is kept as it was written."""

spend_event = sa.Table(
    "spend_event",
    metadata,
    sa.Column("event_id", Id16, primary_key=True),
    sa.Column("entry", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("at_us", InstantUs, primary_key=True, autoincrement=False),
    sa.Column("settled_at_us", InstantUs, nullable=False),
    sa.Column("request_id", Id16, nullable=False),
    _code("attempt"),
    _reference("team_id"),
    _reference("project_id"),
    _reference("key_id"),
    _reference("model_id"),
    _reference("deployment_id"),
    _reference("tags_id"),
    _reference("cost_tags_id"),
    _text("route"),
    sa.Column("is_stream", sa.Boolean, nullable=False),
    _text("reason"),
    _code("status"),
    sa.Column("is_lost", sa.Boolean, nullable=False),
    _code("quality"),
    *(_units(f"{meter}_units") for meter in METERS),
    _text("price_version"),
    sa.Column("lines", JSON_DOCUMENT, nullable=False),
    sa.Column("cost_pico_usd", sa.BigInteger),
    sa.Column("provider_cost_pico_usd", sa.BigInteger),
    sa.Column("exposure_pico_usd", sa.BigInteger),
    _code("http_status"),
    _text("error_code"),
    _text("upstream_request_id"),
    _text("finish_reason"),
    sa.Column("ttft_us", sa.BigInteger),
    _units("duration_us"),
    sa.Column("list_cost_pico_usd", sa.BigInteger),
    sa.Column("cache_saved_pico_usd", sa.BigInteger),
    sa.Column("baseline", sa.Text),
    sa.Column("baseline_cost_pico_usd", sa.BigInteger),
    *(sa.CheckConstraint(f"{meter}_units >= 0", f"{meter}_units_claim") for meter in METERS),
    sa.Index(None, "at_us"),
    sa.Index(None, "request_id"),
    sqlite_with_rowid=False,
)
"""One attempt's immutable line; a null cost is `unpriced`, never free; a null list cost means that
no public price is known apart from the one charged. `baseline` is the deployment, with the version
of its price, that the attempt is compared with; null where none was named in advance."""

rollup_qh = _roll_up("rollup_qh")
"""Sums by quarter-hour: fine enough for every time zone."""
rollup_day = _roll_up("rollup_day")
"""The same by UTC day, for long ranges."""
rollup_key_qh = _roll_up("rollup_key_qh", of="key_id")
"""Sums by quarter-hour and key."""
rollup_key_day = _roll_up("rollup_key_day", of="key_id")
"""The same by UTC day."""
rollup_tag_qh = _roll_up("rollup_tag_qh", of="cost_tag_id")
"""Sums by quarter-hour and cost tag, for the tags listed in `meta` (`cost_tags`)."""
rollup_tag_day = _roll_up("rollup_tag_day", of="cost_tag_id")
"""The same by UTC day."""

meter_rate = sa.Table(
    "meter_rate",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("sha256", sa.LargeBinary(32), nullable=False, unique=True),
    _text("meter"),
    sa.Column("rate_pico_usd", sa.BigInteger, nullable=False),
    sa.Column("rate_per_units", sa.BigInteger, nullable=False),
    sa.Column("list_rate_pico_usd", sa.BigInteger),
    sa.Column("list_rate_per_units", sa.BigInteger),
    _text("price_version"),
)
"""Meters at the rates that lines of events charged, exactly, interned by the digest of all of it.
No list rate means that no public price is known apart from the one charged."""

rollup_meter_day = sa.Table(
    "rollup_meter_day",
    metadata,
    sa.Column("bucket_us", InstantUs, primary_key=True, autoincrement=False),
    *(
        _code(name, is_key=True) if name in ROLL_UP_CODES else _reference(name, is_key=True)
        for name in METER_DIMENSIONS
    ),
    _reference("meter_rate_id", is_key=True),
    _units("line_count"),
    _units("units"),
    sa.Column("cost_pico_usd", PicoTotal, nullable=False),
    sa.Column("list_cost_pico_usd", PicoTotal, nullable=False),
    *(
        sa.CheckConstraint(f"{column} BETWEEN -{_SUM_MAX} AND {_SUM_MAX}", f"{column}_range")
        for column in METER_SUMS
    ),
    sqlite_with_rowid=False,
)
"""Sums of the lines of events, by UTC day: what was charged on each meter at each rate."""

spool_cursor = sa.Table(
    "spool_cursor",
    metadata,
    sa.Column("directory", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("offset_bytes", sa.BigInteger, nullable=False),
    sa.Column("session", sa.LargeBinary(16), nullable=False),
)
"""How far each spool directory is loaded; moves in the transaction that inserts."""

quarantine = sa.Table(
    "quarantine",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("session", sa.LargeBinary(16), nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("offset_bytes", sa.BigInteger, nullable=False),
    _text("reason"),
    sa.Column("payload", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("directory", "session", "number", "offset_bytes", "reason"),
)
"""What could not be booked, as it lay in the spool, with the reason."""

api_key = sa.Table(
    "api_key",
    metadata,
    sa.Column("key_id", sa.Text, primary_key=True),
    sa.Column("hash", sa.LargeBinary(32), nullable=False),
    _text("team"),
    _text("project"),
    _text("name"),
    sa.Column("models", JSON_DOCUMENT),
    sa.Column("created_at_us", InstantUs, nullable=False),
    sa.Column("expires_at_us", InstantUs),
    sa.Column("disabled_at_us", InstantUs),
    sa.Column("limits", JSON_DOCUMENT),
    sa.Column("owner", sa.Text),
    sa.Column("tags", JSON_DOCUMENT),
    sa.Index(
        "uq_api_key_name_in_use",
        "team",
        "name",
        unique=True,
        sqlite_where=sa.text("disabled_at_us IS NULL"),
        postgresql_where=sa.text("disabled_at_us IS NULL"),
    ),
)
"""Keys made with `keys create`; those of the configuration file are not here. The name of a revoked
key may be given again."""

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("seq", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("actor"),
    _text("action"),
    _text("object"),
    sa.Column("details", JSON_DOCUMENT, nullable=False),
    sa.Column("previous_hash", sa.LargeBinary(32), nullable=False, unique=True),
    sa.Column("hash", sa.LargeBinary(32), nullable=False),
)
"""Who changed which key, as a hash chain; a unique predecessor makes forks impossible."""

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    _text("value"),
)
"""Facts about the database itself, such as the revision of the key directory."""
