"""Writing the cells of the roll-ups."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger import statements
from gateway.ledger.dialects import Lock, take
from gateway.ledger.roll_ups import ROLL_UPS, RollUps


def add_cells(connection: sa.Connection, roll_ups: RollUps) -> None:
    """Add deltas to the cells of every table, in the caller's transaction."""
    take(connection, Lock.SUMS)
    dialect = connection.dialect.name
    for one in ROLL_UPS:
        cells = roll_ups.cells[one.table.name]
        if cells:
            deltas = [(*key, *amounts) for key, amounts in cells.items()]
            connection.exec_driver_sql(statements.add_to_roll_up(dialect, one), deltas)
