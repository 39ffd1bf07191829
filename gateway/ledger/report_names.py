"""From interned ids to the words of a report, and from the values of filters to ids."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.columns import QUALITIES, STATUSES
from gateway.ledger.errors import BadQuery
from gateway.ledger.views import GroupBy

COLUMNS: Mapping[GroupBy, str] = {
    GroupBy.TEAM: "team_id",
    GroupBy.PROJECT: "project_id",
    GroupBy.KEY: "key_id",
    GroupBy.MODEL: "model_id",
    GroupBy.PROVIDER: "deployment_id",
    GroupBy.DEPLOYMENT: "deployment_id",
    GroupBy.PRIVACY_TAGS: "tags_id",
    GroupBy.PRIVACY_TAG: "tags_id",
    GroupBy.STATUS: "status",
    GroupBy.QUALITY: "quality",
}
"""The column of a source that decides a dimension's value."""
_NAMED: Mapping[GroupBy, sa.Column[str]] = {
    GroupBy.TEAM: schema.team.c.name,
    GroupBy.PROJECT: schema.project.c.name,
    GroupBy.KEY: schema.api_key_name.c.key_id,
    GroupBy.MODEL: schema.model.c.name,
    GroupBy.PROVIDER: schema.deployment.c.provider,
    GroupBy.DEPLOYMENT: schema.deployment.c.name,
}
_CODED: Mapping[GroupBy, Sequence[str]] = {
    GroupBy.STATUS: tuple(status.value for status in STATUSES),
    GroupBy.QUALITY: tuple(quality.value for quality in QUALITIES),
}
_IDS_MAX = 500

Words = tuple[str, ...]
"""Values of a dimension that an id stands for; several only for `GroupBy.PRIVACY_TAG`."""


def words_of(
    connection: sa.Connection, by: GroupBy, ids: Collection[int]
) -> Callable[[int], Words]:
    """What ids of a dimension's column are in words.

    Args:
        connection: In a transaction.
        by: Not a time.
        ids: All that will be asked for.
    """
    coded = _CODED.get(by)
    if coded is not None:
        return lambda id_: (coded[id_],)
    if by in (GroupBy.PRIVACY_TAGS, GroupBy.PRIVACY_TAG):
        sets = load_sets(connection, ids)
        if by is GroupBy.PRIVACY_TAGS:
            return lambda id_: (",".join(sets[id_]),)
        return lambda id_: sets[id_] or ("",)
    named = _NAMED[by]
    found = dict(_chunks(connection, named.table.c.id, named, ids))
    return lambda id_: (cast("str", found[id_]),)


def load_sets(connection: sa.Connection, ids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Privacy tags by the ids of their sets."""
    table = schema.tag_set
    return {
        set_id: tuple(cast("Sequence[str]", tags))
        for set_id, tags in _chunks(connection, table.c.id, table.c.tags, ids)
    }


def ids_of(connection: sa.Connection, dimension: GroupBy, values: Iterable[str]) -> list[int]:
    """Ids of a dimension's column that a filter means; none for names that nothing has.

    Args:
        connection: In a transaction.
        dimension: Neither a time nor a cost tag.
        values: Any one of them.

    Raises:
        BadQuery: The dimension has a closed set of values and this is none of them.
    """
    wanted = set(values)
    coded = _CODED.get(dimension)
    if coded is not None:
        unknown = sorted(wanted - set(coded))
        if unknown:
            raise BadQuery(f"{dimension} {unknown[0]!r} is none of {', '.join(coded)}")
        return [coded.index(value) for value in sorted(wanted)]
    if dimension in (GroupBy.PRIVACY_TAGS, GroupBy.PRIVACY_TAG):
        sets = load_sets(connection, _used_sets(connection))
        if dimension is GroupBy.PRIVACY_TAGS:
            return [set_id for set_id, tags in sets.items() if ",".join(tags) in wanted]
        return [set_id for set_id, tags in sets.items() if wanted & set(tags or ("",))]
    named = _NAMED[dimension]
    found = connection.execute(sa.select(named.table.c.id).where(named.in_(sorted(wanted))))
    return list(cast("Sequence[int]", found.scalars().all()))


def _used_sets(connection: sa.Connection) -> Sequence[int]:
    """Sets of privacy tags that any attempt carries; the table also holds those of cost tags."""
    wanted = sa.select(schema.rollup_day.c.tags_id).distinct()
    return connection.execute(wanted).scalars().all()


def _chunks(
    connection: sa.Connection,
    key: sa.Column[Any],
    value: sa.Column[Any],
    ids: Collection[int],
) -> Iterable[tuple[int, object]]:
    ordered = sorted(set(ids))
    for start in range(0, len(ordered), _IDS_MAX):
        wanted = sa.select(key, value).where(key.in_(ordered[start : start + _IDS_MAX]))
        yield from cast("Sequence[tuple[int, object]]", connection.execute(wanted).all())
