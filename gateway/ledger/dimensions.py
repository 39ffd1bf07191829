"""Interning of names: each team, key, model, deployment and tag set gets a small integer once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import cost_tags, schema
from gateway.ledger.booking import DimensionIds
from gateway.ledger.dialects import insert_into
from gateway.ledger.meter_sums import MeterRate
from gateway.ledger.records import Intent

CACHED_MAX = 50_000

Names = tuple[str, str, str, str, str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Everything of an intent that decides its ids."""


def names_of(intent: Intent) -> Names:
    """What an intent names; equal names have equal ids."""
    return (
        intent.team,
        intent.project,
        intent.key_id,
        intent.model,
        intent.deployment,
        intent.tags,
        intent.cost_tags,
    )


class Dimensions:
    """Ids of names, remembered; `forget` after a rollback, which takes new ids back.

    Args:
        cached_max: Names remembered at once; clients choose cost tags, so there is no natural end.
    """

    def __init__(self, *, cached_max: int = CACHED_MAX) -> None:
        self._cached_max = cached_max
        self._ids: dict[tuple[object, ...], int] = {}
        self._known: dict[Names, DimensionIds] = {}
        self._listed: frozenset[str] = frozenset()

    def forget(self) -> None:
        """Drop what may not have been committed."""
        self._ids.clear()
        self._known.clear()

    def list_cost_tags(self, names: Iterable[str]) -> None:
        """Say which cost tags have sums of their own from now on."""
        listed = frozenset(names)
        if listed != self._listed:
            self._listed = listed
            self._known.clear()

    def of_intent(self, connection: sa.Connection, intent: Intent) -> DimensionIds:
        """Ids of everything that an intent names, interning what is new."""
        names = names_of(intent)
        ids = self._known.get(names)
        if ids is None:
            if len(self._known) >= self._cached_max:
                self._known.clear()
            ids = self._known[names] = self._intern_all(connection, intent)
        return ids

    def _intern_all(self, connection: sa.Connection, intent: Intent) -> DimensionIds:
        find = self._find
        return DimensionIds(
            team_id=find(connection, schema.team, {"name": intent.team}),
            project_id=find(
                connection, schema.project, {"team": intent.team, "name": intent.project}
            ),
            key_id=find(connection, schema.api_key_name, {"key_id": intent.key_id}),
            model_id=find(connection, schema.model, {"name": intent.model}),
            deployment_id=find(
                connection,
                schema.deployment,
                {"name": intent.deployment},
                {"provider": intent.provider, "upstream_model": intent.upstream_model},
            ),
            tags_id=self._tag_set(connection, intent.tags),
            cost_tags_id=self._tag_set(connection, intent.cost_tags),
            cost_tag_ids=self.cost_tag_ids(connection, intent.cost_tags),
        )

    def cost_tag_ids(
        self, connection: sa.Connection, tags: Iterable[Sequence[str]]
    ) -> tuple[int, ...]:
        """Ids of those of a request's cost tags that have sums of their own."""
        return tuple(
            self._find(connection, schema.cost_tag, {"name": name, "value": value})
            for name, value in cost_tags.of_names(tags, self._listed)
        )

    def rate_ids(
        self, connection: sa.Connection, rates: Iterable[MeterRate]
    ) -> Mapping[MeterRate, int]:
        """Ids of meters at rates."""
        return {rate: self._rate(connection, rate) for rate in rates}

    def _rate(self, connection: sa.Connection, rate: MeterRate) -> int:
        key = ("meter_rate", *rate)
        if key not in self._ids:
            sha256 = hashlib.sha256(msgspec.json.encode(rate)).digest()
            details = rate._asdict()
            self._intern(connection, schema.meter_rate, {"sha256": sha256}, details, key)
        return self._ids[key]

    def _tag_set(
        self, connection: sa.Connection, tags: Sequence[str] | Sequence[tuple[str, str]]
    ) -> int:
        document = msgspec.json.encode(tags)
        key = ("tag_set", document.decode())
        if key not in self._ids:
            sha256 = hashlib.sha256(document).digest()
            self._intern(connection, schema.tag_set, {"sha256": sha256}, {"tags": list(tags)}, key)
        return self._ids[key]

    def _find(
        self,
        connection: sa.Connection,
        table: sa.Table,
        name: Mapping[str, str],
        details: Mapping[str, str] | None = None,
    ) -> int:
        key = (table.name, *name.values())
        if key not in self._ids:
            self._intern(connection, table, name, details or {}, key)
        return self._ids[key]

    def _intern(
        self,
        connection: sa.Connection,
        table: sa.Table,
        name: Mapping[str, str | bytes],
        details: Mapping[str, object],
        key: tuple[object, ...],
    ) -> None:
        found = sa.select(table.c.id).where(*(table.c[column] == name[column] for column in name))
        known = cast("int | None", connection.execute(found).scalar_one_or_none())
        if known is None:
            # Looked for first: on PostgreSQL an INSERT that does nothing uses up a number too.
            added = insert_into(connection.dialect.name, table).values(**name, **details)
            connection.execute(added.on_conflict_do_nothing())
            known = cast("int", connection.execute(found).scalar_one())
        if len(self._ids) >= self._cached_max:
            self.forget()
        self._ids[key] = known
