"""Lines of bills that count: of files that could be read and that none has replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import sqlalchemy as sa

from gateway.finance.bill_messages import SourceKind
from gateway.finance.cells import Billed
from gateway.ledger.finance_tables import import_batch, invoice, invoice_line
from gateway.ledger.periods import next_month

GENERATIONS = SourceKind.OPENROUTER_GENERATIONS.value
"""The source with a line for each generation, whose id is the line's description."""


class BillLine(NamedTuple):
    """A line of a bill.

    Attributes:
        line_id: Unique among all lines.
        line: Of the file.
        kind: `usage`, `tax`, `credit` or `rounding`.
        day: Day of charge.
        model: As the bill has it, empty for none.
        meter: Empty for none.
        tier: Service tier.
        units: None where the bill does not say.
        amount_pico_usd: What is billed.
        fx_pico_usd: The part of it that the rate of the invoice's day makes.
        description: The vendor's words.
        said: The amount as the bill has it, with its currency: `12.5 EUR`.
        invoice_id: Unique among all invoices.
        account: Provider of the configuration.
        number: Of the invoice; vendors repeat them.
        issued_on: Day of the invoice, empty for a report.
        batch_id: The import.
        source: Its format.
        taken_us: When the file was taken, microseconds since the epoch.
    """

    line_id: int
    line: int
    kind: str
    day: str
    model: str
    meter: str
    tier: str
    units: int | None
    amount_pico_usd: int
    fx_pico_usd: int
    description: str
    said: str
    invoice_id: int
    account: str
    number: str
    issued_on: str
    batch_id: int
    source: str
    taken_us: int


def bill_lines(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool]
) -> Iterator[BillLine]:
    """The lines that count and meet the conditions, in the order in which they were taken.

    Args:
        connection: In a transaction.
        conditions: On `invoice_line`, `invoice` and `import_batch`.
    """
    line, bill, batch = invoice_line, invoice, import_batch
    columns: list[sa.ColumnElement[object]] = [
        line.c.id,
        line.c.line,
        line.c.kind,
        line.c.day,
        line.c.model,
        line.c.meter,
        line.c.tier,
        line.c.units,
        line.c.amount_pico_usd,
        line.c.fx_pico_usd,
        line.c.description,
        line.c.amount,
        bill.c.id,
        bill.c.account,
        bill.c.number,
        bill.c.issued_on,
        batch.c.id,
        batch.c.source,
        batch.c.at_us,
    ]
    joined = line.join(bill, bill.c.id == line.c.invoice_id).join(
        batch, batch.c.id == bill.c.batch_id
    )
    statement = cast("sa.Select[tuple[object]]", sa.select(*columns)).select_from(joined)
    chosen = statement.where(*counting(), *conditions).order_by(line.c.id)
    for row in connection.execute(chosen).all():
        yield BillLine._make(cast("Sequence[object]", row))


def billed_of(line: BillLine) -> Billed:
    """A line as a comparison takes it."""
    return Billed(
        account=line.account,
        day=line.day,
        model=line.model,
        meter=line.meter,
        tier=line.tier,
        kind=line.kind,
        units=line.units,
        amount_pico_usd=line.amount_pico_usd,
        fx_pico_usd=line.fx_pico_usd,
        line_id=line.line_id,
        description=line.description,
        batch_id=line.batch_id,
        generation=line.description if line.source == GENERATIONS else "",
    )


def counting() -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on imports: they could be read, and nothing took their place."""
    return import_batch.c.state == "ok", import_batch.c.replaced_by.is_(None)


def within(column: sa.Column[str], month: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Conditions on a day: it is one of a month."""
    return column >= f"{month}-01", column < f"{next_month(month)}-01"
