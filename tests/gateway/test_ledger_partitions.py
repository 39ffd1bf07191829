"""Events by month on PostgreSQL: made before they are needed, dropped whole and never too early."""

from __future__ import annotations

import uuid

import asyncpg
import pytest

from gateway.budgets.messages import BudgetScope, BudgetWindow
from gateway.ledger import migrate, partitions
from gateway.ledger.database import blocking_writer
from gateway.ledger.loader import Loader
from gateway.ledger.periods import month_bounds_us
from gateway.ledger.reading import read_ledger
from gateway.ledger.service import LedgerService
from gateway.ledger.verify import verify
from tests.gateway.ledger_samples import (
    FakeClock,
    intent,
    open_engine,
    open_spool,
    settlement,
    totals,
)
from tests.gateway.test_ledger_budgets import COST, KEY, budget, declare, stand
from tests.support.postgres import execute, fetch

pytestmark = pytest.mark.anyio

COUNT = "SELECT tableoid::regclass::text, count(*) FROM spend_event GROUP BY 1 ORDER BY 1"
LATE_US = month_bounds_us("2025-02")[0] + 5
NEXT_US = month_bounds_us("2027-08")[1] - 1


async def booked(url, root, time, *instants) -> None:
    """Book one event at each instant."""
    writer = open_spool(root / "w", clock=time.clock)
    for n, at_us in enumerate(instants, 1):
        writer.append(intent(n, at_us=at_us))
        writer.append(settlement(n, settled_at_us=at_us + 1))
    async with open_engine(url) as engine:
        await Loader(engine, root, clock=time.clock).flush()
    await writer.close()


def close(url: str, month: str) -> None:
    columns = "month, state, soft_by, closed_at_us, closed_by, accepted, figures"
    values = f"'{month}', 'closed', '', now(), 'somebody', '[]', '{{}}'"
    execute(url, f"INSERT INTO period_close ({columns}) VALUES ({values})")


async def test_an_event_of_any_month_finds_the_partition_of_its_month(
    postgres_ledger_url, tmp_path
):
    time = FakeClock()
    await booked(postgres_ledger_url, tmp_path / "spool", time, time.wall, LATE_US, NEXT_US)
    assert fetch(postgres_ledger_url, COUNT) == [
        ("spend_event_2025_02", 1),
        ("spend_event_2026_11", 1),
        ("spend_event_2027_08", 1),
    ]


async def test_an_event_in_the_default_partition_is_told_and_stops_nothing(
    postgres_ledger_url, tmp_path
):
    time = FakeClock()
    await booked(postgres_ledger_url, tmp_path / "spool", time, time.wall)
    execute(
        postgres_ledger_url,
        "CREATE TEMP TABLE one AS SELECT * FROM spend_event;"
        f"UPDATE one SET at_us = to_timestamp({LATE_US} / 1e6), event_id = '{uuid.UUID(int=77)}';"
        "INSERT INTO spend_event SELECT * FROM one",
    )
    found = read_ledger(postgres_ledger_url, verify, tmp_path / "spool")
    assert any("1 events lie in the default partition" in fault for fault in found.faults)
    writer = open_spool(tmp_path / "spool" / "x", session=5, clock=time.clock)
    writer.append(intent(9, at_us=LATE_US))
    writer.append(settlement(9))
    async with open_engine(postgres_ledger_url) as engine:
        loader = Loader(engine, tmp_path / "spool", clock=time.clock)
        await loader.flush()
        assert loader.stats.quarantined == 0
        assert (await totals(engine))[0] == 2
    await writer.close()


@pytest.mark.parametrize("verb", ["UPDATE {} SET cost_pico_usd = 0", "DELETE FROM {}"])
@pytest.mark.parametrize("table", ["spend_event", "spend_event_2026_11"])
async def test_no_partition_lets_its_events_be_changed(postgres_ledger_url, tmp_path, verb, table):
    time = FakeClock()
    await booked(postgres_ledger_url, tmp_path / "spool", time, time.wall)
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        execute(postgres_ledger_url, verb.format(table))


async def test_months_are_made_ahead_and_dropped_in_order_once_they_are_closed(
    postgres_ledger_url, tmp_path
):
    time, url, root = FakeClock(), postgres_ledger_url, tmp_path / "spool"
    months = [month_bounds_us(f"2026-{month:02d}")[0] for month in (7, 8, 9, 10, 11)]
    await booked(url, root, time, *months)
    service = LedgerService(url, root, clock=time.clock, keep_events_months=2)
    try:
        assert await service.maintain() == (), "none is closed"
        names = {row[0] for row in fetch(url, "SELECT relname FROM pg_class")}
        assert {f"spend_event_{name}" for name in ("2026_12", "2027_01", "2027_02")} <= names
        close(url, "2026-07")
        close(url, "2026-08")
        assert await service.maintain() == ("2026-07", "2026-08"), "2026-09 is kept"
        assert await service.maintain() == ()
    finally:
        await service.stop(drain=False)
    assert [name for name, _ in fetch(url, COUNT)] == [
        f"spend_event_2026_{month}" for month in ("09", "10", "11")
    ]
    found = read_ledger(url, verify, root)
    assert (found.faults, found.events) == ((), 3)
    async with open_engine(url) as engine:
        assert (await totals(engine))[0] == 5, "the sums stay"


