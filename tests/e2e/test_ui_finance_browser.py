"""Finance's pages in a real browser: months of seeded spend, charts that are drawn, ways to follow."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_ui_browser import ADMIN_KEY, cells, log_in
from tests.gateway.ledger_samples import FakeClock, intent, open_spool, settlement
from tests.support.gateway_process import GatewayProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="Debian's chromium is not installed"
    ),
]
DAY_US = 86_400_000_000
TEAMS = ("payments", "search", "support", "research", "ops", "mobile", "growth", "legal", "data")
CONFIG = {
    "providers": {"groq": {"kind": "openai_compatible", "base_url": "http://127.0.0.1:9"}},
    "models": {"chat-small": {"deployments": ["groq/llama"]}},
    "teams": {name: {} for name in TEAMS},
    "finance": {"organisation": "Acme Platform", "time_zone": "Asia/Kathmandu"},
}


def seed(directory: Path) -> None:
    """Leave the journal of a worker that is gone: eleven weeks of nine teams."""
    rng = random.Random(20261130)
    clock = FakeClock(wall=time.time_ns() // 1000)
    spool = open_spool(directory, clock=clock.clock)
    number = 0
    for day in range(77, -1, -1):
        is_weekend = (clock.wall // DAY_US - day) % 7 in (2, 3)
        for place, team in enumerate(TEAMS):
            number += 1
            at_us = clock.wall - day * DAY_US
            project = "p" if place % 2 else ""
            spool.append(
                intent(number, at_us=at_us, team=team, project=project, model="chat-small")
            )
            tokens = rng.randint(8, 12) * 10**8 // (place + 1) // (5 if is_weekend else 1)
            spool.append(settlement(number, tokens=tokens, settled_at_us=at_us + 500))
    asyncio.run(spool.close())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    # On a thread: the browser's own loop runs on this one.
    with ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(seed, folder / "spool" / "worker-before").result()
    config = {**CONFIG, "storage": {"spool_dir": "spool"}}
    with GatewayProcess(folder, config, {}) as running:
        yield running


def report(gateway: GatewayProcess, *arguments: str) -> dict:
    return json.loads(gateway.run("spend", "report", "--json", *arguments))


def drawn(page: Page, chart: str) -> bool:
    """Whether a chart's canvas has anything on it."""
    return page.locator(f"#{chart} canvas").first.evaluate(
        """canvas => {
            const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return all.some((value, place) => place % 4 === 3 && value > 0);
        }"""
    )


def test_a_month_is_drawn_and_its_total_is_the_commands(
    page: Page, gateway: GatewayProcess
) -> None:
    log_in(page, gateway, ADMIN_KEY)
    page.get_by_role("link", name="Month", exact=True).click()
    page.wait_for_url("**/ui/month")
    assert drawn(page, "by-day")
    assert drawn(page, "so-far")
    total = page.locator("#teams tfoot td.cost span").get_attribute("title")
    named = page.locator("h1").inner_text()
    name = f"{datetime.strptime(f'{named} +0000', '%B %Y %z'):%Y-%m}"
    told = report(gateway, "--by", "team", "--month", name, "--zone", "Asia/Kathmandu")
    assert total == told["total"]["cost_usd"]
    assert [row[0] for row in cells(page, "teams")] == [row["team"] for row in told["rows"]]


def test_the_way_down_from_a_team_to_its_keys(page: Page, gateway: GatewayProcess) -> None:
    log_in(page, gateway, ADMIN_KEY)
    page.goto(f"{gateway.url}/ui/spend?period=last-30-days")
    assert drawn(page, "over-time")
    page.locator("#rows").get_by_role("link", name="search", exact=True).click()
    page.wait_for_url("**by=project**")
    for name, below in (("p", "model"), ("chat-small", "deployment")):
        page.locator("#rows").get_by_role("link", name=name, exact=True).click()
        page.wait_for_url(f"**by={below}**")
        page.locator("#rows caption").filter(has_text=f"By {below}").wait_for()
    page.locator("#rows tbody a").first.click()
    page.wait_for_url("**by=key**")
    page.locator("#rows caption").filter(has_text="By key").wait_for()
    assert page.get_by_role("link", name="Remove the filter Team: search").count() == 1
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    assert download.value.suggested_filename.endswith(".csv")


def test_the_theme_is_chosen_and_kept(
    page: Page,
    gateway: GatewayProcess,
) -> None:
    log_in(page, gateway, ADMIN_KEY)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{gateway.url}/ui/month")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    other = (
        "dark" if page.evaluate("matchMedia('(prefers-color-scheme: light)').matches") else "light"
    )
    page.get_by_label("Theme").select_option(other)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == other
    assert drawn(page, "by-day")


