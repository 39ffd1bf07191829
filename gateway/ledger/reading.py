"""Reading the ledger from a command, without the gateway and without changing anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from gateway.ledger import migrate
from gateway.ledger.database import prepare, sqlite_path
from gateway.ledger.errors import DatabaseUnavailable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def read_ledger(database_url: str, run: Callable[[sa.Connection, *Ts], T], *arguments: *Ts) -> T:
    """Run a query in one read-only transaction.

    Raises:
        DatabaseUnavailable: There is no ledger yet, it has another schema, or it did not answer.
        UnsupportedDatabase: The URL names a back end that is not built.
    """
    path = sqlite_path(database_url)
    if not path.exists():
        raise DatabaseUnavailable(f"there is no ledger at {path} yet; `fareway serve` makes one")
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    prepare(engine, begin="BEGIN", is_read_only=True)
    try:
        with engine.begin() as connection:
            stored = migrate.revision_of(connection)
            if stored != migrate.head():
                raise DatabaseUnavailable(
                    f"the ledger at {path} has schema {stored or 'none'}, this release needs "
                    f"{migrate.head()}; `fareway serve` brings it up to date"
                )
            return run(connection, *arguments)
    except OperationalError as error:
        raise DatabaseUnavailable(f"the database did not answer: {error.orig}") from error
    finally:
        engine.dispose()
