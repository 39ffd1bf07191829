"""The roll-up by meter: what lines of events charged, by day, owner, place, quality, meter and rate.

The model is a plain list of what happened; it knows no buckets, no interned ids and no SQL.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import anyio
import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import from_microseconds, to_microseconds
from gateway.ledger import schema
from gateway.ledger.database import reading_engine
from gateway.ledger.grains import DAY_US
from gateway.ledger.loader import Loader
from gateway.ledger.meters import load_meters, load_period_meters
from gateway.ledger.records import CostLine
from gateway.ledger.verify import verify
from pricing.money import Rate, line_cost
from tests.gateway.ledger_samples import (
    NOON_US,
    FakeClock,
    holds,
    intent,
    make_database,
    open_engine,
    open_spool,
    reasons,
    settlement,
)
from tests.gateway.test_ledger_periods import close

FIRST_US = NOON_US - NOON_US % DAY_US
CHARGED = (Rate(pico_usd=50_000), Rate(pico_usd=3 * 10**12, per_units=3_600), Rate(pico_usd=0))
LISTED = (Rate(pico_usd=70_000), Rate(pico_usd=5 * 10**12, per_units=3_601))

lines = st.lists(
    st.tuples(
        st.sampled_from(["input", "cache_read", "output", "gpu_us"]),
        st.integers(0, 10**6),
        st.sampled_from(CHARGED),
    ),
    max_size=4,
    unique_by=lambda line: line[0],
)
happenings = st.fixed_dictionaries(
    {
        "day": st.integers(-40, 0),
        "second": st.sampled_from([0, 899, 900, 86_399]),
        "team": st.sampled_from(["search", "payments"]),
        "project": st.sampled_from(["fraud", ""]),
        "deployment": st.sampled_from(["groq/a", "local/a"]),
        "price_version": st.sampled_from(["v1", 'nominal:ü"3']),
        "quality": st.sampled_from(["exact", "estimated"]),
        "lines": lines,
        "listed": st.sampled_from([None, *LISTED]),
        "is_late": st.booleans(),
    }
)


def records(n: int, event: dict) -> tuple:
    """An attempt and its settlement."""
    names = ("team", "project", "deployment", "price_version")
    at_us = FIRST_US + event["day"] * DAY_US + event["second"] * 1_000_000
    charged = tuple(
        CostLine(
            meter=meter,
            units=units,
            rate_pico_usd=rate.pico_usd,
            rate_per_units=rate.per_units,
            cost_pico_usd=line_cost(units, rate),
            **public(units, event["listed"]),
        )
        for meter, units, rate in event["lines"]
    )
    has_list = bool(charged) and event["listed"] is not None
    return (
        intent(
            n,
            at_us=at_us,
            lifetime_s=1,
            provider=event["deployment"].partition("/")[0],
            **{name: event[name] for name in names},
        ),
        settlement(
            n,
            quality=event["quality"],
            usage={meter: units for meter, units, _ in event["lines"]},
            lines=charged,
            cost_pico_usd=sum(line.cost_pico_usd for line in charged),
            list_cost_pico_usd=sum(line.list_cost_pico_usd for line in charged) if has_list else None,
        ),
    )  # fmt: skip


def public(units: int, rate: Rate | None) -> dict:
    if rate is None:
        return {}
    return {
        "list_rate_pico_usd": rate.pico_usd,
        "list_rate_per_units": rate.per_units,
        "list_cost_pico_usd": line_cost(units, rate),
    }


def model(happened: list[dict], *, by_day: bool) -> dict:
    cells = defaultdict(lambda: [0, 0, 0, 0])
    for event in happened:
        day = from_microseconds(FIRST_US + event["day"] * DAY_US).date() if by_day else None
        for meter, units, rate in event["lines"]:
            place = (
                day, event["team"], event["project"], event["deployment"], event["quality"],
                meter, rate, event["listed"], event["price_version"],
            )  # fmt: skip
            cost = line_cost(units, rate)
            listed = cost if event["listed"] is None else line_cost(units, event["listed"])
            cells[place] = [
                a + b for a, b in zip(cells[place], (1, units, cost, listed), strict=True)
            ]
    return dict(cells)


def told(uses) -> dict:
    found = {
        (
            use.day, use.team, use.project, use.deployment, use.quality,
            use.meter, use.rate, use.list_rate, use.price_version,
        ): [use.lines, use.units, use.cost_pico_usd, use.list_cost_pico_usd]
        for use in uses
    }  # fmt: skip
    assert len(found) == len(uses), "a row per place"
    return found


async def load(url: str, root: Path, happened: list[dict]) -> None:
    """Book everything in two batches; what is late was given up before it settles."""
    clock = FakeClock()
    writer = open_spool(root / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=clock.clock)
        pairs = [records(n, event) for n, event in enumerate(happened)]
        for (attempt, _), event in zip(pairs, happened, strict=True):
            if event["is_late"]:
                writer.append(attempt)
        clock.pass_s(100)
        await loader.flush()
        for (attempt, settled), event in zip(pairs, happened, strict=True):
            if not event["is_late"]:
                writer.append(attempt)
            writer.append(settled)
        await loader.flush()
        await holds(engine, root)
    await writer.close()


def check(connection, happened: list[dict]) -> None:
    ends = (FIRST_US - 40 * DAY_US, FIRST_US + DAY_US)
    for by_day in (True, False):
        found = load_meters(connection, *ends, by_day=by_day)
        assert told(found) == {
            place: sums for place, sums in model(happened, by_day=by_day).items() if any(sums)
        }
    within = [event for event in happened if -20 <= event["day"] < -3]
    found = load_meters(connection, FIRST_US - 20 * DAY_US, FIRST_US - 3 * DAY_US)
    assert told(found) == model(within, by_day=False)
    # Every cost is on a line, so the sums by meter are those of everything.
    everything = connection.execute(sa.select(sa.func.sum(schema.rollup_day.c.cost_pico_usd)))
    charged = sum(use.cost_pico_usd for use in load_meters(connection, *ends))
    assert charged == int(everything.scalar_one() or 0)


async def check_all(url: str, happened: list[dict]) -> None:
    engine = reading_engine(url)
    async with engine.connect() as connection:
        await connection.run_sync(check, happened)
    await engine.dispose()


@hypothesis.settings(max_examples=6)
@given(happened=st.lists(happenings, max_size=14))
def test_lines_are_added_up_by_day_place_and_rate_to_the_picodollar(happened):
    folder = Path(tempfile.mkdtemp())

    async def run():
        url = make_database(folder)
        await load(url, folder / "spool", happened)
        await check_all(url, happened)

    try:
        anyio.run(run)
    finally:
        shutil.rmtree(folder)


EXAMPLES = [
    {
        "day": -(n % 3),
        "second": 899 + n % 2,
        "team": ("search", "payments")[n % 2],
        "project": "fraud",
        "deployment": "groq/a",
        "price_version": ("v1", "v2")[n // 4],
        "quality": "exact",
        "lines": [("input", 1_000 + n, CHARGED[0]), ("gpu_us", 77 + n, CHARGED[1])],
        "listed": LISTED[1] if n == 3 else None,
        "is_late": n == 2,
    }
    for n in range(6)
]


@pytest.mark.anyio
async def test_lines_are_added_up_alike_on_postgresql(tmp_path, postgres_ledger_url):
    await load(postgres_ledger_url, tmp_path / "spool", EXAMPLES)
    await check_all(postgres_ledger_url, EXAMPLES)


@pytest.mark.anyio
async def test_a_late_event_is_counted_on_the_meters_of_the_next_open_month(tmp_path):
    url, clock = make_database(tmp_path), FakeClock()
    root = tmp_path / "spool"
    writer = open_spool(root / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=clock.clock)
        for record in (intent(1), settlement(1)):
            writer.append(record)
        await loader.flush()
        await close(engine)
        for record in (intent(2), settlement(2, tokens=30)):
            writer.append(record)
        await loader.flush()
        async with engine.connect() as connection:
            read = connection.run_sync
            closed = await read(load_period_meters, "2026-11")
            following = await read(lambda inner: load_period_meters(inner, "2026-12", by_day=True))
            happened = await read(load_meters, FIRST_US, FIRST_US + DAY_US)
        await holds(engine, root)
    await writer.close()
    assert [use.units for use in closed.in_time] == [100]
    assert closed.late == following.in_time == ()
    assert [(use.units, use.day) for use in following.late] == [
        (30, from_microseconds(FIRST_US).date())
    ]
    assert [use.units for use in happened] == [130]


@pytest.mark.anyio
async def test_sums_beyond_64_bits_are_read_exactly_and_not_stored(tmp_path):
    url, clock = make_database(tmp_path), FakeClock()
    root = tmp_path / "spool"
    writer = open_spool(root / "w", clock=clock.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, root, clock=clock.clock)
        for n, day in ((1, 0), (2, 1)):
            writer.append(intent(n, at_us=NOON_US + day * DAY_US))
            writer.append(settlement(n))
        await loader.flush()
        full = 9 * 10**18
        async with engine.begin() as connection:
            await connection.execute(sa.update(schema.rollup_meter_day).values(cost_pico_usd=full))
        writer.append(intent(3))
        writer.append(settlement(3))
        await loader.flush()
        assert await reasons(engine) == ["refused by the database: IntegrityError"]
        async with engine.connect() as connection:
            (use,) = await connection.run_sync(load_meters, FIRST_US, FIRST_US + 2 * DAY_US)
            found = await connection.run_sync(verify, root)
    await writer.close()
    assert (use.cost_pico_usd, use.lines) == (2 * full, 2)
    wrong = [fault for fault in found.faults if fault.startswith("rollup_meter_day")]
    assert len(wrong) == 2
    assert "cost_pico_usd is 9000000000000000000, the events say 5000000" in wrong[0]


def test_only_whole_days_can_be_asked_for(tmp_path):
    midday = to_microseconds(from_microseconds(NOON_US))
    with (
        sa.create_engine(make_database(tmp_path)).connect() as connection,
        pytest.raises(ValueError, match="whole UTC days"),
    ):
        load_meters(connection, midday, midday + DAY_US)