def test_a_filter_replaces_the_view_and_keeps_the_page_the_focus_and_the_way_back(
    page: Page, gateway: GatewayProcess
) -> None:
    log_in(page, gateway, ADMIN_KEY)
    page.goto(f"{gateway.url}/ui/spend?period=last-30-days")
    page.evaluate("window.here = 'still here'")
    page.get_by_label("Group by").select_option("model")
    page.get_by_label("Group by").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    page.locator("#show").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**by=model**")
    page.get_by_role("heading", name="Spend").wait_for()
    page.locator("#rows caption").filter(has_text="By model").wait_for()
    assert page.evaluate("document.activeElement.id") == "show"
    assert "from=" not in page.url, "fields that say nothing are not in the address"
    assert page.locator("#told").inner_text().startswith("Spend by model, ")
    assert drawn(page, "over-time")
    page.locator("#rows").get_by_role("link", name="chat-small", exact=True).click()
    page.get_by_role("link", name="Remove the filter Model: chat-small").wait_for()
    page.get_by_role("link", name="Remove the filter Model: chat-small").click()
    page.get_by_role("link", name="Remove the filter Model: chat-small").wait_for(state="detached")
    assert page.evaluate("document.activeElement.id") == "view", "not lost with the link"
    page.go_back()
    page.get_by_role("link", name="Remove the filter Model: chat-small").wait_for()
    assert drawn(page, "over-time")
    assert page.evaluate("window.here") == "still here"
    page.get_by_role("link", name="Month", exact=True).click()
    page.wait_for_url("**/ui/month")
    page.go_back()
    page.get_by_role("link", name="Remove the filter Model: chat-small").wait_for()
    assert drawn(page, "over-time")


def test_an_answer_that_is_another_page_is_loaded_as_one(
    page: Page, gateway: GatewayProcess
) -> None:
    log_in(page, gateway, ADMIN_KEY)
    page.goto(f"{gateway.url}/ui/spend")
    page.context.clear_cookies()
    page.locator("#show").click()
    page.wait_for_url("**/ui/login?next=**")
    assert page.get_by_label("API key").is_visible()


def test_without_scripts_the_same_is_done_with_whole_pages(
    browser: Browser, gateway: GatewayProcess
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    log_in(page, gateway, ADMIN_KEY)
    page.goto(f"{gateway.url}/ui/spend?period=last-30-days")
    page.get_by_label("Group by").select_option("model")
    page.locator("#show").click()
    page.locator("#rows caption").filter(has_text="By model").wait_for()
    page.locator("#rows").get_by_role("link", name="chat-small", exact=True).click()
    page.get_by_role("link", name="Remove the filter Model: chat-small").wait_for()
    context.close()


def test_lists_are_searched_and_sorted_in_place(browser: Browser, gateway: GatewayProcess) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    log_in(page, gateway, ADMIN_KEY)
    page.goto(f"{gateway.url}/ui/keys")
    page.evaluate("window.here = 'still here'")
    page.locator("#q").fill("pay")
    page.locator("#find").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**q=pay**")
    page.locator("#told").filter(has_text="1 keys that fit pay.").wait_for(state="attached")
    assert [row[1] for row in cells(page, "keys")] == ["payments"]
    assert page.evaluate("document.activeElement.id") == "find"
    page.locator("#all").click()
    page.wait_for_url("**/ui/keys")
    page.locator("#sort-name").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**sort=name**")
    page.locator("th[aria-sort=ascending]").wait_for()
    assert page.evaluate("document.activeElement.id") == "sort-name"
    assert len(cells(page, "keys")) == len(TEAMS)
    assert page.evaluate("window.here") == "still here"
    context.close()


def test_paper_is_light_has_no_ways_and_says_where_it_comes_from(
    browser: Browser, gateway: GatewayProcess
) -> None:
    context = browser.new_context(color_scheme="dark", viewport={"width": 1440, "height": 900})
    page = context.new_page()
    log_in(page, gateway, ADMIN_KEY)
    page.goto(f"{gateway.url}/ui/month")
    assert not page.locator(".source").is_visible()
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    for way in (".bar", ".actions", "button"):
        assert not page.locator(way).first.is_visible(), way
    source = page.locator(".source")
    assert page.locator("h1").inner_text() in source.inner_text()
    assert "/ui/month" in source.inner_text()
    assert page.locator("#days tbody tr").first.is_visible(), "a chart's table is printed"
    page.emulate_media(media="screen")
    sheets = len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))
    assert 1 < sheets < 6
    page.wait_for_function("!document.documentElement.classList.contains('printing')")
    assert page.evaluate("document.documentElement.dataset.theme") is None
    context.close()
