"""A transaction that has begun is ended, whatever becomes of whoever waits for it."""

from __future__ import annotations

import asyncio
import sqlite3

import anyio
import pytest
import sqlalchemy as sa
from sqlalchemy import event

from gateway.ledger.database import write, writing_engine

pytestmark = pytest.mark.anyio


async def test_a_write_that_is_cancelled_is_ended_and_keeps_its_connection(tmp_path):
    path = tmp_path / "ledger.db"
    engine = writing_engine(f"sqlite:///{path}")
    opened: list[object] = []
    event.listen(engine.sync_engine, "connect", lambda *_: opened.append(None))
    await write(engine, lambda connection: connection.exec_driver_sql("CREATE TABLE t (x INTEGER)"))
    tasks_before = asyncio.all_tasks()
    other = sqlite3.connect(path, isolation_level=None)
    for _ in range(3):
        other.execute("BEGIN IMMEDIATE")  # so that the write waits for the lock
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write, engine, _insert)
            await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
            other.execute("COMMIT")
        assert await write(engine, _count) > 0
    other.close()
    assert await write(engine, _count) == 3
    assert len(opened) == 1
    assert asyncio.all_tasks() == tasks_before, "nobody waits for a connection that is gone"
    await engine.dispose()


def _insert(connection: sa.Connection) -> None:
    connection.exec_driver_sql("INSERT INTO t VALUES (1)")


def _count(connection: sa.Connection) -> int:
    return connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one()
