"""The conditional update admits exactly what fits; two methods that look right do not.

Check-then-add and a statement that re-reads a snapshot admit too much as soon as two clients meet.
A barrier makes them meet here every time: both are kept to show that these tests would notice.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.ledger import budget_buckets, budget_schema
from gateway.ledger.database import Blocking, blocking_writer
from tests.gateway.budget_clients import BUCKET, make_bucket
from tests.gateway.ledger_samples import make_database

PROCESSES, THREADS, TRIES = 8, 8, 10
AMOUNT, FITS = 25, 400
LIMIT = AMOUNT * FITS + AMOUNT - 1


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, migrated and empty."""
    if request.param == "sqlite":
        return make_database(tmp_path)
    return request.getfixturevalue("postgres_ledger_url")


@contextmanager
def client(url: str) -> Iterator[Blocking]:
    database = blocking_writer(url, busy_s=30)
    try:
        yield database
    finally:
        database.dispose()


def reserved(url: str) -> int:
    with client(url) as database:

        def read() -> int:
            with database.engine.begin() as connection:
                return connection.scalar(sa.select(budget_schema.budget_bucket.c.reserved_pico_usd))

        return database.run(read)


# GW-092: parallel requests never share the same remaining budget.
@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_64_clients_of_8_processes_are_admitted_exactly_what_fits(url: str) -> None:
    make_bucket(url, LIMIT)
    command = [sys.executable, "-m", "tests.gateway.budget_clients", url]
    command += [str(THREADS), str(AMOUNT), str(TRIES)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * PROCESSES
    assert sum(map(int, outputs)) == FITS
    assert reserved(url) == FITS * AMOUNT


Method = Callable[[sa.Connection, Callable[[], object]], bool]


def conditional_update(connection: sa.Connection, meet: Callable[[], object]) -> bool:
    meet()
    return budget_buckets.reserve(connection, BUCKET, AMOUNT)


def check_then_add(connection: sa.Connection, meet: Callable[[], object]) -> bool:
    table = budget_schema.budget_bucket
    state = connection.execute(sa.select(table.c.limit_pico_usd, table.c.reserved_pico_usd)).one()
    meet()
    if state[1] + AMOUNT > state[0]:
        return False
    added = table.c.reserved_pico_usd + AMOUNT
    connection.execute(sa.update(table).values(reserved_pico_usd=added))
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "admitted"), [(conditional_update, 1), (check_then_add, 2)], ids=["ours", "control"]
)
def test_two_clients_on_room_for_one(
    method: Method, admitted: int, postgres_ledger_url: str
) -> None:
    """On SQLite the second client's transaction begins only when the first has ended."""
    make_bucket(postgres_ledger_url, AMOUNT)
    barrier = threading.Barrier(2, timeout=30)
    outcomes: list[bool] = []

    def run() -> None:
        with client(postgres_ledger_url) as database:

            def work() -> bool:
                with database.engine.begin() as connection:
                    return method(connection, barrier.wait)

            outcomes.append(database.run(work))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(outcomes) == admitted
    assert reserved(postgres_ledger_url) == admitted * AMOUNT


SNAPSHOT = sa.text("""
    WITH locked AS (SELECT budget_id FROM budget_bucket WHERE budget_id = 1 FOR UPDATE)
    UPDATE budget_bucket AS bucket
    SET reserved_pico_usd = bucket.reserved_pico_usd + :amount
    FROM locked
    WHERE bucket.budget_id = locked.budget_id
    AND (SELECT spent_pico_usd + reserved_pico_usd + exposed_pico_usd FROM budget_bucket
         WHERE budget_id = 1) + :amount <= bucket.limit_pico_usd
""").bindparams(sa.bindparam("amount", type_=sa.BigInteger))


def reread_snapshot(connection: sa.Connection, meet: Callable[[], object]) -> bool:
    meet()
    return connection.execute(SNAPSHOT, {"amount": AMOUNT}).rowcount == 1


@pytest.mark.parametrize(
    ("method", "admitted"), [(conditional_update, 1), (reread_snapshot, 2)], ids=["ours", "control"]
)
def test_a_client_that_waits_for_the_row_sees_what_the_other_has_reserved(
    method: Method, admitted: int, postgres_ledger_url: str
) -> None:
    make_bucket(postgres_ledger_url, AMOUNT)
    outcomes: list[bool] = []

    def second() -> None:
        with client(postgres_ledger_url) as database:

            def work() -> bool:
                with database.engine.begin() as connection:
                    return method(connection, lambda: None)

            outcomes.append(database.run(work))

    thread = threading.Thread(target=second)
    with client(postgres_ledger_url) as first:

        def hold() -> None:
            with first.engine.begin() as connection:
                outcomes.append(budget_buckets.reserve(connection, BUCKET, AMOUNT))
                thread.start()
                wait_for_a_waiting_client(postgres_ledger_url)

        first.run(hold)
    thread.join()
    assert sum(outcomes) == admitted


def wait_for_a_waiting_client(url: str) -> None:
    """Until a statement waits for a row that another transaction has changed."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with client(url) as database:

        def look() -> int:
            with database.engine.begin() as connection:
                return connection.scalar(waiting)

        end_s = time.monotonic() + 30
        while not database.run(look):
            assert time.monotonic() < end_s, "no client came to wait"
            time.sleep(0.01)
