"""Reading the ledger from a command, without the gateway and without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import sqlalchemy as sa

from gateway.ledger import migrate
from gateway.ledger.database import blocking_reader, is_postgresql, sqlite_path
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.faults import explaining

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def read_ledger(database_url: str, run: Callable[[sa.Connection, *Ts], T], *arguments: *Ts) -> T:
    """Run a query in one read-only transaction.

    Raises:
        DatabaseUnavailable: There is no ledger yet, it has another schema, or it did not answer.
        UnusableDatabase: The server does not let us in, or has no such database.
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """
    if not is_postgresql(database_url) and not sqlite_path(database_url).exists():
        raise DatabaseUnavailable(
            f"there is no ledger at {sqlite_path(database_url)} yet; `fareway serve` makes one"
        )
    database = blocking_reader(database_url)

    def read() -> T:
        with database.engine.begin() as connection:
            stored = migrate.revision_of(connection)
            if stored != migrate.head():
                raise DatabaseUnavailable(
                    f"the ledger has schema {stored or 'none'}, this release needs "
                    f"{migrate.head()}; `fareway serve` brings it up to date"
                )
            return run(connection, *arguments)

    try:
        with explaining():
            return database.run(read)
    finally:
        database.dispose()
