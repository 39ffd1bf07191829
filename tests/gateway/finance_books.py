"""Ledgers with events, for the tests of finance: on SQLite, written by the loader itself."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from gateway.ledger.database import migrating_engine
from gateway.ledger.loader import Loader
from gateway.ledger.records import CostLine, Intent, Settlement
from tests.gateway.ledger_samples import (
    NOON_US,
    FakeClock,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)

DAY_US = 24 * 3_600 * 10**6
OCTOBER_US = NOON_US - 42 * DAY_US  # 2026-10-17T12:00:00Z
DAY = "2026-10-17"


def attempt(
    n: int,
    *,
    team: str = "payments",
    account: str = "openai",
    model: str = "gpt-4o",
    usage: dict[str, int] | None = None,
    rate: int = 2_500_000,
    at_us: int = OCTOBER_US,
    **changes,
) -> tuple[Intent, Settlement]:
    """An attempt with one line per meter, all at one rate."""
    usage = {"input": 1_000_000} if usage is None else usage
    lines = tuple(
        CostLine(
            meter=meter,
            units=units,
            rate_pico_usd=rate,
            rate_per_units=1,
            cost_pico_usd=units * rate,
        )
        for meter, units in usage.items()
    )
    values = {
        "usage": usage,
        "lines": lines,
        "cost_pico_usd": sum(line.cost_pico_usd for line in lines),
        "settled_at_us": at_us + 500,
    }
    of_intent = {
        name: changes.pop(name) for name in tuple(changes) if name in Intent.__struct_fields__
    }
    names = {
        "team": team,
        "provider": account,
        "upstream_model": model,
        "deployment": f"{account}/{model}",
    }
    return (
        intent(n, at_us=at_us + n, **names, **of_intent),
        settlement(n, **(values | changes)),
    )


def unknown(n: int, *, exposure: int, **changes) -> tuple[Intent, Settlement]:
    """An attempt whose bill is unknown."""
    return attempt(
        n,
        usage={},
        exposure_pico_usd=exposure,
        status="unknown_billing",
        quality="unknown",
        error_code="upstream_timeout",
        **changes,
    )


async def write(folder: Path, attempts: Iterable[tuple[Intent, Settlement]]) -> str:
    """Load attempts into a new ledger; gives its URL."""
    url, clock = make_database(folder), FakeClock()
    await load(folder, url, attempts, clock=clock)
    return url


async def load(folder: Path, url: str, attempts, *, clock: FakeClock, session: int = 1) -> None:
    """Load more attempts into a ledger."""
    writer = open_spool(folder / "spool" / f"w{session}", session=session, clock=clock.clock)
    for one in attempts:
        for record in one:
            writer.append(record)
    await writer.close()
    async with open_engine(url) as engine:
        await Loader(engine, folder / "spool", clock=clock.clock).flush()


def writing(url: str) -> sa.Engine:
    """A synchronous engine whose transactions begin with the write lock."""
    return migrating_engine(url)
