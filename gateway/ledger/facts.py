"""Facts about the database itself, by name: revisions, and what is listed or kept, in `meta`."""

from __future__ import annotations

from typing import cast

import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.dialects import insert_into, is_postgresql

KEYS_REVISION = "keys_revision"
BUDGETS_REVISION = "budgets_revision"
REVISIONS = (KEYS_REVISION, BUDGETS_REVISION)
"""What every machine has to know of within a second."""
CHANNEL = "fareway_news"
"""Where PostgreSQL notifies of a raised revision."""


def load_fact(connection: sa.Connection, name: str) -> str | None:
    """What is noted under a name, None for nothing."""
    table = schema.meta
    found = connection.execute(sa.select(table.c.value).where(table.c.name == name))
    return cast("str | None", found.scalar_one_or_none())


def set_fact(connection: sa.Connection, name: str, value: str) -> None:
    """Note something under a name, in the place of what was there."""
    added = insert_into(connection.dialect.name, schema.meta).values(name=name, value=value)
    connection.execute(added.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


def keep_fact(connection: sa.Connection, name: str, value: str) -> str:
    """Note something for good unless something is noted already; what is noted then."""
    added = insert_into(connection.dialect.name, schema.meta).values(name=name, value=value)
    connection.execute(added.on_conflict_do_nothing())
    return load_fact(connection, name) or value


def load_revision(connection: sa.Connection, name: str) -> int:
    """How often something was changed."""
    return int(load_fact(connection, name) or 0)


def raise_revision(connection: sa.Connection, name: str) -> None:
    """Count a change, and let other machines hear of it once it is committed.

    The caller has a lock that lets no other transaction count the same revision meanwhile: that of
    the audit log, or that of the budgets.
    """
    set_fact(connection, name, str(load_revision(connection, name) + 1))
    if is_postgresql(connection):
        connection.execute(sa.select(sa.func.pg_notify(CHANNEL, name)))
