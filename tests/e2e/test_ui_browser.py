"""The first page in a real browser: a real gateway, real requests, the ledger's own totals."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.scripted_upstream import Chat, UpstreamProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE_TEAM = "<img src=x onerror=pwn=1>"
ADMIN_KEY = "admin-key-for-tests-0123456789"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="Debian's chromium is not installed"
    ),
]


def config(upstream_url: str) -> dict:
    price = {"input_usd_per_mtok": 0.05, "cached_input_usd_per_mtok": 0.01}
    price["output_usd_per_mtok"] = 0.08
    return {
        "providers": {
            "groq": {"kind": "openai_compatible", "base_url": upstream_url},
            "spare": {"kind": "openai_compatible", "base_url": upstream_url},
        },
        "models": {
            "chat-small": {"deployments": [{"deployment": "groq/llama", "price": price}]},
            "chat-free": {"deployments": ["spare/unpriced"]},
        },
        "teams": {
            "payments": {"projects": {"fraud": {}}},
            "search": {},
            HOSTILE_TEAM: {"keys": [{"name": "k", "value_env": "HOSTILE_KEY"}]},
        },
    }


def ask(gateway: GatewayProcess, key: str, model: str, **headers: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "a canary sings " * 40}]}
    request = urllib.request.Request(
        f"{gateway.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {key}", "content-type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    hostile_key = "hostile-team-key-0123456789"
    scripts = {
        "llama": [Chat(text="one two three"), Chat(text="one two three four", cached_tokens=50)],
        "unpriced": [Chat(text="nobody knows the price")],
    }
    with (
        UpstreamProcess(scripts, folder=folder) as upstream,
        GatewayProcess(folder, config(upstream.base_url), {"HOSTILE_KEY": hostile_key}) as running,
    ):
        for _ in range(5):
            ask(running, running.key("payments"), "chat-small", **{"x-fareway-project": "fraud"})
        for _ in range(3):
            ask(running, running.key("search"), "chat-small")
        ask(running, running.key("search"), "chat-free")
        ask(running, hostile_key, "chat-small")
        yield running


def log_in(page: Page, gateway: GatewayProcess, key: str) -> None:
    page.goto(f"{gateway.url}/ui")
    assert page.url.endswith("/ui/login")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{gateway.url}/ui")


def cells(page: Page, table: str) -> list[list[str]]:
    return [
        [" ".join(text.split()) for text in row.locator("th, td").all_inner_texts()]
        for row in page.locator(f"#{table} tbody tr").all()
    ]


def test_the_page_shows_what_the_command_reports(
    gateway: GatewayProcess, page: Page, tmp_path: Path
) -> None:
    log_in(page, gateway, ADMIN_KEY)
    page.screenshot(path=tmp_path / "first-page.png", full_page=True)
    report = json.loads(gateway.run("spend", "report", "--by", "team", "--format", "json"))
    shown = {row[0]: (row[1], row[-1]) for row in cells(page, "spend")}
    assert shown == {row["team"]: (str(row["requests"]), row["cost_usd"]) for row in report["rows"]}
    total = page.locator("#spend tfoot th, #spend tfoot td").all_inner_texts()
    assert (total[1], total[-1].strip()) == ("10", report["total"]["cost_usd"])
    assert page.locator("#total-cost").inner_text() == report["total"]["cost_usd"]
    assert len(cells(page, "requests")) == 10
    assert "canary" not in page.content()


def test_a_hostile_name_is_text(gateway: GatewayProcess, page: Page) -> None:
    log_in(page, gateway, ADMIN_KEY)
    assert HOSTILE_TEAM in [row[0] for row in cells(page, "spend")]
    assert page.locator("img, iframe, script:not([src^='/ui/static/'])").count() == 0
    assert page.evaluate("typeof window.pwn") == "undefined"
    assert page.evaluate("document.cookie") == ""


def test_a_team_logs_in_sees_itself_and_logs_out(gateway: GatewayProcess, page: Page) -> None:
    log_in(page, gateway, gateway.key("search"))
    assert [row[0] for row in cells(page, "spend")] == ["search"]
    assert {row[1] for row in cells(page, "requests")} == {"search"}
    assert "payments" not in page.content()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{gateway.url}/ui/login")
    page.goto(f"{gateway.url}/ui")
    assert page.url.endswith("/ui/login")


def test_a_narrow_screen_scrolls_tables_and_not_the_page(
    gateway: GatewayProcess, page: Page
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    log_in(page, gateway, ADMIN_KEY)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
