"""PostgreSQL's own ways to fail under the loader, and machines that share one database."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.loader import Loader
from gateway.ledger.reading import read_ledger
from gateway.ledger.verify import verify
from tests.faults.test_ledger_faults import SPAN, accounts, child, load_everything
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    intent,
    open_engine,
    open_spool,
    settlement,
    totals,
)
from tests.support.postgres import execute

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COUNT = 60
FAULT = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$;
CREATE TRIGGER fail BEFORE INSERT ON spend_event FOR EACH ROW EXECUTE FUNCTION fail()
"""


def write(writer, numbers: Sequence[int]) -> None:
    for n in numbers:
        writer.append(intent(n))
        writer.append(settlement(n))


def terminate(url: str) -> None:
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


async def test_a_full_disk_of_the_server_is_an_outage_and_no_rows_fault(
    postgres_ledger_url, tmp_path
):
    url, time_, root = postgres_ledger_url, FakeClock(), tmp_path / "spool"
    writer = open_spool(root / "w", clock=time_.clock)
    write(writer, range(COUNT))
    full = "RAISE EXCEPTION 'could not extend file: No space left' USING ERRCODE = '53100';"
    execute(url, FAULT.format(body=full))
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time_.clock)
        for _ in range(3):
            with pytest.raises(DatabaseUnavailable, match="No space left"):
                await loader.flush()
        assert (loader.stats.quarantined, loader.stats.failed_rounds) == (0, 3)
        assert loader.stats.backlog_records > 0
        execute(url, "DROP TRIGGER fail ON spend_event")
        await loader.flush()
        assert await totals(engine) == (COUNT, COUNT * 100 * PRICE_PICO, 0)
    await writer.close()


async def test_a_server_that_only_reads_is_an_outage_and_another_one_is_looked_for(
    postgres_ledger_url, tmp_path
):
    """After a failover the old primary answers, and refuses to write (25006)."""
    url, time_, root = postgres_ledger_url, FakeClock(), tmp_path / "spool"
    writer = open_spool(root / "w", clock=time_.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time_.clock)
        write(writer, range(COUNT))
        await loader.flush()
        execute(url, f'ALTER DATABASE "{name_of(url)}" SET default_transaction_read_only = on')
        terminate(url)
        write(writer, range(COUNT, 2 * COUNT))
        for _ in range(3):  # the first finds its connection closed
            with pytest.raises(DatabaseUnavailable):
                await loader.flush()
        assert "read-only transaction" in loader.stats.failure
        assert loader.stats.quarantined == 0
        # The primary is there again, and no connection was kept to what was not one.
        execute(
            url,
            "SET default_transaction_read_only = off",
            f'ALTER DATABASE "{name_of(url)}" RESET default_transaction_read_only',
        )
        await loader.flush()
        assert (await totals(engine))[0] == 2 * COUNT
    await writer.close()


async def test_connections_that_end_in_the_middle_of_a_copy_lose_and_double_nothing(
    postgres_ledger_url, tmp_path
):
    url, time_, root = postgres_ledger_url, FakeClock(), tmp_path / "spool"
    writer = open_spool(root / "w", clock=time_.clock)
    # A sequence counts on although its transaction is rolled back.
    ends = "IF nextval('rows_seen') % 50 = 29 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
    execute(url, "CREATE SEQUENCE rows_seen")
    execute(url, FAULT.format(body=ends))
    failed = 0
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=time_.clock)
        for part in range(6):
            write(writer, range(part * 20, part * 20 + 20))
            with anyio.fail_after(30):
                while True:
                    try:
                        await loader.flush()
                        break
                    except DatabaseUnavailable:
                        failed += 1
        assert failed > 0
        assert await totals(engine) == (120, 120 * 100 * PRICE_PICO, 0)
        assert loader.stats.quarantined == 0
    await writer.close()
    found = read_ledger(url, verify, root)
    assert (found.faults, found.events) == ((), 120)


async def test_a_spool_that_goes_to_another_machine_is_loaded_once(postgres_ledger_url, tmp_path):
    url, time_ = postgres_ledger_url, FakeClock()
    here, there = tmp_path / "here", tmp_path / "there"
    writer = open_spool(here / "w", clock=time_.clock, segment_bytes=4_000)
    write(writer, range(30))
    async with open_engine(url) as engine:
        await Loader(engine, here, clock=time_.clock).flush()
    write(writer, range(30, 60))
    await writer.close()
    # The machine is gone. Its volume is mounted elsewhere, with its name; and somebody has put a
    # copy of the writer's directory into the spool of a machine that has a name of its own.
    other = open_spool(there / "v", session=2, clock=time_.clock)
    write(other, range(60, 90))
    async with open_engine(url) as engine:
        await Loader(engine, there, clock=time_.clock).flush()
    await other.close()
    shutil.copytree(here / "w", there / "w")
    moved = here.rename(tmp_path / "moved")
    async with open_engine(url) as first, open_engine(url) as second:
        one = Loader(first, moved, clock=time_.clock)
        two = Loader(second, there, clock=time_.clock)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.flush)
            tasks.start_soon(two.flush)
        assert await totals(first) == (90, 90 * 100 * PRICE_PICO, 0)
        assert one.stats.quarantined == two.stats.quarantined == 0
        assert one.stats.replays + two.stats.replays > 0
    found = read_ledger(url, verify, moved)
    assert (found.faults, found.events, found.open_intents) == ((), 90, 0)
    assert not (moved / "w").exists()
    assert not (there / "w").exists()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_two_machines_on_one_database_lose_and_double_nothing_when_they_are_killed(
    postgres_ledger_url, tmp_path, rng
):
    kill_machines(postgres_ledger_url, tmp_path, rng, rounds=50)


def kill_machines(url: str, folder: Path, rng: random.Random, *, rounds: int) -> None:
    """Kill writers and loaders of two machines in any order, and some of their connections."""
    roots = [folder / "one", folder / "two"]
    turns = 0
    for _ in range(rounds):
        with ExitStack() as stack:
            # Writers last: they write as fast as they can while others are being started.
            running = [stack.enter_context(child("load", url, root)) for root in roots]
            for root in roots:
                account = folder / f"account-{turns}"
                directory = root / f"w{turns % 2}"
                running.append(
                    stack.enter_context(child("write", directory, account, turns * SPAN))
                )
                turns += 1
            rng.shuffle(running)
            for process in running:
                time.sleep(rng.uniform(0, 0.15))
                if rng.random() < 0.3:
                    terminate(url)
                process.kill()
    for root in roots:
        anyio.run(load_everything, url, root)
    begun, written = accounts(folder)

    def booked(connection: sa.Connection) -> dict[int, int]:
        table = schema.spend_event
        rows = connection.execute(
            sa.select(table.c.event_id, table.c.cost_pico_usd).where(~table.c.is_lost)
        ).all()
        found = {int.from_bytes(row.event_id, "big"): row.cost_pico_usd for row in rows}
        assert len(found) == len(rows)
        return found

    ledger = read_ledger(url, booked)
    assert written <= ledger.keys() <= begun.keys()
    assert ledger == {n: begun[n] * PRICE_PICO for n in ledger}
    assert written
    for root in roots:
        found = read_ledger(url, verify, root)
        assert (found.faults, found.open_intents) == ((), 0)
        assert found.cost_pico_usd == sum(ledger.values())
