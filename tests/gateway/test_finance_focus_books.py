"""Adjustments, invoices and closed months of the books in an export."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from gateway.finance.focus.books import open_export
from gateway.finance.focus.files import write_folder
from gateway.finance.focus.order import ExportOrder, FileFormat, NameForm, Profile, month_of
from gateway.finance.sides import load_sides
from gateway.ledger.finance_tables import (
    import_batch,
    invoice,
    invoice_line,
    period_close,
    spend_adjustment,
)
from pricing.money import parse_usd
from tests.gateway.focus_ledgers import Event, column_sum, ledger_of, told
from tests.gateway.focus_samples import FROM_US, PARTIES, TO_US, read_rows

LINES = (
    ("usage", "2026-11-01", "llama", "input", "3"),
    ("usage", "2026-11-02", "llama", "input", "0.000000000007"),
    ("usage", "2026-11-02", "", "", "1.5"),
    ("usage", "2026-10-31", "llama", "", "100"),
    ("tax", "2026-11-30", "", "", "0.5"),
    ("credit", "2026-11-30", "", "", "-0.25"),
    ("credit", "2026-11-30", "", "", "0.01"),
    ("rounding", "2026-11-30", "", "", "0.001"),
)
ADJUSTMENTS = (
    ("2026-11", "", "true_up", "2", "payments", "2026-11-03", 1),
    ("2026-11", "2026-10", "late", "0.75", "search", "2026-10-31", None),
    ("2026-11", "", "tax", "0.5", "payments", "", 5),
    ("2026-11", "", "credit", "-0.25", "payments", "", 6),
    ("2026-11", "", "credit", "0.01", "payments", "", 7),
    ("2026-11", "", "reattribution", "-1", "unattributed", "", None),
    ("2026-11", "", "reattribution", "1", "search", "", None),
    ("2026-12", "", "true_up", "9", "payments", "", None),
)


def fill_books(connection: sa.Connection, *, replaced_by: int | None = None) -> None:
    connection.execute(
        sa.insert(import_batch),
        {
            "id": 1,
            "at_us": TO_US,
            "actor": "ann",
            "source": "csv",
            "account": "groq",
            "file_name": "november.csv",
            "sha256": b"s" * 32,
            "state": "ok",
            "reason": "",
            "first_day": "2026-11-01",
            "last_day": "2026-11-30",
            "row_count": len(LINES),
            "replaced_by": replaced_by,
        },
    )
    connection.execute(
        sa.insert(invoice),
        {
            "id": 1,
            "batch_id": 1,
            "account": "groq",
            "number": "R-11",
            "issued_on": "2026-12-01",
            "currency": "USD",
            "total_pico_usd": 0,
        },
    )
    lines = [
        {
            "id": number,
            "invoice_id": 1,
            "line": number,
            "kind": kind,
            "day": day,
            "model": model,
            "meter": meter,
            "tier": "",
            "units": None,
            "amount": f"{dollars} USD",
            "amount_pico_usd": parse_usd(dollars),
            "fx_pico_usd": 0,
            "description": "" if kind == "rounding" else f"line {number}",
        }
        for number, (kind, day, model, meter, dollars) in enumerate(LINES, start=1)
    ]
    connection.execute(sa.insert(invoice_line), lines)
    _fill_adjustments(connection)


def _fill_adjustments(connection: sa.Connection) -> None:
    posted = [
        {
            "id": number,
            "at_us": TO_US,
            "period": period,
            "original_period": original,
            "kind": kind,
            "amount_pico_usd": parse_usd(dollars),
            "team": team,
            "project": "",
            "account": "" if kind == "reattribution" else "groq",
            "model": "",
            "meter": "",
            "day": day,
            "event_id": None,
            "invoice_line_id": line,
            "proposal_id": 1,
            "reason": f"{kind} {number}",
            "proposed_by": "ann",
            "approved_by": "bob",
        }
        for number, (period, original, kind, dollars, team, day, line) in enumerate(
            ADJUSTMENTS, start=1
        )
    ]
    connection.execute(sa.insert(spend_adjustment), posted)
    closed = {"soft_at_us": None, "soft_by": "", "closed_by": "bob", "accepted": {}, "figures": {}}
    connection.execute(
        sa.insert(period_close),
        [
            {"month": "2026-11", "state": "closed", "closed_at_us": TO_US + 1_000_000, **closed},
        ],
    )


EVENTS = (
    Event(number=1, units=(("input", 10**6), ("output", 10**6))),
    Event(number=2, at_us=FROM_US + 1, units=(("output", 10),), deployment=1),
)
COST = sum(event.cost or 0 for event in EVENTS)
OF_NOVEMBER = parse_usd("2") + parse_usd("0.75") + parse_usd("0.26")
"""Sum of its adjustments."""
INVOICED = parse_usd("4.761000000007")
"""Sum of the lines about November."""


def export_of(connection, profile: Profile, *, to_us: int = TO_US):
    order = ExportOrder(from_us=FROM_US, to_us=to_us, profile=profile, names=NameForm.PLAIN)
    return open_export(connection, order, parties=PARTIES, pseudonym_key=b"k" * 32, now_us=to_us)


def test_a_chargeback_sums_to_ledger_and_adjustments() -> None:
    with ledger_of(EVENTS) as connection:
        fill_books(connection)
        rows = told(connection, export_of(connection, Profile.CHARGEBACK))
        until_january = export_of(connection, Profile.CHARGEBACK, to_us=month_of("2026-12")[1])
        both = told(connection, until_january)
    for name in ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost"):
        assert column_sum(rows, name) == COST + OF_NOVEMBER
    assert column_sum(both, "BilledCost") == COST + OF_NOVEMBER + parse_usd("9")
    posted = [row for row in rows if row["ChargeCategory"] != "Usage"]
    assert [row["ChargeCategory"] for row in posted] == [
        "Adjustment",
        "Adjustment",
        "Tax",
        "Credit",
        *["Adjustment"] * 3,
    ]
    late = posted[1]
    assert (late["ChargeClass"], late["x_OriginalEventDate"]) == ("Correction", "2026-10-31")
    assert (late["BillingPeriodStart"], late["SubAccountId"]) == (FROM_US, "search")
    assert [row["InvoiceId"] for row in posted] == [
        "R-11",
        None,
        "R-11",
        "R-11",
        "R-11",
        None,
        None,
    ]
    assert posted[0]["InvoiceDetailId"] == "R-11/1-1"


def test_a_reconciled_export_bills_the_invoices_and_nothing_twice(tmp_path) -> None:
    with ledger_of(EVENTS) as connection:
        fill_books(connection)
        export = export_of(connection, Profile.RECONCILED)
        write_folder(connection, export, FileFormat.CSV, tmp_path / "out")
        rows = told(connection, export_of(connection, Profile.RECONCILED))
    by_vendor = [row for row in rows if row["InvoiceIssuerName"] == "groq"]
    assert column_sum(by_vendor, "BilledCost") == INVOICED
    kinds = [(row["ChargeCategory"], row["InvoiceId"], row["BilledCost"]) for row in rows]
    assert ("Tax", "R-11", parse_usd("0.5")) in kinds
    assert ("Credit", "R-11", parse_usd("-0.25")) in kinds
    moves = [row for row in rows if str(row["ChargeDescription"]).startswith("reattr")]
    assert [row["BilledCost"] for row in moves] == [parse_usd("-1"), parse_usd("1")]
    true_up = next(row for row in rows if row["ChargeDescription"] == "true_up 1")
    assert (true_up["BilledCost"], true_up["EffectiveCost"]) == (0, parse_usd("2"))
    details = read_rows(tmp_path / "out" / "invoice_detail.csv")
    assert sum(parse_usd(row["BilledCost"]) for row in details) == INVOICED
    assert len(details) == 6  # usage of one model and meter is one line, whatever its days
    assert {row["InvoiceIssueStatus"] for row in details} == {"Issued"}
    periods = read_rows(tmp_path / "out" / "billing_period.csv")
    assert {row["BillingPeriodStatus"] for row in periods} == {"Closed"}
    assert {row["BillingPeriodLastUpdated"] for row in periods} == {"2026-12-01T00:00:01Z"}


@pytest.mark.parametrize("profile", [Profile.CHARGEBACK, Profile.OVERLAY])
def test_where_invoices_do_not_bill_there_is_no_invoice_detail(tmp_path, profile) -> None:
    with ledger_of(EVENTS) as connection:
        fill_books(connection)
        write_folder(connection, export_of(connection, profile), FileFormat.CSV, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "billing_period.csv",
        "cost_and_usage.csv",
        "manifest.json",
    ]


def test_a_file_that_another_one_replaced_bills_nothing() -> None:
    with ledger_of(EVENTS) as connection:
        fill_books(connection, replaced_by=2)
        rows = told(connection, export_of(connection, Profile.RECONCILED))
    usage = [row for row in rows if row["ChargeCategory"] == "Usage"]
    assert {row["x_ReconciliationState"] for row in usage} == {"Estimated"}
    assert column_sum(usage, "BilledCost") == COST


def test_reconciliation_reads_lines_with_and_without_a_public_price() -> None:
    found = [Event(number=n, has_list=bool(n % 2)) for n in range(1, 5)]
    with ledger_of(found) as connection:
        (metered,) = load_sides(connection, "2026-11").metered
    assert metered.cost_pico_usd == sum(event.cost or 0 for event in found)
