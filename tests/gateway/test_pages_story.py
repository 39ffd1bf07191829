"""Journal, cost centres and adjustments over HTTP: `/admin/v1`."""

from __future__ import annotations

import pytest

from gateway.finance.spend_question import Reporting
from gateway.ledger.views import CostCentre
from gateway.settings.finance import FinanceSettings
from gateway.settings.journal import JournalAccountSettings, JournalSettings
from tests.gateway.ledger_samples import PRICE_PICO
from tests.gateway.pages_harness import running_pages

pytestmark = pytest.mark.anyio

MONTH = "/admin/v1/finance/months/2026-11"
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
