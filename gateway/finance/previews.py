"""What is in a vendor's file, before it is decided whether to take it."""

from __future__ import annotations

import hashlib
from itertools import islice

import msgspec
import sqlalchemy as sa

from gateway.finance.bill_messages import ImportFile, SourceKind
from gateway.finance.errors import UnreadableSource
from gateway.finance.form_messages import FilePreview, PreviewRow
from gateway.finance.imports import ParsedImport, covering_imports, parse_import, same_import
from gateway.finance.sources.generic import parse_mapping
from gateway.finance.sources.tables import read_table

ROWS_SHOWN = 12
PROBLEMS_SHOWN = 100
_TABLES = frozenset(
    {SourceKind.CSV, SourceKind.FOCUS, SourceKind.AWS_FOCUS, SourceKind.AZURE_FOCUS}
)
_CELL_CHARACTERS = 120


def read_preview(order: ImportFile, held: str) -> tuple[FilePreview, ParsedImport | None]:
    """Read a file as an import would; takes no database, may take seconds.

    Args:
        order: The import, with the content.
        held: Token that the file is held by.

    Returns:
        What is in it, and what would be kept of it: None where anything in it is wrong.
    """
    shown = FilePreview(
        held=held,
        file_name=order.file_name,
        byte_count=len(order.content),
        sha256=hashlib.sha256(order.content).hexdigest(),
    )
    problems: tuple[str, ...] = ()
    if order.source in _TABLES:
        try:
            shown = _with_table(shown, order)
        except UnreadableSource as error:
            problems = error.problems
    # A table without a mapping is looked at only to make one.
    if problems or (order.source is SourceKind.CSV and order.mapping is None):
        return msgspec.structs.replace(shown, problems=problems), None
    try:
        parsed = parse_import(order)
    except UnreadableSource as error:
        told = error.problems[:PROBLEMS_SHOWN]
        if hidden := len(error.problems) - len(told):
            told = (*told, f"and {hidden} more problems")
        return msgspec.structs.replace(shown, problems=told), None
    days = sorted(parsed.file.days)
    return (
        msgspec.structs.replace(
            shown,
            rows=_rows(parsed),
            first_day=days[0].isoformat(),
            last_day=days[-1].isoformat(),
            row_count=len(parsed.file.usage) + len(parsed.lines),
            left_out=parsed.file.left_out,
            total_pico_usd=sum(line.amount_pico_usd for line in parsed.lines),
        ),
        parsed,
    )


def with_books(
    connection: sa.Connection, preview: FilePreview, order: ImportFile, parsed: ParsedImport
) -> FilePreview:
    """Add what the books hold of the same file and of its days."""
    same = same_import(connection, order, parsed)
    return msgspec.structs.replace(
        preview,
        same_as=None if same is None else same.batch_id,
        covered=() if same is not None else tuple(covering_imports(connection, order, parsed)),
    )


def _with_table(shown: FilePreview, order: ImportFile) -> FilePreview:
    """Add the first cells of a table.

    Raises:
        UnreadableSource: It is none, or the mapping is none.
    """
    encoding, delimiter = "utf-8-sig", None
    if order.mapping is not None:
        mapped, _ = parse_mapping(order.mapping, order.mapping_name)
        encoding, delimiter = mapped.encoding, mapped.delimiter
    table = read_table(order.content, order.file_name, encoding=encoding, delimiter=delimiter)
    rows = [row for _, row in islice(table, ROWS_SHOWN)]
    columns = tuple(rows[0]) if rows else ()
    cells = tuple(
        tuple("" if one is None else str(one)[:_CELL_CHARACTERS] for one in row.values())
        for row in rows
    )
    return msgspec.structs.replace(shown, columns=columns, cells=cells)


def _rows(parsed: ParsedImport) -> tuple[PreviewRow, ...]:
    money = [
        PreviewRow(
            line=line.row.line,
            kind=line.row.kind,
            day=line.row.day.isoformat(),
            model=line.row.model,
            meter=line.row.meter,
            units=line.row.units,
            amount=f"{line.row.amount:f} {line.row.currency}",
            amount_pico_usd=line.amount_pico_usd,
        )
        for line in parsed.lines[:ROWS_SHOWN]
    ]
    counts = [
        PreviewRow(
            line=row.line,
            kind="count",
            day=row.day.isoformat(),
            model=row.model,
            meter=row.meter,
            units=row.units,
            amount="",
            amount_pico_usd=None,
        )
        for row in parsed.file.usage[:ROWS_SHOWN]
    ]
    return (*money, *counts)[:ROWS_SHOWN]
