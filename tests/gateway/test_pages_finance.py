"""Pages for finance: the figures are the command's, teams see their own, addresses are understood."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import timedelta
from decimal import Decimal

import httpx
import pytest

from gateway.clock import from_microseconds
from gateway.http.supervisor_calls import SupervisorCalls
from gateway.ledger.views import GroupBy, SpendQuery, SpendReport
from pricing.money import format_usd
from tests.gateway.ledger_samples import PRICE_PICO
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, ORIGIN, PAYMENTS_KEY, running_pages

pytestmark = pytest.mark.anyio
SAME = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
DAY_US = 86_400_000_000
HOSTILE = "</script><script>window.pwn=1</script>"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with forty days of spend."""
    async with running_pages(tmp_path_factory.mktemp("finance")) as pages:
        for day in range(40):
            await pages.book(
                team="payments", project="fraud", tokens=100 + day, ago_us=day * DAY_US
            )
            await pages.book(team="search", project="", model="m2", tokens=10, ago_us=day * DAY_US)
        await pages.book(team=HOSTILE, project=HOSTILE, model=HOSTILE, tokens=7)
        yield pages


async def logged_in(client: httpx.AsyncClient, key: str) -> httpx.AsyncClient:
    form = PageReader((await client.get("/ui/login")).text).fields
    answer = await client.post("/ui/login", data={**form, "key": key}, headers=SAME)
    assert answer.headers["location"] == "/ui"
    return client


def titles(text: str, table: str) -> list[str]:
    """The exact amounts of a table's cost column, as they stand in the titles."""
    found = re.search(rf'<table id="{table}">.*?</table>', text, re.DOTALL)
    assert found is not None
    return re.findall(
        r'class="number cost"><(?:span|a) class="[a-z ]*"(?: href="[^"]*")? title="([^"]*)"',
        found[0],
    )


def charts(text: str) -> list[dict]:
    return [
        json.loads(one) for one in re.findall(r'application/json">(.*?)</script>', text, re.DOTALL)
    ]


