"""A journal as CSV (RFC 4180), one line each, for the import of a general ledger."""

from __future__ import annotations

import csv
import io

from gateway.finance.journal_messages import JournalDocument
from gateway.ledger.report_csv import neutralised

COLUMNS = (
    "document_number",
    "state",
    "period",
    "posting_date",
    "entity",
    "line",
    "account",
    "cost_centre",
    "debit",
    "credit",
    "currency",
    "text",
    "amount_pico_usd",
)


def journal_csv(document: JournalDocument) -> str:
    """The lines with a header; lines end with CRLF.

    Text that a spreadsheet would run as a formula gets a leading apostrophe.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, dialect="excel")
    writer.writerow(COLUMNS)
    for number, line in enumerate(document.lines, start=1):
        writer.writerow(
            (
                document.number,
                "draft" if document.is_draft else "issued",
                document.period,
                document.posting_date,
                neutralised(document.entity),
                number,
                neutralised(line.account),
                neutralised(line.cost_centre),
                line.debit,
                line.credit,
                document.currency,
                neutralised(line.text),
                line.amount_pico_usd,
            )
        )
    return out.getvalue()
