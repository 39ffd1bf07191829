"""Writing the cells of the roll-ups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import compress

import sqlalchemy as sa

from gateway.ledger import statements
from gateway.ledger.dialects import Lock, take
from gateway.ledger.meter_sums import MeterRate, MeterSums
from gateway.ledger.roll_ups import RollUps


def add_cells(connection: sa.Connection, roll_ups: RollUps) -> None:
    """Add deltas to the cells of every table, in the caller's transaction."""
    take(connection, Lock.SUMS)
    for name, cells in roll_ups.cells.items():
        _add(connection, statements.SUMS[name], cells.items())


def add_meter_cells(
    connection: sa.Connection, meters: MeterSums, rate_ids: Mapping[MeterRate, int]
) -> None:
    """Add deltas to the cells of the roll-up by meter, like `add_cells`.

    Args:
        connection: In the caller's transaction.
        meters: What to add.
        rate_ids: Of every rate in it; interned before, as other loaders may intern the same.
    """
    take(connection, Lock.SUMS)
    cells = [((*place, rate_ids[rate]), sums) for (place, rate), sums in meters.cells.items()]
    _add(connection, statements.METER_SUMS, cells)


def _add(
    connection: sa.Connection,
    sums: statements.SumsTable,
    cells: Collection[tuple[tuple[int, ...], Sequence[int]]],
) -> None:
    """Add amounts to the cells with these keys."""
    changed = [any(column) for column in zip(*(amounts for _, amounts in cells), strict=True)]
    columns = tuple(compress(sums.columns, changed))
    if not columns:
        return  # no cells, or nothing but zeros: no cell is as good as one of zeros
    dialect = connection.dialect.name
    rows = ((*key, *compress(amounts, changed)) for key, amounts in cells)
    statement = statements.add_to_cells(dialect, sums, columns)
    connection.exec_driver_sql(statement, list(statements.deltas(dialect, rows)))
