"""Writing the cells of the roll-ups."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from gateway.ledger import statements
from gateway.ledger.dialects import Lock, take
from gateway.ledger.meter_sums import MeterRate, MeterSums
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


def add_meter_cells(
    connection: sa.Connection, meters: MeterSums, rate_ids: Mapping[MeterRate, int]
) -> None:
    """Add deltas to the cells of the roll-up by meter, like `add_cells`.

    Args:
        connection: In the caller's transaction.
        meters: What to add.
        rate_ids: Of every rate in it; interned before, as other loaders may intern the same.
    """
    if meters.cells:
        take(connection, Lock.SUMS)
        deltas = [(*place, rate_ids[rate], *sums) for (place, rate), sums in meters.cells.items()]
        added = statements.add_to_meters(connection.dialect.name)
        connection.exec_driver_sql(added, deltas)
