"""Tables of imports, invoices, reconciliation, adjustments and closed months.

Names of teams, models and accounts are kept as text here: there are few of these rows, and the
digest of a month has to be the same on every database. Months are `YYYY-MM` and days `YYYY-MM-DD`,
both of the calendar in UTC; empty text means that a row is not about one of them.
"""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger.columns import JSON_DOCUMENT, ROW_ID, Id16, InstantUs, PicoTotal
from gateway.ledger.metadata import metadata

_PICO_USD_MAX = 9 * 10**18

ADJUSTMENT_KINDS = (
    "true_up",
    "credit",
    "tax",
    "rounding",
    "late",
    "allocation",
    "reattribution",
)
"""What an adjustment is."""


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _pico(name: str) -> list[sa.schema.SchemaItem]:
    """An amount; bounded, because SQLite would turn an overflowing sum into a float."""
    bound = sa.CheckConstraint(
        f"{name} BETWEEN -{_PICO_USD_MAX} AND {_PICO_USD_MAX}", f"{name}_range"
    )
    return [sa.Column(name, PicoTotal, nullable=False), bound]


def _reference(name: str, *, is_optional: bool = False) -> sa.Column[int]:
    """The id of a row of another table; both are written in one transaction."""
    return sa.Column(name, sa.BigInteger, nullable=is_optional)


period_close = sa.Table(
    "period_close",
    metadata,
    sa.Column("month", sa.Text, primary_key=True),
    _text("state"),
    sa.Column("soft_at_us", InstantUs),
    _text("soft_by"),
    sa.Column("closed_at_us", InstantUs),
    _text("closed_by"),
    sa.Column("accepted", JSON_DOCUMENT, nullable=False),
    sa.Column("figures", JSON_DOCUMENT, nullable=False),
    sa.Column("ledger_digest", sa.LargeBinary(32)),
    sa.Column("anchor", sa.LargeBinary(32)),
    sa.CheckConstraint("state IN ('soft', 'closed')", "state"),
)
"""Months that are soft or closed; the others are open. `anchor` is the head of the audit chain with
the line of the close in it. A closed row is never changed."""

close_proposal = sa.Table(
    "close_proposal",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    _text("month"),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("proposed_by"),
    sa.Column("accepted", JSON_DOCUMENT, nullable=False),
    sa.Column("figures", JSON_DOCUMENT, nullable=False),
    sa.Column("ledger_digest", sa.LargeBinary(32), nullable=False),
    _text("state"),
    sa.Column("decided_at_us", InstantUs),
    _text("decided_by"),
    _text("reason"),
    sa.CheckConstraint("state IN ('open', 'confirmed', 'withdrawn', 'replaced', 'void')", "state"),
    sa.Index(
        "uq_close_proposal_open",
        "month",
        unique=True,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    ),
)
"""Hard closes that wait for a second person, one a month at most, and what became of them."""

