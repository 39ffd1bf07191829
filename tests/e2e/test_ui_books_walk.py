"""A controller closes a month from the dashboard alone; every number is the command's."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.cli.main import main
from tests.e2e import books_month
from tests.e2e.test_ui_browser import ADMIN_KEY, cells, log_in
from tests.support.gateway_process import GatewayProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="Debian's chromium is not installed"
    ),
]
VARIABLES = ("FAREWAY_STATE_DIR", "FAREWAY_ADMIN_KEY", "KEY_PAYMENTS", "KEY_SEARCH", "KEY_SUPPORT")
PASSWORD = "a few words of one's own"
PEOPLE = {"carla": "finance_admin", "amir": "finance_admin", "ada": "auditor"}


@dataclass
class Walk:
    """The gateway, and a browser for each person.

    Attributes:
        first: First day of the month.
        pictures: Where screenshots go, None for nowhere: `WALK_PICTURES` names a folder.
    """

    gateway: GatewayProcess
    browser: Browser
    first: date
    pictures: Path | None
    messages: list[str] = field(default_factory=list)
    shots: int = 0

    @property
    def month(self) -> str:
        return f"{self.first:%Y-%m}"

    def open(self, *, is_dark: bool = False, width: int = 1440) -> Page:
        """A page of somebody's own browser; a message of its console fails the walk."""
        context = self.browser.new_context(
            color_scheme="dark" if is_dark else "light",
            viewport={"width": width, "height": 900},
            accept_downloads=True,
        )
        context.set_default_timeout(45_000)
        page = context.new_page()
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        return page

    def person(self, login: str, **options) -> Page:
        """Somebody who logs in with a password."""
        page = self.open(**options)
        page.goto(f"{self.gateway.url}/ui/login")
        page.get_by_label("Login name").fill(login)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(f"{self.gateway.url}/ui")
        return page

    def run(self, *arguments: str) -> str:
        """What a command of the same configuration prints, without an interpreter of its own."""
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
        config = str(self.gateway.folder / "fareway.yaml")
        environ = {name: self.gateway.environ[name] for name in VARIABLES}
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(printed),
            ThreadPoolExecutor(max_workers=1) as threads,
        ):
            for name, value in environ.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                threads.submit(main, ("spend", *arguments, "--config", config)).result()
        printed.flush()
        text = printed.buffer.getvalue().decode()
        assert not ended.value.code, (arguments, text)
        return text

    def command(self, *arguments: str) -> dict | list:
        return json.loads(self.run(*arguments, "--json"))

    def look(self, page: Page, name: str) -> None:
        """See that a narrow page does not scroll sideways; keep pictures where they are wanted."""
        self.shots += 1
        size = page.viewport_size
        self._keep(page, f"{self.shots:02}-{name}")
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        self._keep(page, f"{self.shots:02}-{name}-390")
        page.set_viewport_size(size)

    def _keep(self, page: Page, name: str) -> None:
        if self.pictures is not None:
            page.screenshot(path=self.pictures / f"{name}.png", full_page=True)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("books")
    first = books_month.month_before_last(datetime.now(UTC).date())
    (folder / "rates.csv").write_text(books_month.rates(first))
    # On a thread: the browser's own loop runs on this one.
    with ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(asyncio.run, books_month.seed(folder, first)).result()
    wanted = os.environ.get("WALK_PICTURES")
    pictures = None if wanted is None else Path(wanted)
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    with GatewayProcess(folder, books_month.CONFIG, {}) as gateway:
        yield Walk(gateway=gateway, browser=browser, first=first, pictures=pictures)


def exact(page: Page, table: str) -> list[str]:
    """The exact amounts of a table's cost column."""
    return [
        one.get_attribute("title") or one.inner_text()
        for one in page.locator(f"#{table} tbody td.cost span").all()
    ]


def tile(page: Page, label: str) -> str:
    """The exact amount of a tile."""
    one = page.locator(".tile", has=page.get_by_text(label, exact=True)).locator(".figure")
    return one.get_attribute("title") or one.inner_text()


