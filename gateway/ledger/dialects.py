"""What the two databases write differently, in one place.

Both take `INSERT … ON CONFLICT`, `RETURNING` and the same column names, and connections give and
take the same Python values (`postgres`). What is left is the spelling of parameters, and locks:
on SQLite a writing transaction has the whole database, on PostgreSQL it names what it locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import asyncpg

from gateway.ledger.postgres import copy_rows

POSTGRESQL = "postgresql"
SQLITE = "sqlite"

Insert = sqlite.Insert | postgresql.Insert
"""An INSERT that can say what happens to a row that is there already."""

_DIALECTS: dict[str, sa.Dialect] = {SQLITE: sqlite.dialect(), POSTGRESQL: asyncpg.dialect()}
_LOCK_SPACE = 0x46415245  # "FARE": advisory locks are the whole server's, so ours have a number


class Lock(IntEnum):
    """What a transaction on PostgreSQL can keep to itself until its end; they are taken in order.

    Rows that many transactions change, each in an order of its own, would let them wait for each
    other in a circle: whoever changes sums or budgets takes `SUMS` before the first of them.
    """

    SCHEMA = 1
    PARTITIONS = 2
    AUDIT = 3
    SUMS = 4
    MACHINES = 5


def is_postgresql(connection: sa.Connection) -> bool:
    """Whether a connection is one to PostgreSQL."""
    return connection.dialect.name == POSTGRESQL


def insert_into(dialect: str, table: sa.TableClause) -> Insert:
    """An INSERT of a dialect."""
    return postgresql.insert(table) if dialect == POSTGRESQL else sqlite.insert(table)


def take(connection: sa.Connection, lock: Lock) -> None:
    """Wait until no other transaction has a lock, and keep it until this one ends.

    Nothing on SQLite, where a writing transaction begins with the lock of the whole database.
    """
    if is_postgresql(connection):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_SPACE, int(lock))))


def text(statement: sa.ClauseElement, dialect: str) -> str:
    """A statement as the driver of a dialect takes it, its parameters in the order of the text."""
    return str(statement.compile(dialect=_DIALECTS[dialect]))


def add_rows(
    connection: sa.Connection,
    statement: str,
    table: sa.Table,
    columns: tuple[str, ...],
    rows: Sequence[tuple[Any, ...]],
) -> None:
    """Add thousands of new rows.

    Args:
        connection: In a transaction that has begun.
        statement: The INSERT, for SQLite.
        table: Where to.
        columns: The order of the rows' values.
        rows: None of them is there already.
    """
    if is_postgresql(connection):
        copy_rows(connection, table.name, columns, rows)
    else:
        connection.exec_driver_sql(statement, list(rows))
