"""Imports of vendors' figures, invoices, reconciliation, adjustments, closed months."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

PICO_MAX = 9 * 10**18
KINDS = ("true_up", "credit", "tax", "rounding", "late", "allocation", "reattribution")
APPEND_ONLY = ("spend_adjustment", "late_entry", "provider_usage", "invoice", "invoice_line")
TABLES = (
    "spend_adjustment", "adjustment_proposal", "recon_diff", "recon_run", "invoice_line", "invoice",
    "provider_usage", "import_batch", "late_entry", "period_close",
)


def instant(name, *, nullable=False):
    kind = sa.BigInteger().with_variant(sa.TIMESTAMP(timezone=True), "postgresql")
    return sa.Column(name, kind, nullable=nullable)


def id16(name, *, nullable=False):
    kind = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
    return sa.Column(name, kind, nullable=nullable)


def document(name):
    kind = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    return sa.Column(name, kind, nullable=False)


def row_id():
    return sa.Column("id", sa.Integer().with_variant(sa.BigInteger(), "postgresql"), nullable=False)


def texts(*names):
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def whole(name, *, nullable=False):
    return sa.Column(name, sa.BigInteger, nullable=nullable)


def pico(name):
    kind = sa.BigInteger().with_variant(sa.Numeric(38, 0), "postgresql")
    return sa.Column(name, kind, nullable=False)


def create(table, *parts, key="id", checks=(), bounded=()):
    columns = key if isinstance(key, tuple) else (key,)
    op.create_table(
        table,
        *parts,
        *(sa.CheckConstraint(text, name=f"ck_{table}_{name}") for name, text in checks),
        *(
            sa.CheckConstraint(
                f"{name} BETWEEN -{PICO_MAX} AND {PICO_MAX}", name=f"ck_{table}_{name}_range"
            )
            for name in bounded
        ),
        sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}"),
    )


def index(table, column):
    op.create_index(f"ix_{table}_{column}", table, [column])


def upgrade():
    _create_periods()
    _create_imports()
    _create_reconciliation()
    _create_adjustments()
    for table in APPEND_ONLY:
        _refuse(table, "append_only", "UPDATE OR DELETE", "refuse_change")
    _refuse(
        "period_close", "closed_for_good", "UPDATE OR DELETE", "refuse_change",
        when="OLD.state = 'closed'",
    )


def downgrade():
    if op.get_bind().dialect.name == "postgresql":
        for table in APPEND_ONLY:
            op.execute(f"DROP TRIGGER {table}_append_only ON {table}")
        op.execute("DROP TRIGGER period_close_closed_for_good ON period_close")
    for table in TABLES:
        op.drop_table(table)


def _create_periods():
    create(
        "period_close",
        *texts("month", "state"),
        instant("soft_at_us", nullable=True),
        *texts("soft_by"),
        instant("closed_at_us", nullable=True),
        *texts("closed_by"),
        document("accepted"),
        document("figures"),
        sa.Column("ledger_digest", sa.LargeBinary(32)),
        sa.Column("anchor", sa.LargeBinary(32)),
        key="month",
        checks=(("state", "state IN ('soft', 'closed')"),),
    )
    create(
        "late_entry",
        id16("event_id"),
        sa.Column("entry", sa.SmallInteger, nullable=False),
        instant("at_us"),
        *texts("booked_period"),
        key=("event_id", "entry"),
    )
    index("late_entry", "at_us")
    index("late_entry", "booked_period")


def _create_imports():
    create(
        "import_batch",
        row_id(),
        instant("at_us"),
        *texts("actor", "source", "account", "file_name"),
        sa.Column("sha256", sa.LargeBinary(32), nullable=False),
        *texts("state", "reason", "first_day", "last_day"),
        whole("row_count"),
        whole("replaced_by", nullable=True),
        checks=(("state", "state IN ('ok', 'unreadable')"),),
    )
    index("import_batch", "account")
    is_ok = sa.text("state = 'ok'")
    op.create_index(
        "uq_import_batch_file",
        "import_batch",
        ["account", "source", "sha256"],
        unique=True,
        sqlite_where=is_ok,
        postgresql_where=is_ok,
    )
    create(
        "provider_usage",
        row_id(),
        whole("batch_id"),
        sa.Column("line", sa.Integer, nullable=False),
        *texts("account", "day", "model", "meter", "tier"),
        whole("units"),
    )
    index("provider_usage", "batch_id")
    create(
        "invoice",
        row_id(),
        whole("batch_id"),
        *texts("account", "number", "issued_on", "currency"),
        pico("total_pico_usd"),
        bounded=("total_pico_usd",),
    )
    index("invoice", "batch_id")
    create(
        "invoice_line",
        row_id(),
        whole("invoice_id"),
        sa.Column("line", sa.Integer, nullable=False),
        *texts("kind", "day", "model", "meter", "tier"),
        whole("units", nullable=True),
        *texts("amount"),
        pico("amount_pico_usd"),
        pico("fx_pico_usd"),
        *texts("description"),
        checks=(("kind", "kind IN ('usage', 'tax', 'credit', 'rounding')"),),
        bounded=("amount_pico_usd", "fx_pico_usd"),
    )
    index("invoice_line", "invoice_id")


def _create_reconciliation():
    totals = ("ledger_pico_usd", "adjusted_pico_usd", "billed_pico_usd")
    create(
        "recon_run",
        row_id(),
        instant("at_us"),
        *texts("actor", "month", "state"),
        *(pico(name) for name in totals),
        document("accounts"),
        document("tolerances"),
        bounded=totals,
    )
    index("recon_run", "month")
    amounts = ("ledger_pico_usd", "billed_pico_usd", "amount_pico_usd")
    create(
        "recon_diff",
        row_id(),
        whole("run_id"),
        *texts("account", "day", "model", "meter", "tier", "kind"),
        whole("metered_units", nullable=True),
        whole("billed_units", nullable=True),
        *(pico(name) for name in amounts),
        *texts("sentence"),
        whole("proposal_id", nullable=True),
        bounded=amounts,
    )
    index("recon_diff", "run_id")


def _create_adjustments():
    create(
        "adjustment_proposal",
        row_id(),
        instant("at_us"),
        *texts("proposed_by", "period", "kind", "reason"),
        pico("total_pico_usd"),
        document("lines"),
        whole("run_id", nullable=True),
        *texts("state"),
        instant("decided_at_us", nullable=True),
        *texts("decided_by"),
        checks=(("state", "state IN ('proposed', 'posted', 'rejected')"),),
        bounded=("total_pico_usd",),
    )
    index("adjustment_proposal", "state")
    create(
        "spend_adjustment",
        row_id(),
        instant("at_us"),
        *texts("period", "original_period", "kind"),
        pico("amount_pico_usd"),
        *texts("team", "project", "account", "model", "meter", "day"),
        id16("event_id", nullable=True),
        whole("invoice_line_id", nullable=True),
        whole("proposal_id"),
        *texts("reason", "proposed_by", "approved_by"),
        checks=(("kind", "kind IN (" + ", ".join(f"'{kind}'" for kind in KINDS) + ")"),),
        bounded=("amount_pico_usd",),
    )
    index("spend_adjustment", "period")
    index("spend_adjustment", "proposal_id")


def _refuse(table, name, verbs, function, *, when=None):
    """A trigger that lets nobody change a row; `refuse_change` is of version 0001."""
    if op.get_bind().dialect.name == "postgresql":
        condition = f"WHEN ({when}) " if when else ""
        op.execute(
            f"CREATE TRIGGER {table}_{name} BEFORE {verbs} ON {table} "
            f"FOR EACH ROW {condition}EXECUTE FUNCTION {function}()"
        )
        return
    for verb in verbs.split(" OR "):
        condition = f"WHEN {when} " if when else ""
        op.execute(
            f"CREATE TRIGGER {table}_{name}_{verb.lower()} BEFORE {verb} ON {table} "
            f"{condition}BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
        )
