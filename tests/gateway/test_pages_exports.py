"""The page of exports and what stands beside a month's sums: final or not, own teams, who may see."""

from __future__ import annotations

import html
import re

import pytest

from gateway.dashboard.finance import glance, periods
from gateway.finance.bill_messages import AccountCoverage, ReconciliationRun, Tolerances
from gateway.finance.close_messages import CloseDelays, CloseMonth, CloseStep
from tests.gateway.ledger_samples import NOON_US
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, PAYMENTS_KEY, running_pages
from tests.gateway.test_pages_finance import DAY_US, logged_in

pytestmark = pytest.mark.anyio
NOVEMBER = periods.month_named("2026-11", now_us=NOON_US, time_zone="UTC")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with two months of spend, the first of which is soft closed."""
    async with running_pages(tmp_path_factory.mktemp("exports")) as pages:
        for day in range(0, 50, 3):
            await pages.book(
                team="payments", project="fraud", tokens=100 + day, ago_us=day * DAY_US
            )
            await pages.book(team="search", project="", model="m2", tokens=20, ago_us=day * DAY_US)
        await pages.book(team="", project="", tokens=5)
        await pages.ledger.call("flush", None, result_type=type(None), timeout_s=30)
        order = CloseMonth(
            actor="test",
            month="2026-10",
            step=CloseStep.SOFT,
            delays=CloseDelays(),
        )
        await pages.ledger.call("finance", order, result_type=object, timeout_s=30)
        yield pages


@pytest.mark.slow
async def test_the_files_of_a_month_and_whether_they_are_final(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        text = (await client.get("/ui/exports")).text
        page = PageReader(text)
        assert "November 2026 is not final: the month is open" in page.text
        states = {row[0]: row[1] for row in page.tables["months"][1:]}
        assert len(states) == 13
        assert states["October 2026"].startswith("preliminary")
        assert states["September 2026"].startswith("not final")
        for label in ("chargeback", "overlay", "reconciled", "1.4", "1.2", "CSV", "Parquet"):
            assert f">{label}</option>" in text
        for href in re.findall(r'href="(/ui/(?:spend\.csv|statement)[^"]*)"', text):
            assert (await client.get(html.unescape(href))).status_code == 200
        october = PageReader((await client.get("/ui/exports?month=2026-10")).text)
        assert "October 2026 is preliminary" in october.text
        export = await client.get("/admin/v1/spend/export?month=2026-11&profile=chargeback")
        assert export.status_code == 200, "with the session's cookie"
        chosen = dict(
            re.findall(r'<select id="[^"]+" name="([^"]+)"><option value="([^"]+)"', text)
        )
        [safe] = re.findall(r'name="(spreadsheet)" value="true"', text)
        asked = {"month": "2026-11", **chosen, safe: "true"}
        export = await client.get("/admin/v1/spend/export", params=asked)
        assert (len(chosen), export.status_code) == (4, 200)
        assert (await client.get("/ui/exports?month=2026-13")).status_code == 422
        shared.ledger_is_away = True
        try:
            assert (await client.get("/ui/exports")).status_code == 503
        finally:
            shared.ledger_is_away = False


async def test_a_team_takes_its_own_files_away(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, PAYMENTS_KEY)
        text = (await client.get("/ui/exports")).text
        assert "search" not in text
        assert "/admin/v1/spend/export" not in text
        for href in re.findall(r'href="(/ui/(?:spend\.csv|statement)[^"]*)"', text):
            answer = await client.get(html.unescape(href))
            assert answer.status_code == 200
            assert "search" not in answer.text
        assert (await client.get("/admin/v1/spend/export?month=2026-11")).status_code == 403


async def test_a_month_shows_budgets_bills_nobodys_spend_and_what_moved(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        order = {"scope": "team", "team": "payments", "usd": "0.0001"}
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        await client.put("/admin/v1/budgets/cap", json=order, headers=headers)
        page = PageReader((await client.get("/ui/month")).text)
        for words in (
            "Fullest budget",
            "cap:",
            "Reconciled with bills",
            "not compared",
            "Of no team",
        ):
            assert words in page.text
        teams = {(row[0], row[1]) for row in page.tables["movers"][1:]}
        assert ("payments", "chat-small") in teams
        assert ("no team", "chat-small") in teams
        past = PageReader((await client.get("/ui/month?month=2026-10")).text)
        assert "Fullest budget" not in past.text
    async with shared.browser() as client:
        await logged_in(client, PAYMENTS_KEY)
        page = PageReader((await client.get("/ui/month")).text)
        assert "Reconciled" not in page.text
        assert "Of no team" not in page.text
        assert {row[0] for row in page.tables["movers"][1:]} == {"payments"}


def run(*accounts: AccountCoverage) -> ReconciliationRun:
    return ReconciliationRun(
        run_id=1, at_us=NOON_US, actor="a", month="2026-11", state="read",
        ledger_pico_usd=5 * 10**12, adjusted_pico_usd=0, billed_pico_usd=6 * 10**12,
        accounts=accounts, tolerances=Tolerances(),
    )  # fmt: skip


def account(state: str = "read") -> AccountCoverage:
    return AccountCoverage(
        account="up", state=state, metered_units=99, billed_units=100, ledger_pico_usd=5 * 10**12,
        adjusted_pico_usd=0, billed_pico_usd=6 * 10**12, outside_pico_usd=0,
    )  # fmt: skip


COVERAGE = {
    "a bill that was read": ((run(account()),), "99.00 %", "of billed tokens; 5.00 booked"),
    "one that could not be read": ((run(account("unreadable")),), "–", "UNREADABLE"),
    "no comparison": ((), "–", "not compared with a bill yet"),
}


@pytest.mark.parametrize(("runs", "text", "beside"), COVERAGE.values(), ids=COVERAGE.keys())
def test_coverage_is_never_better_than_what_could_be_read(runs, text, beside) -> None:
    assert NOVEMBER is not None
    tile = glance.coverage_tile(runs, NOVEMBER)
    assert tile.figure.text == text
    assert beside in tile.beside


def test_without_a_budget_there_is_no_tile_of_one() -> None:
    assert glance.budget_tile(()) is None
