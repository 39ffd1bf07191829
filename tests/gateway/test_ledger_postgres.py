"""What only PostgreSQL does to the loader: text that it refuses, and a server that goes away."""

from __future__ import annotations

import pytest

from gateway.ledger import migrate
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.loader import Loader
from tests.gateway.ledger_samples import (
    FakeClock,
    holds,
    intent,
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
