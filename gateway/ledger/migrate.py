"""Brings the database to a schema version; the versions travel with the package as data.

Alembic is loaded only when there is something to change: most starts find the schema as it should
be, and Alembic would take a tenth of the time that the whole gateway has to start in.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, DBAPIError, SQLAlchemyError

from gateway.ledger.database import blocking_migrator
from gateway.ledger.dialects import Lock, take
from gateway.ledger.errors import DatabaseUnavailable, LedgerError, UnusableDatabase
from gateway.ledger.faults import explained, is_refusal
from gateway.ledger.versions import newest_version, versions

if TYPE_CHECKING:
    from alembic.config import Config

T = TypeVar("T")

_HEAD = "head"
_VERSION = sa.table("alembic_version", sa.column("version_num", sa.String))


def upgrade(database_url: str, revision: str = _HEAD) -> None:
    """Create or bring up the schema, all of it or nothing; harmless when it is up to date.

    Raises:
        DatabaseUnavailable: Another process held the database too long, or it does not answer.
        UnusableDatabase: It is no database of ours, or of a version that this release does not
            know, or it does not let us in.
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """

    def change(connection: sa.Connection) -> None:
        found = _checked_revision(connection)
        if revision == _HEAD and found == head():
            return  # as most starts do
        from alembic import command

        command.upgrade(_config(connection), revision)

    _with_connection(database_url, change)


def downgrade(database_url: str, revision: str) -> None:
    """Go back to an earlier version; what later tables held is gone.

    Raises:
        DatabaseUnavailable: Another process held the database too long, or it does not answer.
        UnusableDatabase: As `upgrade`.
        UnsupportedDatabase: As `upgrade`.
    """

    def change(connection: sa.Connection) -> None:
        _checked_revision(connection)
        from alembic import command

        command.downgrade(_config(connection), revision)

    _with_connection(database_url, change)


def current(database_url: str) -> str | None:
    """The version that the database is at; None when it has none.

    Raises:
        DatabaseUnavailable: It does not answer.
        UnusableDatabase: It does not let us in.
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """
    return _with_connection(database_url, revision_of)


def revision_of(connection: sa.Connection) -> str | None:
    """The version of the database behind a connection; None when it has none."""
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    return connection.scalar(sa.select(_VERSION.c.version_num))


def _checked_revision(connection: sa.Connection) -> str | None:
    """The version, once nobody else changes it any more."""
    take(connection, Lock.SCHEMA)
    found = revision_of(connection)
    if found is not None and found not in versions():
        raise UnusableDatabase(
            f"the database is at schema version {found}, which this release does not know:"
            " serve with the release that made it, or name another one in storage.database"
        )
    return found


def head() -> str:
    """The version that this release needs."""
    return newest_version()


def _with_connection(database_url: str, run: Callable[[sa.Connection], T]) -> T:
    """Call a function in one transaction."""
    database = blocking_migrator(database_url)

    def work() -> T:
        with database.engine.begin() as connection:
            return run(connection)

    try:
        return database.run(work)
    except SQLAlchemyError as error:
        raise _explained(error) from error
    finally:
        database.dispose()


def _explained(error: SQLAlchemyError) -> LedgerError:
    """What a failed change of the schema means."""
    reason = error.orig if isinstance(error, DBAPIError) else error
    told = explained(error)
    if isinstance(told, UnusableDatabase):
        return told
    if isinstance(error, DatabaseError) and is_refusal(error):
        return UnusableDatabase(
            f"the ledger's database cannot be used ({reason}): mend the file, put a copy in its"
            " place, or name another one in storage.database"
        )
    return DatabaseUnavailable(f"the database did not take the schema: {reason}")


def _config(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration, without a file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
