"""Building the sums of cost tags anew when other names are listed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import booking, cost_tags, schema
from gateway.ledger.booking import Row, Values
from gateway.ledger.cells import add_cells
from gateway.ledger.dimensions import Dimensions
from gateway.ledger.facts import set_fact
from gateway.ledger.roll_ups import ROLL_UPS, RollUps, whole

_PAGE_ROWS = 5_000
_CELLS_MAX = 50_000
"""Cells held at once; more are written in between."""


def list_cost_tags(connection: sa.Connection, names: Iterable[str]) -> bool:
    """Let these names and no others have sums of their own, exactly those of all events so far.

    Args:
        connection: In a transaction that may write, while nothing else loads.
        names: Of cost tags.

    Returns:
        Whether anything changed.
    """
    wanted = tuple(sorted(set(names)))
    before = cost_tags.load_listed(connection)
    if before == wanted:
        return False
    _drop(connection, set(before) - set(wanted))
    added = set(wanted) - set(before)
    if added:
        _build(connection, added)
    set_fact(connection, cost_tags.LISTED, msgspec.json.encode(wanted).decode())
    return True


def _drop(connection: sa.Connection, names: Collection[str]) -> None:
    tag = schema.cost_tag
    of_names = sa.select(tag.c.id).where(tag.c.name.in_(sorted(names)))
    for one in ROLL_UPS:
        if one.of == "cost_tag_id":
            connection.execute(sa.delete(one.table).where(one.table.c.cost_tag_id.in_(of_names)))


def _build(connection: sa.Connection, names: Collection[str]) -> None:
    """Sum up every event that carries one of the names, under these names only."""
    dimensions = Dimensions()
    dimensions.list_cost_tags(names)
    ids_of_set = {
        set_id: ids
        for set_id, tags in cost_tags.load_pairs(connection)
        if (ids := dimensions.cost_tag_ids(connection, tags))
    }
    if not ids_of_set:
        return
    sums = _TagSums(ids_of_set)
    after = b""
    while page := _page(connection, after):
        for values in page:
            sums.count(booking.row_of(values))
        after = cast("bytes", page[-1][0])
        sums.write(connection, at_least=_CELLS_MAX)
    sums.write(connection, at_least=1)


class _TagSums:
    """Sums by cost tag of events that come in order of id and entry."""

    def __init__(self, ids_of_set: Mapping[int, tuple[int, ...]]) -> None:
        self._ids_of_set = ids_of_set
        self._roll_ups = RollUps()
        self._previous: Row | None = None

    def count(self, row: Row) -> None:
        """Let an event's highest entry stand for it."""
        previous, self._previous = self._previous, row
        self._add(row, sign=1)
        if previous is not None and previous["event_id"] == row["event_id"]:
            self._add(previous, sign=-1)

    def write(self, connection: sa.Connection, *, at_least: int) -> None:
        """Write the cells of cost tags, once there are so many."""
        held = self._roll_ups.cells
        tables = [one.table.name for one in ROLL_UPS if one.of == "cost_tag_id"]
        if sum(len(held[name]) for name in tables) >= at_least:
            for name in held.keys() - set(tables):
                held[name].clear()
            add_cells(connection, self._roll_ups)
            self._roll_ups = RollUps()

    def _add(self, row: Row, *, sign: int) -> None:
        ids = self._ids_of_set.get(whole(row, "cost_tags_id"))
        if ids:
            self._roll_ups.add(row, ids, sign=sign)


def _page(connection: sa.Connection, after: bytes) -> Sequence[Values]:
    """The next entries behind an event; all entries of an event are on one page."""
    table = schema.spend_event
    columns = [table.c[name] for name in booking.EVENT_COLUMNS]
    wanted = cast("sa.Select[tuple[object]]", sa.select(*columns))
    wanted = wanted.order_by(table.c.event_id, table.c.entry).limit(_PAGE_ROWS)
    if after:
        wanted = wanted.where(table.c.event_id > after)
    rows = cast("list[Values]", [tuple(row) for row in connection.execute(wanted).all()])
    if len(rows) == _PAGE_ROWS:
        last = rows[-1][0]
        begun = [row for row in rows if row[0] != last]
        rows = begun or rows
    return rows
