"""Spend reports and the last requests."""

from __future__ import annotations

import csv
import io
import json

import pytest
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.errors import BadQuery
from gateway.ledger.loader import Loader
from gateway.ledger.price_label import is_nominal, price_label
from gateway.ledger.recent import RECENT_MAX, recent_requests
from gateway.ledger.report_csv import neutralised
from gateway.ledger.report_formats import ReportFormat, render
from gateway.ledger.reports import spend_report
from gateway.ledger.roll_ups import DAY_US, QUARTER_US
from gateway.ledger.views import GroupBy, SpendQuery
from tests.gateway.ledger_samples import (
    NOON_US,
    PRICE_PICO,
    FakeClock,
    event_id,
    fetch,
    intent,
    make_database,
    open_engine,
    open_spool,
    settlement,
)

pytestmark = pytest.mark.anyio

DAY = NOON_US - NOON_US % DAY_US


async def load(tmp_path, records) -> str:
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    for record in records:
        writer.append(record)
    async with open_engine(url) as engine:
        await Loader(engine, tmp_path / "spool", clock=clock.clock).flush()
    await writer.close()
    return url


async def ask(url, run, *arguments):
    async with open_engine(url) as engine, engine.connect() as connection:
        return await connection.run_sync(run, *arguments)


async def report(url, *group_by, **query):
    groups = tuple(map(GroupBy, group_by or ("team",)))
    return await ask(url, spend_report, SpendQuery(**({"group_by": groups} | query)))


def attempt(n, tokens=100, **changes):
    outcome = {
        name: changes.pop(name)
        for name in ("quality", "status", "usage", "lines", "cost_pico_usd", "ttft_us")
        if name in changes
    }
    return [intent(n, **changes), settlement(n, tokens=tokens, **outcome)]


async def spent(tmp_path) -> str:
    """Two teams, two days, three keys, one request with two attempts, one of unknown price."""
    return await load(
        tmp_path,
        [
            *attempt(1, 100, team="payments", project="fraud", key_id="k1"),
            *attempt(2, 200, team="payments", project="", key_id="k2", model="chat-large"),
            *attempt(3, 300, team="search", project="fraud", key_id="k3", at_us=DAY + DAY_US),
            *attempt(4, 5, team="search", key_id="k3", attempt=2, deployment="local/m"),
            *attempt(5, 0, team="search", key_id="k3", lines=(), cost_pico_usd=None),
        ],
    )


async def test_rows_and_total_add_up_to_the_picodollar(tmp_path):
    url = await spent(tmp_path)
    found = await report(url, "team")
    by_team = {row.group: row.sums for row in found.rows}
    assert by_team["payments",].cost_pico_usd == 300 * PRICE_PICO
    assert by_team["search",].cost_pico_usd == 305 * PRICE_PICO
    assert by_team["search",].requests == 2
    assert by_team["search",].attempts == 3
    assert by_team["search",].unpriced_attempts == 1
    assert found.total.cost_pico_usd == 605 * PRICE_PICO
    assert [row.group for row in found.rows] == [("search",), ("payments",)]
    (stored,) = await ask(
        url, lambda c: c.execute(sa.select(sa.func.sum(schema.spend_event.c.cost_pico_usd))).one()
    )
    assert found.total.cost_pico_usd == stored


GROUPINGS = {
    "team": {("payments",), ("search",)},
    "project": {("payments", "fraud"), ("payments", ""), ("search", "fraud")},
    "model": {("chat-small",), ("chat-large",)},
    "deployment": {("groq/llama-3.1-8b-instant",), ("local/m",)},
    "key": {("k1",), ("k2",), ("k3",)},
    "day": {("2026-11-28",), ("2026-11-29",)},
    "day,key,team,deployment": {
        ("2026-11-28", "k1", "payments", "groq/llama-3.1-8b-instant"),
        ("2026-11-28", "k2", "payments", "groq/llama-3.1-8b-instant"),
        ("2026-11-28", "k3", "search", "groq/llama-3.1-8b-instant"),
        ("2026-11-28", "k3", "search", "local/m"),
        ("2026-11-29", "k3", "search", "groq/llama-3.1-8b-instant"),
    },
    "team,model": {
        ("payments", "chat-small"),
        ("payments", "chat-large"),
        ("search", "chat-small"),
    },
}


@pytest.mark.parametrize(("by", "groups"), GROUPINGS.items(), ids=GROUPINGS.keys())
async def test_every_grouping_has_the_same_total(tmp_path, by, groups):
    url = await spent(tmp_path)
    found = await report(url, *by.split(","))
    assert {row.group for row in found.rows} == groups
    assert found.total == (await report(url, "team")).total
    assert sum(row.sums.input_tokens for row in found.rows) == found.total.input_tokens


async def test_days_come_in_order(tmp_path):
    found = await report(await spent(tmp_path), "day")
    assert [row.group for row in found.rows] == [("2026-11-28",), ("2026-11-29",)]


