"""Taking a vendor's file: read as a whole or not at all, once, and kept with where it came from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.finance.bill_messages import (
    ImportedFile,
    ImportFile,
    ImportReply,
    ListImports,
    Overlap,
)
from gateway.finance.errors import NoRate, Refused, UnreadableSource
from gateway.finance.fx import FxRates, parse_rates
from gateway.finance.messages import PICO_USD_MAX
from gateway.finance.sources.catalog import read_source
from gateway.finance.sources.rows import MoneyRow, SourceFile
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import import_batch, invoice, invoice_line, provider_usage
from pricing.money import PICO_PER_USD, format_usd

_USD = "USD"
_LISTED_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLine:
    """A row of money in picodollars.

    Attributes:
        row: As the file has it.
        amount_pico_usd: At the rate of the invoice's day.
        fx_pico_usd: What of it the invoice's day makes more than the day of charge.
    """

    row: MoneyRow
    amount_pico_usd: int
    fx_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedImport:
    """A file that can be kept.

    Attributes:
        file: Its rows.
        lines: Its money, converted.
        sha256: Of its content.
        issued_on: Day of the invoice, None for a report.
        number: Of the invoice.
    """

    file: SourceFile
    lines: Sequence[PricedLine]
    sha256: bytes
    issued_on: date | None
    number: str


def parse_import(order: ImportFile) -> ParsedImport:
    """Read and convert a file; takes no database, may take seconds.

    Raises:
        UnreadableSource: Anything in it is wrong; all problems are named.
    """
    file = read_source(order)
    rates = FxRates() if order.rates is None else parse_rates(order.rates, name=order.rates_name)
    issued_on = file.issued_on
    if issued_on is None and order.issued_on:
        try:
            issued_on = date.fromisoformat(order.issued_on)
        except ValueError as error:
            raise UnreadableSource([f"issued_on {order.issued_on} is no day"]) from error
    lines: list[PricedLine] = []
    for row in file.money:
        try:
            lines.append(_price(row, rates, issued_on or row.day))
        except (NoRate, OverflowError) as error:
            file.wrong(row.line, error)
    if file.problems:
        raise UnreadableSource(file.problems)
    sha256 = hashlib.sha256(order.content).digest()
    number = file.number or order.number or f"report-{sha256.hex()[:12]}"
    return ParsedImport(file=file, lines=lines, sha256=sha256, issued_on=issued_on, number=number)


def keep_import(
    connection: sa.Connection, order: ImportFile, parsed: ParsedImport, *, now_us: int
) -> ImportReply:
    """Keep a file's rows; the same file again changes nothing and says so.

    Raises:
        Refused: Days of it are covered by another file, and `overlap` does not say what to do.
    """
    take(connection, Lock.AUDIT)  # of two imports of the same days, the second sees the first
    known = same_import(connection, order, parsed)
    if known is not None:
        return _reply(order, parsed, known, is_new=False)
    days = sorted(parsed.file.days)
    first_day, last_day = days[0].isoformat(), days[-1].isoformat()
    covered = covering_imports(connection, order, parsed)
    if covered and order.overlap is not Overlap.ADD:
        _check_overlap(order, covered, first_day, last_day)
    row_count = len(parsed.file.usage) + len(parsed.lines)
    batch_id = _add_batch(
        connection,
        order,
        parsed.sha256,
        now_us=now_us,
        state="ok",
        first_day=first_day,
        last_day=last_day,
        row_count=row_count,
    )
    _keep_rows(connection, order, parsed, batch_id)
    if order.overlap is Overlap.REPLACE and covered:
        connection.execute(
            sa.update(import_batch)
            .where(import_batch.c.id.in_([batch.batch_id for batch in covered]))
            .values(replaced_by=batch_id)
        )
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="import.keep",
        subject=str(batch_id),
        details={
            "source": order.source.value,
            "account": order.account,
            "file": order.file_name,
            "sha256": parsed.sha256.hex(),
            "rows": row_count,
            "total_pico_usd": _total(parsed),
            "replaces": ",".join(str(batch.batch_id) for batch in covered)
            if order.overlap is Overlap.REPLACE
            else "",
        },
    )
    [batch] = _batches(connection, import_batch.c.id == batch_id)
    return _reply(order, parsed, batch, is_new=True)


def same_import(
    connection: sa.Connection, order: ImportFile, parsed: ParsedImport
) -> ImportedFile | None:
    """The import of the same file for the same account and source, None when there is none."""
    known = _batches(
        connection,
        import_batch.c.account == order.account,
        import_batch.c.source == order.source.value,
        import_batch.c.sha256 == parsed.sha256,
        import_batch.c.state == "ok",
    )
    return known[0] if known else None


def covering_imports(
    connection: sa.Connection, order: ImportFile, parsed: ParsedImport
) -> Sequence[ImportedFile]:
    """Imports of the account and source that count and cover days of a file, newest first."""
    days = sorted(parsed.file.days)
    return _batches(
        connection,
        import_batch.c.account == order.account,
        import_batch.c.source == order.source.value,
        import_batch.c.state == "ok",
        import_batch.c.replaced_by.is_(None),
        import_batch.c.first_day <= days[-1].isoformat(),
        import_batch.c.last_day >= days[0].isoformat(),
    )


def note_unreadable(
    connection: sa.Connection, order: ImportFile, reason: str, *, now_us: int
) -> None:
    """Remember that a source could not be read, so that its coverage is never taken for 0."""
    sha256 = hashlib.sha256(order.content).digest()
    batch_id = _add_batch(
        connection, order, sha256, now_us=now_us, state="unreadable", reason=reason[:2_000]
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="import.unreadable",
        subject=str(batch_id),
        details={
            "source": order.source.value,
            "account": order.account,
            "file": order.file_name,
            "sha256": sha256.hex(),
        },
    )


def imports(connection: sa.Connection, _query: ListImports) -> tuple[ImportedFile, ...]:
    """The newest imports, newest first, those that could not be read included."""
    return tuple(_batches(connection, sa.true())[:_LISTED_MAX])


def _price(row: MoneyRow, rates: FxRates, issued_on: date) -> PricedLine:
    """Convert a row's amount at the rates of both days, each rounded once."""
    pico = Fraction(row.amount) * PICO_PER_USD
    at_invoice = rates.rate(issued_on, row.currency, _USD).convert(pico)
    at_charge = rates.rate(row.day, row.currency, _USD).convert(pico)
    if max(abs(at_invoice), abs(at_charge)) > PICO_USD_MAX:
        raise OverflowError(f"{row.amount} {row.currency} is more than the books can hold")
    return PricedLine(row=row, amount_pico_usd=at_invoice, fx_pico_usd=at_invoice - at_charge)


