"""Closed months: what comes late is counted later, and the closed month's digest stays."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gateway.clock import to_microseconds
from gateway.ledger import periods, schema
from gateway.ledger.finance_tables import late_entry, period_close, spend_adjustment
from gateway.ledger.loader import Loader
from gateway.ledger.month_digest import month_digest
from gateway.ledger.roll_ups import SUM_COLUMNS
from gateway.ledger.verify import verify
from tests.gateway.ledger_samples import (
    NOON_US,
    FakeClock,
    fetch,
    holds,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)

MONTH, NEXT = "2026-11", "2026-12"
COST = 100 * 50_000

ADJUSTMENT = {
    "at_us": NOON_US,
    "period": MONTH,
    "original_period": "",
    "kind": "tax",
    "amount_pico_usd": -19,
    "team": "payments",
    "project": "",
    "account": "groq",
    "model": "",
    "meter": "",
    "day": "",
    "event_id": None,
    "invoice_line_id": None,
    "proposal_id": 1,
    "reason": "VAT",
    "proposed_by": "a",
    "approved_by": "b",
}


async def close(engine, month: str = MONTH, digest: bytes | None = None) -> bytes:
    async with engine.begin() as connection:
        found = (await connection.run_sync(month_digest, month))[0]
        await connection.execute(
            sa.insert(period_close).values(
                month=month,
                state="closed",
                soft_at_us=None,
                soft_by="",
                closed_at_us=NOON_US,
                closed_by="admin",
                accepted={},
                figures={},
                ledger_digest=digest or found,
                anchor=bytes(32),
            )
        )
    return found


async def digest(engine, month: str = MONTH):
    async with engine.begin() as connection:
        return await connection.run_sync(month_digest, month)


async def late(engine, read, month) -> list:
    async with engine.begin() as connection:
        return await connection.run_sync(lambda inner: list(read(inner, month)))


@pytest.fixture
def books(tmp_path):
    """A spool with its clock, and a loader's worth of ledger."""
    clock = FakeClock()
    url = make_database(tmp_path)
    return url, clock, tmp_path / "spool"


def test_months_are_calendar_months_in_utc():
    assert periods.month_of(NOON_US) == MONTH
    assert periods.next_month("2026-12") == "2027-01"
    start_us, end_us = periods.month_bounds_us(MONTH)
    assert (periods.month_of(start_us), periods.month_of(end_us)) == (MONTH, NEXT)
    assert periods.month_of(start_us - 1) == "2026-10"
    assert end_us - start_us == 30 * 24 * 3600 * 10**6


@pytest.mark.anyio
async def test_nothing_is_late_while_no_month_is_closed(books):
    url, clock, spool = books
    writer = open_spool(spool / "w", clock=clock.clock)
    writer.append(intent(1))
    writer.append(settlement(1))
    async with open_engine(url) as engine:
        await Loader(engine, spool, clock=clock.clock).flush()
        assert await fetch(engine, sa.select(late_entry)) == []
        async with engine.begin() as connection:
            assert await connection.run_sync(periods.closed_through) is None
    await writer.close()


@pytest.mark.anyio
async def test_a_late_event_is_counted_in_the_next_month_and_the_digest_stays(books):
    url, clock, spool = books
    writer = open_spool(spool / "w", clock=clock.clock)
    writer.append(intent(1))
    writer.append(settlement(1))
    async with open_engine(url) as engine:
        loader = Loader(engine, spool, clock=clock.clock)
        await loader.flush()
        closed = await close(engine)
        writer.append(intent(2))
        writer.append(settlement(2))
        await loader.flush()
        after, figures = await digest(engine)
        assert after == closed
        assert (figures.events, figures.cost_pico_usd) == (1, COST)
        [part] = await late(engine, periods.late_in, NEXT)
        assert (part.booked_period, part.sign, part.row["cost_pico_usd"]) == (NEXT, 1, COST)
        assert part.row["at_us"] == NOON_US + 2_000
        assert await late(engine, periods.late_of, MONTH) == [part]
        assert await late(engine, periods.late_in, MONTH) == []
        # What happened when is not hidden: the roll-ups hold both.
        rows = await fetch(engine, sa.select(schema.rollup_qh.c.cost_pico_usd))
        assert sum(row[0] for row in rows) == 2 * COST
        await holds(engine, spool)
    await writer.close()


@pytest.mark.anyio
async def test_a_late_settlement_of_a_lost_entry_counts_the_difference_in_the_next_month(books):
    url, clock, spool = books
    writer = open_spool(spool / "w", clock=clock.clock)
    writer.append(intent(1, lifetime_s=1.0))
    async with open_engine(url) as engine:
        loader = Loader(engine, spool, clock=clock.clock)
        await loader.flush()
        clock.pass_s(3_600)
        await loader.flush()  # given up: a lost entry, its exposure kept
        closed = await close(engine)
        writer.append(settlement(1))
        await loader.flush()
        after, figures = await digest(engine)
        assert (after, figures.cost_pico_usd, figures.events) == (closed, 0, 1)
        parts = await late(engine, periods.late_in, NEXT)
        assert [(part.row["entry"], part.sign) for part in parts] == [(0, -1), (1, 1)]
        days = periods.late_roll_ups(parts).cells["rollup_day"]
        sums = [sum(column) for column in zip(*days.values(), strict=True)]
        by_name = dict(zip(SUM_COLUMNS, sums, strict=True))
        assert by_name["cost_pico_usd"] == COST
        assert by_name["exposure_pico_usd"] == -7_000_000
        assert by_name["attempt_count"] == 0
        await holds(engine, spool)
    await writer.close()


