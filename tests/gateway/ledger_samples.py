"""Records, clocks and databases for the ledger's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.clock import Clock
from gateway.ledger import migrate, schema
from gateway.ledger.database import writing_engine
from gateway.ledger.records import CostLine, Intent, Settlement
from gateway.ledger.spool import Durability, SpoolFiles, SpoolLimits, SpoolWriter
from gateway.ledger.verify import verify

NOON_US = 1_795_867_200_000_000  # 2026-11-28T12:00:00Z
PRICE_PICO = 50_000


@dataclass
class FakeClock:
    """Time that moves only when told."""

    wall: int = NOON_US
    monotonic: float = 1_000.0
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(wall_us=lambda: self.wall, monotonic_s=lambda: self.monotonic)

    def pass_s(self, seconds: float) -> None:
        self.wall += int(seconds * 1e6)
        self.monotonic += seconds


def event_id(n: int) -> bytes:
    return n.to_bytes(16, "big")


def intent(n: int, **changes) -> Intent:
    values = {
        "event_id": event_id(n),
        "at_us": NOON_US + n * 1_000,
        "request_id": event_id(1_000_000 + n),
        "attempt": 1,
        "deployment": "groq/llama-3.1-8b-instant",
        "provider": "groq",
        "upstream_model": "llama-3.1-8b-instant",
        "model": "chat-small",
        "team": "payments",
        "project": "fraud",
        "key_id": "abcdefghjkmn",
        "tags": ("internal",),
        "cost_tags": (("env", "prod"),),
        "reason": "cheapest",
        "price_version": "v1",
        "exposure_pico_usd": 7_000_000,
        "is_stream": True,
        "route": "chat.completions",
        "lifetime_s": 900.0,
    }
    return Intent(**(values | changes))


def settlement(n: int, *, tokens: int = 100, **changes) -> Settlement:
    cost = tokens * PRICE_PICO
    line = CostLine(
        meter="input", units=tokens, rate_pico_usd=PRICE_PICO, rate_per_units=1, cost_pico_usd=cost
    )
    values = {
        "event_id": event_id(n),
        "settled_at_us": NOON_US + n * 1_000 + 500,
        "status": "ok",
        "quality": "exact",
        "usage": {"input": tokens, "output": 7},
        "lines": (line,),
        "cost_pico_usd": cost,
        "provider_cost_pico_usd": None,
        "http_status": 200,
        "error_code": "",
        "upstream_request_id": "chatcmpl-static-1",
        "finish_reason": "stop",
        "ttft_us": 120_000,
        "duration_us": 800_000,
    }
    return Settlement(**(values | changes))


def open_spool(
    directory: Path,
    *,
    session: int = 1,
    clock: Clock | None = None,
    durability: Durability = Durability.GROUP,
    files: SpoolFiles | None = None,
    **limits,
) -> SpoolWriter:
    return SpoolWriter(
        directory,
        durability=durability,
        clock=clock or FakeClock().clock,
        session=event_id(session),
        limits=SpoolLimits(**({"reserve_bytes": 65_536} | limits)),
        files=files,
    )


@cache
def _empty_database() -> bytes:
    """A migrated database; migrating takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        migrate.upgrade(f"sqlite:///{path}")
        return path.read_bytes()


def make_database(folder: Path, name: str = "ledger.db") -> str:
    """A ledger in a folder, a migrated one; what is there already stays."""
    path = folder / name
    if not path.exists():
        path.write_bytes(_empty_database())
    return f"sqlite:///{path}"


@asynccontextmanager
async def open_engine(url: str, **options) -> AsyncIterator[AsyncEngine]:
    engine = writing_engine(url, **options)
    try:
        yield engine
    finally:
        await engine.dispose()


async def fetch(engine: AsyncEngine, statement) -> list:
    async with engine.connect() as connection:
        return (await connection.execute(statement)).all()


async def totals(engine: AsyncEngine) -> tuple[int, int, int]:
    """Attempts, cost and exposure, by the quarter-hour roll-up."""
    table = schema.rollup_qh
    rows = await fetch(
        engine, sa.select(table.c.attempt_count, table.c.cost_pico_usd, table.c.exposure_pico_usd)
    )
    return tuple(sum(row[index] for row in rows) for index in range(3))


async def holds(engine, root) -> None:
    """Everything that `ledger verify` recomputes is as it should be, quarantine apart."""
    async with engine.connect() as connection:
        found = await connection.run_sync(verify, root)
    assert [fault for fault in found.faults if not fault.startswith("quarantined")] == []


async def reasons(engine) -> list[str]:
    return [row.reason for row in await fetch(engine, sa.select(schema.quarantine.c.reason))]
