"""The rows of both sides behind one difference, as they are now."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from gateway.finance.cells import Cell, cells_of_day, namer
from gateway.finance.form_messages import CellRow, ShowCell
from gateway.finance.matching import Sides
from gateway.finance.sides import load_sides

ROWS_MAX = 500
_USAGE = "usage"


def cell_rows(connection: sa.Connection, query: ShowCell) -> tuple[CellRow, ...]:
    """Rows of the ledger, posted adjustments, lines of bills, the vendor's counts.

    Args:
        connection: In a transaction; one state of the database is read.
        query: The cell, as a difference of a run names it.
    """
    sides = load_sides(connection, query.month)
    found = _of_usage(sides, query) if query.is_usage else _no_usage(sides, query)
    return tuple(found)[:ROWS_MAX]


def _of_usage(sides: Sides, query: ShowCell) -> Iterator[CellRow]:
    account, day = query.account, query.day
    metered = [row for row in sides.metered if (row.account, row.day) == (account, day)]
    exposed = [row for row in sides.exposed if (row.account, row.day) == (account, day)]
    models = {row.model for row in (*sides.metered, *sides.exposed) if row.account == account}
    cells = cells_of_day(
        metered,
        [
            row
            for row in sides.adjusted
            if (row.account, row.day, row.kind) == (account, day, _USAGE)
        ],
        [
            line
            for line in sides.billed
            if (line.account, line.day, line.kind) == (account, day, _USAGE)
        ],
        [row for row in sides.used if (row.account, row.day) == (account, day)],
        namer(account, models, query.aliases),
    )
    cell = cells.get((query.model, query.meter), Cell())
    for row in cell.metered:
        yield CellRow(
            side="ledger",
            what=f"{row.team or 'no team'}{f' / {row.project}' if row.project else ''}",
            model=row.model,
            meter=row.meter,
            units=row.units,
            amount_pico_usd=row.cost_pico_usd,
        )
    for posted in cell.adjusted:
        yield _adjusted(posted.model, posted.meter, posted.kind, posted.amount_pico_usd)
    for line in cell.billed:
        yield _billed(
            line.model, line.meter, line.description or line.tier, line.units, line.amount_pico_usd
        )
    for count in cell.used:
        yield CellRow(
            side="count",
            what="the vendor's report of usage",
            model=count.model,
            meter=count.meter,
            units=count.units,
            amount_pico_usd=None,
        )
    for attempt in exposed:
        if query.model in ("", attempt.model):
            yield CellRow(
                side="unknown bill",
                what=f"{attempt.team or 'no team'}: attempt {attempt.event_id}, at most",
                model=attempt.model,
                meter="",
                units=None,
                amount_pico_usd=attempt.exposure_pico_usd,
            )


def _no_usage(sides: Sides, query: ShowCell) -> Iterator[CellRow]:
    place = (query.account, query.day, query.kind)
    for posted in sides.adjusted:
        if (posted.account, posted.day, posted.kind) == place:
            yield _adjusted(posted.model, posted.meter, posted.kind, posted.amount_pico_usd)
    for line in sides.billed:
        if (line.account, line.day, line.kind) == place:
            words = line.description or line.kind
            yield _billed(line.model, line.meter, words, line.units, line.amount_pico_usd)


def _adjusted(model: str, meter: str, kind: str, amount: int) -> CellRow:
    return CellRow(
        side="adjustment",
        what=f"posted, {kind}",
        model=model,
        meter=meter,
        units=None,
        amount_pico_usd=amount,
    )


def _billed(model: str, meter: str, words: str, units: int | None, amount: int) -> CellRow:
    return CellRow(
        side="bill", what=words, model=model, meter=meter, units=units, amount_pico_usd=amount
    )
