"""`/ui/story`: the figures of `spend bridge` and `spend anomalies`, for those who may see them."""

from __future__ import annotations

import html
import re
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dashboard.finance.charts import Fall, waterfall
from gateway.dashboard.finance.periods import month_named
from gateway.dashboard.finance.story import story_page
from gateway.finance.story_messages import BridgeEffects, BridgeReport
from pricing.money import PICO_PER_USD
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, running_pages
from tests.gateway.people_harness import csrf, make
from tests.gateway.people_harness import logged_in as person
from tests.gateway.test_pages_finance import charts, logged_in

pytestmark = pytest.mark.anyio
DAY_US = 86_400_000_000
OCTOBER_17 = 42
"""Days before the clock of the tests."""
USD_TOKENS = 20_000_000
HOSTILE = "</script><b>"
BRIDGE = "/admin/v1/finance/months/2026-10/bridge"
ANOMALIES = "/admin/v1/finance/anomalies?from=2026-10-01&to=2026-10-31"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A steady September and October with one dear day, of two teams, one with a hostile name."""
    async with running_pages(tmp_path_factory.mktemp("story")) as pages:
        for day in range(25):
            ago_us = (OCTOBER_17 + day) * DAY_US
            tokens = USD_TOKENS * 2 + day % 5 * 100_000
            await pages.book(tokens=tokens, ago_us=ago_us, team="payments", key_id="steady")
            await pages.book(tokens=tokens, ago_us=ago_us, team=HOSTILE, deployment="up/m2")
        for team in ("payments", HOSTILE):
            await pages.book(
                tokens=USD_TOKENS * 40, ago_us=OCTOBER_17 * DAY_US, team=team, key_id="runaway",
                deployment="up/new",
            )  # fmt: skip
        await make(pages, "olga", "team_owner@payments")
        await make(pages, "milo", "team_member@payments")
        await make(pages, "ada", "auditor")
        yield pages


def exact(text: str, table: str) -> list[str]:
    """Every exact amount of a table, in the order of the page."""
    found = re.search(rf'<table id="{table}">.*?</table>', text, re.DOTALL)
    assert found is not None
    return re.findall(r'class="(?:way )?number"(?: href="[^"]*")? title="([^"]*)"', found[0])


@pytest.mark.slow
async def test_the_page_has_the_figures_of_the_bridge(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get("/ui/story?month=2026-10")).text
        told = (await client.get(BRIDGE)).json()
        parts = [told["effects"][f"{name}_usd"] for name in (
            "volume", "mix", "output_share", "cache_rate", "price",
        )]  # fmt: skip
        difference = Decimal(told["after_usd"]) - Decimal(told["before_usd"])
        before, *shown, total, after = exact(page, "parts")
        assert (before, shown, after) == (told["before_usd"], parts, told["after_usd"])
        assert sum(map(Decimal, shown)) == Decimal(total) == difference > 0
        products = exact(page, "products")
        assert products[:: 1 + len(parts)] == [one["change_usd"] for one in told["products"]]
        [drawn] = charts(page)
        assert drawn["kind"] == "waterfall"
        # What is drawn has its table: the same words and cents, in the same order.
        rows = [row[:2] for row in PageReader(page).tables["parts"][1:]]
        assert [row[0] for row in rows if row[0] != "Difference"] == drawn["labels"]
        assert [row[1] for row in rows if row[0] != "Difference"] == drawn["texts"]


@pytest.mark.slow
async def test_the_page_lists_the_anomalies_with_the_ways_to_what_is_behind_them(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get("/ui/story?month=2026-10")).text
        assert HOSTILE not in page
        told = (await client.get(ANOMALIES)).json()["anomalies"]
        assert {one["team"] for one in told} == {"payments", HOSTILE}
        amounts = exact(page, "anomalies")
        assert amounts == [
            one[name] for one in told for name in ("amount_usd", "expected_usd", "excess_usd")
        ]
        reader = PageReader(page)
        assert [row[:3] for row in reader.tables["anomalies"][1:]] == [
            [one["day"], one["team"], one["model"]] for one in told
        ]
        assert "runaway" in reader.tables["anomalies"][1][7]
        found = re.findall(r'href="(/ui/(?:spend|requests)\?[^"]*)"', page)
        links = {html.unescape(one) for one in found}
        assert len(links) >= 8
        for link in links:
            answer = await client.get(link)
            assert answer.status_code == 200, (link, PageReader(answer.text).text)
        behind = next(one for one in links if "key=runaway" in one and "payments" in one)
        assert len(PageReader((await client.get(behind)).text).tables["attempts"]) == 1 + 1


async def test_the_owner_of_a_team_sees_its_own_on_page_and_api(shared) -> None:
    async with person(shared, "olga") as client:
        page = (await client.get("/ui/story?month=2026-10")).text
        assert [row[1] for row in PageReader(page).tables["anomalies"][1:]] == ["payments"]
        headers = await csrf(client)
        told = (await client.get(BRIDGE, headers=headers)).json()
        assert {one["deployment"] for one in told["products"]} == {
            "groq/llama-3.1-8b-instant",
            "up/new",
        }
        assert exact(page, "parts")[-1] == told["after_usd"]
        days = (await client.get(ANOMALIES, headers=headers)).json()["anomalies"]
        assert [one["team"] for one in days] == ["payments"]
        for team in (HOSTILE, "nobody"):
            params = {"month": "2026-10", "team": team}
            other = await client.get("/ui/story", params=params)
            assert "Nothing was spent in September 2026" in PageReader(other.text).text
            answer = await client.get(BRIDGE, params={"team": team}, headers=headers)
            assert (answer.json()["after_usd"], answer.json()["products"]) == ("0", [])
    async with person(shared, "milo") as client:
        assert (await client.get("/ui/story")).status_code == 403
        assert (await client.get(BRIDGE, headers=await csrf(client))).status_code == 403


async def test_one_team_of_all_and_who_may_not_see_spend(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        page = (await client.get("/ui/story?month=2026-10&team=payments")).text
        told = (await client.get(BRIDGE, params={"team": "payments"})).json()
        assert exact(page, "parts")[-1] == told["after_usd"]
        assert "Every team, not only payments" in PageReader(page).text
        assert [row[1] for row in PageReader(page).tables["anomalies"][1:]] == ["payments"]
    async with person(shared, "ada") as client:
        page = (await client.get("/ui/story?month=2026-10")).text
        assert 'href="/ui/spend?' not in page
        assert 'href="/ui/requests?' in page


async def test_nothing_a_wrong_month_and_the_ledger_away_are_said(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        for path in ("/ui/story?month=never", "/ui/story?against=2026-13"):
            answer = await client.get(path)
            assert (answer.status_code, "is no month" in answer.text) == (422, True)
        text = PageReader((await client.get("/ui/story?month=2001-02")).text).text
        assert "Nothing was spent in January 2001 and February 2001" in text
        assert "No day of February 2001 stood out" in text
        this = (await client.get("/ui/story?month=2026-11&against=2026-09")).text
        assert "November 2026 is not over" in this
        assert "against September 2026" in this
        assert 'aria-current="page">Story' in (await client.get("/ui/story")).text
        shared.ledger_is_behind = True
        try:
            assert "is catching up" in (await client.get("/ui/story")).text
        finally:
            shared.ledger_is_behind = False
        shared.ledger_is_away = True
        try:
            assert (await client.get("/ui/story")).status_code == 503
        finally:
            shared.ledger_is_away = False


@settings(max_examples=50)
@given(st.lists(st.integers(-10, 10).map(lambda usd: usd * PICO_PER_USD), max_size=6))
def test_a_waterfall_begins_each_bar_where_the_one_before_ended(changes) -> None:
    falls, at = [], 0
    for change in changes:
        falls.append(Fall(label="x", start=at, end=at + change))
        at += change
    base, above, below = (one["values"] for one in waterfall(falls)["series"])
    for fall, *parts in zip(falls, base, above, below, strict=True):
        # The drawing stacks what is above 0 apart from what is below.
        tops = sum(part for part in parts if part > 0)
        bottoms = sum(part for part in parts if part < 0)
        ends = {fall.start // PICO_PER_USD, fall.end // PICO_PER_USD}
        assert parts[1] >= 0 >= parts[2]
        if min(ends) >= 0:
            assert (parts[0], tops, bottoms) == (min(ends), max(ends), 0)
        elif max(ends) <= 0:
            assert (parts[0], tops, bottoms) == (max(ends), 0, min(ends))
        else:
            assert (parts[0], tops, bottoms) == (0, max(ends), min(ends))


def test_costs_that_no_line_explains_are_a_part_of_their_own() -> None:
    before = month_named("2026-09", now_us=0, time_zone="UTC")
    after = month_named("2026-10", now_us=0, time_zone="UTC")
    assert before is not None
    assert after is not None
    zero = dict.fromkeys(BridgeEffects.__struct_fields__, 0)
    bridge = BridgeReport(
        before="2026-09", after="2026-10", team=None, before_pico_usd=0,
        after_pico_usd=PICO_PER_USD, products=(),
        effects=BridgeEffects(**zero | {"other_pico_usd": PICO_PER_USD}),
    )  # fmt: skip
    page = story_page(
        bridge, (), before=before, after=after, team="", key_name=lambda _: "", sees_spend=True
    )
    assert (page.parts[-1].label, page.parts[-1].amount.exact) == ("Other", "1")
    assert (page.is_empty, page.change) == (False, "–")
