"""What only PostgreSQL does to the loader: text that it refuses, and a server that goes away."""

from __future__ import annotations

import pytest

from gateway.ledger import migrate
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.loader import Loader
from gateway.ledger.records import CostLine
from gateway.ledger.rounds import LoaderLimits
from tests.gateway.ledger_samples import (
    FakeClock,
    holds,
    intent,
    make_database,
    open_engine,
    open_spool,
    reasons,
    settlement,
    totals,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "change",
    [{"team": "pay\0ments"}, {"reason": "a\0b"}, {"model": "m" * 20_000 + "\0"}],
    ids=["a NUL in a name", "a NUL in a column", "a NUL in a long name"],
)
async def test_text_that_postgresql_refuses_is_kept_aside_alone(
    postgres_ledger_url, tmp_path, change
):
    time = FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=time.clock)
    for n in range(40):
        writer.append(intent(n, **(change if n == 17 else {})))
        writer.append(settlement(n))
    async with open_engine(postgres_ledger_url) as engine:
        loader = Loader(engine, tmp_path / "spool", clock=time.clock)
        await loader.flush()
        assert (await totals(engine))[0] == 39
        assert loader.stats.quarantined == len(await reasons(engine)) > 0
        await holds(engine, tmp_path / "spool")
    await writer.close()


async def test_what_was_read_ahead_is_booked_once_and_a_flush_sees_what_came_since(
    postgres_ledger_url, tmp_path
):
    time, root = FakeClock(), tmp_path / "spool"
    writer = open_spool(root / "w", clock=time.clock, segment_bytes=6_000)
    limits = LoaderLimits(batch_records=6)
    async with (
        open_engine(postgres_ledger_url) as engine,
        open_engine(postgres_ledger_url) as other,
    ):
        loader = Loader(engine, root, clock=time.clock, limits=limits)
        for n in range(8):
            writer.append(intent(n))
            writer.append(settlement(n))
        assert await loader.load_round() == {"w"}, "read ahead to the end, or not"
        second = open_spool(root / "x", session=2, clock=time.clock)
        for n, spool in ((8, writer), (9, second)):
            spool.append(intent(n))
            spool.append(settlement(n))
        await loader.flush()
        assert (await totals(engine))[0] == 10, "also what the round ahead could not have seen"
        for n in range(10, 20):
            writer.append(intent(n))
            writer.append(settlement(n))
        assert "w" in await loader.load_round()
        await Loader(other, root, clock=time.clock).flush()
        await loader.flush()
        assert (await totals(engine))[0] == 20, "another loader booked what was read ahead"
        assert loader.stats.replays == 0
        await second.close()
        await loader.flush()
        await holds(engine, root)
    await writer.close()


@pytest.mark.parametrize("is_native", [False, True], ids=["SQLite", "PostgreSQL"])
async def test_a_batch_whose_sums_pass_64_bits_is_booked_as_far_as_a_cell_holds_it(
    postgres_ledger_url, tmp_path, is_native
):
    time, root = FakeClock(), tmp_path / "spool"
    writer = open_spool(root / "w", clock=time.clock)
    large = 10**18
    line = {"meter": "input", "units": 1, "rate_pico_usd": large, "rate_per_units": 1}
    for n in range(10):
        writer.append(intent(n))
        lines = (CostLine(**line, cost_pico_usd=large),)
        writer.append(settlement(n, usage={"input": 1}, lines=lines, cost_pico_usd=large))
    async with open_engine(postgres_ledger_url if is_native else make_database(tmp_path)) as engine:
        await Loader(engine, root, clock=time.clock).flush()
        assert (await totals(engine))[:2] == (9, 9 * large)
        assert len(await reasons(engine)) == 1
        await holds(engine, root)
    await writer.close()


@pytest.mark.slow
async def test_a_killed_server_loses_nothing_and_counts_nothing_twice(postgres_server, tmp_path):
    url = postgres_server.create_database()
    migrate.upgrade(url)
    time = FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=time.clock)
    async with open_engine(url) as engine:
        loader = Loader(engine, tmp_path / "spool", clock=time.clock)
        for n in range(6):
            writer.append(intent(n))
            writer.append(settlement(n))
            if n % 2:
                postgres_server.kill()
                with pytest.raises(DatabaseUnavailable):
                    await loader.flush()
                postgres_server.start()
            await loader.flush()
            assert loader.stats.events == n + 1
        assert (await totals(engine))[0] == 6
        await holds(engine, tmp_path / "spool")
    await writer.close()
