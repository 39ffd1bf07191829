"""Writing the cells of the roll-ups."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger import statements
from gateway.ledger.roll_ups import ROLL_UPS, RollUps


def add_cells(connection: sa.Connection, roll_ups: RollUps) -> None:
    """Add deltas to the cells of every table, in the caller's transaction."""
    for one in ROLL_UPS:
        cells = roll_ups.cells[one.table.name]
        if cells:
            # In one order, so that two writers cannot wait for each other's rows for ever.
            deltas = [(*key, *cells[key]) for key in sorted(cells)]
            connection.exec_driver_sql(statements.add_to_roll_up(one), deltas)
