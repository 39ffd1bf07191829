"""A statement as JSON: what `fareway spend statement --json` prints and `/admin/v1` answers."""

from __future__ import annotations

import msgspec

from gateway.finance.statement_messages import TeamStatement
from gateway.ledger.report_document import period_document, sums_document


def statement_json(statement: TeamStatement) -> dict[str, object]:
    """The statement as plain values, amounts as decimal text and in picodollars."""
    columns = statement.report.columns
    return {
        "team": statement.team,
        "period": statement.period,
        "first_day": statement.first_day,
        "last_day": statement.last_day,
        "state": statement.state,
        "rows": [
            {**dict(zip(columns, row.group, strict=True)), **sums_document(row.sums)}
            for row in statement.report.rows
        ],
        "late": msgspec.to_builtins(statement.late),
        "adjustments": msgspec.to_builtins(statement.adjustments),
        "total": {**sums_document(statement.report.total), **period_document(statement.sums)},
    }
