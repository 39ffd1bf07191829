"""Cost tags that have sums of their own: which they are, and what happens when that changes.

The names are kept in `meta` beside the sums, so that every process that loads, reads or checks
goes by the same list. A name that is added gets its sums from the events that carry it, whenever
they were booked; those of a name that is taken out are deleted. Both in one transaction, so the
sums are those of the events at any moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import schema

LISTED = "cost_tags"
"""Name of the row of `meta`."""
_IDS_MAX = 500

TagPairs = Sequence[Sequence[str]]
"""Cost tags as they are stored: pairs of name and value, sorted."""


def of_names(tags: Iterable[Sequence[str]], listed: Collection[str]) -> Iterator[tuple[str, str]]:
    """A request's cost tags that are listed; of a name that is there twice the first."""
    seen: set[str] = set()
    for name, value in tags:
        if name in listed and name not in seen:
            seen.add(name)
            yield name, value


def load_listed(connection: sa.Connection, *, is_locked: bool = True) -> tuple[str, ...]:
    """The names that have sums of their own.

    Args:
        connection: In a transaction.
        is_locked: Where several processes may load: whether nobody may change them until the
            transaction ends. A reader that cannot write does without.
    """
    wanted = sa.select(schema.meta.c.value).where(schema.meta.c.name == LISTED)
    if is_locked:
        wanted = wanted.with_for_update(read=True)
    return _names(connection.execute(wanted).scalar_one_or_none())


def load_pairs(
    connection: sa.Connection, set_ids: Iterable[int] | None = None
) -> Iterator[tuple[int, TagPairs]]:
    """Sets of cost tags by their ids: the given ones, or all that hold any."""
    table = schema.tag_set
    wanted = sa.select(table.c.id, table.c.tags)
    if set_ids is None:
        yield from _pairs(connection.execute(wanted))
        return
    ordered = sorted(set_ids)
    for start in range(0, len(ordered), _IDS_MAX):
        some = ordered[start : start + _IDS_MAX]
        yield from _pairs(connection.execute(wanted.where(table.c.id.in_(some))))


def load_tag_ids(connection: sa.Connection) -> dict[int, tuple[int, ...]]:
    """Ids of the listed cost tags by the id of each set that has any."""
    listed = load_listed(connection, is_locked=False)
    table = schema.cost_tag
    rows = connection.execute(sa.select(table.c.id, table.c.name, table.c.value)).all()
    known = {
        (name, value): id_ for id_, name, value in cast("Sequence[tuple[int, str, str]]", rows)
    }
    return {
        set_id: ids
        for set_id, tags in load_pairs(connection)
        if (ids := tuple(known[pair] for pair in of_names(tags, listed) if pair in known))
    }


def _names(document: str | None) -> tuple[str, ...]:
    return () if document is None else msgspec.json.decode(document, type=tuple[str, ...])


def _pairs(found: Iterable[object]) -> Iterator[tuple[int, TagPairs]]:
    """Sets of cost tags; the same table holds those of privacy tags, which are plain names."""
    for set_id, tags in cast("Iterable[tuple[int, Sequence[object]]]", found):
        yield set_id, cast("TagPairs", [pair for pair in tags if not isinstance(pair, str)])
