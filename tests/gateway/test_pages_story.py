"""Journal, cost centres and adjustments over HTTP: `/admin/v1`."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack

import pytest

from gateway.finance.spend_question import Reporting
from gateway.http.asgi import Application
from gateway.http.pages import make_pages
from gateway.ledger.views import CostCentre
from gateway.settings.finance import FinanceSettings
from gateway.settings.journal import JournalAccountSettings, JournalSettings
from tests.gateway.ledger_samples import PRICE_PICO
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import running_pages
from tests.gateway.people_harness import SAME, csrf, logged_in, make

pytestmark = pytest.mark.anyio

MONTH = "/admin/v1/finance/months/2026-11"
CLOSE = "/ui/close?month=2026-10"
JOURNAL = "/ui/close/2026-10"
DAY_US = 86_400_000_000
ACCOUNTS = JournalAccountSettings(expense="6815", clearing="3300", rounding="6899")
CENTRES = (CostCentre("payments", "", "4711"),)


def reporting(folder, **changes) -> Reporting:
    journal = JournalSettings(entity="DE01", accounts=ACCOUNTS)
    finance = FinanceSettings(**({"journal": journal} | changes))
    return Reporting(finance=finance, base_dir=folder, cost_centres=CENTRES)


async def test_a_journal_is_issued_shown_and_downloaded(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        await pages.book(tokens=200_000_000)
        await pages.book(tokens=1, ago_us=50 * 86_400 * 10**6)
        pages.time.wall += 40 * 86_400 * 10**6
        path = f"{MONTH}/journal"
        answer = await client.get(path, params={"draft": "true"})
        assert (answer.status_code, "no journal is configured" in answer.text) == (409, True)
        pages.service.reporting = reporting(tmp_path)
        answer = await client.get(path, params={"draft": "true"})
        assert answer.json()["number"] == "DRAFT-FW-2026-11"
        answer = await client.post(path, json={})
        assert (answer.status_code, "is not closed" in answer.text) == (409, True)
        for month in ("2026-10", "2026-11"):
            close = f"/admin/v1/finance/months/{month}/close"
            body = {"step": "hard", "accepted": {"reconciliation": "no bill", "delay": "x"}}
            assert (await client.post(close, json=body)).status_code == 200
        assert (await client.get(path)).status_code == 409
        issued = await client.post(path, json={})
        assert issued.status_code == 200
        document = issued.json()
        assert document["total_pico_usd"] == 200_000_000 * PRICE_PICO
        assert document["issued_by"]
        assert (await client.get(path)).json() == document
        answer = await client.get(path, params={"format": "csv"})
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert answer.headers["content-disposition"] == 'attachment; filename="FW-2026-11.csv"'
        assert answer.text.count("FW-2026-11,issued") == len(document["lines"])
        pages.service.reporting = reporting(tmp_path, currency="EUR", rates_file="none.csv")
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, "finance.rates_file")
        pages.service.reporting = reporting(tmp_path, currency="EUR")
        assert (await client.get(path)).status_code == 409


async def test_spend_is_told_by_cost_centre_and_with_adjustments(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        await pages.book()
        pages.service.reporting = reporting(tmp_path)
        params = {"month": "2026-11", "by": "cost_centre", "with_adjustments": "true"}
        answer = (await client.get("/admin/v1/spend", params=params)).json()
        [row] = answer["rows"]
        assert row["cost_centre"] == "4711"
        assert row["charged_pico_usd"] == row["cost_pico_usd"] == 100 * PRICE_PICO
        params["by"] = "model"
        refused = await client.get("/admin/v1/spend", params=params)
        assert (refused.status_code, "not told by model" in refused.text) == (422, True)


async def test_a_bridge_and_anomalies_are_told(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        await pages.book()
        await pages.ledger.call("flush", None, result_type=type(None), timeout_s=30)
        answer = (await client.get(f"{MONTH}/bridge")).json()
        assert (answer["before"], answer["before_usd"]) == ("2026-10", "0")
        assert answer["after_pico_usd"] == 100 * PRICE_PICO
        assert answer["effects"]["mix_pico_usd"] == 100 * PRICE_PICO
        path = "/admin/v1/finance/anomalies"
        days = {"from": "2026-11-01", "to": "2026-11-30"}
        assert (await client.get(path, params=days)).json() == {"anomalies": []}
        refused = await client.get(path, params=days | {"from": "2026-01-01"})
        assert (refused.status_code, "62 days" in refused.text) == (409, True)


@pytest.mark.slow
async def test_a_journal_is_issued_on_the_page_of_its_close(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, AsyncExitStack() as browsers:

        async def configured(before, **changes):
            """The same browser once workers have another configuration."""
            pages.service.reporting = reporting(tmp_path, **changes)
            pages.app = Application(pages.service, make_pages)
            return await browsers.enter_async_context(pages.browser(cookies=before.cookies))

        await pages.book(tokens=200_000_000, ago_us=50 * DAY_US)
        for login, role in (("carla", "finance_admin"), ("vera", "finance_viewer")):
            await make(pages, login, role)
        async with logged_in(pages, "carla") as carla:
            client = carla
            # A month that is open has no journal on its page.
            assert 'id="journal' not in (await client.get(CLOSE)).text
            body = {"step": "hard", "accepted": {"reconciliation": "no bill"}}
            path = "/admin/v1/finance/months/2026-10/close"
            closed = await client.post(path, json=body, headers=await csrf(client))
            assert closed.status_code == 200
            assert "no journal is configured" in (await client.get(CLOSE)).text
            client = await configured(client)
            form = await once_of(client)
            draft = PageReader((await client.get(CLOSE)).text).text
            assert "Draft DRAFT-FW-2026-10" in draft
            for wrong in ({}, {"confirm": "2026-09"}):
                answer = await client.post(JOURNAL, data={**form, **wrong}, headers=SAME)
                assert (answer.status_code, "type 2026-10 to confirm" in answer.text) == (422, True)
            forged = {**form, "confirm": "2026-10"} | {"token": "0" * 64}
            assert (await client.post(JOURNAL, data=forged, headers=SAME)).status_code == 403
            form["confirm"] = "2026-10"
            euros = await configured(client, currency="EUR")
            answer = await euros.post(JOURNAL, data=form, headers=SAME)
            assert (answer.status_code, "need exchange rates" in answer.text) == (422, True)
            client = await configured(client)
            for _ in range(2):  # the second as by a reload
                answer = await client.post(JOURNAL, data=form, headers=SAME)
                assert answer.headers["location"] == f"{CLOSE}&done=journal"
            page = (await client.get(answer.headers["location"])).text
            assert "The journal of the month is issued." in page
            assert (
                "<button" not in page.partition('id="journal-title"')[2].partition("</section>")[0]
            )
            link = re.search(r'href="([^"]*format=csv)" download', page)
            assert link is not None
            csv = await client.get(link[1])
            assert csv.headers["content-disposition"] == 'attachment; filename="FW-2026-10.csv"'
            issued = (await client.get("/admin/v1/finance/months/2026-10/journal")).json()
            facts = PageReader(page).text
            assert f"{issued['total']} USD, {len(issued['lines'])} lines" in facts
            assert issued["digest"] in facts
            assert "by Carla" in facts
            changed = JournalSettings(entity="DE02", accounts=ACCOUNTS)
            client = await configured(client, journal=changed)
            assert "Issue another journal of October 2026" in (await client.get(CLOSE)).text
            again = await once_of(client) | {"confirm": "2026-10", "do": "revise"}
            answer = await client.post(JOURNAL, data=again, headers=SAME)
            assert answer.status_code == 303
            assert "Document FW-2026-10-2" in PageReader((await client.get(CLOSE)).text).text
            acts = PageReader((await client.get("/ui/acts?month=2026-10")).text).text
            assert acts.count("issued the journal of a month") == 2
        async with logged_in(pages, "vera") as client:
            page = (await client.get(CLOSE)).text
            assert "format=csv" in page
            assert "<button" not in page.partition('<main id="main">')[2]
            form = await once_of(client, otherwise="0" * 32) | {"confirm": "2026-10"}
            assert (await client.post(JOURNAL, data=form, headers=SAME)).status_code == 403


async def once_of(client, *, otherwise: str = "") -> dict[str, str]:
    """What a form of the close page carries, to issue a journal."""
    page = (await client.get(CLOSE)).text
    found = re.search(r'name="once" value="([0-9a-f]{32})"', page)
    once = otherwise if found is None else found[1]
    return {"token": PageReader(page).fields["token"], "once": once, "do": "journal"}
