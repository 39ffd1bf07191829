"""Engines for the ledger's database: one that writes, one that cannot, and both for plain code.

SQLite runs in WAL mode with `synchronous=FULL`: a committed transaction survives a power cut.
A write transaction takes the write lock when it begins, so that it never fails half-way because
another writer was faster. PostgreSQL does the same with the server's own settings; there, writers
of several machines work at once, and take locks for what they share (`dialects.Lock`).

Most of the ledger is plain synchronous code on a `sqlalchemy.Connection`: readable, and one
transaction is one function. From an event loop it runs with `AsyncConnection.run_sync`, in a thread
or a command with `Blocking`.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util.concurrency import greenlet_spawn

from gateway.ledger import postgres
from gateway.ledger.errors import UnsupportedDatabase
from gateway.ledger.postgres import Waits

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SQLITE = "sqlite:///"
BUSY_S = 5.0
"""How long a statement waits for another process's lock before it fails."""
_WRITE_S = 20.0
_READ_S = 60.0
"""How long a statement may take on PostgreSQL; one of a migration has no bound."""
_READERS_MAX = 5


class Blocking(ABC):
    """A database for plain code in a thread of its own; one call at a time.

    Attributes:
        engine: For code that `run` runs, and for no other.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    @abstractmethod
    def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Call a function that may use the engine; waits for it."""

    @abstractmethod
    def alongside(self, steps: Iterator[object]) -> None:
        """Take short steps, while there are any, whenever what `run` runs waits for the server.

        A step that fails is told in the log and is the last one.

        Args:
            steps: What is left of them is the caller's to take or to close.
        """

    @abstractmethod
    def dispose(self) -> None:
        """Close its connections."""


class _Direct(Blocking):
    """SQLite's own driver waits by itself."""

    def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return work(*arguments)

    def alongside(self, steps: Iterator[object]) -> None:
        """Nothing: it works in this process."""

    def dispose(self) -> None:
        self.engine.dispose()


class _Looped(Blocking):
    """A driver that only knows event loops gets one of its own, which runs while it is waited for.

    The plain code runs in a greenlet that is left whenever the driver waits, as SQLAlchemy does it
    for `run_sync`.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        super().__init__(engine.sync_engine)
        self._loop = asyncio.new_event_loop()
        self._turn = threading.Lock()

    def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        def spin() -> T:
            with self._turn:
                return self._loop.run_until_complete(greenlet_spawn(work, *arguments))

        return _outside_loops(spin)

    def alongside(self, steps: Iterator[object]) -> None:
        def step() -> None:
            if next(steps, self) is not self:
                self._loop.call_soon(step)

        self._loop.call_soon(step)

    def dispose(self) -> None:
        if not self._loop.is_closed():
            self.run(self.engine.dispose)
            self._loop.close()


def _outside_loops(work: Callable[[], T]) -> T:
    """Call a function in this thread, or in another one when a loop runs in this."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def is_postgresql(database_url: str) -> bool:
    """Whether a URL names a PostgreSQL server."""
    return database_url.startswith(postgres.PREFIX)


def sqlite_path(database_url: str) -> Path:
    """The file of a `sqlite:///path` URL.

    Raises:
        UnsupportedDatabase: Any other URL.
    """
    path = database_url.removeprefix(_SQLITE)
    if path in ("", database_url) or any(mark in path for mark in "?#\0"):
        raise UnsupportedDatabase(
            "storage.database must be sqlite:///path/to/file or postgresql://user@host/database"
        )
    return Path(path)


def writing_engine(database_url: str, *, busy_s: float = BUSY_S) -> AsyncEngine:
    """An engine with one connection, whose transactions begin with the write lock of a SQLite file.

    Raises:
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """
    if is_postgresql(database_url):
        return postgres.engine(database_url, Waits(statement_s=_WRITE_S, lock_s=busy_s))
    path = sqlite_path(database_url)
    _make_private(path)
    # In the URL, so that `blocking_twin` finds it.
    url = sa.URL.create("sqlite+aiosqlite", database=str(path), query={"timeout": str(busy_s)})
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    prepare(engine.sync_engine, begin="BEGIN IMMEDIATE")
    return engine


async def write(engine: AsyncEngine, run: Callable[[sa.Connection], T]) -> T:
    """Run a function in one transaction, which is ended also when whoever waits is cancelled.

    A driver that is cancelled in the middle of one breaks its connection off: whether a commit was
    carried out is unknown then, a lock may stay for a while, and the connection, the only one, has
    to be made anew by whoever comes next. The waits inside are bounded, and a function is short.
    """
    results: list[T] = []
    with anyio.CancelScope(shield=True):
        async with engine.begin() as connection:
            results.append(await connection.run_sync(run))
    return results[0]


def blocking_twin(engine: AsyncEngine) -> Blocking:
    """A twin of a writing engine for a thread, with a connection of its own, disposed of with it.

    On SQLite each statement through an `AsyncEngine` costs two switches between threads; a round
    of the loader has a dozen.
    """
    twin = postgres.twin(engine)
    if twin is not None:
        blocking: Blocking = _Looped(twin)
    else:
        made = sa.create_engine(
            engine.url.set(drivername="sqlite"),
            pool_size=1,
            max_overflow=0,
            connect_args={"check_same_thread": False},
        )
        prepare(made, begin="BEGIN IMMEDIATE")
        blocking = _Direct(made)

    def dispose(_engine: sa.Engine) -> None:
        blocking.dispose()

    event.listen(engine.sync_engine, "engine_disposed", dispose)
    return blocking


def blocking_writer(database_url: str, *, busy_s: float = BUSY_S) -> Blocking:
    """A writing engine for a thread or a command, with one connection.

    Raises:
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """
    return blocking_twin(writing_engine(database_url, busy_s=busy_s))


def reading_engine(database_url: str, *, busy_s: float = BUSY_S) -> AsyncEngine:
    """An engine that refuses to write; one transaction sees one state of the database.

    Raises:
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """
    if is_postgresql(database_url):
        waits = Waits(statement_s=_READ_S, lock_s=busy_s, is_read_only=True)
        return postgres.engine(database_url, waits, pool_size=_READERS_MAX)
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{sqlite_path(database_url)}", connect_args={"timeout": busy_s}
    )
    prepare(engine.sync_engine, begin="BEGIN", is_read_only=True)
    return engine


def blocking_reader(database_url: str) -> Blocking:
    """The same for a thread or a command.

    Raises:
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """
    if is_postgresql(database_url):
        return _Looped(reading_engine(database_url))
    path = sqlite_path(database_url)
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    prepare(engine, begin="BEGIN", is_read_only=True)
    return _Direct(engine)


def blocking_migrator(database_url: str, *, busy_s: float = BUSY_S) -> Blocking:
    """A database for Alembic, with transactional schema changes that may take their time.

    Raises:
        UnsupportedDatabase: The URL is no database's, or a driver is missing.
    """
    if is_postgresql(database_url):
        return _Looped(postgres.engine(database_url, Waits(statement_s=0, lock_s=busy_s)))
    return _Direct(migrating_engine(database_url, busy_s=busy_s))


def migrating_engine(database_url: str, *, busy_s: float = BUSY_S) -> sa.Engine:
    """A synchronous engine for Alembic on SQLite."""
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