async def test_bounds_are_half_open(tmp_path):
    url = await spent(tmp_path)
    assert (await report(url, from_us=DAY + DAY_US)).total.attempts == 1
    assert (await report(url, to_us=DAY + DAY_US)).total.attempts == 4
    quarter = NOON_US - NOON_US % QUARTER_US
    assert (await report(url, from_us=quarter, to_us=quarter + QUARTER_US)).total.attempts == 4
    assert (await report(url, to_us=quarter)).rows == ()
    assert (await report(url, "key", from_us=DAY, to_us=DAY + DAY_US)).total.attempts == 4


async def test_filters_are_data(tmp_path):
    """GW-110: a filter's value is never part of a statement."""
    url = await spent(tmp_path)
    evil = "x' UNION SELECT hash FROM api_key--"
    for name in (GroupBy.TEAM, GroupBy.PROJECT, GroupBy.MODEL, GroupBy.DEPLOYMENT, GroupBy.KEY):
        group = "key" if name is GroupBy.KEY else "team"
        assert (await report(url, group, filters={name: evil})).rows == ()
    both = {GroupBy.TEAM: "search", GroupBy.PROJECT: "fraud"}
    assert (await report(url, "model", filters=both)).total.attempts == 3
    assert (await report(url, filters={GroupBy.KEY: "k3"})).total.attempts == 3


REFUSED = {
    "no grouping": ((), {"group_by": ()}, "at least one of"),
    "the same grouping twice": (("team", "team"), {}, "twice"),
    "an instant inside a quarter of an hour": (("team",), {"from_us": 1}, "quarter of an hour"),
    "an end before the beginning": (("team",), {"from_us": DAY_US, "to_us": 0}, "not before"),
    "an end at the beginning": (("team",), {"from_us": DAY_US, "to_us": DAY_US}, "not before"),
    "a day as a filter": (("team",), {"filters": {GroupBy.DAY: "2026-11-28"}}, "--from"),
}


@pytest.mark.parametrize(("by", "query", "message"), REFUSED.values(), ids=REFUSED.keys())
async def test_questions_without_meaning_are_refused(tmp_path, by, query, message):
    with pytest.raises(BadQuery, match=message):
        await report(make_database(tmp_path), *by, **query)


async def test_what_the_cost_does_not_tell_is_told_apart(tmp_path):
    unknown = {"usage": {}, "lines": (), "cost_pico_usd": 0}
    url = await load(
        tmp_path,
        [
            *attempt(1, 10, quality="estimated"),
            *attempt(2, 20, quality="provider_cost"),
            *attempt(3, 40, price_version=price_label("v", is_nominal=True)),
            *attempt(4, 0, status="unknown_billing", quality="unknown", **unknown),
            *attempt(5, 0, lines=(), cost_pico_usd=None),
            *attempt(6, 0, status="interrupted", quality="unknown", **unknown),
        ],
    )
    found = await report(url, "team")
    assert found.total.cost_pico_usd == 70 * PRICE_PICO
    assert found.total.estimated_cost_pico_usd == 10 * PRICE_PICO
    assert found.total.nominal_cost_pico_usd == 40 * PRICE_PICO
    assert found.total.exposure_pico_usd == 14_000_000
    assert found.total.unpriced_attempts == 1
    table = render(found, ReportFormat.TABLE)
    for note in (
        "estimated: 0.0000005 USD",
        "nominal: 0.000002 USD",
        "unpriced: 1 attempts",
        "unknown billing: up to 0.000014 USD",
    ):
        assert note in table


def test_only_a_real_version_can_be_nominal():
    assert price_label("", is_nominal=True) == ""
    assert price_label("v", is_nominal=False) == "v"
    assert [is_nominal(price_label("v", is_nominal=claim)) for claim in (True, False)] == [
        True,
        False,
    ]


async def test_json_has_exact_amounts_as_strings_and_integers(tmp_path):
    found = await report(await spent(tmp_path), "project")
    document = json.loads(render(found, ReportFormat.JSON))
    assert document["total"]["cost_pico_usd"] == 605 * PRICE_PICO
    assert document["total"]["cost_usd"] == "0.00003025"
    first = document["rows"][0]
    assert list(first)[:2] == ["team", "project"]
    for name in (
        "requests",
        "attempts",
        "input_tokens",
        "cached_input_tokens",
        "output_tokens",
        "cost_usd",
        "cost_pico_usd",
        "estimated_cost_usd",
    ):
        assert name in first


FORMULAS = ['=HYPERLINK("http://x","y")', "@SUM(1)", "-2+3", "\t=1", "\r=1", " =1", "+1", "＝1"]


