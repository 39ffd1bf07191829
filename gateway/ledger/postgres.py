"""Connections to PostgreSQL, by asyncpg: how long they wait, and what a value is on them.

On these connections an instant is an integer of microseconds since the epoch and a uuid is 16
bytes, to the driver too: rows go to both databases as the same tuples, and no object is made for a
value that is only passed on.

Every wait ends. A server that is slow or frozen, and one that is gone without having said so, is an
error after some seconds, and the connection is given up; whoever has work to do tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol, cast

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.util.concurrency import await_

from gateway.ledger.errors import UnsupportedDatabase

PREFIX = "postgresql://"
CONNECT_S = 5.0
_ANSWER_S = 5.0
"""How much longer than the server the client waits for a statement, before it gives it up."""
_TWIN = "fareway_twin"
_READ_ONLY = "25006"
_EPOCH_2000_US = 946_684_800_000_000
"""PostgreSQL counts from the year 2000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long a connection's statements may take.

    Attributes:
        statement_s: A statement, 0 for no bound.
        lock_s: A lock that another connection holds.
        is_read_only: Refuse to write, and see one state of the database per transaction.
    """

    statement_s: float
    lock_s: float
    is_read_only: bool = False


class _Driver(Protocol):
    """What is used of an `asyncpg.Connection`, which has no types of its own."""

    def is_closed(self) -> bool: ...

    def is_in_transaction(self) -> bool: ...

    async def copy_records_to_table(
        self, table_name: str, *, records: Sequence[tuple[object, ...]], columns: Sequence[str]
    ) -> str: ...

    async def fetch(self, query: str) -> Sequence[Iterable[object]]: ...

    async def add_listener(self, channel: str, callback: Callable[..., object]) -> None: ...

    def add_termination_listener(self, callback: Callable[..., object]) -> None: ...

    def terminate(self) -> None: ...

    async def set_type_codec(
        self,
        typename: str,
        *,
        schema: str,
        format: str,  # noqa: A002 - the driver's name
        encoder: Callable[[Any], object],
        decoder: Callable[[Any], object],
    ) -> None: ...


class _Connect(Protocol):
    """`asyncpg.connect`."""

    async def __call__(
        self,
        dsn: str,
        *,
        timeout: float,  # noqa: ASYNC109 - the driver's own
        command_timeout: float | None,
        server_settings: Mapping[str, str],
    ) -> _Driver: ...


def engine(database_url: str, waits: Waits, *, pool_size: int = 1) -> AsyncEngine:
    """An engine on a server.

    Args:
        database_url: `postgresql://user@host:port/database`, as libpq takes it; a password in it is
            told to nobody.
        waits: How long its statements may take.
        pool_size: Most connections.

    Raises:
        UnsupportedDatabase: The driver is not installed.
    """
    if find_spec("asyncpg") is None:
        raise UnsupportedDatabase("PostgreSQL needs the extra: pip install 'fareway[postgres]'")
    made = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=_connector(database_url, waits),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=CONNECT_S,
        execution_options={_TWIN: partial(engine, database_url, waits)},
    )
    event.listen(made.sync_engine, "handle_error", _give_up_silent)
    event.listen(made.sync_engine, "checkout", _renew_closed)
    return made


def twin(of: AsyncEngine) -> AsyncEngine | None:
    """Another engine like one of `engine`, for another loop; None when it is one of SQLite."""
    make = cast("Callable[[], AsyncEngine] | None", of.get_execution_options().get(_TWIN))
    return None if make is None else make()


class Listener:
    """A connection that hears notifications; not for transactions.

    Args:
        driver: Its connection.
    """

    def __init__(self, driver: _Driver) -> None:
        self._driver = driver
        self._heard = asyncio.Event()

    @classmethod
    async def open(cls, database_url: str, waits: Waits) -> Listener:
        """Connect.

        Args:
            database_url: As for `engine`.
            waits: How long its statements may take.

        Raises:
            OperationalError: The server does not answer, or refuses.
        """
        made = cls(await _connector(database_url, waits)())
        made._driver.add_termination_listener(made._note)
        return made

    async def listen(self, channel: str) -> None:
        """Hear what is notified from now on.

        Raises:
            OperationalError: The connection is gone.
        """
        with _said():
            await self._driver.add_listener(channel, self._note)

    async def wait(self) -> None:
        """Return once something was heard since the last call, or the connection is gone."""
        await self._heard.wait()
        self._heard.clear()

    async def fetch(self, statement: str, *, timeout_s: float) -> list[tuple[object, ...]]:
        """The rows of a query.

        Raises:
            OperationalError: No answer in that time, a refusal, or the connection is gone.
        """
        with _said():
            async with asyncio.timeout(timeout_s):
                return [tuple(row) for row in await self._driver.fetch(statement)]

    async def aclose(self) -> None:
        """Drop the connection at once; the server cleans up."""
        self._driver.terminate()

    def _note(self, *_what: object) -> None:
        self._heard.set()


@contextmanager
def _said() -> Generator[None]:
    """Raise the driver's errors as the database's."""
    try:
        yield
    except _driver_errors() as error:
        raise OperationalError("listen", None, error) from error


def copy_rows(
    connection: sa.Connection,
    table: str,
    columns: Sequence[str],
    rows: Sequence[tuple[object, ...]],
) -> None:
    """Add rows by COPY, the fastest way in; in the connection's transaction.

    Raises:
        DBAPIError: The database refused a row, or does not answer.
    """
    driver = cast("_Driver", connection.connection.driver_connection)
    assert driver.is_in_transaction(), "a transaction begins with its first statement"
    try:
        await_(driver.copy_records_to_table(table, records=rows, columns=list(columns)))
    except _driver_errors() as error:
        if _is_silent(error) or driver.is_closed() or _is_of_standby(error):
            connection.invalidate(error)
        raise DBAPIError(f"COPY {table}", None, error) from error


def _connector(database_url: str, waits: Waits) -> Callable[[], Awaitable[_Driver]]:
    import asyncpg

    driver = cast("_Connect", asyncpg.connect)
    settings = {
        "application_name": "fareway",
        "timezone": "UTC",
        # Whatever the server's own default: a segment is deleted once its records are committed.
        "synchronous_commit": "on",
        "statement_timeout": _milliseconds(waits.statement_s),
        "lock_timeout": _milliseconds(waits.lock_s),
        # A client that stands still in a transaction keeps others from their work.
        "idle_in_transaction_session_timeout": _milliseconds(waits.statement_s),
    }
    if waits.is_read_only:
        settings["default_transaction_read_only"] = "on"
        settings["default_transaction_isolation"] = "repeatable read"
    answer_s = waits.statement_s + _ANSWER_S if waits.statement_s else None

    async def connect() -> _Driver:
        try:
            connection = await driver(
                database_url, timeout=CONNECT_S, command_timeout=answer_s, server_settings=settings
            )
            await _set_codecs(connection)
        except _driver_errors() as error:
            raise OperationalError("connect", None, error) from error
        return connection

    return connect


async def _set_codecs(connection: _Driver) -> None:
    """Let instants be microseconds and uuids be bytes on this connection."""
    await connection.set_type_codec(
        "timestamptz",
        schema="pg_catalog",
        format="tuple",
        encoder=_instant_to_server,
        decoder=_instant_from_server,
    )
    await connection.set_type_codec(
        "uuid", schema="pg_catalog", format="binary", encoder=bytes, decoder=bytes
    )


def _instant_to_server(at_us: int) -> tuple[int]:
    return (at_us - _EPOCH_2000_US,)


def _instant_from_server(value: tuple[int]) -> int:
    return value[0] + _EPOCH_2000_US


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1_000))


def _driver_errors() -> tuple[type[Exception], ...]:
    """What the driver raises: its own, and those of sockets, time limits and conversions."""
    import asyncpg

    return (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        OSError,
        TimeoutError,
        ValueError,
        OverflowError,
        TypeError,
    )


def _give_up_silent(context: ExceptionContext) -> None:
    """Close a connection whose server did not answer, and say so as a database's error.

    One to a server that has become a standby is closed, too: the next may find the primary.
    """
    error = context.original_exception
    if _is_silent(error):
        context.is_disconnect = True
        statement = context.statement or "a statement"
        raise OperationalError(statement, None, error) from error
    if _is_of_standby(error):
        context.is_disconnect = True


def _is_of_standby(error: BaseException) -> bool:
    """Whether the server only reads now: another one may be the primary since."""
    return sqlstate_of(error) == _READ_ONLY


def _is_silent(error: BaseException) -> bool:
    return isinstance(error, OSError | TimeoutError)


def sqlstate_of(error: BaseException) -> str | None:
    """The server's five letters for an error; None for an error of this side."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    state = cast("object", getattr(origin, "sqlstate", None))
    return state if isinstance(state, str) else None


def _renew_closed(
    connection: DBAPIConnection, _record: ConnectionPoolEntry, _proxy: PoolProxiedConnection
) -> None:
    """Have the pool connect anew when the server has closed a connection that lay there."""
    driver = cast("_Driver", connection.driver_connection)
    if driver.is_closed():
        raise DisconnectionError