late_entry = sa.Table(
    "late_entry",
    metadata,
    sa.Column("event_id", Id16, primary_key=True),
    sa.Column("entry", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("booked_period"),
    sa.Column("noted_at_us", InstantUs),
    sa.Index(None, "at_us"),
    sa.Index(None, "booked_period"),
)
"""Entries that came when their month was closed, the month that they are counted in, and when they
were noted; null for those of a release that did not keep it."""

import_batch = sa.Table(
    "import_batch",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("actor"),
    _text("source"),
    _text("account"),
    _text("file_name"),
    sa.Column("sha256", sa.LargeBinary(32), nullable=False),
    _text("state"),
    _text("reason"),
    _text("first_day"),
    _text("last_day"),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    _reference("replaced_by", is_optional=True),
    sa.CheckConstraint("state IN ('ok', 'unreadable')", "state"),
    sa.Index(None, "account"),
    sa.Index(
        "uq_import_batch_file",
        "account",
        "source",
        "sha256",
        unique=True,
        sqlite_where=sa.text("state = 'ok'"),
        postgresql_where=sa.text("state = 'ok'"),
    ),
)
"""Files that were taken, and those that could not be read; days are `first_day` to `last_day`,
both counted."""

provider_usage = sa.Table(
    "provider_usage",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    _reference("batch_id"),
    sa.Column("line", sa.Integer, nullable=False),
    _text("account"),
    _text("day"),
    _text("model"),
    _text("meter"),
    _text("tier"),
    sa.Column("units", sa.BigInteger, nullable=False),
    sa.Index(None, "batch_id"),
)
"""What a vendor says was used, without money."""

invoice = sa.Table(
    "invoice",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    _reference("batch_id"),
    _text("account"),
    _text("number"),
    _text("issued_on"),
    _text("currency"),
    *_pico("total_pico_usd"),
    sa.Index(None, "batch_id"),
)
"""What a vendor bills; a cost report is one, numbered after its file."""

invoice_line = sa.Table(
    "invoice_line",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    _reference("invoice_id"),
    sa.Column("line", sa.Integer, nullable=False),
    _text("kind"),
    _text("day"),
    _text("model"),
    _text("meter"),
    _text("tier"),
    sa.Column("units", sa.BigInteger),
    _text("amount"),
    *_pico("amount_pico_usd"),
    *_pico("fx_pico_usd"),
    _text("description"),
    sa.CheckConstraint("kind IN ('usage', 'tax', 'credit', 'rounding')", "kind"),
    sa.Index(None, "invoice_id"),
)
"""One line: `amount` as it stood in the invoice's currency; of `amount_pico_usd`, `fx_pico_usd` is
what the rate of the invoice's day makes of it above that of the day of charge."""

recon_run = sa.Table(
    "recon_run",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("actor"),
    _text("month"),
    _text("state"),
    *_pico("ledger_pico_usd"),
    *_pico("adjusted_pico_usd"),
    *_pico("billed_pico_usd"),
    sa.Column("accounts", JSON_DOCUMENT, nullable=False),
    sa.Column("tolerances", JSON_DOCUMENT, nullable=False),
    sa.Index(None, "month"),
)
"""One comparison of a month; `accounts` holds coverage and totals of each account."""

recon_diff = sa.Table(
    "recon_diff",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    _reference("run_id"),
    _text("account"),
    _text("day"),
    _text("model"),
    _text("meter"),
    _text("tier"),
    _text("kind"),
    sa.Column("metered_units", sa.BigInteger),
    sa.Column("billed_units", sa.BigInteger),
    *_pico("ledger_pico_usd"),
    *_pico("billed_pico_usd"),
    *_pico("amount_pico_usd"),
    _text("sentence"),
    _reference("proposal_id", is_optional=True),
    sa.Index(None, "run_id"),
)
"""One difference with its class; a run's amounts sum to billed less ledger less adjusted."""

price_proposal = sa.Table(
    "price_proposal",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _reference("run_id"),
    _text("month"),
    _text("account"),
    _text("model"),
    _text("meter"),
    _text("price_key"),
    _text("our_price"),
    sa.Column("is_mixed", sa.Boolean, nullable=False),
    _text("billed_price"),
    _text("our_rate"),
    _text("billed_rate"),
    sa.Column("evidence", JSON_DOCUMENT, nullable=False),
    _text("state"),
    sa.Column("decided_at_us", InstantUs),
    _text("decided_by"),
    _text("reason"),
    sa.CheckConstraint("state IN ('open', 'accepted', 'rejected', 'withdrawn')", "state"),
    sa.Index(None, "month"),
    sa.Index(None, "run_id"),
)
"""Prices that bills imply where they are not ours; rates are exact fractions as text, prices what
would stand in the configuration."""

adjustment_proposal = sa.Table(
    "adjustment_proposal",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("proposed_by"),
    _text("period"),
    _text("kind"),
    _text("reason"),
    *_pico("total_pico_usd"),
    sa.Column("lines", JSON_DOCUMENT, nullable=False),
    _reference("run_id", is_optional=True),
    _text("state"),
    sa.Column("decided_at_us", InstantUs),
    _text("decided_by"),
    sa.CheckConstraint("state IN ('proposed', 'posted', 'rejected')", "state"),
    sa.Index(None, "state"),
)
"""Adjustments that wait for a second person, or were decided."""

spend_adjustment = sa.Table(
    "spend_adjustment",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("period"),
    _text("original_period"),
    _text("kind"),
    *_pico("amount_pico_usd"),
    _text("team"),
    _text("project"),
    _text("account"),
    _text("model"),
    _text("meter"),
    _text("day"),
    sa.Column("event_id", Id16),
    sa.Column("invoice_line_id", sa.BigInteger),
    _reference("proposal_id"),
    _text("reason"),
    _text("proposed_by"),
    _text("approved_by"),
    sa.CheckConstraint(
        "kind IN (" + ", ".join(f"'{kind}'" for kind in ADJUSTMENT_KINDS) + ")", "kind"
    ),
    sa.Index(None, "period"),
    sa.Index(None, "proposal_id"),
)
"""Posted corrections, append-only; `period` is the month that they count in, `original_period` the
closed one that they are about, empty when it is the same."""

journal_document = sa.Table(
    "journal_document",
    metadata,
    sa.Column("period", sa.Text, primary_key=True),
    sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
    _text("number"),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("actor"),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    sa.Column("document", JSON_DOCUMENT, nullable=False),
    sa.UniqueConstraint("number"),
)
"""Journals of closed months as they were issued, append-only."""

commitment = sa.Table(
    "commitment",
    metadata,
    sa.Column("id", ROW_ID, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("actor"),
    _text("name"),
    sa.Column("revision", sa.Integer, nullable=False),
    _text("kind"),
    _text("provider"),
    sa.Column("deployments", JSON_DOCUMENT, nullable=False),
    _text("currency"),
    _text("amount"),
    *_pico("amount_pico_usd"),
    _text("rate_day"),
    _text("rate_source"),
    _text("first_day"),
    _text("last_day"),
    _text("counts_from"),
    _text("invoice"),
    _text("reason"),
    sa.Column("is_withdrawn", sa.Boolean, nullable=False),
    sa.UniqueConstraint("name", "revision"),
    sa.CheckConstraint("kind IN ('credit', 'spend', 'throughput')", "kind"),
)
"""What was bought or promised ahead, append-only: the latest revision of a name holds, from the day
`counts_from` on."""

TABLES = (
    period_close,
    close_proposal,
    late_entry,
    import_batch,
    provider_usage,
    invoice,
    invoice_line,
    recon_run,
    recon_diff,
    price_proposal,
    adjustment_proposal,
    spend_adjustment,
    journal_document,
    commitment,
)
"""All of them."""

finance_form = sa.Table(
    "finance_form",
    metadata,
    sa.Column("form", sa.Text, primary_key=True),
    sa.Column("at_us", InstantUs, nullable=False),
    _text("actor"),
    sa.Column("digest", sa.LargeBinary(32), nullable=False),
    _text("subject"),
    _text("sentence"),
)
"""Forms of the dashboard that were acted on, so that none is acted on twice; `digest` is of what
the form asked for."""