def _check_overlap(
    order: ImportFile, covered: Sequence[ImportedFile], first_day: str, last_day: str
) -> None:
    names = ", ".join(
        f"{batch.file_name} (import {batch.batch_id}, {batch.first_day} to {batch.last_day})"
        for batch in covered
    )
    if order.overlap is Overlap.REFUSE:
        raise Refused(
            f"{order.file_name} covers {first_day} to {last_day} of {order.account}, and so does"
            f" {names}; say whether it replaces that or is added to it"
        )
    wider = [b for b in covered if b.first_day < first_day or b.last_day > last_day]
    if wider:
        raise Refused(
            f"{order.file_name} covers {first_day} to {last_day} only and cannot replace {names};"
            " import a file that covers all of those days"
        )


def _add_batch(
    connection: sa.Connection,
    order: ImportFile,
    sha256: bytes,
    *,
    now_us: int,
    state: str,
    reason: str = "",
    first_day: str = "",
    last_day: str = "",
    row_count: int = 0,
) -> int:
    done = connection.execute(
        sa.insert(import_batch).values(
            at_us=now_us,
            actor=order.actor,
            source=order.source.value,
            account=order.account,
            file_name=order.file_name,
            sha256=sha256,
            state=state,
            reason=reason,
            first_day=first_day,
            last_day=last_day,
            row_count=row_count,
            replaced_by=None,
        )
    )
    [batch_id] = cast("Sequence[int]", done.inserted_primary_key)
    return batch_id


def _keep_rows(
    connection: sa.Connection, order: ImportFile, parsed: ParsedImport, batch_id: int
) -> None:
    used = [
        {
            "batch_id": batch_id,
            "line": row.line,
            "account": order.account,
            "day": row.day.isoformat(),
            "model": row.model,
            "meter": row.meter,
            "tier": row.tier,
            "units": row.units,
        }
        for row in parsed.file.usage
    ]
    if used:
        connection.execute(sa.insert(provider_usage), used)
    if not parsed.file.is_bill:
        return
    currencies = sorted({line.row.currency for line in parsed.lines})
    done = connection.execute(
        sa.insert(invoice).values(
            batch_id=batch_id,
            account=order.account,
            number=parsed.number,
            issued_on="" if parsed.issued_on is None else parsed.issued_on.isoformat(),
            currency=", ".join(currencies),
            total_pico_usd=_total(parsed),
        )
    )
    [invoice_id] = cast("Sequence[int]", done.inserted_primary_key)
    lines = [
        {
            "invoice_id": invoice_id,
            "line": line.row.line,
            "kind": line.row.kind,
            "day": line.row.day.isoformat(),
            "model": line.row.model,
            "meter": line.row.meter,
            "tier": line.row.tier,
            "units": line.row.units,
            "amount": f"{line.row.amount:f} {line.row.currency}",
            "amount_pico_usd": line.amount_pico_usd,
            "fx_pico_usd": line.fx_pico_usd,
            "description": line.row.description,
        }
        for line in parsed.lines
    ]
    if lines:
        connection.execute(sa.insert(invoice_line), lines)


def _reply(
    order: ImportFile, parsed: ParsedImport, batch: ImportedFile, *, is_new: bool
) -> ImportReply:
    total = _total(parsed)
    if is_new:
        left_out = f", {parsed.file.left_out} rows left out" if parsed.file.left_out else ""
        sentence = (
            f"import {batch.batch_id}: {batch.row_count} rows of {order.account}, {batch.first_day}"
            f" to {batch.last_day}, {format_usd(total)} USD{left_out}"
        )
    else:
        replaced = "" if batch.replaced_by is None else f" and replaced by {batch.replaced_by}"
        sentence = (
            f"the same file was imported before as {batch.batch_id}{replaced}; nothing was changed"
        )
    return ImportReply(
        batch=batch,
        is_new=is_new,
        left_out=parsed.file.left_out,
        total_pico_usd=total,
        sentence=sentence,
    )


def _total(parsed: ParsedImport) -> int:
    return sum(line.amount_pico_usd for line in parsed.lines)


def _batches(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> list[ImportedFile]:
    table = import_batch
    rows = connection.execute(sa.select(table).where(*conditions).order_by(table.c.id.desc()))
    found: list[ImportedFile] = []
    for row in rows.mappings():
        values = {str(name): value for name, value in cast("Mapping[str, object]", row).items()}
        values["batch_id"] = values.pop("id")
        values["sha256"] = cast("bytes", values["sha256"]).hex()
        found.append(msgspec.convert(values, ImportedFile))
    return found
