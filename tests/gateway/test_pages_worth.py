"""Savings and commitments as pages and over HTTP: the figures are those of reports and desk."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest

from gateway.clock import from_microseconds
from gateway.dashboard.finance.burn_down import commitments_page
from gateway.finance.commitment_messages import CommitmentDay, CommitmentStanding
from pricing.commitments import CommitmentKind
from tests.gateway.ledger_samples import PRICE_PICO
from tests.gateway.pages_harness import ADMIN_KEY, PAYMENTS_KEY, running_pages
from tests.gateway.test_pages_finance import DAY_US, charts, logged_in, titles

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with what is compared, what failed, what cannot be compared, and older spend."""
    async with running_pages(tmp_path_factory.mktemp("worth")) as pages:
        dear = {"baseline": "b/m@1", "baseline_cost_pico_usd": 900 * PRICE_PICO}
        await pages.book(team="payments", tokens=100, changes=dear)
        failed = {"status": "interrupted", "baseline": "b/m@1", "baseline_cost_pico_usd": 0}
        await pages.book(team="payments", tokens=50, changes=failed)
        await pages.book(team="search", model="m2", tokens=10, changes={"baseline": "b/m@1"})
        await pages.book(team="payments", model="m3", tokens=10)
        for day in range(1, 12):
            await pages.book(team="payments", deployment="up/m", tokens=10**6, ago_us=day * DAY_US)
        yield pages


async def test_savings_are_those_of_the_report(shared):
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        today = from_microseconds(shared.service.clock.wall_us()).date()
        page = (await client.get(f"/ui/savings?month={today:%Y-%m}")).text
        rows = (await client.get(f"/admin/v1/spend?by=model&from={today}")).json()
        total = rows["total"]
        assert total["saved_usd"] == "0.0000375"
        assert titles(page, "savings")[-1] == total["saved_usd"]
        assert "1 attempts are not: a cost is unknown" in page
        assert "m3" not in page
        [drawn] = charts(page)
        assert [one["name"] for one in drawn["series"]] == ["Baseline", "Cost"]
        month = (await client.get("/ui/month")).text
        assert "Saved by routing" in month
        assert (await client.get("/ui/savings?month=never")).status_code == 422


async def test_a_team_sees_its_own_savings_and_no_commitments(shared):
    async with shared.browser() as client:
        await logged_in(client, PAYMENTS_KEY)
        page = (await client.get("/ui/savings")).text
        assert "m2" not in re.findall(r'<table id="savings">.*?</table>', page, re.DOTALL)[0]
        assert (await client.get("/ui/commitments")).status_code == 403
        before = (await client.get("/ui/savings?month=2020-01")).text
        assert "is compared with a baseline for the teams that you may see" in before


async def test_commitments_are_recorded_over_http_and_shown(shared):
    today = from_microseconds(shared.service.clock.wall_us()).date()
    body = {
        "name": "deal",
        "kind": "credit",
        "provider": "up",
        "amount": "1",
        "first_day": (today - timedelta(days=14)).isoformat(),
        "last_day": (today + timedelta(days=30)).isoformat(),
    }
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        assert "No commitment is recorded" in (await client.get("/ui/commitments")).text
    async with shared.admin() as client:
        path = "/admin/v1/finance/commitments"
        assert (await client.post(path, json=body)).json()["is_new"] is True
        assert (await client.post(path, json=body)).json()["is_new"] is False
        assert (await client.post(path, json={**body, "provider": "x"})).status_code == 422
        assert (await client.post(path, json={**body, "amount": "two"})).status_code == 409
        [found] = (await client.get(path)).json()["commitments"]
        assert found["drawn_usd"] == "0.55"
        assert found["runs_out_on"] is not None
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get("/ui/commitments")).text
        assert "Burn-down of deal" in page
        assert f"used up on {found['runs_out_on']}" in page
        assert 'title="0.45"' in page
        [drawn] = charts(page)
        assert drawn["series"][0]["texts"][-1] == "0.45"
    async with shared.admin() as client:
        gone = await client.post(f"{path}/deal/withdraw", json={"reason": "over"})
        assert gone.json()["revision"] == 2


