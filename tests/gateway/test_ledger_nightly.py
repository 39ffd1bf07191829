"""The daily check: which days, by whom, what it finds, whom it tells, and the command that mends."""

from __future__ import annotations

import random
import sqlite3
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger import check_plan, day_checks, report_sources
from gateway.ledger.check_plan import CheckState
from gateway.ledger.database import sqlite_path
from gateway.ledger.day_checks import HOUR_US
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.grains import DAY_US
from gateway.ledger.nightly import JITTER_S, Nightly
from gateway.ledger.service import LedgerService
from tests.gateway.ledger_samples import (
    NOON_US,
    PRICE_PICO,
    FakeClock,
    intent,
    make_database,
    open_spool,
    settlement,
)
from tests.support.postgres import execute, fetch

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DAY = NOON_US // DAY_US * DAY_US
BACK_ENDS = ("sqlite", "postgresql")
LOOK_S = 1_800.0


@pytest.fixture(params=BACK_ENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return make_database(tmp_path)
    return request.getfixturevalue("postgres_ledger_url")


@asynccontextmanager
async def ledger(url: str, folder: Path, time: FakeClock, **options):
    """A ledger, and a writer of its spool; the writer's records are loaded with `flush`."""
    service = LedgerService(
        url, folder / "spool", clock=time.clock, cost_tags=("env",), check_hour=3, **options
    )
    service.nightly.rest = 0.0
    await service.start()
    await service._list_cost_tags()
    writer = open_spool(folder / "spool" / "w", clock=time.clock)
    try:
        yield service, writer
    finally:
        await writer.close()
        await service.stop(drain=False)


def book(writer, *numbers: int, days_ago: int = 0, **changes) -> None:
    for n in numbers:
        at_us = NOON_US + n * 1_000 - days_ago * DAY_US
        writer.append(intent(n, at_us=at_us, team=f"team-{n % 3}"))
        writer.append(settlement(n, **changes))


def spoil(url: str, statement: str) -> None:
    """Change what only the ledger changes."""
    if url.startswith("postgresql"):
        execute(url, statement)
        return
    with sqlite3.connect(sqlite_path(url)) as connection:
        connection.execute(statement)
    connection.close()


def ask(url: str, statement: str) -> list[tuple]:
    if url.startswith("postgresql"):
        return fetch(url, statement)
    with sqlite3.connect(sqlite_path(url)) as connection:
        found = connection.execute(statement).fetchall()
    connection.close()
    return found


async def checked(service: LedgerService) -> CheckState:
    """The state after a check that is due now."""
    assert await service.nightly.check(due_from_us=service._clock.wall_us())
    return service.nightly.state


async def test_a_sound_ledger_has_no_findings(url, tmp_path):
    time = FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1, 2, 3)
        await service.flush()
        state = await checked(service)
        assert (state.findings, state.told, state.faulty_days) == (0, (), ())
        assert state.finished_at_us == time.wall
        stats = service.stats()
        assert (stats.checked_at_s, stats.check_findings) == (time.wall // 10**6, 0)


SPOILED = {
    "UPDATE rollup_qh SET output_units = output_units + 1": "rollup_qh at",
    "UPDATE rollup_key_qh SET cost_pico_usd = cost_pico_usd + 1": "rollup_key_qh at",
    "DELETE FROM rollup_tag_qh": "rollup_tag_qh at",
    "UPDATE rollup_day SET attempt_count = 9": "attempt_count is 9, the quarters say 1",
    "DELETE FROM rollup_key_day": "rollup_key_day at",
    "UPDATE rollup_meter_day SET cost_pico_usd = cost_pico_usd + 1": "rollup_meter_day on",
}
"""What is done to each kind of sum, and what is told of it."""


async def test_each_kind_of_sum_that_was_changed_is_found_and_made_anew_by_command(url, tmp_path):
    time = FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1, 2)
        await service.flush()
        for statement in SPOILED:
            spoil(url, statement)
        state = await checked(service)
        for told in SPOILED.values():
            assert any(told in sentence for sentence in state.told), told
        assert state.faulty_days == (DAY,)
        assert (await service.verify()).faults
        [day] = await service.rebuild_sums(actor="someone")
        assert (day.day, day.events) == ("2026-11-28", 2)
        assert day.cost_pico_usd == 200 * PRICE_PICO
        assert (await service.verify()).faults == ()
        assert await service.rebuild_sums(actor="someone") == ()
        [line] = ask(url, "SELECT actor, action, object FROM audit_log")
        assert line == ("someone", "ledger.rebuild", "2026-11-28")
        # A day that was faulty is looked at again, however long ago it is.
        time.pass_s(3 * 86_400)
        assert (await checked(service)).findings == 0


