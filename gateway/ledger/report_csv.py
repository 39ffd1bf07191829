"""A spend report as CSV, without what draws tables: workers write it too.

The form is that of RFC 4180. A text cell that a spreadsheet would run as a formula gets a leading
apostrophe; numbers are written as numbers, negative ones too, and never change.
"""

from __future__ import annotations

import csv
import io
import re

from gateway.ledger.report_document import period_document, sums_document
from gateway.ledger.views import SpendReport

_FORMULA = re.compile(r"^[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")


def as_csv(report: SpendReport) -> str:
    """A header, the rows, and the total with `total` in its first cell; lines end with CRLF."""
    currency = report.currency
    total = {
        **sums_document(report.total, currency, report.total_converted),
        **period_document(report.total_period),
    }
    out = io.StringIO(newline="")
    writer = csv.writer(out, dialect="excel")
    writer.writerow((*(neutralised(name) for name in report.columns), *total))
    for row in report.rows:
        names = tuple(neutralised(name) for name in row.group)
        amounts = sums_document(row.sums, currency, row.converted)
        writer.writerow((*names, *amounts.values(), *period_document(row.period).values()))
    blanks = ("",) * (len(report.columns) - 1)
    writer.writerow(("total", *blanks, *total.values()))
    return out.getvalue()


def neutralised(text: str) -> str:
    """The text, with an apostrophe before it when a spreadsheet would run it.

    Importing such a file again means taking one leading apostrophe off each text cell.
    """
    return f"'{text}" if _FORMULA.match(text) or text.startswith("'") else text
