"""Reports equal the events in every grain, in every zone, to the picodollar, on both databases.

The model is a plain list of what happened; it knows no buckets, no roll-ups and no SQL.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import tempfile
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import anyio
import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import from_microseconds, to_microseconds
from gateway.ledger.database import reading_engine
from gateway.ledger.loader import Loader
from gateway.ledger.report_formats import ReportFormat, render
from gateway.ledger.report_sources import Added, TimeRange, add_up, events
from gateway.ledger.reports import spend_report
from gateway.ledger.tag_sums import list_cost_tags
from gateway.ledger.views import SpendQuery, SpendSums
from tests.gateway.ledger_samples import (
    PRICE_PICO,
    FakeClock,
    holds,
    intent,
    make_database,
    open_engine,
    open_spool,
)
from tests.gateway.test_ledger_roll_ups import listed_settlement, settlement
from tests.support.postgres import create_database, drop_database

QUARTER_US = 900_000_000
ZONES = ("UTC", "Asia/Kathmandu", "America/New_York", "Australia/Lord_Howe")
NEW_YORK = ZoneInfo("America/New_York")
# Both days on which the clock changes in New York and on Lord Howe Island, and an ordinary one.
DAYS = (date(2026, 3, 8), date(2026, 4, 5), date(2026, 10, 4), date(2026, 11, 1), date(2026, 6, 30))
NOW_US = to_microseconds(datetime(2026, 11, 28, 12, tzinfo=UTC))
FIRST_US = to_microseconds(datetime(2026, 3, 6, tzinfo=UTC))
LISTED = ("env", "feature")
KINDS = ("ok", "listed", "estimated", "failed", "unpriced", "lost", "late", "unbounded")
NOTHING = dict.fromkeys(SpendSums.__struct_fields__, 0)

cost_tags = st.sets(
    st.sampled_from([("env", "prod"), ("feature", "a"), ("feature", "b"), ("other", "x")]),
    max_size=2,
).map(lambda tags: tuple(sorted(dict(tags).items())))
happenings = st.fixed_dictionaries(
    {
        "at_us": st.builds(
            lambda day, minutes: (
                to_microseconds(
                    datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(minutes=minutes)
                )
                + 1
            ),
            st.sampled_from(DAYS),
            st.integers(-18 * 60, 40 * 60),
        ),
        "team": st.sampled_from(["search", "payments", ""]),
        "project": st.sampled_from(["fraud", ""]),
        "key_id": st.sampled_from(["k1", "k2"]),
        "model": st.sampled_from(["small", "large"]),
        "deployment": st.sampled_from(["groq/a", "groq/b", "local/a"]),
        "tags": st.sampled_from([(), ("internal",), ("gdpr", "internal")]),
        "cost_tags": cost_tags,
        "attempt": st.sampled_from([1, 1, 2]),
        "price_version": st.sampled_from(["v1", "v2", "nominal:v3"]),
        "kind": st.sampled_from(KINDS),
        "tokens": st.integers(0, 10**6),
        "read": st.integers(0, 3),
    }
)
MAKES = {
    "ok": lambda n, e: settlement(n, tokens=e["tokens"], provider_cost_pico_usd=e["read"]),
    "listed": lambda n, e: listed_settlement(
        n,
        tokens=e["tokens"],
        cache_saved_pico_usd=-e["read"],
        baseline="b/m@1",
        baseline_cost_pico_usd=e["tokens"],
    ),
    "estimated": lambda n, e: settlement(
        n,
        tokens=e["tokens"],
        quality="estimated",
        baseline="b/m@2",
        baseline_cost_pico_usd=e["tokens"] * PRICE_PICO * 3,
    ),
    "failed": lambda n, e: settlement(
        n, tokens=e["tokens"], status="interrupted", baseline="b/m@2", baseline_cost_pico_usd=0
    ),
    "unpriced": lambda n, _: settlement(
        n, tokens=0, lines=(), cost_pico_usd=None, baseline="b/m@1"
    ),
    "late": lambda n, e: listed_settlement(n, tokens=e["tokens"]),
    "unbounded": lambda n, _: settlement(
        n, tokens=0, lines=(), usage={}, cost_pico_usd=0, status="client_left", quality="unknown"
    ),
}
"""What settles an attempt; one that is lost nothing does."""


def amounts(event: dict) -> dict[str, int]:
    """What an event adds, from what happened alone."""
    kind, tokens = event["kind"], event["tokens"]
    found = dict(NOTHING) | {"requests": int(event["attempt"] == 1), "attempts": 1}
    if kind == "lost":
        return found | {"exposure_pico_usd": 7_000_000}
    if kind == "unbounded":
        return found | {"exposure_unknown_attempts": 1}
    if kind == "unpriced":
        return found | {"unpriced_attempts": 1, "output_tokens": 7, "uncompared_attempts": 1}
    cost = tokens * PRICE_PICO
    found |= {"input_tokens": tokens, "output_tokens": 7, "cost_pico_usd": cost}
    found["list_cost_pico_usd"] = cost
    if event["price_version"].startswith("nominal:"):
        found["nominal_cost_pico_usd"] = cost
    if kind in ("listed", "late"):
        found |= {"list_price_attempts": 1, "list_cost_pico_usd": 2 * cost}
        found |= {"provider_cost_attempts": 1, "provider_cost_pico_usd": 5}
        found["cache_saved_pico_usd"] = 77 if kind == "late" else -event["read"]
        if kind == "listed":
            found |= compared(tokens, cost)
    elif kind == "ok":
        found |= {"provider_cost_attempts": 1, "provider_cost_pico_usd": event["read"]}
    elif kind == "estimated":
        found["estimated_cost_pico_usd"] = cost
        found |= compared(3 * cost, cost) | {"baseline_estimated_pico_usd": 3 * cost}
    else:
        found["failed_cost_pico_usd"] = cost
        found |= compared(0, cost) | {"compared_failed_pico_usd": cost}
    return found


def compared(baseline: int, cost: int) -> dict[str, int]:
    return {
        "compared_attempts": 1,
        "baseline_cost_pico_usd": baseline,
        "compared_cost_pico_usd": cost,
        "saved_pico_usd": baseline - cost,
    }


STATUS = {"lost": "unknown_billing", "failed": "interrupted", "unbounded": "client_left"}
QUALITY = {"lost": "unknown", "estimated": "estimated", "unbounded": "unknown"}


def words(event: dict, dimension: str, zone: ZoneInfo) -> tuple[str, ...]:
    """The values of a dimension that an event is in, straight from the calendar."""
    at = from_microseconds(event["at_us"]).astimezone(zone)
    if dimension.startswith("cost_tag:"):
        return (dict(event["cost_tags"]).get(dimension.removeprefix("cost_tag:"), ""),)
    fiscal = at.year - (at.month < 4)
    offset = at.strftime("%z")
    found = {
        "team": event["team"],
        "project": event["project"],
        "key": event["key_id"],
        "model": event["model"],
        "provider": event["deployment"].partition("/")[0],
        "deployment": event["deployment"],
        "privacy_tags": ",".join(event["tags"]),
        "status": STATUS.get(event["kind"], "ok"),
        "quality": QUALITY.get(event["kind"], "exact"),
        "hour": f"{at:%Y-%m-%dT%H}:00{offset[:3]}:{offset[3:]}",
        "day": f"{at:%Y-%m-%d}",
        "week": f"{at:%G-W%V}",
        "month": f"{at:%Y-%m}",
        "fiscal_year": f"{fiscal}-04..{fiscal + 1}-03",
    }
    return (event["tags"] or ("",)) if dimension == "privacy_tag" else (found[dimension],)


def model(happened: list[dict], dimensions: tuple[str, ...], zone: ZoneInfo) -> dict:
    """Sums by the words of the dimensions; rows of nothing left out."""
    cells = defaultdict(lambda: dict(NOTHING))
    for event in happened:
        groups = [()]
        for dimension in dimensions:
            values = words(event, dimension, zone)
            groups = [(*group, value) for group in groups for value in values]
        for group in groups:
            for name, amount in amounts(event).items():
                cells[group][name] += amount
    return dict(cells)


GROUPINGS = (
    ("team",), ("team", "project"), ("key",), ("model", "provider"), ("deployment", "status"),
    ("privacy_tags",), ("privacy_tag", "quality"), ("cost_tag:env",), ("cost_tag:feature", "team"),
    ("hour",), ("day",), ("week",), ("month",), ("fiscal_year",), ("day", "team"), ("week", "key"),
    ("month", "cost_tag:feature"), ("month", "privacy_tag", "team"),
)  # fmt: skip
READ_FROM_EVENTS = (("key", "cost_tag:env"), ("cost_tag:feature", "cost_tag:env", "day"))


async def load(url: str, root: Path, happened: list[dict], cuts: list[int]) -> None:
    """Book everything, in batches that end at the cuts, through two writers."""
    clock = FakeClock(wall=NOW_US)
    writers = [open_spool(root / f"w{n}", session=n + 1, clock=clock.clock) for n in range(2)]
    async with open_engine(url) as engine:
        async with engine.begin() as connection:
            await connection.run_sync(list_cost_tags, LISTED[:1])
        loader = Loader(engine, root, clock=clock.clock)
        for n, event in enumerate(happened):
            writer = writers[n % 2]
            fields = {name: event[name] for name in event if name not in ("kind", "tokens", "read")}
            fields["provider"] = event["deployment"].partition("/")[0]
            exposure = None if event["kind"] == "unbounded" else 7_000_000
            writer.append(intent(n, exposure_pico_usd=exposure, lifetime_s=1, **fields))
            if event["kind"] == "late":
                await loader.flush()  # long past its lifetime: given up, then settled after all
            if event["kind"] != "lost":
                writer.append(MAKES[event["kind"]](n, event))
            if n in cuts:
                await loader.flush()
                clock.pass_s(2)
        clock.pass_s(2)
        await loader.flush()
        async with engine.begin() as connection:
            await connection.run_sync(list_cost_tags, LISTED)
        await holds(engine, root)
    for writer in writers:
        await writer.close()


def check(connection, happened: list[dict], zones: tuple[str, ...]) -> None:
    """Every grouping, in the zones, whole and cut."""
    total = model(happened, (), ZoneInfo("UTC")).get((), NOTHING)
    for zone in zones:
        for grouping in GROUPINGS:
            found = spend_report(
                connection, SpendQuery(group_by=grouping, zone=zone, fiscal_month=4)
            )
            assert_equal(found, happened, grouping, zone)
            assert fields(found.total) == total
        check_ranges(connection, happened, zone)
    by_event: Added = {}
    source = events()
    for part in TimeRange(from_us=None, to_us=None, cuts=None).parts(source):
        zero = [part.table.c.status * 0]
        add_up(connection, part.table, zero, part.conditions, by_event)
    assert by_event.get((0,), list(NOTHING.values())) == list(total.values())
    found = spend_report(connection, SpendQuery(group_by=("team",)))
    document = json.loads(render(found, ReportFormat.JSON))
    header, *rows, last = csv.reader(io.StringIO(render(found, ReportFormat.CSV), newline=""))
    cost_at = header.index("cost_pico_usd")
    assert document["total"]["cost_pico_usd"] == int(last[cost_at]) == total["cost_pico_usd"]
    assert sum(int(row[cost_at]) for row in rows) == total["cost_pico_usd"]


def check_ranges(connection, happened: list[dict], zone: str) -> None:
    """Ranges that begin and end inside of UTC days; and those that only events can tell."""
    for from_us, to_us in (
        (FIRST_US + 13 * QUARTER_US, NOW_US - 31 * QUARTER_US),
        (FIRST_US + 200 * QUARTER_US, FIRST_US + 205 * QUARTER_US),
        (to_microseconds(datetime(2026, 10, 1, 4, 45, tzinfo=UTC)), NOW_US - NOW_US % QUARTER_US),
    ):
        within = [event for event in happened if from_us <= event["at_us"] < to_us]
        query = {"from_us": from_us, "to_us": to_us, "zone": zone}
        groupings = [("team",), ("day",), ("month",), ("week", "key"), ("cost_tag:env",)]
        if to_us - from_us < 90 * 86_400_000_000:
            groupings += READ_FROM_EVENTS
        for grouping in groupings:
            found = spend_report(connection, SpendQuery(group_by=grouping, **query))
            assert_equal(found, within, grouping, zone)
        chosen = {
            "team": ("payments", ""),
            "privacy_tag": "internal",
            "cost_tag:feature": ("a", ""),
        }
        few = [
            event
            for event in within
            if event["team"] in ("payments", "")
            and "internal" in event["tags"]
            and dict(event["cost_tags"]).get("feature", "") in ("a", "")
        ]
        found = spend_report(
            connection, SpendQuery(group_by=("model", "month"), filters=chosen, **query)
        )
        assert_equal(found, few, ("model", "month"), zone)
        chosen = {"cost_tag:feature": "b", "provider": "groq", "status": "ok"}
        found = spend_report(
            connection, SpendQuery(group_by=("team",), filters=chosen, teams=("search",), **query)
        )
        few = [
            event
            for event in within
            if dict(event["cost_tags"]).get("feature") == "b"
            and event["deployment"].startswith("groq/")
            and STATUS.get(event["kind"], "ok") == "ok"
            and event["team"] == "search"
        ]
        assert_equal(found, few, ("team",), zone)


def fields(sums: SpendSums) -> dict[str, int]:
    return {name: getattr(sums, name) for name in NOTHING}


def assert_equal(found, happened: list[dict], grouping: tuple[str, ...], zone: str) -> None:
    places = [found.columns.index(name) for name in grouping]
    cells = defaultdict(lambda: dict(NOTHING))
    for row in found.rows:
        cell = cells[tuple(row.group[place] for place in places)]
        for name, amount in fields(row.sums).items():
            cell[name] += amount
    assert dict(cells) == model(happened, grouping, ZoneInfo(zone)), (grouping, zone)


def prove(url: str, folder: Path, happened: list[dict], cuts: list[int], *zones: str) -> None:
    async def run() -> None:
        await load(url, folder / "spool", happened, cuts)
        reader = reading_engine(url)
        async with reader.begin() as connection:
            await connection.run_sync(check, happened, zones or ZONES)
        await reader.dispose()

    anyio.run(run)


def prove_on_sqlite(happened, cuts, *zones) -> None:
    folder = Path(tempfile.mkdtemp(prefix="report-proof-"))
    try:
        prove(make_database(folder), folder, happened, cuts, *zones)
    finally:
        shutil.rmtree(folder)


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def batches(most: int):
    return st.lists(happenings, min_size=1, max_size=most)


@pytest.mark.slow
@settings(3)
@given(
    happened=batches(30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    zone=st.sampled_from(ZONES),
)
def test_reports_are_the_events(happened, cuts, zone):
    prove_on_sqlite(happened, cuts, zone)


@pytest.mark.ci
@pytest.mark.slow
@settings(8)
@given(happened=batches(150), cuts=st.lists(st.integers(0, 150), max_size=8))
def test_reports_of_many_events_are_the_events(happened, cuts):
    prove_on_sqlite(happened, cuts)


@pytest.mark.ci
@pytest.mark.slow
def test_reports_are_the_events_on_postgresql(shared_postgres, ledger_template):
    @settings(4)
    @given(happened=batches(80), cuts=st.lists(st.integers(0, 80), max_size=6))
    def on_postgresql(happened, cuts) -> None:
        url = create_database(shared_postgres, ledger_template)
        folder = Path(tempfile.mkdtemp(prefix="report-proof-"))
        try:
            prove(url, folder, happened, cuts)
        finally:
            shutil.rmtree(folder)
            drop_database(shared_postgres, url)

    on_postgresql()