async def test_an_audit_line_that_was_changed_is_a_finding(url, tmp_path):
    time = FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        spoil(url, "DELETE FROM rollup_day")
        await service.rebuild_sums(actor="someone")
        if url.startswith("sqlite"):
            spoil(url, "DROP TRIGGER audit_log_no_update")
        else:
            spoil(url, "ALTER TABLE audit_log DISABLE TRIGGER ALL")
        spoil(url, "UPDATE audit_log SET actor = 'nobody'")
        assert (await checked(service)).told == ("audit line 1 was changed",)


async def test_usage_at_a_price_that_cost_nothing_is_a_finding(url, tmp_path):
    # GW-076: streamed calls of one vendor with the right tokens and a spend of 0, for weeks.
    time = FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1, 2)
        book(writer, 3, 4, lines=(), cost_pico_usd=0)
        await service.flush()
        state = await checked(service)
        assert state.told == (
            (
                "on 2026-11-28 2 attempts of groq/llama-3.1-8b-instant counted 214 units and cost"
                " nothing, although price v1 was in force"
            ),
        )
        assert state.faulty_days == (), "the sums are those of the events"


HARMLESS = {
    "a free price": {
        "lines": tuple(
            type(settlement(0).lines[0])(
                meter=meter, units=units, rate_pico_usd=0, rate_per_units=1, cost_pico_usd=0
            )
            for meter, units in (("input", 100), ("output", 7))
        ),
        "cost_pico_usd": 0,
    },
    "nothing counted": {"usage": {}, "lines": (), "cost_pico_usd": 0},
    "a refusal": {"status": "rejected", "lines": (), "cost_pico_usd": 0},
}


@pytest.mark.parametrize("changes", HARMLESS.values(), ids=HARMLESS.keys())
async def test_what_may_cost_nothing_is_no_finding(tmp_path, changes):
    async with ledger(make_database(tmp_path), tmp_path, FakeClock()) as (service, writer):
        book(writer, 1, **changes)
        await service.flush()
        assert (await checked(service)).findings == 0


async def test_usage_that_could_not_be_priced_is_a_finding_unless_there_is_no_price(tmp_path):
    async with ledger(make_database(tmp_path), tmp_path, FakeClock()) as (service, writer):
        book(writer, 1, lines=(), cost_pico_usd=None)
        writer.append(intent(2, price_version=""))
        writer.append(settlement(2, lines=(), cost_pico_usd=None))
        await service.flush()
        state = await checked(service)
        assert state.findings == 1
        assert (
            "1 attempts of groq/llama-3.1-8b-instant counted 107 units and have no price"
            in (state.told[0])
        )


async def test_what_is_superseded_counts_for_nothing(tmp_path):
    time = FakeClock()
    async with ledger(make_database(tmp_path), tmp_path, time) as (service, writer):
        writer.append(intent(1, lifetime_s=1))
        await service.flush()
        time.pass_s(100)
        await service.flush()
        writer.append(settlement(1))
        await service.flush()
        assert (await checked(service)).findings == 0
        assert await service.rebuild_sums(actor="someone") == ()


async def test_an_entry_for_an_older_day_makes_that_day_due(url, tmp_path):
    time = FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        time.pass_s(4 * 86_400)
        await checked(service)
        spoil(url, "UPDATE rollup_day SET attempt_count = 9")
        time.pass_s(86_400)
        # Its day is neither near nor noted.
        assert (await checked(service)).findings == 0
        time.pass_s(86_400)
        for n in (2, 3):
            book(writer, n)
            await service.flush()
        assert (await checked(service)).faulty_days == (DAY,)


async def test_a_day_is_due_as_long_as_its_sums_are_wrong(tmp_path):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        spoil(url, "UPDATE rollup_day SET attempt_count = 9")
        for _ in range(2):
            assert (await checked(service)).faulty_days == (DAY,)
            time.pass_s(2 * 86_400)


async def test_of_two_machines_one_makes_the_check_and_a_dead_one_is_taken_over(url, tmp_path):
    time = FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        other = LedgerService(url, tmp_path / "other", clock=time.clock, check_hour=3)
        try:
            due_us = time.wall

            def dies(connection: sa.Connection) -> None:
                claimed = check_plan.claim(
                    connection, now_us=time.wall, due_from_us=due_us, holder="gone"
                )
                assert claimed is not None

            await service._write(dies)
            assert not await service.nightly.check(due_from_us=due_us)
            time.pass_s(check_plan.CLAIM_US / 1e6 + 1)
            assert await other.nightly.check(due_from_us=due_us)
            assert not await service.nightly.check(due_from_us=due_us)
            await service.nightly.look()
            assert service.nightly.state == other.nightly.state
            assert service.nightly.state.days > 0
        finally:
            await other.stop(drain=False)


