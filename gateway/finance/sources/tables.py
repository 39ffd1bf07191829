"""Tables with a header: CSV and Parquet, row by row with the number of the line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from typing import Protocol, cast

from gateway.finance.errors import UnreadableSource
from gateway.finance.sources.pages import decode_text

_PARQUET = b"PAR1"
ROWS_MAX = 2_000_000
UNPACKED_BYTES_MAX = 1024**3
"""Of Parquet, which a thousandth of it on disk can say."""
_BATCH_ROWS = 4_096
_UNREADABLE = (ValueError, OSError, NotImplementedError, TypeError, LookupError)
"""What pyarrow raises on a damaged file."""
Cell = str | int | Decimal | datetime | None


class _Batch(Protocol):
    """What we use of pyarrow's batch of rows."""

    def to_pylist(self) -> list[dict[str, object]]:
        """Its rows."""
        ...


class _Sizes(Protocol):
    """What a file says of itself, or of a group of its rows."""

    num_rows: int
    num_row_groups: int
    total_byte_size: int

    def row_group(self, number: int) -> _Sizes:
        """A group of rows."""
        ...


class _File(Protocol):
    """What we use of a file."""

    metadata: _Sizes

    def iter_batches(self, batch_size: int) -> Iterator[_Batch]:
        """Its rows, some at a time."""
        ...


class _Parquet(Protocol):
    """What we use of `pyarrow.parquet`, which has no types."""

    def ParquetFile(self, source: io.BytesIO) -> _File:  # noqa: N802, pyarrow's name
        """Open a file."""
        ...


def read_table(
    content: bytes, name: str, *, encoding: str = "utf-8-sig", delimiter: str | None = None
) -> Iterator[tuple[int, Mapping[str, Cell]]]:
    """The rows of a table with their line, header apart.

    Args:
        content: CSV text or Parquet.
        name: For errors.
        encoding: Of CSV.
        delimiter: Of CSV; None takes the semicolon where the header has one and no comma.

    Raises:
        UnreadableSource: It is neither, or a row has other cells than the header.
    """
    if content.startswith(_PARQUET):
        yield from _parquet(content, name)
        return
    text = decode_text(content, name, encoding=encoding)
    head = text.partition("\n")[0]
    chosen = delimiter or (";" if ";" in head and "," not in head else ",")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=chosen)
    try:
        header = [cell.strip() for cell in next(reader, list[str]())]
        if not any(header):
            raise UnreadableSource([f"{name}:1: there is no header"])
        doubled = sorted({cell for cell in header if header.count(cell) > 1})
        if doubled:
            raise UnreadableSource([f"{name}:1: the column {doubled[0]!r} stands twice"])
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise UnreadableSource(
                    [f"{name}:{reader.line_num}: {len(cells)} cells, the header has {len(header)}"]
                )
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UnreadableSource([f"{name}:{reader.line_num}: {error}"]) from error


def _parquet(content: bytes, name: str) -> Iterator[tuple[int, Mapping[str, Cell]]]:
    try:
        parquet = cast("_Parquet", import_module("pyarrow.parquet"))
    except ImportError as error:
        raise UnreadableSource(
            [f"{name}: reading Parquet needs the extra: pip install 'fareway[exports]'"]
        ) from error
    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        _check_size(file.metadata, name)
        rows = (row for batch in file.iter_batches(_BATCH_ROWS) for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield number, {column: _cell(value) for column, value in row.items()}
    except _UNREADABLE as error:
        raise UnreadableSource([f"{name}: is no Parquet file: {error}"]) from error


def _check_size(whole: _Sizes, name: str) -> None:
    """Refuse a small file that becomes a large table.

    Raises:
        UnreadableSource: It has too many rows, or unpacks to too much.
    """
    sizes = [whole.row_group(number).total_byte_size for number in range(whole.num_row_groups)]
    if whole.num_rows > ROWS_MAX or sum(sizes) > UNPACKED_BYTES_MAX:
        told = f"{whole.num_rows:,} rows, {sum(sizes):,} bytes unpacked; at most {ROWS_MAX:,} rows"
        raise UnreadableSource(
            [f"{name}: {told} and {UNPACKED_BYTES_MAX:,} bytes are taken; split it by days"]
        )


def _cell(value: object) -> Cell:
    """A value as text, or as what needs no parsing; nested ones are of no column that we read."""
    if value is None or isinstance(value, str | Decimal | datetime):
        return value
    if isinstance(value, float):
        # The vendor's own float: its shortest decimal text is what the vendor meant.
        return repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return value.isoformat() if isinstance(value, date) else str(value)
