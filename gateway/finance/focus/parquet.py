"""Parquet: exact decimals, instants in UTC, the same bytes for the same rows.

pyarrow is in the extra `exports`; it is imported when a file is written, never before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from importlib import import_module
from pathlib import Path
from typing import IO, Protocol, cast

from gateway.finance.focus.columns import ColumnType, Value
from gateway.finance.focus.errors import MissingExtra
from gateway.finance.focus.writing import Header, Row

ROWS_PER_GROUP = 20_000
_DIGITS = 38
_DECIMALS = 12
_WIDE = Context(prec=_DIGITS)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Tables(Protocol):
    def from_arrays(self, arrays: Sequence[object], *, schema: object) -> object: ...


class _Arrow(Protocol):
    """What we use of pyarrow, which has no types of its own."""

    Table: _Tables

    def string(self) -> object: ...
    def decimal128(self, precision: int, scale: int) -> object: ...
    def timestamp(self, unit: str, *, tz: str) -> object: ...
    def field(self, name: str, type: object) -> object: ...  # noqa: A002 pyarrow's name
    def schema(self, fields: Sequence[object]) -> object: ...
    def array(self, values: Sequence[object], *, type: object) -> object: ...  # noqa: A002


class _Writer(Protocol):
    def write_table(self, table: object) -> None: ...
    def close(self) -> None: ...


class _Files(Protocol):
    """The same of pyarrow.parquet."""

    def ParquetWriter(  # noqa: N802
        self, where: Path | IO[bytes], schema: object, *, compression: str
    ) -> _Writer: ...


class ParquetFile:
    """A Parquet file; see `gateway.finance.focus.writing.RowWriter`.

    Args:
        path: Does not exist yet; or what takes the bytes as they come.
        header: Of the dataset.

    Raises:
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, path: Path | IO[bytes], header: Header) -> None:
        try:
            arrow = cast("_Arrow", import_module("pyarrow"))
            files = cast("_Files", import_module("pyarrow.parquet"))
        except ImportError as error:
            raise MissingExtra(
                "Parquet needs pyarrow: install Fareway with the extra `exports`, or choose CSV"
            ) from error
        types = {
            ColumnType.TEXT: arrow.string(),
            ColumnType.DECIMAL: arrow.decimal128(_DIGITS, _DECIMALS),
            ColumnType.INSTANT: arrow.timestamp("us", tz="UTC"),
        }
        self._arrow = arrow
        self._kinds = [kind for _, kind in header]
        self._types = [types[kind] for kind in self._kinds]
        fields = [arrow.field(name, types[kind]) for name, kind in header]
        self._schema = arrow.schema(fields)
        self._writer = files.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Row] = []

    def write(self, rows: Iterable[Row]) -> None:
        """Take rows, in the order of the header."""
        for row in rows:
            self._rows.append(row)
            if len(self._rows) >= ROWS_PER_GROUP:
                self._write_group()

    def close(self) -> None:
        """Write what is left and the footer."""
        if self._rows:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        arrow = self._arrow
        columns = [
            arrow.array([_native(kind, row[index]) for row in self._rows], type=form)
            for index, (kind, form) in enumerate(zip(self._kinds, self._types, strict=True))
        ]
        self._writer.write_table(arrow.Table.from_arrays(columns, schema=self._schema))
        self._rows = []


def _native(kind: ColumnType, value: Value) -> object:
    if value is None or kind is ColumnType.TEXT:
        return value
    assert isinstance(value, int)
    if kind is ColumnType.INSTANT:
        return _EPOCH + timedelta(microseconds=value)
    return Decimal(value).scaleb(-_DECIMALS, _WIDE)
