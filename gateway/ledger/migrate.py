"""Brings the database to a schema version; the versions travel with the package as data.

Alembic is loaded only when there is something to change: most starts find the schema as it should
be, and Alembic would take a tenth of the time that the whole gateway has to start in.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from gateway.ledger.database import migrating_engine
from gateway.ledger.errors import DatabaseUnavailable, UnusableDatabase
from gateway.ledger.versions import newest_version, versions

if TYPE_CHECKING:
    from alembic.config import Config

_HEAD = "head"
_VERSION = sa.table("alembic_version", sa.column("version_num", sa.String))


def upgrade(database_url: str, revision: str = _HEAD) -> None:
    """Create or bring up the schema, all of it or nothing; harmless when it is up to date.

    Raises:
        DatabaseUnavailable: Another process held the database too long.
        UnusableDatabase: It is no database, or of a version that this release does not know.
    """
    try:
        found = current(database_url)
        if revision == _HEAD and found == head():
            return  # as most starts do
        if found is not None and found not in versions():
            raise UnusableDatabase(
                f"the database is at schema version {found}, which this release does not know:"
                " serve with the release that made it, or name another one in storage.database"
            )
        from alembic import command

        _with_connection(database_url, lambda config: command.upgrade(config, revision))
    except OperationalError as error:
        raise DatabaseUnavailable(f"the database did not take the schema: {error.orig}") from error
    except DatabaseError as error:
        raise UnusableDatabase(
            f"the ledger's database cannot be used ({error.orig}): mend the file, put a copy in its"
            " place, or name another one in storage.database"
        ) from error


def downgrade(database_url: str, revision: str) -> None:
    """Go back to an earlier version; what later tables held is gone."""
    from alembic import command

    _with_connection(database_url, lambda config: command.downgrade(config, revision))


def current(database_url: str) -> str | None:
    """The version that the database is at; None when it has none."""
    engine = migrating_engine(database_url)
    try:
        with engine.connect() as connection:
            return revision_of(connection)
    finally:
        engine.dispose()


def revision_of(connection: sa.Connection) -> str | None:
    """The version of the database behind a connection; None when it has none."""
    if not sa.inspect(connection).has_table(_VERSION.name):
        return None
    return connection.scalar(sa.select(_VERSION.c.version_num))


def head() -> str:
    """The version that this release needs."""
    return newest_version()


def _with_connection(database_url: str, run: Callable[[Config], None]) -> None:
    engine = migrating_engine(database_url)
    try:
        with engine.begin() as connection:
            run(_config(connection))
    finally:
        engine.dispose()


def _config(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration, without a file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
