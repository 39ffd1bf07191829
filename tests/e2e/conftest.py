"""A real browser for pages, in both colour schemes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # the unit part collects this file too

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A page on which every message of the console, CSP violations included, is a failure."""
    context = browser.new_context(
        color_scheme=request.param, viewport={"width": 1440, "height": 900}
    )
    opened = context.new_page()
    messages: list[str] = []
    failures: list[str] = []
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.on("requestfailed", lambda failed: failures.append(failed.url))
    yield opened
    context.close()
    assert messages == []
    assert failures == []
