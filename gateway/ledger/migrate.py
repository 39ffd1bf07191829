"""Brings the database to a schema version; the versions travel with the package as data."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError

from gateway.ledger.database import migrating_engine
from gateway.ledger.errors import DatabaseUnavailable


def upgrade(database_url: str, revision: str = "head") -> None:
    """Create or bring up the schema, all of it or nothing; harmless when it is up to date.

    Raises:
        DatabaseUnavailable: Another process held the database too long.
    """
    _with_connection(database_url, lambda config: command.upgrade(config, revision))


def downgrade(database_url: str, revision: str) -> None:
    """Go back to an earlier version; what later tables held is gone.

    Raises:
        DatabaseUnavailable: Another process held the database too long.
    """
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
    return MigrationContext.configure(connection).get_current_revision()


def head() -> str:
    """The version that this release needs."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None, "the package carries at least one version"
    return found


def _with_connection(database_url: str, run: Callable[[Config], None]) -> None:
    engine = migrating_engine(database_url)
    try:
        with engine.begin() as connection:
            run(_config(connection))
    except OperationalError as error:
        raise DatabaseUnavailable(f"the database did not take the schema: {error.orig}") from error
    finally:
        engine.dispose()


def _config(connection: sa.Connection | None = None) -> Config:
    """Alembic's configuration, without a file."""
    config = Config()
    config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
