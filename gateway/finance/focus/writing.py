"""Rows to files: what a writer is, and CSV.

CSV follows RFC 4180: UTF-8, lines end with CRLF, empty means null. Numbers always have a decimal
point, for a reader that guesses types takes a column of whole numbers for integers. Values are
those of the ledger, whatever they look like; for people who open the file in a spreadsheet there
is a mode in which text that a spreadsheet would run gets a leading apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from gateway.finance.focus.charges import SCALE
from gateway.finance.focus.columns import ColumnType, Value
from gateway.ledger.report_csv import neutralised

Header = Sequence[tuple[str, ColumnType]]
"""Names and types of a dataset's columns, in order."""
Row = Sequence[Value]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowWriter(Protocol):
    """Writes rows of one dataset into one file, piece by piece."""

    def write(self, rows: Iterable[Row]) -> None:
        """Take rows, in the order of the header."""
        ...

    def close(self) -> None:
        """Write what is left; nothing is taken after it."""
        ...


WriterFactory = Callable[[Path, Header], RowWriter]


def number_text(scaled: int) -> str:
    """A number as text: exact, always with a decimal point, without an exponent."""
    sign = "-" if scaled < 0 else ""
    whole, rest = divmod(abs(scaled), SCALE)
    decimals = f"{rest:012d}".rstrip("0") if rest else "0"
    return f"{sign}{whole}.{decimals}"


def instant_text(at_us: int) -> str:
    """An instant as FOCUS writes it: UTC, whole seconds where it can be."""
    at = _EPOCH + timedelta(microseconds=at_us)
    return at.replace(tzinfo=None).isoformat(timespec="auto") + "Z"


class CsvRows:
    """Rows to bytes of CSV.

    Args:
        header: Of the dataset.
        is_spreadsheet: Whether text gets an apostrophe where a spreadsheet would run it.
    """

    def __init__(self, header: Header, *, is_spreadsheet: bool = False) -> None:
        self._forms = [_form(kind, is_spreadsheet=is_spreadsheet) for _, kind in header]
        self._out = io.StringIO(newline="")
        self._csv = csv.writer(self._out, dialect="excel")
        self._names = [name for name, _ in header]

    def head(self) -> bytes:
        """The line of names."""
        self._csv.writerow(self._names)
        return self._taken()

    def lines(self, rows: Iterable[Row]) -> bytes:
        """A line per row."""
        forms = self._forms
        self._csv.writerows(
            ["" if value is None else form(value) for form, value in zip(forms, row, strict=True)]
            for row in rows
        )
        return self._taken()

    def _taken(self) -> bytes:
        taken = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return taken.encode("utf-8", "backslashreplace")


class CsvFile:
    """A CSV file; see `RowWriter`.

    Args:
        path: Does not exist yet.
        header: Of the dataset.
        is_spreadsheet: See `CsvRows`.
    """

    def __init__(self, path: Path, header: Header, *, is_spreadsheet: bool = False) -> None:
        self._rows = CsvRows(header, is_spreadsheet=is_spreadsheet)
        self._file = path.open("xb")
        self._file.write(self._rows.head())

    def write(self, rows: Iterable[Row]) -> None:
        """Take rows, in the order of the header."""
        self._file.write(self._rows.lines(rows))

    def close(self) -> None:
        """End the file."""
        self._file.close()


def _form(kind: ColumnType, *, is_spreadsheet: bool) -> Callable[[Value], str]:
    if kind is ColumnType.TEXT:
        return _neutral if is_spreadsheet else str
    return _number if kind is ColumnType.DECIMAL else _instant


def _number(value: Value) -> str:
    assert isinstance(value, int)
    return number_text(value)


def _instant(value: Value) -> str:
    assert isinstance(value, int)
    return instant_text(value)


def _neutral(value: Value) -> str:
    return neutralised(str(value))
