"""Every page of the dashboard in a real browser: usable by everybody, in both themes and widths.

With SCREENSHOTS=FOLDER every page is photographed there in every theme and width, for review.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from gateway.access.permissions import ROUTES, Action
from tests.e2e.page_checks import faults_of, walk, width_of
from tests.e2e.test_ui_browser import ADMIN_KEY, log_in
from tests.e2e.test_ui_finance_browser import CONFIG, seed
from tests.support.gateway_process import GatewayProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="Debian's chromium is not installed"
    ),
]
NO_PAGES = {
    "/ui/",
    "/ui/login/oidc",
    "/ui/login/oidc/callback",
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


VIEWS: tuple[tuple[Literal["light", "dark"], int], ...] = (("light", 1440), ("dark", 390))
"""Both themes and both widths, each once: colours do not change with the width."""
EVERY_VIEW: tuple[tuple[Literal["light", "dark"], int], ...] = (
    *VIEWS,
    ("dark", 1440),
    ("light", 390),
)


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
        is_page = is_page and not path.endswith(".csv")
        if is_page and action is not Action.PUBLIC and "{" not in path:
            found.append(EXAMPLES.get(path, path))
    return found


@contextmanager
def opened(browser: Browser) -> Iterator[Page]:
    """A page on which every message of the console, CSP violations included, is a failure."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    context.close()
    assert messages == []


def looked_at(page: Page, name: str) -> list[str]:
    """What is wrong with a page in both themes and widths."""
    folder = os.environ.get("SCREENSHOTS")
    found: list[str] = []
    for theme, width in VIEWS if folder is None else EVERY_VIEW:
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 900})
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            path = Path(folder) / f"{name}-{theme}-{width}.png"
            page.screenshot(path=path, full_page=True)
        found += [f"{theme}, {width} px: {fault}" for fault in faults_of(page)]
        if width_of(page) > width:
            found.append(f"{theme}, {width} px: scrolls sideways, {width_of(page)} px")
    return found


@pytest.mark.timeout(300)
def test_every_page_is_usable_by_everybody(browser: Browser, gateway: GatewayProcess) -> None:
    with opened(browser) as page:
        page.goto(f"{gateway.url}/ui/login")
        faults = {"/ui/login": looked_at(page, "login")}
        log_in(page, gateway, ADMIN_KEY)
        page.goto(f"{gateway.url}/ui/requests?period=last-90-days")
        one = page.locator("#attempts tbody a").first.get_attribute("href") or ""
        for path in [*pages(), one]:
            answer = page.goto(f"{gateway.url}{path}")
            assert answer is not None
            assert answer.status == 200, path
            name = path.partition("?")[0].removeprefix("/ui").strip("/")
            name = "request" if path == one else name
            faults[path] = looked_at(page, re.sub(r"[^a-z0-9]+", "-", name) or "today")
    assert {path: some for path, some in faults.items() if some} == {}


def test_every_control_is_reached_by_keyboard_in_its_order(
    browser: Browser, gateway: GatewayProcess
) -> None:
    with opened(browser) as page:
        log_in(page, gateway, ADMIN_KEY)
        for path in ("/ui/spend?by=team&per=month", "/ui/budgets"):
            page.goto(f"{gateway.url}{path}")
            assert walk(page) == [], path
