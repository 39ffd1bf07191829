"""Connections to PostgreSQL that end badly, and what their errors mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.ledger import migrate, postgres
from gateway.ledger.database import blocking_twin, writing_engine
from gateway.ledger.errors import DatabaseUnavailable, UnsupportedDatabase, UnusableDatabase
from gateway.ledger.faults import explained, is_refusal
from gateway.ledger.postgres import Waits, copy_rows
from tests.support.postgres import execute, fetch, with_database

pytestmark = pytest.mark.anyio

PID = sa.text("SELECT pg_backend_pid()")
OTHERS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@asynccontextmanager
async def engine_of(url: str, *, statement_s: float = 20.0) -> AsyncIterator[AsyncEngine]:
    made = postgres.engine(url, Waits(statement_s=statement_s, lock_s=5.0))
    try:
        yield made
    finally:
        await made.dispose()


def end(url: str, pid: int) -> None:
    """Let the server close a connection, as an administrator does, and wait for it."""
    execute(url, f"SELECT pg_terminate_backend({pid}, 10000)")


async def noticed(driver) -> None:
    with anyio.fail_after(10):
        while not driver.is_closed():
            await anyio.sleep(0.01)


def test_without_its_driver_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setattr(postgres, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedDatabase, match=r"pip install 'fareway\[postgres\]'"):
        writing_engine("postgresql://somebody@localhost/ledger")


async def test_a_connection_that_the_server_closed_in_the_pool_is_made_anew(postgres_url):
    async with engine_of(postgres_url) as engine:
        async with engine.connect() as connection:
            first = await connection.scalar(PID)
            driver = (await connection.get_raw_connection()).driver_connection
        end(postgres_url, first)
        await noticed(driver)
        async with engine.connect() as connection:
            assert await connection.scalar(PID) != first


async def test_a_copy_on_a_closed_connection_gives_the_connection_up(postgres_url):
    execute(postgres_url, "CREATE TABLE numbers (n BIGINT)")
    async with engine_of(postgres_url) as engine:
        async with engine.connect() as connection:
            first = await connection.scalar(PID)
            driver = (await connection.get_raw_connection()).driver_connection
            end(postgres_url, first)
            with pytest.raises(DBAPIError, match="COPY numbers"):
                await connection.run_sync(copy_rows, "numbers", ["n"], [(1,)])
            await noticed(driver)
            assert connection.invalidated
        async with engine.begin() as connection:
            assert await connection.scalar(PID) != first
            await connection.run_sync(copy_rows, "numbers", ["n"], [(2,)])
    assert fetch(postgres_url, "SELECT n FROM numbers") == [(2,)]


async def test_a_copy_that_the_server_refuses_keeps_the_connection(postgres_url):
    execute(postgres_url, "CREATE TABLE numbers (n BIGINT CHECK (n > 0))")
    async with engine_of(postgres_url) as engine, engine.connect() as connection:
        first = await connection.scalar(PID)
        with pytest.raises(DBAPIError) as refused:
            await connection.run_sync(copy_rows, "numbers", ["n"], [(-1,)])
        assert is_refusal(refused.value)
        await connection.rollback()
        assert await connection.scalar(PID) == first


async def test_a_server_that_says_nothing_is_an_outage_and_its_connection_is_given_up(
    postgres_url, monkeypatch
):
    monkeypatch.setattr(postgres, "_ANSWER_S", 0.0)
    async with engine_of(postgres_url, statement_s=0.3) as engine:
        async with engine.connect() as connection:
            first = await connection.scalar(PID)
            # The server's own bound would end the statement first.
            await connection.exec_driver_sql("SET statement_timeout = 0")
            with pytest.raises(OperationalError, match="pg_sleep") as silent:
                await connection.exec_driver_sql("SELECT pg_sleep(60)")
            assert connection.invalidated
        assert not is_refusal(silent.value)
        assert str(explained(silent.value)) == "the database did not answer: it took too long"
        async with engine.connect() as connection:
            assert await connection.scalar(PID) != first


async def test_disposing_of_a_writer_and_its_twin_twice_does_no_harm(postgres_url):
    engine = writing_engine(postgres_url)
    twin = blocking_twin(engine)

    def one() -> int:
        with twin.engine.connect() as connection:
            return connection.execute(sa.text("SELECT 1")).scalar_one()

    assert await anyio.to_thread.run_sync(twin.run, one) == 1
    for _ in range(2):
        await engine.dispose()
    with anyio.fail_after(10):
        while fetch(postgres_url, OTHERS) != [(0,)]:
            await anyio.sleep(0.01)


async def test_a_database_that_is_not_there_is_told_when_its_schema_is_made(postgres_url):
    with pytest.raises(UnusableDatabase, match="there is no such database on the server"):
        migrate.upgrade(with_database(postgres_url, "nowhere"))


async def raised(url: str, statement: str, **values: object) -> Exception:
    async with engine_of(url) as engine, engine.connect() as connection:
        with pytest.raises(DBAPIError) as found:
            await connection.execute(sa.text(statement), values)
    return found.value


async def test_what_the_driver_cannot_turn_into_a_columns_type_is_refused(postgres_url):
    assert is_refusal(await raised(postgres_url, "SELECT CAST(:n AS BIGINT)", n=2**70))
    execute(postgres_url, "CREATE TABLE numbers (n BIGINT)")
    async with engine_of(postgres_url) as engine, engine.connect() as connection:
        await connection.execute(PID)
        with pytest.raises(DBAPIError) as refused:
            await connection.run_sync(copy_rows, "numbers", ["n"], [(2**70,)])
        assert is_refusal(refused.value)


@pytest.mark.parametrize(
    ("statement", "refused", "told"),
    [
        ("SELECT 1 / 0", True, DatabaseUnavailable),
        ("SELECT 1 FROM nothing", False, UnusableDatabase),
        ("SELECT pg_terminate_backend(pg_backend_pid())", False, DatabaseUnavailable),
    ],
    ids=["data", "a table that is not there", "an administrator"],
)
async def test_what_a_servers_error_means(postgres_url, statement, refused, told):
    error = await raised(postgres_url, statement)
    assert is_refusal(error) is refused
    assert type(explained(error)) is told


@pytest.mark.parametrize(
    ("origin", "refused"),
    [(ValueError("no number"), True), (RuntimeError("connection is closed"), False)],
    ids=["a value", "the connection"],
)
def test_an_error_of_the_driver_is_a_rows_fault_only_when_it_is_about_a_value(origin, refused):
    assert is_refusal(IntegrityError("INSERT", None, origin)) is refused


def steps_beside_a_wait(database, steps, wait) -> list:
    """Steps that are left after a statement."""

    def work() -> list:
        database.alongside(steps)
        with database.engine.connect() as connection:
            connection.execute(sa.text(wait))
        return [*steps]

    return database.run(work)


async def test_steps_are_taken_while_the_server_works(postgres_url):
    engine = writing_engine(postgres_url)
    twin = blocking_twin(engine)
    wait = "SELECT pg_sleep(0.05)"
    assert await anyio.to_thread.run_sync(steps_beside_a_wait, twin, iter(range(9)), wait) == []
    await engine.dispose()


async def test_no_step_is_taken_beside_a_database_that_works_in_this_process(tmp_path):
    engine = writing_engine(f"sqlite:///{tmp_path / 'ledger.db'}")
    twin = blocking_twin(engine)
    left = await anyio.to_thread.run_sync(steps_beside_a_wait, twin, iter(range(3)), "SELECT 1")
    assert left == [0, 1, 2]
    await engine.dispose()


async def test_a_step_that_fails_is_told_and_the_work_beside_it_goes_on(postgres_url, caplog):
    def two_steps():
        yield
        raise OSError("the spool is gone")

    engine = writing_engine(postgres_url)
    twin = blocking_twin(engine)
    wait = "SELECT pg_sleep(0.05)"
    assert await anyio.to_thread.run_sync(steps_beside_a_wait, twin, two_steps(), wait) == []
    assert "the spool is gone" in caplog.text
    await engine.dispose()