@pytest.mark.anyio
async def test_a_settlement_after_two_closes_corrects_in_the_month_that_is_open_then(books):
    url, clock, spool = books
    writer = open_spool(spool / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, spool, clock=clock.clock)
        await close(engine)
        writer.append(intent(1, lifetime_s=1.0))
        await loader.flush()
        clock.pass_s(3_600)
        await loader.flush()  # lost, and late: counted in December
        december = await close(engine, NEXT)
        writer.append(settlement(1))
        await loader.flush()
        assert (await digest(engine, NEXT))[0] == december
        parts = await late(engine, periods.late_in, "2027-01")
        assert [(part.row["entry"], part.sign) for part in parts] == [(0, -1), (1, 1)]
        assert [part.sign for part in await late(engine, periods.late_in, NEXT)] == [1]
        await holds(engine, spool)
    await writer.close()


@pytest.mark.anyio
async def test_what_is_of_an_open_month_is_not_late(books):
    url, clock, spool = books
    writer = open_spool(spool / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        await close(engine, "2026-10")
        writer.append(intent(1))
        writer.append(settlement(1))
        await Loader(engine, spool, clock=clock.clock).flush()
        assert await fetch(engine, sa.select(late_entry)) == []
    await writer.close()


@pytest.mark.anyio
async def test_a_lost_entry_that_was_settled_in_time_counts_once(books):
    url, clock, spool = books
    writer = open_spool(spool / "w", clock=clock.clock)
    writer.append(intent(1, lifetime_s=1.0))
    async with open_engine(url) as engine:
        loader = Loader(engine, spool, clock=clock.clock)
        await loader.flush()
        clock.pass_s(3_600)
        await loader.flush()
        writer.append(settlement(1))
        await loader.flush()
        _, figures = await digest(engine)
        assert (figures.events, figures.cost_pico_usd) == (2, COST)
    await writer.close()


@pytest.mark.anyio
async def test_a_late_adjustment_leaves_the_digest_of_a_closed_month(books):
    url, _clock, _spool = books
    async with open_engine(url) as engine:
        async with engine.begin() as connection:
            await connection.execute(sa.insert(spend_adjustment).values(ADJUSTMENT))
        closed = await close(engine)
        changes = {"period": NEXT, "original_period": MONTH, "kind": "late"}
        async with engine.begin() as connection:
            await connection.execute(sa.insert(spend_adjustment).values(ADJUSTMENT | changes))
        after, figures = await digest(engine)
        assert (after, figures.adjusted_pico_usd, figures.adjustments) == (closed, -19, 1)


@pytest.mark.anyio
async def test_the_digest_tells_a_cell_and_an_adjustment_that_were_changed(books):
    url, clock, spool = books
    writer = open_spool(spool / "w", clock=clock.clock)
    writer.append(intent(1))
    writer.append(settlement(1))
    async with open_engine(url) as engine:
        await Loader(engine, spool, clock=clock.clock).flush()
        first = (await digest(engine))[0]
        async with engine.begin() as connection:
            await connection.execute(sa.update(schema.rollup_day).values(attempt_count=2))
        second = (await digest(engine))[0]
        async with engine.begin() as connection:
            await connection.execute(sa.insert(spend_adjustment).values(ADJUSTMENT))
        third = (await digest(engine))[0]
        assert len({first, second, third}) == 3
    await writer.close()


@pytest.mark.anyio
async def test_a_closed_month_that_holds_something_else_is_a_fault_of_verify(books):
    url, _clock, spool = books
    async with open_engine(url) as engine:
        await close(engine, digest=bytes(32))
        async with engine.connect() as connection:
            found = await connection.run_sync(verify, spool)
        assert found.faults == ("the closed month 2026-11 does not hold what was closed",)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE period_close SET state = 'soft'",
        "DELETE FROM period_close",
        "UPDATE spend_adjustment SET amount_pico_usd = 0",
        "DELETE FROM spend_adjustment",
    ],
)
@pytest.mark.anyio
async def test_a_closed_month_and_an_adjustment_can_be_neither_changed_nor_deleted(
    books, statement
):
    url, _clock, _spool = books
    async with open_engine(url) as engine:
        async with engine.begin() as connection:
            await connection.execute(sa.insert(spend_adjustment).values(ADJUSTMENT))
        await close(engine)
        with pytest.raises(IntegrityError, match="append-only"):
            async with engine.begin() as connection:
                await connection.exec_driver_sql(statement)


def test_the_first_microsecond_of_a_month_belongs_to_it():
    from datetime import UTC, datetime

    first = to_microseconds(datetime(2026, 12, 1, tzinfo=UTC))
    assert (periods.month_of(first), periods.month_of(first - 1)) == (NEXT, MONTH)