def usd(amount_pico_usd: int) -> Decimal:
    return Decimal(amount_pico_usd) / 10**12


@pytest.mark.timeout(600)
def test_a_controller_closes_a_month_from_the_dashboard_alone(walk: Walk) -> None:
    invite(walk)
    carla = walk.person("carla")
    carla.get_by_role("link", name="Month close").click()
    carla.goto(f"{walk.gateway.url}/ui/close?month={walk.month}")
    shows_checklist(walk, carla)
    imports(walk, carla)
    reconciles(walk, carla)
    amir = walk.person("amir", is_dark=True)
    decides(walk, carla, amir)
    gives_to_a_team(walk, carla, amir)
    closes(walk, carla)
    reads_what_comes_after(walk, carla)
    audits(walk)
    # A form that is wrong is answered with 422, and Chromium's console says so.
    assert [one for one in walk.messages if "status of 422" not in one] == []


def invite(walk: Walk) -> None:
    """The administrator makes three people, who set their passwords with their links."""
    admin = walk.open()
    log_in(admin, walk.gateway, ADMIN_KEY)
    admin.get_by_role("link", name="Users").click()
    for login, role in PEOPLE.items():
        admin.get_by_label("Login name").fill(login)
        admin.get_by_label("Name", exact=True).fill(login.title())
        admin.get_by_label("Roles, separated by commas").fill(role)
        admin.get_by_role("button", name="Add").click()
        link = admin.get_by_label("One-time link").input_value()
        page = walk.open()
        page.goto(link)
        for one in page.locator("input[type=password]").all():
            one.fill(PASSWORD)
        page.get_by_role("button").first.click()
        page.wait_for_url(re.compile("/ui/login"))
        page.context.close()
    admin.context.close()


def shows_checklist(walk: Walk, page: Page) -> None:
    told = walk.command("close", "--month", walk.month)
    assert tile(page, "Booked") == f"{usd(told['cost_pico_usd']).normalize():f}"
    assert len(cells(page, "checklist")) == len(told["items"])
    assert [row[2] for row in cells(page, "checklist")] == [
        one["sentence"] for one in told["items"]
    ]
    walk.look(page, "checklist")


def imports(walk: Walk, page: Page) -> None:
    """A vendor's JSON is looked at and taken, refused the second time; a table is mapped first."""
    bill = {"name": "costs.json", "mimeType": "application/json",
            "buffer": books_month.openai_costs(walk.first)}  # fmt: skip
    page.get_by_role("link", name="Imports").click()
    page.get_by_role("button", name="Look at the file").click()
    assert page.locator("#fault-file").inner_text() == "choose a file"
    page.get_by_label("What the file is").select_option("openai-costs")
    page.get_by_label("Provider", exact=True).select_option("openai")
    page.get_by_label("File", exact=True).set_input_files(bill)
    page.get_by_role("button", name="Look at the file").click()
    total = page.locator("#total").get_attribute("title")
    walk.look(page, "preview")
    page.get_by_role("button", name=re.compile("^Take ")).click()
    page.wait_for_url("**taken=1**")
    [taken] = walk.command("reconcile", "imports")
    assert cells(page, "imports")[0][5] == str(taken["row_count"])
    sums = [Decimal(one["amount"]["value"]) for bucket in json.loads(bill["buffer"])["data"]
            for one in bucket["results"]]  # fmt: skip
    assert Decimal(total or "") == sum(sums)

    page.get_by_label("What the file is").select_option("openai-costs")
    page.get_by_label("Provider", exact=True).select_option("openai")
    page.get_by_label("File", exact=True).set_input_files(bill)
    page.get_by_role("button", name="Look at the file").click()
    assert "taken before as import 1" in page.locator("#duplicate").inner_text()
    assert page.get_by_role("button", name=re.compile("^Take ")).count() == 0
    page.get_by_role("link", name="Leave it").click()

    page.get_by_label("What the file is").select_option("csv")
    page.get_by_label("Provider", exact=True).select_option("nord")
    page.get_by_label("File", exact=True).set_input_files(
        {"name": "rechnung.csv", "mimeType": "text/csv",
         "buffer": books_month.nord_invoice(walk.first)}
    )  # fmt: skip
    page.get_by_role("button", name="Look at the file").click()
    walk.look(page, "mapping")
    fill_mapping(page, {**books_month.MAPPING, "day_format": ""})
    page.get_by_role("button", name="Look again").click()
    assert "is no day or instant" in page.locator("#problems").inner_text()
    walk.look(page, "problems")
    fill_mapping(page, books_month.MAPPING)
    page.get_by_role("button", name="Look again").click()
    walk.look(page, "mapped")
    page.get_by_role("button", name=re.compile("^Take ")).click()
    page.wait_for_url("**taken=2**")
    assert [one["account"] for one in walk.command("reconcile", "imports")] == ["nord", "openai"]
    walk.look(page, "imports")


