"""An export as one stream: the rows of Cost and Usage as CSV or Parquet, in pieces of bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import islice
from typing import IO, cast

import sqlalchemy as sa
from typing_extensions import Buffer

from gateway.finance.focus.columns import ColumnType, Value
from gateway.finance.focus.export import Export
from gateway.finance.focus.parquet import ParquetFile
from gateway.finance.focus.versions import COST_AND_USAGE
from gateway.finance.focus.writing import CsvRows

ROWS_PER_PIECE = 500
"""About half a megabyte: what one hand-over between processes carries."""


def send_csv(connection: sa.Connection, export: Export, send: Callable[[bytes], None]) -> None:
    """Send the header, then the rows; `send` returns when the next piece may come.

    Args:
        connection: In one transaction.
        export: Nothing of it taken yet.
        send: Takes a piece; what it raises ends the export.
    """
    csv = CsvRows(_header(export), is_spreadsheet=export.order.is_spreadsheet)
    send(csv.head())
    rows = _rows(connection, export)
    while piece := list(islice(rows, ROWS_PER_PIECE)):
        send(csv.lines(piece))


def send_parquet(connection: sa.Connection, export: Export, send: Callable[[bytes], None]) -> None:
    """Send a Parquet file a row group at a time; `send` returns when the next piece may come.

    Args:
        connection: In one transaction.
        export: Nothing of it taken yet.
        send: Takes a piece; what it raises ends the export.

    Raises:
        MissingExtra: pyarrow is not installed.
    """
    file = ParquetFile(cast("IO[bytes]", _Pipe(send)), _header(export))
    file.write(_rows(connection, export))
    file.close()


class _Pipe(io.RawIOBase):
    """A file that hands on what is written to it."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        piece = bytes(data)
        self._send(piece)
        return len(piece)


def _header(export: Export) -> list[tuple[str, ColumnType]]:
    return [(column.name, column.type) for column in COST_AND_USAGE[export.order.version]]


def _rows(connection: sa.Connection, export: Export) -> Iterator[list[Value]]:
    reads = [column.value for column in COST_AND_USAGE[export.order.version]]
    for lines in export.pieces(connection):
        for line in lines:
            yield [read(line) for read in reads]