async def test_a_month_at_a_glance_has_the_figures_of_the_report(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        answer = await client.get("/ui/month")
        assert answer.status_code == 200
        api = (await client.get("/admin/v1/spend?by=team&by=month")).json()
        month = re.search(r"<h1>(.*?)</h1>", answer.text)
        assert month is not None
        name = api["rows"][-1]["month"]
        rows = {row["team"]: row["cost_usd"] for row in api["rows"] if row["month"] == name}
        *teams, total = titles(answer.text, "teams")
        assert sorted(teams) == sorted(rows.values())
        assert Decimal(total) == sum(map(Decimal, rows.values()))
        assert "Forecast for the month" in answer.text


async def test_every_chart_has_its_table_with_the_same_sums(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        for path, table in (("/ui/month", "days"), ("/ui/spend", "steps")):
            text = (await client.get(path)).text
            figure = charts(text)[0]
            rows = PageReader(text).tables[table]
            assert rows[0][1 : 1 + len(figure["series"])] == [
                one["name"].replace(HOSTILE, HOSTILE) for one in figure["series"]
            ]
            for place, row in enumerate(rows[1:]):
                drawn = [one["texts"][place] for one in figure["series"]]
                assert row[1 : 1 + len(drawn)] == drawn


@pytest.mark.parametrize(
    "by", ["team", "project", "model", "provider", "deployment", "key", "status"]
)
async def test_the_explorer_the_csv_and_the_api_tell_the_same(shared, by) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get(f"/ui/spend?by={by}&period=last-90-days&per=week")).text
        link = re.search(r'href="(/ui/spend\.csv\?[^"]*)"', page)
        assert link is not None
        answer = await client.get(link[1].replace("&amp;", "&"))
        assert answer.headers["content-type"].startswith("text/csv")
        lines = list(csv.DictReader(io.StringIO(answer.text)))
        *_, total = titles(page, "rows")
        assert total == lines[-1]["cost_usd"]
        assert sum(Decimal(line["cost_usd"]) for line in lines[:-1]) == Decimal(total)
        report = await SupervisorCalls(shared.service.supervisor).spend_report(
            SpendQuery(group_by=(GroupBy(by),))
        )
        assert format_usd(report.total.cost_pico_usd) == total


async def test_a_row_leads_to_what_is_in_it(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get("/ui/spend?by=team&period=last-90-days")).text
        link = re.search(r'href="(/ui/spend[^"]*team=payments[^"]*)"', page)
        assert link is not None
        below = (await client.get(link[1].replace("&amp;", "&"))).text
        *rows, total = titles(below, "rows")
        assert len(rows) == 1
        assert total == format_usd(sum(100 + day for day in range(40)) * PRICE_PICO)
        assert "Remove the filter Team: payments" in below


async def test_a_team_sees_its_own_whatever_it_asks_for(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, PAYMENTS_KEY)
        own = format_usd(sum(100 + day for day in range(40)) * PRICE_PICO)
        for path in (
            "/ui/spend?by=team&period=last-90-days",
            "/ui/spend?by=model&period=last-90-days",
            "/ui/month",
            "/ui/statement?team=search",
            "/ui/spend?team=search&period=last-90-days",
            "/ui/spend.csv?by=team&period=last-90-days",
        ):
            answer = await client.get(path)
            assert answer.status_code == 200
            told = answer.text.replace("team=search", "").replace("Team: search", "")
            told = told.replace("Statement of search", "").replace(
                '<dd><bdi class="short">search', ""
            )
            told = told.replace('value="search"', "")
            assert "search" not in told.lower().replace("search</bdi>", ""), path
            assert "window.pwn" not in told
        page = (await client.get("/ui/spend?by=team&period=last-90-days")).text
        assert titles(page, "rows") == [own, own]


async def test_a_statement_is_the_teams_month_by_project_and_model(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        answer = await client.get("/ui/statement?team=payments")
        text = answer.text
        assert titles(text, "projects")[-1] == titles(text, "lines")[-1]
        reader = PageReader(text)
        assert reader.tables["projects"][1][0] == "fraud"
        assert "the month is not over" in reader.text
        nothing = (await client.get("/ui/statement?team=nobody")).text
        assert "Nothing was spent." in nothing


async def test_hostile_names_are_text_in_tables_and_data(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        for path in ("/ui/month", "/ui/spend", "/ui/spend?by=model", "/ui/spend?by=project"):
            text = (await client.get(path)).text
            assert HOSTILE not in text
            assert any(HOSTILE in one["name"] for one in charts(text)[0]["series"])
            scripts = [given for tag, given in PageReader(text).tags if tag == "script"]
            assert all(
                given.get("src", "/ui/static/").startswith("/ui/static/")
                and given.get("type", "application/json") == "application/json"
                for given in scripts
            )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/ui/month?month=never", "is no month such as 2026-11"),
        ("/ui/statement?month=never", "is no month such as 2026-11"),
        ("/ui/spend?by=nothing", "is none of team"),
        ("/ui/spend?from=2026-11-02&to=2026-11-01", "from is after to"),
        ("/ui/spend?other=1", "nothing that this page knows"),
        ("/ui/spend.csv?per=minute", "is none of hour"),
    ],
)
async def test_what_an_address_says_wrongly_is_told(shared, path, message) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        answer = await client.get(path)
        assert answer.status_code == 422
        assert message in PageReader(answer.text).text


async def test_without_the_ledger_the_pages_say_so(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        shared.ledger_is_away = True
        try:
            for path in ("/ui/month", "/ui/spend", "/ui/spend.csv", "/ui/statement?team=payments"):
                assert (await client.get(path)).status_code == 503
        finally:
            shared.ledger_is_away = False


async def test_a_month_without_spend_says_so(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        for path in ("/ui/month?month=2001-02", "/ui/spend?period=2001-02"):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert "Nothing was spent" in PageReader(answer.text).text


async def test_the_reports_behind_a_page_are_only_of_its_teams(shared) -> None:
    report: SpendReport = await SupervisorCalls(shared.service.supervisor).spend_report(
        SpendQuery(group_by=(GroupBy.TEAM,), teams=("payments",))
    )
    assert [row.group for row in report.rows] == [("payments",)]


async def test_a_period_is_compared_with_the_one_before(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get("/ui/spend?by=team&period=last-7-days&compare=previous")).text
        plain = (await client.get("/ui/spend?by=team&period=last-7-days")).text
        wrong = await client.get("/ui/spend?compare=next")
    assert wrong.status_code == 422
    table, without = (PageReader(one).tables["rows"] for one in (page, plain))
    assert table[0][2:4] == ["Before, USD", "Change"]
    assert [row[:2] + row[4:] for row in table] == without, "nothing else changes"
    assert "against" in page
    assert "compare=previous" in re.findall(r'href="(/ui/spend\?[^"]*)"', page)[-1]
    today = from_microseconds(shared.service.clock.wall_us()).date()
    days = (today - timedelta(days=13), today - timedelta(days=6))
    async with shared.admin() as client:
        told = (await client.get(f"/admin/v1/spend?by=team&from={days[0]}&to={days[1]}")).json()
    before = {row["team"]: row["cost_usd"] for row in told["rows"]}
    found = re.findall(r'<td class="number"><span class="number" title="([0-9.]*)"', page)
    assert before
    assert set(before.values()) <= set(found)


async def test_every_figure_of_the_explorer_leads_to_its_requests(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get("/ui/spend?by=team&period=last-7-days")).text
    body = re.findall(r'<table id="rows">.*?</table>', page, re.DOTALL)[0]
    for row in re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", body, re.DOTALL):
        cells = re.findall(r"<td.*?</td>", row, re.DOTALL)
        assert len(cells) == 11
        without = [cell for cell in cells if 'href="/ui/requests?' not in cell]
        assert len(without) == 1, "the share alone is of two figures"
