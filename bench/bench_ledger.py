"""What the ledger costs, beside what the machine could do at best, measured in the same run.

    .venv/bin/python bench/bench_ledger.py [--records N] [--directory DIR] [--json FILE]

append      one record handed to the kernel; against a bare `write` of the same bytes
group       append until durable, one waiter at a time; against `write` + `fdatasync`
burst       64 appends until all are durable; against 64 `write`s and one `fdatasync`
load        events into SQLite; against a bare `executemany` of the payloads, committed in
            batches of the same size with `synchronous=FULL`

`append` and `load` are given in CPU time, which other work on the machine does not disturb; the
waits for the disk as 10th percentile and median of wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gateway.clock import system_clock
from gateway.ledger import migrate
from gateway.ledger.database import writing_engine
from gateway.ledger.loader import Loader
from gateway.ledger.records import CostLine, Intent, Record, Settlement, encode
from gateway.ledger.rounds import LoaderLimits
from gateway.ledger.spool import Durability, SpoolLimits, SpoolWriter

BURST = 64
SYNCS = 100


def make_records(count: int) -> list[Record]:
    """Alternating intents and settlements of a usual size."""
    clock = system_clock()
    records: list[Record] = []
    for n in range(count // 2):
        event_id = n.to_bytes(16, "big")
        records.append(
            Intent(
                event_id=event_id,
                at_us=clock.wall_us(),
                request_id=event_id,
                attempt=1,
                deployment="groq/llama-3.1-8b-instant",
                provider="groq",
                upstream_model="llama-3.1-8b-instant",
                model="chat-small",
                team=f"team-{n % 20}",
                project=f"project-{n % 7}",
                key_id=f"key-{n % 50}",
                tags=("confidential", "internal"),
                cost_tags=(("env", "prod"), ("feature", f"f{n % 10}")),
                reason="cheapest",
                price_version="2f6c1d0b9a8e",
                exposure_pico_usd=123_456_789,
                is_stream=True,
                route="chat.completions",
                lifetime_s=900.0,
            )
        )
        lines = tuple(
            CostLine(
                meter=meter,
                units=units,
                rate_pico_usd=50_000,
                rate_per_units=1,
                cost_pico_usd=units * 50_000,
            )
            for meter, units in (("input", 900), ("output", 120))
        )
        records.append(
            Settlement(
                event_id=event_id,
                settled_at_us=clock.wall_us(),
                status="ok",
                quality="exact",
                usage={"input": 900, "output": 120},
                lines=lines,
                cost_pico_usd=sum(line.cost_pico_usd for line in lines),
                provider_cost_pico_usd=None,
                http_status=200,
                error_code="",
                upstream_request_id="chatcmpl-0123456789abcdef",
                finish_reason="stop",
                ttft_us=210_000,
                duration_us=1_900_000,
            )
        )
    return records


def open_writer(directory: Path) -> SpoolWriter:
    return SpoolWriter(
        directory,
        durability=Durability.STRICT,
        clock=system_clock(),
        session=os.urandom(16),
        limits=SpoolLimits(),
    )


def bare_file(directory: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC
    return os.open(directory / "bare", flags, 0o600)


def time_appends(writer: SpoolWriter, records: list[Record]) -> float:
    """Microseconds per record."""
    began = time.process_time()
    for record in records:
        writer.append(record)
    return (time.process_time() - began) / len(records) * 1e6


def time_bare_writes(descriptor: int, frames: list[bytes]) -> float:
    began = time.process_time()
    for frame in frames:
        os.write(descriptor, frame)
    return (time.process_time() - began) / len(frames) * 1e6


def spread(found_ms: list[float]) -> tuple[float, float]:
    """10th percentile and median."""
    return statistics.quantiles(found_ms, n=10)[0], statistics.median(found_ms)


async def time_durable(
    writer: SpoolWriter, records: list[Record], *, burst: int
) -> tuple[float, float]:
    """Milliseconds from the first append to the last one's durability."""
    found: list[float] = []
    for start in range(0, SYNCS * burst, burst):
        began = time.perf_counter()
        for record in records[start : start + burst]:
            writer.append(record)
        await writer.durable(writer.position)
        found.append((time.perf_counter() - began) * 1e3)
    return spread(found)


def time_bare_durable(descriptor: int, frames: list[bytes], *, burst: int) -> tuple[float, float]:
    found: list[float] = []
    for start in range(0, SYNCS * burst, burst):
        began = time.perf_counter()
        for frame in frames[start : start + burst]:
            os.write(descriptor, frame)
        os.fdatasync(descriptor)
        found.append((time.perf_counter() - began) * 1e3)
    return spread(found)


async def time_load(folder: Path, root: Path) -> float:
    """CPU microseconds per event, from spool to committed."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate.upgrade(url)
    engine = writing_engine(url)
    loader = Loader(engine, root, clock=system_clock())
    began = time.process_time()
    await loader.flush()
    spent_s = time.process_time() - began
    await engine.dispose()
    return spent_s / loader.stats.events * 1e6


def time_bare_load(folder: Path, payloads: list[bytes]) -> float:
    """CPU microseconds per pair of payloads, into a table of two columns."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE event (intent BLOB, settlement BLOB)")
    rows = list(zip(payloads[::2], payloads[1::2], strict=True))
    batch = LoaderLimits().batch_records // 2
    began = time.process_time()
    for start in range(0, len(rows), batch):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO event VALUES (?, ?)", rows[start : start + batch])
        connection.execute("COMMIT")
    spent_s = time.process_time() - began
    connection.close()
    return spent_s / len(rows) * 1e6


async def measure(folder: Path, count: int) -> dict[str, dict[str, float]]:
    records = make_records(count)
    payloads = [encode(record) for record in records]
    frames = [payload + bytes(8) for payload in payloads]
    bare = bare_file(folder)
    found: dict[str, dict[str, float]] = {}

    def note(name: str, unit: str, ours: float, bare: float) -> None:
        found[name] = {f"ours_{unit}": ours, f"bare_{unit}": bare, "ratio": ours / bare}

    writer = open_writer(folder / "spool" / "append")
    note("append", "cpu_us", time_appends(writer, records), time_bare_writes(bare, frames))
    await writer.close()
    os.fdatasync(bare)
    writer = open_writer(folder / "sync")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for name, burst in (("group", 1), ("burst", BURST)):
            ours = await time_durable(writer, records, burst=burst)
            best = time_bare_durable(bare, frames, burst=burst)
            for index, unit in enumerate(("ms_p10", "ms_p50")):
                note(f"{name}_{unit}", unit, ours[index], best[index])
        await writer.close()
    os.close(bare)
    ours_us = await time_load(folder, folder / "spool")
    note("load", "cpu_us", ours_us, time_bare_load(folder, payloads))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to be measured")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    count = max(arguments.records, SYNCS * BURST)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        found = anyio.run(measure, Path(folder), count)
    for name, figures in found.items():
        shown = "  ".join(f"{key} {value:,.2f}" for key, value in figures.items())
        print(f"{name:14s}{shown}")
    if arguments.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.platform()}"
        document = {"machine": machine, "records": count, "figures": found}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
