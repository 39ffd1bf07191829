"""What one machine changes is told to another, and what cannot be told shows."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import pytest

from gateway.channel import ChannelClosed
from gateway.clock import system_clock
from gateway.ledger.news import News
from gateway.ledger.postgres import Listener, Waits
from gateway.ledger.service import LedgerService
from tests.gateway.test_ledger_keys import record
from tests.support.postgres import execute

pytestmark = pytest.mark.anyio

NEVER_S = 600.0
UNHEARD = "INSERT INTO meta (name, value) VALUES ('keys_revision', '7')"
"""A change whose notification is lost."""


class Told:
    """Counts what was told, and refuses as often as it shall."""

    def __init__(self) -> None:
        self.times = 0
        self.refusals = 0

    async def __call__(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ChannelClosed("supervisor is closed")
        self.times += 1


async def until(is_so) -> None:
    with anyio.fail_after(20):
        while not is_so():
            await anyio.sleep(0.005)


@asynccontextmanager
async def following(url: str, poll_s: float):
    told = Told()
    news = News(url, told, clock=system_clock(), poll_s=poll_s)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(news.run)
        await until(lambda: told.times == 1)
        yield news, told
        tasks.cancel_scope.cancel()


async def test_a_change_is_told_by_its_notification(postgres_ledger_url, tmp_path):
    other = LedgerService(postgres_ledger_url, tmp_path / "spool", clock=system_clock())
    async with following(postgres_ledger_url, NEVER_S) as (_, told):
        await other.create_key(record(), actor="admin")
        await until(lambda: told.times == 2)
        await other.revoke_key(record().key_id, actor="admin")
        await until(lambda: told.times == 3)
        # What others notify of on the same channel is looked at, and is no change.
        execute(postgres_ledger_url, "NOTIFY fareway_news")
        await anyio.sleep(0.1)
        assert told.times == 3
    await other.stop(drain=False)


async def test_a_change_whose_notification_was_lost_is_found_by_looking(postgres_ledger_url):
    async with following(postgres_ledger_url, 0.05) as (news, told):
        execute(postgres_ledger_url, UNHEARD)
        await until(lambda: told.times == 2)
        assert news.age_s < 5


async def test_what_the_supervisor_did_not_take_is_told_again(postgres_ledger_url, caplog):
    async with following(postgres_ledger_url, 0.05) as (news, told):
        told.refusals = 2
        execute(postgres_ledger_url, UNHEARD)
        await until(lambda: told.refusals == 0)
        await until(lambda: told.times == 2)
        await until(lambda: not news.fault)
    lines = [line.getMessage() for line in caplog.records]
    assert len([line for line in lines if "are not heard of until this is over" in line]) == 1
    assert len([line for line in lines if "are heard of again" in line]) == 1


async def test_a_database_that_is_away_shows_and_what_changed_meanwhile_is_told_after_it(
    postgres_ledger_url, shared_postgres
):
    name = urlsplit(postgres_ledger_url).path[1:]
    async with following(postgres_ledger_url, 0.05) as (news, told):
        execute(postgres_ledger_url, UNHEARD)
        await until(lambda: told.times == 2)
        execute(shared_postgres, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        execute(postgres_ledger_url.rpartition("/")[0] + "/postgres", CUT_OF.format(name))
        await until(lambda: bool(news.fault))
        assert "not" in news.fault
        aged_s = news.age_s
        await anyio.sleep(0.05)
        assert news.age_s > aged_s
        execute(shared_postgres, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
        execute(postgres_ledger_url, "UPDATE meta SET value = '8' WHERE name = 'keys_revision'")
        await until(lambda: told.times == 3)
        await until(lambda: not news.fault)


CUT_OF = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'"


async def test_a_server_that_does_not_answer_is_given_up(postgres_ledger_url):
    listener = await Listener.open(postgres_ledger_url, Waits(statement_s=20, lock_s=20))
    began_s = time.monotonic()
    with pytest.raises(Exception, match="TimeoutError"):
        await listener.fetch("SELECT pg_sleep(15)", timeout_s=0.05)
    await listener.aclose()
    assert time.monotonic() - began_s < 10


async def test_a_ledger_on_postgresql_says_whether_it_hears_of_other_machines(
    postgres_ledger_url, tmp_path
):
    told = Told()
    told.refusals = 10_000
    service = LedgerService(
        postgres_ledger_url, tmp_path / "spool", clock=system_clock(), on_news=told
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        await until(lambda: bool(service.stats().news_fault))
        assert "supervisor is closed" in service.stats().news_fault
        await until(lambda: service.stats().news_age_ms > 0)
        told.refusals = 0
        await until(lambda: not service.stats().news_fault)
        await service.stop(drain=True)


async def test_a_ledger_on_sqlite_has_no_other_machines(tmp_path):
    service = LedgerService(
        f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "spool", clock=system_clock(),
        on_news=Told(),
    )  # fmt: skip
    assert (service.stats().news_fault, service.stats().news_age_ms) == ("", 0)
    await service.stop(drain=False)