async def test_a_check_that_was_taken_over_keeps_nothing(tmp_path, monkeypatch):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        nightly = service.nightly
        plain = Nightly._examine_day

        async def loses_the_claim(self, database, day_us):
            time.pass_s(check_plan.CLAIM_US / 1e6 + 1)

            def take_over(connection: sa.Connection) -> None:
                claimed = check_plan.claim(
                    connection, now_us=time.wall, due_from_us=time.wall, holder="another"
                )
                assert claimed is not None

            await service._write(take_over)
            return await plain(self, database, day_us)

        monkeypatch.setattr(Nightly, "_examine_day", loses_the_claim)
        assert not await nightly.check(due_from_us=time.wall)
        state = check_plan.CheckState()
        assert nightly.state == state

        async def loses_it_at_the_end(_self, _database) -> list[str]:
            await service._write(
                lambda connection: check_plan._set(
                    connection, "check", check_plan.CheckState(claimed_by="another")
                )
            )
            return []

        time.pass_s(check_plan.CLAIM_US / 1e6 + 1)
        monkeypatch.setattr(Nightly, "_examine_day", plain)
        monkeypatch.setattr(Nightly, "_audit_faults", loses_it_at_the_end)
        assert not await nightly.check(due_from_us=time.wall)


async def test_a_long_check_renews_its_claim(tmp_path, monkeypatch):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        plain = Nightly._examine_day

        async def takes_ten_minutes(self, database, day_us):
            time.pass_s(600)
            return await plain(self, database, day_us)

        monkeypatch.setattr(Nightly, "_examine_day", takes_ten_minutes)
        assert await service.nightly.check(due_from_us=time.wall)


async def test_an_empty_ledger_and_dropped_months_are_no_days(tmp_path):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        assert (await checked(service)).days == 0
        assert await service.rebuild_sums(actor="someone") == ()
        book(writer, 1)
        await service.flush()
        spoil(url, "INSERT INTO meta VALUES ('events_from', '2027-01')")
        time.pass_s(1)
        assert (await checked(service)).days == 0
        assert await service.rebuild_sums(actor="someone") == ()


async def test_more_groups_than_one_answer_holds_are_added_up_in_parts(tmp_path, monkeypatch):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, *range(9))
        await service.flush()
        monkeypatch.setattr(report_sources, "ROWS_MAX", 2)
        assert (await checked(service)).findings == 0
        monkeypatch.setattr(report_sources, "ROWS_MAX", 0)
        time.pass_s(1)
        with pytest.raises(day_checks.BadQuery):
            await checked(service)


@given(st.integers(0, 23), st.integers(0, 10**7))
def test_a_check_is_due_from_the_hour_on(hour: int, minutes: int) -> None:
    time = FakeClock(wall=NOON_US + minutes * 60_000_000)

    async def write(_run) -> None:
        raise AssertionError("nothing is written")

    nightly = Nightly(database_url="sqlite:///x", write=write, clock=time.clock, hour=hour)
    due_us = nightly.due_from_us()
    assert 0 <= time.wall - due_us < DAY_US
    assert due_us % DAY_US == hour * HOUR_US


async def test_it_runs_once_a_day_some_minutes_after_the_hour(tmp_path, monkeypatch):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        nightly, begun = service.nightly, []
        nightly.rng = random.Random(1)
        plain = Nightly.check

        async def check(self, *, due_from_us: int) -> bool:
            begun.append(time.wall)
            if len(begun) == 1:
                raise DatabaseUnavailable("the database did not answer: gone")
            return await plain(self, due_from_us=due_from_us)

        monkeypatch.setattr(Nightly, "check", check)
        turns = 0

        async def sleep(seconds: float) -> None:
            nonlocal turns
            if seconds == LOOK_S:
                turns += 1
                time.pass_s(LOOK_S)
                if turns > 3 * 86_400 / LOOK_S:
                    raise TimeoutError

        monkeypatch.setattr("gateway.ledger.nightly.anyio.sleep", sleep)
        monkeypatch.setattr("gateway.ledger.nightly.LOOK_S", LOOK_S)
        with pytest.raises(TimeoutError):
            await nightly.run()
        first, again, *rest = begun
        assert first < again <= first + 2 * LOOK_S * 1e6
        assert JITTER_S[0] <= (first - NOON_US) / 1e6 <= JITTER_S[1] + LOOK_S
        assert len(rest) == 3
        for at_us in rest:
            after_s = (at_us - 3 * HOUR_US) % DAY_US / 1e6
            assert JITTER_S[0] <= after_s <= JITTER_S[1] + LOOK_S


async def test_without_an_hour_there_is_no_check(tmp_path):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, _):
        service.nightly.hour = None
        with anyio.fail_after(5):
            await service.nightly.run()


async def test_findings_are_posted_to_the_webhooks(tmp_path):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        spoil(url, """INSERT INTO meta VALUES ('alert_webhooks', '["pager"]')""")
        book(writer, 1)
        await service.flush()
        spoil(url, "DELETE FROM rollup_day")
        await checked(service)
        [(document,)] = ask(url, "SELECT document FROM budget_alert")
        assert '"ledger.check"' in document
        assert "rollup_day at 2026-11-28" in document
        assert ask(url, "SELECT webhook, tries FROM alert_delivery") == [("pager", 0)]
