"""A statement as JSON: what `fareway spend statement --json` prints and `/admin/v1` answers."""

from __future__ import annotations

from typing import cast

import msgspec

from gateway.finance.statement_messages import MachinePart, TeamStatement
from gateway.ledger.report_document import period_document, sums_document
from pricing.money import format_usd


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
        "machines": None if statement.machines is None else _machines(statement.machines),
        "total": {**sums_document(statement.report.total), **period_document(statement.sums)},
    }


def _machines(part: MachinePart) -> dict[str, object]:
    """What the use of machines really cost; for information."""
    return {
        "uses": [
            {
                **cast("dict[str, object]", msgspec.to_builtins(use)),
                "booked_usd": format_usd(use.booked_pico_usd),
                "actual_usd": format_usd(use.actual_pico_usd),
            }
            for use in part.uses
        ],
        "booked_usd": format_usd(part.booked_pico_usd),
        "actual_usd": format_usd(part.actual_pico_usd),
        "approved_usd": format_usd(part.approved_pico_usd),
        "open_usd": format_usd(part.open_pico_usd),
        "waiting": list(part.waiting),
        "standing": part.standing,
    }