async def test_csv_cells_cannot_run_as_formulas(tmp_path):
    """GW-119."""
    names = [*FORMULAS, 'plain, with "quotes"\nand a line', "'quoted", "minus-2"]
    url = await load(
        tmp_path,
        [record for n, name in enumerate(names) for record in attempt(n, 10 + n, team=name)],
    )
    text = render(await report(url, "team"), ReportFormat.CSV)
    header, *rows, total = csv.reader(io.StringIO(text, newline=""))
    assert header[0] == "team"
    cells = [row[0] for row in rows]
    assert {cell[1:] for cell in cells if cell.startswith("'")} == {*FORMULAS, "'quoted"}
    assert {cell.removeprefix("'") if cell.startswith("'") else cell for cell in cells} == set(
        names
    )
    cost_at = header.index("cost_pico_usd")
    assert sum(int(row[cost_at]) for row in rows) == int(total[cost_at])
    assert total[0] == "total"
    assert text.endswith("\r\n")
    assert {len(row) for row in (header, *rows, total)} == {len(header)}


def test_ordinary_names_stay_as_they_are():
    for name in ("payments", "a=b", "1-2", "", "über", "x+y"):
        assert neutralised(name) == name


async def test_tables_cannot_disturb_the_terminal(tmp_path):
    evil = "a\x1b[2Jb[red]c"
    url = await load(tmp_path, [*attempt(1, team=evil), *attempt(2, team="")])
    table = render(await report(url, "team"), ReportFormat.TABLE)
    assert "\x1b" not in table
    assert "[red]c" in table
    assert "(none)" in table
    assert "0.00001" in table


async def test_an_empty_ledger_reports_nothing(tmp_path):
    found = await report(make_database(tmp_path), "team")
    assert found.rows == ()
    assert found.total.cost_pico_usd == 0
    for form in ReportFormat:
        assert render(found, form)


async def test_the_last_requests_are_told_by_their_last_attempt(tmp_path):
    request = event_id(77)
    url = await load(
        tmp_path,
        [
            *attempt(1, 10, request_id=request, quality="estimated", ttft_us=None),
            *attempt(2, 20, request_id=request, attempt=2, deployment="local/m", reason="fallback"),
            *attempt(3, 0, team="search", lines=(), cost_pico_usd=None, ttft_us=None),
        ],
    )
    newest, older = await ask(url, recent_requests, 50)
    assert (newest.team, newest.cost_pico_usd, newest.ttft_us) == ("search", None, None)
    assert older.request_id == request.hex()
    assert (older.attempts, older.deployment, older.reason) == (2, "local/m", "fallback")
    assert older.cost_pico_usd == 30 * PRICE_PICO
    assert (older.input_tokens, older.output_tokens) == (30, 14)
    assert older.is_estimated
    assert older.ttft_us == 120_000
    assert older.status == "ok"
    assert older.key_id == "abcdefghjkmn"
    assert older.at_us == intent(1).at_us
    assert await ask(url, recent_requests, 1) == (newest,)
    assert await ask(url, recent_requests, -1) == ()
    assert await ask(url, recent_requests, RECENT_MAX + 1) == (newest, older)
    assert await ask(url, recent_requests, 50, "search") == (newest,)
    assert await ask(url, recent_requests, 50, "nobody") == ()


async def test_a_late_settlement_replaces_the_lost_attempt_in_the_last_requests(tmp_path):
    url, clock = make_database(tmp_path), FakeClock()
    writer = open_spool(tmp_path / "spool" / "w", clock=clock.clock)
    writer.append(intent(1, lifetime_s=1))
    async with open_engine(url) as engine:
        loader = Loader(engine, tmp_path / "spool", clock=clock.clock)
        await loader.flush()
        clock.pass_s(200)
        await loader.flush()
        (lost,) = await ask(url, recent_requests, 5)
        assert (lost.status, lost.error_code) == ("unknown_billing", "lost")
        writer.append(settlement(1))
        await loader.flush()
        (settled,) = await ask(url, recent_requests, 5)
        assert (settled.status, settled.attempts) == ("ok", 1)
        assert len(await fetch(engine, sa.select(schema.spend_event))) == 2
    await writer.close()


async def test_only_the_given_teams_are_told_whatever_else_is_asked(tmp_path):
    url = await spent(tmp_path)
    for groups in (("team",), ("project",), ("model",), ("key",), ("day",), ("deployment",)):
        found = await report(url, *groups, teams=("payments",))
        assert found.total.cost_pico_usd == 300 * PRICE_PICO
        assert (await report(url, *groups, teams=())).rows == ()
        both = await report(url, *groups, teams=("payments", "search"))
        assert both == await report(url, *groups)
    for filters in ({GroupBy.TEAM: "search"}, {GroupBy.KEY: "k3"}, {GroupBy.DEPLOYMENT: "local/m"}):
        groups = ("key",) if GroupBy.KEY in filters else ("team",)
        assert (await report(url, *groups, filters=filters, teams=("payments",))).rows == ()
    assert {one.team for one in await ask(url, recent_requests, 50, None, ("search",))} == {
        "search"
    }
    assert await ask(url, recent_requests, 50, "search", ("payments",)) == ()
    assert await ask(url, recent_requests, 50, None, ()) == ()
