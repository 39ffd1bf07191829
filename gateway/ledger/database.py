"""Engines for the ledger's database: one that writes, one that cannot.

SQLite runs in WAL mode with `synchronous=FULL`: a committed transaction survives a power cut.
A write transaction takes the write lock when it begins, so that it never fails half-way because
another writer was faster.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from gateway.ledger.errors import UnsupportedDatabase

_SQLITE = "sqlite:///"
BUSY_S = 5.0
"""How long a statement waits for another process's lock before it fails."""


def sqlite_path(database_url: str) -> Path:
    """The file of a `sqlite:///path` URL.

    Raises:
        UnsupportedDatabase: Any other URL.
    """
    path = database_url.removeprefix(_SQLITE)
    if path in ("", database_url) or any(mark in path for mark in "?#\0"):
        raise UnsupportedDatabase(
            "storage.database must be sqlite:///path/to/file; PostgreSQL is not built yet"
        )
    return Path(path)


def writing_engine(database_url: str, *, busy_s: float = BUSY_S) -> AsyncEngine:
    """An engine with one connection, whose transactions begin with the write lock."""
    path = sqlite_path(database_url)
    _make_private(path)
    # In the URL, so that `blocking_engine` finds it.
    url = sa.URL.create("sqlite+aiosqlite", database=str(path), query={"timeout": str(busy_s)})
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    prepare(engine.sync_engine, begin="BEGIN IMMEDIATE")
    return engine


def blocking_engine(engine: AsyncEngine) -> sa.Engine:
    """A twin of a writing engine for a thread, with a connection of its own, disposed of with it.

    Each statement through an `AsyncEngine` costs two switches between threads; a round of the
    loader has a dozen.
    """
    url = engine.url.set(drivername="sqlite")
    blocking = sa.create_engine(
        url, pool_size=1, max_overflow=0, connect_args={"check_same_thread": False}
    )
    prepare(blocking, begin="BEGIN IMMEDIATE")

    def dispose(_engine: sa.Engine) -> None:
        blocking.dispose()

    event.listen(engine.sync_engine, "engine_disposed", dispose)
    return blocking


def reading_engine(database_url: str, *, busy_s: float = BUSY_S) -> AsyncEngine:
    """An engine that refuses to write; one transaction sees one state of the database."""
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{sqlite_path(database_url)}", connect_args={"timeout": busy_s}
    )
    prepare(engine.sync_engine, begin="BEGIN", is_read_only=True)
    return engine


def migrating_engine(database_url: str, *, busy_s: float = BUSY_S) -> sa.Engine:
    """A synchronous engine for Alembic, with transactional schema changes."""
    path = sqlite_path(database_url)
    _make_private(path)
    engine = sa.create_engine(
        f"sqlite:///{path}", poolclass=sa.NullPool, connect_args={"timeout": busy_s}
    )
    prepare(engine, begin="BEGIN IMMEDIATE")
    return engine


def prepare(engine: sa.Engine, *, begin: str, is_read_only: bool = False) -> None:
    """Set up each new SQLite connection, and how its transactions begin."""

    def on_connect(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        # The driver would begin transactions by itself, late and without the lock.
        connection.isolation_level = None
        cursor = connection.cursor()
        if is_read_only:
            cursor.execute("PRAGMA query_only = ON")
        else:
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


def _make_private(path: Path) -> None:
    """Create the file so that only its owner can read it; it holds key hashes and names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