def fill_mapping(page: Page, mapping: dict[str, str]) -> None:
    for name, value in mapping.items():
        place = page.locator(f"[name='{name}']")
        if place.evaluate("one => one.tagName") == "SELECT":
            place.select_option(value)
        else:
            place.fill(value)


def reconciles(walk: Walk, page: Page) -> None:
    """A run: coverage, nine classes that add up, and the rows behind a difference."""
    page.get_by_role("link", name="Reconciliation").click()
    page.get_by_role("button", name=re.compile("^Compare")).click()
    page.wait_for_url("**run=1**")
    told = walk.command("reconcile", "show", "1")
    billed, booked = told["billed_pico_usd"], told["ledger_pico_usd"]
    assert Decimal(tile(page, "Billed by vendors")) == usd(billed)
    assert Decimal(tile(page, "Booked in the ledger")) == usd(booked)
    assert Decimal(tile(page, "Difference")) == usd(billed - booked)
    headline = walk.run("reconcile", "show", "1").splitlines()[0]
    assert f"coverage {page.locator('#coverage').inner_text()}" == headline
    by_class: dict[str, int] = {}
    for one in told["differences"]:
        by_class[one["kind"]] = by_class.get(one["kind"], 0) + one["amount_pico_usd"]
    classes = exact(page, "classes")
    assert len(classes) == 9
    assert sorted(map(Decimal, filter(Decimal, classes))) == sorted(map(usd, by_class.values()))
    assert sum(map(Decimal, classes)) == usd(billed - booked)
    assert {"missing_event", "extra_event", "price_drift", "fx", "tax", "credit"} <= set(by_class)
    assert [Decimal(one) for one in exact(page, "differences")] == [
        usd(one["amount_pico_usd"]) for one in told["differences"]
    ]
    walk.look(page, "run")
    page.get_by_role("link", name="Another price").click()
    # The view is replaced in place.
    page.locator("#differences caption").filter(has_text="Differences: Another price").wait_for()
    [row] = cells(page, "differences")
    page.get_by_role("link", name=re.compile("^Rows of difference")).click()
    assert "the price differs" in page.locator(".headline").inner_text()
    sides = [row[0] for row in cells(page, "rows")]
    assert set(sides) == {"Booked in the ledger", "Billed by the vendor"}
    walk.look(page, "difference")


