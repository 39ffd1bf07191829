"""The ledger process's work as the supervisor sees it."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.clock import system_clock
from gateway.ledger import migrate, partitions
from gateway.ledger import service as ledger_service
from gateway.ledger.cost_tags import load_listed
from gateway.ledger.database import sqlite_path
from gateway.ledger.errors import DatabaseUnavailable, UnusableDatabase
from gateway.ledger.reading import read_ledger
from gateway.ledger.reports import spend_report
from gateway.ledger.rounds import LoaderLimits
from gateway.ledger.service import LedgerService
from gateway.ledger.views import SpendQuery
from tests.gateway.ledger_samples import PRICE_PICO, intent, open_spool, settlement
from tests.gateway.test_ledger_keys import record
from tests.support.postgres import execute, fetch

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@asynccontextmanager
async def running(url, tmp_path, **options):
    service = LedgerService(
        url,
        tmp_path / "spool",
        clock=system_clock(),
        limits=LoaderLimits(poll_s=0.01, retry_s=0.01),
        **options,
    )
    await service.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        yield service
        await service.stop(drain=True)


async def test_what_workers_write_is_in_the_reports(url, tmp_path):
    writer = open_spool(tmp_path / "spool" / "w", clock=system_clock())
    async with running(url, tmp_path) as service:
        for n in range(20):
            writer.append(intent(n))
            writer.append(settlement(n))
        await service.flush()
        found = await service.spend_report(SpendQuery())
        assert found.total.cost_pico_usd == 20 * 100 * PRICE_PICO
        assert len(await service.recent_requests(50)) == 20
        assert (await service.verify()).faults == ()
        assert service.stats().events == 20
    await writer.close()


async def test_running_loads_without_being_asked(url, tmp_path):
    writer = open_spool(tmp_path / "spool" / "w", clock=system_clock())
    async with running(url, tmp_path) as service:
        writer.append(intent(1))
        writer.append(settlement(1))
        with anyio.fail_after(10):
            while not (await service.recent_requests(1)):
                await anyio.sleep(0.01)
    await writer.close()


async def test_stopping_loads_what_is_left(url, tmp_path):
    """GW-088: nothing that was written is gone after a shutdown."""
    writer = open_spool(tmp_path / "spool" / "w", clock=system_clock())
    async with running(url, tmp_path):
        for n in range(200):
            writer.append(intent(n))
            writer.append(settlement(n))
    await writer.close()
    found = read_ledger(url, spend_report, SpendQuery())
    assert (found.total.attempts, found.total.cost_pico_usd) == (200, 200 * 100 * PRICE_PICO)


async def test_stopping_without_draining_leaves_the_records_for_the_next_start(url, tmp_path):
    writer = open_spool(tmp_path / "spool" / "w", clock=system_clock())
    writer.append(intent(1))
    writer.append(settlement(1))
    service = LedgerService(url, tmp_path / "spool", clock=system_clock())
    await service.start()
    await service.stop(drain=False)
    assert read_ledger(url, spend_report, SpendQuery()).rows == ()
    async with running(url, tmp_path):
        pass
    assert read_ledger(url, spend_report, SpendQuery()).total.attempts == 1
    await writer.close()


async def test_stopping_beside_a_locked_database_tells_and_still_ends(url, tmp_path):
    writer = open_spool(tmp_path / "spool" / "w", clock=system_clock())
    service = LedgerService(url, tmp_path / "spool", clock=system_clock(), busy_s=0.01)
    await service.start()
    writer.append(intent(1))
    holder = sqlite3.connect(sqlite_path(url), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseUnavailable):
        await service.stop(drain=True)
    holder.close()
    await writer.close()


async def test_keys_are_made_listed_and_revoked(url, tmp_path):
    async with running(url, tmp_path) as service:
        assert await service.create_key(record(), actor="admin") == 1
        assert await service.revoke_key(record().key_id, actor="admin") == 2
        (stored,) = await service.list_keys()
        assert stored.record.disabled
        assert (await service.load_all_keys())[0] == 2


async def test_a_database_that_does_not_answer_is_told(url, tmp_path):
    async with running(url, tmp_path, busy_s=0.01) as service:
        holder = sqlite3.connect(sqlite_path(url), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            await service.create_key(record(), actor="admin")
        holder.execute("ALTER TABLE api_key RENAME TO away")
        holder.execute("COMMIT")
        with pytest.raises(DatabaseUnavailable, match="no such table"):
            await service.list_keys()
        holder.close()


async def test_months_of_events_are_tried_again_after_an_outage(
    postgres_ledger_url, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(ledger_service, "MAINTAIN_RETRY_S", 0.05)
    url = postgres_ledger_url
    made = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^spend_event_[0-9]'"
    execute(url, *(f"DROP TABLE {name}" for (name,) in fetch(url, made)))
    execute(url, "ALTER TABLE spend_event_default RENAME TO away")
    async with running(url, tmp_path):
        with anyio.fail_after(10):
            while "months of events: trying again" not in caplog.text:
                await anyio.sleep(0.01)
        assert fetch(url, made) == []
        execute(url, "ALTER TABLE away RENAME TO spend_event_default")
        with anyio.fail_after(10):
            while len(fetch(url, made)) < partitions.MONTHS_AHEAD + 1:
                await anyio.sleep(0.02)


async def test_cost_tags_that_cannot_be_listed_wait_for_the_next_start(url, tmp_path, caplog):
    service = LedgerService(
        url, tmp_path / "spool", clock=system_clock(), busy_s=0.01, cost_tags=("env",)
    )
    await service.start()
    holder = sqlite3.connect(sqlite_path(url), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        with anyio.fail_after(10):
            while "finance.cost_tags waits for the next start" not in caplog.text:
                await anyio.sleep(0.01)
        holder.execute("ROLLBACK")
        await service.stop(drain=False)
    holder.close()
    assert read_ledger(url, load_listed) == ()
    async with running(url, tmp_path, cost_tags=("env",)):
        pass
    assert read_ledger(url, load_listed) == ("env",)


async def test_other_cost_tags_have_sums_from_then_on(url, tmp_path):
    async with running(url, tmp_path, cost_tags=("env",)) as service:
        await service.set_cost_tags(("env",))
        await service.set_cost_tags(("feature",))
    assert read_ledger(url, load_listed) == ("feature",)


async def test_a_database_that_lets_nobody_in_ends_no_service(url, tmp_path, caplog, monkeypatch):
    service = LedgerService(url, tmp_path / "spool", clock=system_clock(), cost_tags=("env",))

    async def refuse(_run):
        raise UnusableDatabase("the server does not let this user in")

    monkeypatch.setattr(service, "_write", refuse)
    await service._list_cost_tags()
    assert "waits for the next start: the server does not let this user in" in caplog.text
    await service.stop(drain=False)


def test_reading_needs_a_ledger_of_this_schema(url, tmp_path):
    with pytest.raises(DatabaseUnavailable, match="there is no ledger at"):
        read_ledger(url, spend_report, SpendQuery())
    assert not sqlite_path(url).exists()
    migrate.upgrade(url)
    assert read_ledger(url, spend_report, SpendQuery()).rows == ()
    migrate.downgrade(url, "base")
    with pytest.raises(
        DatabaseUnavailable, match=f"has schema none, this release needs {migrate.head()}"
    ):
        read_ledger(url, spend_report, SpendQuery())


def test_reading_what_is_no_database_is_told(url, tmp_path):
    migrate.upgrade(url)
    with sqlite3.connect(sqlite_path(url)) as connection:
        connection.execute("DROP TABLE rollup_day")
    connection.close()
    with pytest.raises(DatabaseUnavailable, match="no such table"):
        read_ledger(url, spend_report, SpendQuery())
