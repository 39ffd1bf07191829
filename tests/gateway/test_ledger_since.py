"""Verifying only what the last daily check does not speak for, as a look at a checklist does."""

from __future__ import annotations

import pytest

from gateway.clock import from_microseconds
from gateway.finance.close import close_status
from gateway.finance.close_messages import CloseMonth, CloseStatus, CloseStep
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import Refused
from gateway.ledger.database import migrating_engine
from gateway.ledger.month_digest import month_digest, month_figures
from gateway.ledger.verify import Since
from tests.gateway.finance_books import attempt, unknown, write, writing
from tests.gateway.ledger_samples import NOON_US, FakeClock, make_database
from tests.gateway.test_finance_close import MONTH, NOVEMBER_6, sound
from tests.gateway.test_ledger_nightly import book, checked, ledger, spoil

pytestmark = pytest.mark.anyio

NOVEMBER = "2026-11"


@pytest.mark.slow
async def test_without_a_recorded_check_everything_is_verified(tmp_path):
    async with ledger(make_database(tmp_path), tmp_path, FakeClock()) as (service, writer):
        book(writer, 1, days_ago=3)
        await service.flush()
        found, since = await service.verify_since(NOVEMBER)
    assert since is None
    assert (found.faults, found.events) == ((), 1)


@pytest.mark.slow
async def test_only_days_with_new_entries_since_the_check_are_verified_again(tmp_path):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1, days_ago=5)
        await service.flush()
        await checked(service)
        began_us = time.wall
        spoil(url, "UPDATE rollup_day SET attempt_count = 9")
        time.pass_s(3_600)
        found, since = await service.verify_since(NOVEMBER)
        # The days around now are looked at, the one that somebody changed by hand is not.
        assert (found.faults, since) == ((), Since(checked_at_us=began_us, days=3))
        assert (await service.verify()).faults
        for n in (2, 3):
            book(writer, n, days_ago=5)
        await service.flush()
        found, since = await service.verify_since(NOVEMBER)
        assert [one.split(":")[0][:13] for one in found.faults] == ["rollup_day at"]
        assert since == Since(checked_at_us=began_us, days=4)
        found, since = await service.verify_since("2026-09")
        assert (found.faults, since) == ((), Since(checked_at_us=began_us, days=0))


@pytest.mark.slow
async def test_an_entry_that_is_wrong_by_itself_is_found_by_the_check_and_by_a_look(tmp_path):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1)
        await service.flush()
        await checked(service)
        spoil(url, "DROP TRIGGER spend_event_no_update")
        spoil(url, "UPDATE spend_event SET lines = '[[\"input\",100,1,1,7]]'")
        (told,) = (await service.verify_since(NOVEMBER))[0].faults[:1]
        assert told.endswith("the input line is not its units at its rate")
        time.pass_s(86_400)
        assert told in (await checked(service)).told


@pytest.mark.slow
async def test_days_and_closed_months_that_did_not_hold_are_verified_until_they_do(tmp_path):
    url, time = make_database(tmp_path), FakeClock()
    async with ledger(url, tmp_path, time) as (service, writer):
        book(writer, 1, days_ago=40)
        await service.flush()
        spoil(url, "UPDATE rollup_day SET attempt_count = 9")
        spoil(
            url,
            "INSERT INTO period_close (month, state, soft_by, closed_by, accepted, figures,"
            " ledger_digest) VALUES ('2026-10', 'closed', '', 'ann', '[]', '{}', X'00')",
        )
        state = await checked(service)
        assert state.faulty_months == ("2026-10",)
        time.pass_s(4 * 86_400)
        # Another check that is not about that month keeps it in mind.
        assert (await checked(service)).faulty_months == ("2026-10",)
        found, _ = await service.verify_since("2026-12")
        assert [one[:13] for one in found.faults] == ["rollup_day at", "the closed mo"]


@pytest.mark.slow
async def test_a_look_says_what_it_rests_on_and_a_close_verifies_everything(tmp_path):
    url = await write(tmp_path, [attempt(1), unknown(2, exposure=5)])
    time = FakeClock(wall=NOVEMBER_6)
    async with ledger(url, tmp_path, time) as (service, _):
        await checked(service)
        spoil(url, "UPDATE rollup_day SET input_units = input_units + 1")
        desk = FinanceDesk(service, clock=time.clock)
        report = await desk.answer(CloseStatus(month=MONTH))
        [item] = [one for one in report.items if one.name == "ledger_verified"]
        at = from_microseconds(NOVEMBER_6).strftime("%Y-%m-%d %H:%M")
        assert (item.state, item.sentence) == (
            "ok",
            f"held at the daily check of {at} UTC; a close verifies everything once more",
        )
        wanted = CloseMonth(actor="ann", month=MONTH, step=CloseStep.SOFT)
        with pytest.raises(Refused, match="ledger_verified: 2 faults, all by `ledger verify`"):
            await desk.answer(wanted)


SINCE = {
    "one day": (1, ", and 1 day of the month that has changed since holds;"),
    "two days": (2, ", and 2 days of the month that have changed since hold;"),
}


@pytest.mark.parametrize(("days", "says"), SINCE.values(), ids=SINCE.keys())
async def test_days_that_changed_since_are_told(tmp_path, days, says):
    engine = writing(await write(tmp_path, [attempt(1)]))
    books = sound()
    since = Since(checked_at_us=NOON_US, days=days)
    with engine.begin() as connection:
        report = close_status(
            connection,
            CloseStatus(month=MONTH),
            type(books)(verification=books.verification, is_loaded=True, since=since),
            now_us=NOVEMBER_6,
        )
    [item] = [one for one in report.items if one.name == "ledger_verified"]
    assert says in item.sentence


async def test_what_an_open_month_holds_is_what_its_digest_is_made_of(tmp_path):
    url = await write(tmp_path, [attempt(1), attempt(2, team="search"), unknown(3, exposure=7)])
    engine = migrating_engine(url)
    with engine.begin() as connection:
        for month in (MONTH, NOVEMBER):
            assert month_figures(connection, month) == month_digest(connection, month)[1]
        assert month_figures(connection, MONTH).events == 3
    engine.dispose()