def decides(walk: Walk, carla: Page, amir: Page) -> None:
    """Who proposed cannot approve; somebody else does, and one is rejected with a reason."""
    carla.get_by_role("link", name="Adjustments").click()
    proposes_by_hand(walk, carla)
    carla.get_by_role("link", name="Adjustments", exact=True).click()
    proposals = {one["kind"]: one for one in walk.command("reconcile", "proposals")}
    assert len(cells(carla, "waiting")) == len(proposals)
    carla.locator("#waiting tbody a").first.click()
    assert "somebody else has to look: Amir" in carla.locator("main").inner_text()
    assert carla.get_by_role("button", name="Approve and post").count() == 0
    walk.look(carla, "own-proposal")
    amir.goto(f"{walk.gateway.url}/ui/adjustments?month={walk.month}")
    for kind, one in proposals.items():
        amir.goto(f"{walk.gateway.url}/ui/adjustments/{one['proposal_id']}")
        assert Decimal(amir.locator("#total").get_attribute("title") or "") == usd(
            one["total_pico_usd"]
        )
        if kind == "allocation":
            amir.get_by_role("button", name="Reject").click()
            assert "say why" in amir.locator("#fault-reason").inner_text()
            amir.get_by_label("Why", exact=True).fill("payments never used it")
            amir.get_by_role("button", name="Reject").click()
        else:
            amir.get_by_role("button", name="Approve and post").click()
            assert "say that you looked" in amir.locator("#fault-looked").inner_text()
            amir.get_by_label("I looked at every line").check()
            walk.look(amir, f"approve-{kind}")
            amir.get_by_role("button", name="Approve and post").click()
        amir.wait_for_url("**done=**")
    amir.get_by_role("link", name="Adjustments").first.click()
    posted = walk.command("reconcile", "adjustments", "--month", walk.month)
    assert [Decimal(one) for one in exact(amir, "posted")] == [
        usd(one["amount_pico_usd"]) for one in posted
    ]
    assert not cells(amir, "waiting")[0][1:]
    walk.look(amir, "adjustments")


def proposes_by_hand(walk: Walk, page: Page) -> None:
    """A move between teams; what does not sum to nothing is said beside the field."""
    page.get_by_role("link", name="Propose an adjustment").click()
    page.get_by_label("Kind").select_option("allocation")
    page.get_by_label("Reason").fill("payments used it")
    page.get_by_label("Team of line 1").select_option("search")
    page.get_by_label("Amount of line 1 in USD").fill("-2.5")
    page.get_by_role("button", name="Propose").click()
    assert "they have to sum to 0" in page.locator("#fault-amount-1").inner_text()
    assert page.get_by_label("Reason").input_value() == "payments used it"
    page.get_by_label("Team of line 2").select_option("payments")
    page.get_by_label("Amount of line 2 in USD").fill("2.50")
    walk.look(page, "by-hand")
    page.get_by_role("button", name="Propose").click()
    page.wait_for_url("**done=proposed**")


def gives_to_a_team(walk: Walk, carla: Page, amir: Page) -> None:
    """Spend of nobody gets its team, by an adjustment that somebody else approves."""
    carla.get_by_role("link", name="Unattributed").click()
    report = walk.command("report", "--by", "team", "--month", walk.month)
    [booked] = [row["cost_pico_usd"] for row in report["rows"] if not row["team"]]
    posted = walk.command("reconcile", "adjustments", "--month", walk.month)
    left = booked + sum(one["amount_pico_usd"] for one in posted if one["team"] == "unattributed")
    assert Decimal(tile(carla, "Spend of nobody")) == usd(left)
    assert Decimal(tile(carla, "Rests on estimates")) == Decimal(
        report["total"]["estimated_cost_usd"]
    )
    walk.look(carla, "unattributed")
    carla.get_by_role("link", name="give to a team").first.click()
    carla.get_by_label("Amount, USD").fill("1000000")
    carla.get_by_role("button", name="Propose").click()
    assert "must lie between 0 and" in carla.locator("#fault-amount").inner_text()
    carla.get_by_label("Team", exact=True).select_option("search")
    carla.get_by_label("Amount, USD").fill("1.05")
    carla.get_by_label("Reason").fill("the crawler's key had no team")
    carla.get_by_role("button", name="Propose").click()
    carla.wait_for_url("**done=proposed**")
    amir.goto(carla.url)
    amir.get_by_label("I looked at every line").check()
    amir.get_by_role("button", name="Approve and post").click()
    amir.wait_for_url("**done=approve**")
    carla.goto(f"{walk.gateway.url}/ui/unattributed?month={walk.month}")
    assert Decimal(tile(carla, "Spend of nobody")) == usd(left) - Decimal("1.05")


