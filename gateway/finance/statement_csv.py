"""A statement as CSV (RFC 4180): usage, corrections, and the total; lines end with CRLF.

What machines really cost stands in rows of the kind `machines`, in columns of its own: it is for
information, and their amount is 0.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from gateway.finance.machines.shown import SLICE_NAME
from gateway.finance.statement_messages import MachinePart, TeamStatement
from gateway.ledger.report_csv import neutralised
from gateway.ledger.views import SpendSums
from pricing.money import format_usd

COLUMNS = (
    "kind",
    "team",
    "period",
    "project",
    "cost_centre",
    "model",
    "about",
    "text",
    "requests",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "amount_usd",
    "amount_pico_usd",
    "machine_booked_usd",
    "machine_actual_usd",
)
_NO_COUNTS = ("", "", "", "")
_Row = tuple[str | int, ...]


def statement_csv(statement: TeamStatement) -> str:
    """The statement's rows and their total, which is what is charged.

    Text that a spreadsheet would run as a formula gets a leading apostrophe; numbers never change.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, dialect="excel")
    writer.writerow(COLUMNS)
    head = (neutralised(statement.team), statement.period)
    for kind, place, counts, amount in _rows(statement):
        texts = (neutralised(text) for text in place)
        writer.writerow((kind, *head, *texts, *counts, format_usd(amount), amount, "", ""))
    if statement.machines is not None:
        for place, booked, actual in _machines(statement, statement.machines):
            texts = (neutralised(text) for text in place)
            amounts = (format_usd(booked), format_usd(actual))
            writer.writerow(("machines", *head, *texts, *_NO_COUNTS, "0", 0, *amounts))
    return out.getvalue()


def _rows(statement: TeamStatement) -> Iterator[tuple[str, tuple[str, ...], _Row, int]]:
    columns = list(statement.report.columns)
    project_at, model_at = columns.index("project"), columns.index("model")
    for row in statement.report.rows:
        project, model = row.group[project_at], row.group[model_at]
        place = (project, statement.cost_centre(project), model, "", "")
        yield "usage", place, _counts(row.sums), row.sums.cost_pico_usd
    if statement.counted_later_pico_usd:
        place = ("", "", "", "", "came after the month was closed, counted in a later one")
        yield "counted_later", place, _NO_COUNTS, -statement.counted_later_pico_usd
    for late in statement.late:
        place = (
            late.project,
            statement.cost_centre(late.project),
            "",
            late.month,
            f"usage at {late.provider} that came after its month was closed",
        )
        yield "late", place, _NO_COUNTS, late.amount_pico_usd
    for one in statement.adjustments:
        about = one.day or one.original_period
        place = (one.project, statement.cost_centre(one.project), one.model, about, one.reason)
        yield one.kind.value, place, _NO_COUNTS, one.amount_pico_usd
    yield "total", ("",) * 5, _counts(statement.report.total), statement.sums.total_pico_usd


def _machines(
    statement: TeamStatement, part: MachinePart
) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Place, booked and actual amount of each use."""
    for use in part.uses:
        text = SLICE_NAME if use.is_slice else part.standing
        place = (use.project, statement.cost_centre(use.project), use.deployment, use.pool, text)
        yield place, use.booked_pico_usd, use.actual_pico_usd


def _counts(sums: SpendSums) -> _Row:
    return (
        sums.requests,
        sums.input_tokens + sums.cache_write_tokens,
        sums.cached_input_tokens,
        sums.output_tokens + sums.reasoning_tokens,
    )
