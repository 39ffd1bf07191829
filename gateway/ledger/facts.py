"""Facts about the database itself, by name: revisions, and what is listed or kept, in `meta`."""

from __future__ import annotations

from typing import cast

import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.dialects import insert_into


def load_fact(connection: sa.Connection, name: str) -> str | None:
    """What is noted under a name, None for nothing."""
    table = schema.meta
    found = connection.execute(sa.select(table.c.value).where(table.c.name == name))
    return cast("str | None", found.scalar_one_or_none())


def set_fact(connection: sa.Connection, name: str, value: str) -> None:
    """Note something under a name, in the place of what was there."""
    added = insert_into(connection.dialect.name, schema.meta).values(name=name, value=value)
    connection.execute(added.on_conflict_do_update(index_elements=["name"], set_={"value": value}))