async def test_months_are_made_ahead_and_none_is_dropped_without_a_bound(
    postgres_ledger_url, tmp_path
):
    time, url, root = FakeClock(), postgres_ledger_url, tmp_path / "spool"
    await booked(url, root, time, month_bounds_us("2026-07")[0])
    close(url, "2026-07")
    service = LedgerService(url, root, clock=time.clock)
    try:
        assert await service.maintain() == ()
    finally:
        await service.stop(drain=False)
    names = {row[0] for row in fetch(url, "SELECT relname FROM pg_class")}
    assert {"spend_event_2026_07", "spend_event_2027_02"} <= names


def test_a_month_is_made_once_whatever_order_its_events_come_in(postgres_ledger_url, monkeypatch):
    database, months = blocking_writer(postgres_ledger_url), partitions.Partitions()
    made, make = [], partitions.make

    def counted(connection, missing) -> None:
        made.append(sorted(missing))
        make(connection, missing)

    def ensure(*instants_us) -> None:
        with database.engine.begin() as connection:
            months.ensure(connection, instants_us)

    monkeypatch.setattr(partitions, "make", counted)
    try:
        for instants_us in ([LATE_US], [NEXT_US], [LATE_US], [NEXT_US, LATE_US]):
            database.run(ensure, *instants_us)
        assert made == [["2025-02"], ["2027-08"]]
        months.forget()
        database.run(ensure, LATE_US)
        assert made[2:] == [["2025-02"]], "what a rollback took back is made again"
    finally:
        database.dispose()


async def test_a_month_whose_late_entries_are_not_closed_yet_stays(postgres_ledger_url, tmp_path):
    time, url, root = FakeClock(), postgres_ledger_url, tmp_path / "spool"
    close(url, "2026-07")
    await booked(url, root, time, month_bounds_us("2026-07")[0])
    database = blocking_writer(url)

    def maintain() -> tuple[str, ...]:
        with database.engine.begin() as connection:
            return partitions.maintain(connection, now_us=time.wall, keep_months=1)

    try:
        assert database.run(maintain) == ()
        close(url, "2026-08")
        assert database.run(maintain) == ("2026-07",)
    finally:
        database.dispose()


async def test_the_schema_goes_down_and_up_with_events_in_every_partition(
    postgres_ledger_url, tmp_path
):
    time, url, root = FakeClock(), postgres_ledger_url, tmp_path / "spool"
    await booked(url, root, time, time.wall, LATE_US, NEXT_US)
    whole = "SELECT * FROM spend_event ORDER BY event_id"
    migrate.downgrade(url, "0006")  # without the columns that came later
    before = fetch(url, whole)
    migrate.downgrade(url, "0005")
    assert fetch(url, whole) == before
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        execute(url, "DELETE FROM spend_event")
    migrate.upgrade(url)
    assert [row[: len(before[0])] for row in fetch(url, whole)] == before
    assert [name for name, _ in fetch(url, COUNT)] == [
        "spend_event_2025_02",
        "spend_event_2026_11",
        "spend_event_2027_08",
    ]
    assert read_ledger(url, verify, root).faults == ()


async def test_events_of_a_range_are_looked_for_in_its_months_only(postgres_ledger_url):
    plan = fetch(
        postgres_ledger_url,
        "EXPLAIN SELECT 1 FROM spend_event WHERE at_us >= '2026-12-01Z' AND at_us < '2027-01-01Z'",
    )
    text = "\n".join(row[0] for row in plan)
    assert "spend_event_2026_12" in text
    assert "2027_01" not in text


async def test_sqlite_has_no_months(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)
    service = LedgerService(url, tmp_path / "spool", clock=FakeClock().clock, keep_events_months=1)
    try:
        assert await service.maintain() == ()
    finally:
        await service.stop(drain=False)


@pytest.mark.slow
def test_every_version_goes_up_and_down_on_postgresql(postgres_url):
    migrate.upgrade(postgres_url)
    for version in [*sorted(migrate.versions(), reverse=True)[1:], "base"]:
        migrate.downgrade(postgres_url, version)
        migrate.upgrade(postgres_url)
        migrate.downgrade(postgres_url, version)
    left = fetch(postgres_url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert left == [("alembic_version",)]


async def test_a_new_budget_of_a_key_counts_what_was_spent_in_months_that_were_dropped(
    postgres_ledger_url, tmp_path
):
    time = FakeClock()
    await booked(postgres_ledger_url, tmp_path / "spool", time, time.wall, LATE_US)
    execute(postgres_ledger_url, "DROP TABLE spend_event_2025_02")
    service = LedgerService(postgres_ledger_url, tmp_path / "spool", clock=time.clock)
    wanted = budget("key", scope=BudgetScope.KEY, team="", key_id=KEY, window=BudgetWindow.TOTAL)
    await service.set_budgets(declare(wanted))
    assert await stand(service) == (2 * COST, 0, 0)
    await service.stop(drain=False)
