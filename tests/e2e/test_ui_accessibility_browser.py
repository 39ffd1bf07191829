"""Every page of the dashboard in a real browser: usable by everybody, in both themes and widths.

Each page is photographed; with SCREENSHOTS=FOLDER the pictures are kept there for review.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.access.permissions import ROUTES, Action
from tests.e2e.page_checks import faults_of, walk, width_of
from tests.e2e.test_ui_browser import ADMIN_KEY, log_in
from tests.e2e.test_ui_finance_browser import CONFIG, seed
from tests.support.gateway_process import GatewayProcess

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="Debian's chromium is not installed"
    ),
]
NO_PAGES = {
    "/ui/",
    "/ui/login/oidc",
    "/ui/login/oidc/callback",
    "/ui/spend.csv",
    "/ui/static/{name:path}",
}
"""Routes that answer with no page of their own."""
EXAMPLES = {
    "/ui/statement": "/ui/statement?team=payments",
    "/ui/spend": "/ui/spend?period=last-90-days&per=week",
    "/ui/requests": "/ui/requests?period=last-90-days",
}
"""What a page is looked at with; without, nothing would be on it."""
BUDGETS = {
    "payments, month": {"scope": "team", "team": "payments", "usd": "900"},
    "search, month": {"scope": "team", "team": "search", "usd": "2500", "on_exceed": "alert"},
    "all": {"scope": "organisation", "usd": "50000", "window": "fiscal"},
}


def call(gateway: GatewayProcess, method: str, path: str, body: dict | None = None) -> dict:
    request = urllib.request.Request(
        f"{gateway.url}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {ADMIN_KEY}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    # On a thread: the browser's own loop runs on this one.
    with ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(seed, folder / "spool" / "worker-before").result()
    finance = {**CONFIG["finance"], "time_zone": "UTC"}
    config = {**CONFIG, "finance": finance, "storage": {"spool_dir": "spool"}}
    with GatewayProcess(folder, config, {}) as running:
        for name, order in BUDGETS.items():
            call(running, "PUT", f"/admin/v1/budgets/{name.replace(' ', '%20')}", order)
        call(
            running, "POST", "/admin/v1/keys",
            {"team": "payments", "name": "nightly job", "limits": {"rpm": 600}},
        )  # fmt: skip
        yield running


def pages() -> list[str]:
    """Every page that an administrator can open, by its route."""
    found: list[str] = []
    for (method, path), action in ROUTES.items():
        is_page = method == "GET" and path.startswith("/ui") and path not in NO_PAGES
        if is_page and action is not Action.PUBLIC and "{" not in path:
            found.append(EXAMPLES.get(path, path))
    return found


def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_every_page_is_usable_by_everybody(
    page: Page, gateway: GatewayProcess, tmp_path: Path
) -> None:
    folder = pictures(tmp_path)
    theme = (
        "dark" if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light"
    )
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{gateway.url}/ui/login")
    faults = {"/ui/login": faults_of(page)}
    log_in(page, gateway, ADMIN_KEY)
    page.goto(f"{gateway.url}/ui/requests?period=last-90-days")
    one = page.locator("#attempts tbody a").first.get_attribute("href") or ""
    for path in [*pages(), one]:
        name = re.sub(r"[^a-z0-9]+", "-", path.partition("?")[0].removeprefix("/ui") or "today")
        page.set_viewport_size({"width": 1440, "height": 900})
        answer = page.goto(f"{gateway.url}{path}")
        assert answer is not None
        found = [] if answer.status == 200 else [f"status {answer.status}"]
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=folder / f"{name.strip('-')}-{theme}-{width}.png", full_page=True)
            found += [f"{width} px: {fault}" for fault in faults_of(page)]
            if width_of(page) > width:
                found.append(f"{width} px: scrolls sideways, {width_of(page)} px")
        faults[path] = found
    assert {path: some for path, some in faults.items() if some} == {}


def test_every_control_is_reached_by_keyboard_in_its_order(
    page: Page, gateway: GatewayProcess
) -> None:
    log_in(page, gateway, ADMIN_KEY)
    for path in ("/ui/spend?by=team&per=month", "/ui/budgets", "/ui/keys"):
        page.goto(f"{gateway.url}{path}")
        assert walk(page) == [], path
