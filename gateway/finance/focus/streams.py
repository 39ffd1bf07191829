"""An export as one stream of CSV: the rows of Cost and Usage, in pieces of bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import sqlalchemy as sa

from gateway.finance.focus.export import Export
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
    columns = COST_AND_USAGE[export.order.version]
    reads = [column.value for column in columns]
    header = [(column.name, column.type) for column in columns]
    csv = CsvRows(header, is_spreadsheet=export.order.is_spreadsheet)
    send(csv.head())
    rows = ([read(line) for read in reads] for lines in export.pieces(connection) for line in lines)
    while piece := list(islice(rows, ROWS_PER_PIECE)):
        send(csv.lines(piece))