async def test_pages_say_when_the_ledger_is_away(shared):
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        shared.ledger_is_away = True
        try:
            for path in ("/ui/savings", "/ui/commitments"):
                assert (await client.get(path)).status_code == 503
        finally:
            shared.ledger_is_away = False


def standing(**changes) -> CommitmentStanding:
    day = CommitmentDay(day="2026-11-01", drawn_pico_usd=5, left_pico_usd=5, unused_pico_usd=0)
    values = {
        "name": "one", "revision": 1, "kind": CommitmentKind.CREDIT, "state": "open",
        "provider": "p", "deployments": (), "currency": "USD", "amount": "1",
        "amount_pico_usd": 10**12, "first_day": "2026-11-01", "last_day": "2026-12-01",
        "counts_from": "2026-11-01", "invoice": "", "recorded_at_us": 0, "recorded_by": "ann",
        "reason": "", "drawn_pico_usd": 0, "unused_pico_usd": 0, "left_pico_usd": 10**12,
        "pace_pico_usd": 0, "runs_out_on": None, "runs_out_early": None, "runs_out_late": None,
        "band_percent": None, "days": (day,),
    }  # fmt: skip
    return CommitmentStanding(**(values | changes))


ENDINGS = {
    "what lasts": ({}, "lasts"),
    "what may not": ({"runs_out_early": "2026-11-20", "band_percent": 80}, "may be used up from 2026-11-20 on"),
    "a pace without a band": ({"runs_out_on": "2026-11-20"}, "used up on 2026-11-20"),
    "a band that ends later": (
        {"runs_out_on": "2026-11-20", "runs_out_early": "2026-11-18", "band_percent": 80},
        "used up on 2026-11-20 (80 %: 2026-11-18 to after its end)",
    ),
    "what lapsed": ({"state": "over", "unused_pico_usd": 10**12}, "1.00 USD lapsed"),
    "what is owed": (
        {"state": "over", "unused_pico_usd": 10**12, "kind": CommitmentKind.SPEND}, "1.00 USD owed",
    ),
    "throughput in use": ({"kind": CommitmentKind.THROUGHPUT}, ""),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), ENDINGS.values(), ids=ENDINGS.keys())
def test_how_an_ending_is_told(changes, text):
    [line] = commitments_page([standing(**changes)]).lines
    assert line.ending == text


def test_those_in_use_come_first_and_only_they_are_drawn():
    over = standing(name="a", state="over", last_day=date(2026, 11, 1).isoformat())
    open_one = standing(name="b", currency="EUR", amount="0.8")
    page = commitments_page([over, open_one])
    assert [(line.name, line.paid) for line in page.lines] == [("b", "0.8 EUR"), ("a", "")]
    assert [one.name for one in page.figures] == ["b"]


def test_utilisation_is_of_what_is_gone_and_waste_is_told_in_money():
    used, idle = 3 * 10**12, 10**12
    days = (
        CommitmentDay(day="2026-11-01", drawn_pico_usd=used, left_pico_usd=9, unused_pico_usd=0),
        CommitmentDay(day="2026-11-02", drawn_pico_usd=0, left_pico_usd=8, unused_pico_usd=idle),
    )
    kept = {"drawn_pico_usd": used, "unused_pico_usd": idle, "left_pico_usd": 5 * 10**12}
    throughput = standing(kind=CommitmentKind.THROUGHPUT, days=days, **kept)
    withdrawn = standing(name="gone", state="withdrawn", **kept)
    page = commitments_page([throughput, withdrawn])
    assert [one.figure.text for one in page.tiles] == ["3.00", "75.0 %", "1.00", "5.00"]
    [figure] = page.figures
    assert figure.use is not None
    assert figure.use["kind"] == "areas"
    assert [one["texts"] for one in figure.use["series"]] == [["3.00", "0.00"], ["0.00", "1.00"]]
    assert commitments_page([standing()]).figures[0].use is None, "a credit is used when it is"