def closes(walk: Walk, page: Page) -> None:
    """Soft first; then for good, with a reason for what stays open and a page to confirm."""
    page.get_by_role("link", name="Close", exact=True).click()
    page.get_by_role("button", name="Close softly").click()
    page.wait_for_url("**done=soft**")
    assert walk.command("close", "--month", walk.month)["state"] == "soft"
    walk.look(page, "soft")
    page.get_by_role("button", name="Close for good").click()
    assert page.locator("#fault-accept-unpriced").inner_text() == "give a reason, or mend it"
    for one in page.locator("input[name^=accept-]").all():
        one.fill("one test call, nothing was billed")
    page.get_by_role("button", name="Close for good").click()
    walk.look(page, "confirm")
    page.get_by_role("button", name=re.compile("for good$")).click()
    assert page.locator("#fault-confirm").inner_text() == f"type {walk.month} to confirm"
    page.get_by_label(f"Type {walk.month} to confirm").fill(walk.month)
    page.get_by_role("button", name=re.compile("for good$")).click()
    page.wait_for_url("**done=hard**")
    told = walk.command("close", "--month", walk.month)
    assert told["state"] == "closed"
    assert page.locator("#digest").inner_text() == told["digest"]
    assert page.locator("#anchor").inner_text() == told["anchor"]
    assert Decimal(tile(page, "Total of the month")) == usd(
        told["cost_pico_usd"] + told["adjusted_pico_usd"] + told["late_pico_usd"]
    )
    walk.look(page, "closed")


def reads_what_comes_after(walk: Walk, page: Page) -> None:
    """The digest holds, exports and statements are there, and they say what the commands say."""
    page.get_by_role("link", name="Recompute the digest").click()
    assert "the rows give this digest still" in page.locator("#closed").inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name=re.compile("reconciled")).click()
    rows = csv.DictReader(io.StringIO(download.value.path().read_text()))
    exported = sum(Decimal(row["EffectiveCost"]) for row in rows)
    printed = walk.run("export", "--month", walk.month, "--profile", "reconciled")
    assert exported == sum(
        Decimal(row["EffectiveCost"]) for row in csv.DictReader(io.StringIO(printed))
    )
    issues_the_journal(walk, page)
    page.get_by_role("link", name="Statement of search").click()
    report = walk.command("report", "--month", walk.month, "--by", "project", "--team", "search")
    total = page.locator("#lines tfoot td.cost span").get_attribute("title")
    assert total == report["total"]["cost_usd"]
    walk.look(page, "statement")


def issues_the_journal(walk: Walk, page: Page) -> None:
    """Once, after typing the month; its file is the command's."""
    draft = walk.command("journal", "--month", walk.month, "--draft")
    assert draft["number"] in page.locator("#journal").inner_text()
    issue = page.get_by_role("button", name=re.compile("^Issue the journal"))
    issue.click()
    assert page.locator("#fault-confirm").inner_text() == f"type {walk.month} to confirm"
    page.get_by_label(f"Type {walk.month} to confirm").fill(walk.month)
    issue.click()
    page.wait_for_url("**done=journal**")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    text = download.value.path().read_bytes().decode()
    assert text == walk.run("journal", "--month", walk.month, "--csv")
    assert {row["state"] for row in csv.DictReader(io.StringIO(text, newline=""))} == {"issued"}
    walk.look(page, "journal")


def audits(walk: Walk) -> None:
    """An auditor sees every act and can do none."""
    ada = walk.person("ada")
    ada.goto(f"{walk.gateway.url}/ui/acts?month={walk.month}&check=1")
    whats = [row[3] for row in cells(ada, "acts")]
    assert whats[:3] == [
        "issued the journal of a month",
        "closed a month for good",
        "closed a month softly",
    ]
    assert {"took a vendor's file", "compared a month", "approved and posted", "rejected"} <= set(
        whats
    )
    assert ada.locator("#chain").inner_text().startswith("holds")
    walk.look(ada, "acts")
    for path in ("close", "imports", "reconciliation", "adjustments", "unattributed"):
        ada.goto(f"{walk.gateway.url}/ui/{path}?month={walk.month}")
        assert ada.locator("main button").count() == 0, path
        assert ada.locator("main input:not([type=hidden])").count() == 0, path
    assert ada.request.post(f"{walk.gateway.url}/ui/reconciliation").status == 403
