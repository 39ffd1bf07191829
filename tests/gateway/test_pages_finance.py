"""`/admin/v1/finance`: a month from its bill to its close, strict fields, the right refusals."""

from __future__ import annotations

import base64
import json

import pytest

from tests.gateway.ledger_samples import NOON_US
from tests.gateway.pages_harness import PAYMENTS_KEY, running_pages

pytestmark = pytest.mark.anyio

API = "/admin/v1/finance"
FORTY_DAYS_US = 40 * 86_400 * 10**6  # before 2026-11-28: 2026-10-19
USD = 10**12


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that tests that change nothing can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway for tests of refusals."""
    async with running_pages(tmp_path_factory.mktemp("shared")) as pages:
        yield pages


def costs(value: str) -> str:
    """OpenAI's costs of October, all on the 19th."""
    result = {
        "object": "organization.costs.result",
        "amount": {"value": value, "currency": "usd"},
        "line_item": "m, input",
    }
    first = 1_790_812_800  # 2026-10-01
    days = [
        {"start_time": first + day * 86_400, "results": [result] if day == 18 else []}
        for day in range(31)
    ]
    return json.dumps({"data": days})


def bill(value: str = "1", **changes) -> dict:
    return {
        "source": "openai-costs",
        "account": "up",
        "file_name": "costs.json",
        "content": costs(value),
    } | changes


async def test_a_month_goes_from_its_bill_to_its_close(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        await pages.book(ago_us=FORTY_DAYS_US, provider="up", upstream_model="m", deployment="up/m")
        kept = (await client.post(f"{API}/imports", json=bill())).json()
        assert (kept["is_new"], kept["total_usd"], kept["total_pico_usd"]) == (True, "1", USD)
        again = (await client.post(f"{API}/imports", json=bill())).json()
        assert again["is_new"] is False
        assert len((await client.get(f"{API}/imports")).json()["imports"]) == 1

        made = await client.post(f"{API}/reconciliations", json={"month": "2026-10"})
        assert made.status_code == 201
        run = made.json()
        [difference] = run["differences"]
        assert difference["kind"] == "price_drift"
        assert difference["amount_pico_usd"] == USD - run["ledger_pico_usd"]
        number = run["run_id"]
        assert (await client.get(f"{API}/reconciliations/{number}")).json() == run
        listed = (await client.get(f"{API}/reconciliations?month=2026-10")).json()["runs"]
        assert [one["run_id"] for one in listed] == [number]

        lacking = await client.post(f"{API}/months/2026-10/close", json={"step": "hard"})
        assert lacking.status_code == 409
        assert "proposals 1 are neither approved" in lacking.json()["error"]["message"]
        assert lacking.json()["error"]["code"] == "finance_conflict"

        [proposal] = (await client.get(f"{API}/proposals?state=proposed")).json()["proposals"]
        posted = await client.post(f"{API}/proposals/{proposal['proposal_id']}/approve")
        assert (posted.json()["state"], posted.json()["decided_by"]) == ("posted", "admin-key")
        [adjustment] = (await client.get(f"{API}/adjustments?from=2026-10")).json()["adjustments"]
        assert adjustment["team"] == "payments"
        assert (await client.get(f"{API}/adjustments?team=search")).json() == {"adjustments": []}

        status = (await client.get(f"{API}/months/2026-10")).json()
        assert {item["state"] for item in status["items"]} == {"ok"}
        done = (await client.post(f"{API}/months/2026-10/close", json={"step": "hard"})).json()
        assert (done["state"], done["closed_by"]) == ("closed", "admin-key")
        assert len(done["digest"]) == len(done["anchor"]) == 64
        [proof] = (await client.get(f"{API}/closed-months")).json()["months"]
        assert (proof["month"], proof["is_same"]) == ("2026-10", True)


async def test_a_move_between_teams_is_proposed_and_rejected(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        lines = [
            {"amount_usd": "-1.5", "team": "unattributed"},
            {"amount_usd": "1.5", "team": "search", "day": "2026-10-19"},
        ]
        body = {"period": "2026-10", "kind": "reattribution", "reason": "theirs", "lines": lines}
        made = await client.post(f"{API}/proposals", json=body)
        assert (made.status_code, made.json()["total_usd"]) == (201, "0")
        number = made.json()["proposal_id"]
        done = await client.post(f"{API}/proposals/{number}/reject")
        assert done.json()["state"] == "rejected"
        twice = await client.post(f"{API}/proposals/{number}/approve")
        assert twice.status_code == 409


async def test_a_file_that_is_no_text_comes_in_base64(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        encoded = base64.b64encode(costs("1").encode()).decode()
        body = bill(content=None, content_base64=encoded)
        assert (await client.post(f"{API}/imports", json=body)).json()["is_new"]


LINE = {"amount_usd": "1", "team": "search"}
PROPOSAL = {"period": "2026-10", "kind": "tax", "reason": "VAT", "lines": [LINE]}
REFUSED = {
    "an unknown field": ("imports", bill(colour="red"), "colour"),
    "an unknown provider": ("imports", bill(account="nobody"), "no provider 'nobody'"),
    "an unknown format": ("imports", bill(source="excel"), "source"),
    "no file": ("imports", bill(content=None), "give one of content and content_base64"),
    "two files": ("imports", bill(content_base64="e30="), "give one of"),
    "no base64": ("imports", bill(content=None, content_base64="%"), "is no base64"),
    "a page for a file": ("imports", bill(content="<html>"), "UNREADABLE: costs.json: is no JSON"),
    "a month that is none": ("reconciliations", {"month": "2026-13"}, "month"),
    "an amount that is none": (
        "proposals",
        PROPOSAL | {"lines": [LINE | {"amount_usd": "much"}]},
        "is no plain decimal number",
    ),
    "a step that is none": ("months/2026-10/close", {"step": "open"}, "step"),
}


@pytest.mark.parametrize(("path", "body", "says"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_wrong_field_is_told(shared, path, body, says) -> None:
    async with shared.admin() as client:
        answer = await client.post(f"{API}/{path}", json=body)
    assert answer.status_code == 422, answer.text
    assert says in answer.text


async def test_what_does_not_exist_is_not_found(shared) -> None:
    async with shared.admin() as client:
        for path in ("reconciliations/99",):
            answer = await client.get(f"{API}/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                404,
                "finance_not_found",
            )
        assert (await client.post(f"{API}/proposals/99/approve")).status_code == 404


async def test_a_teams_key_gets_nowhere_near(shared) -> None:
    async with shared.browser(headers={"authorization": f"Bearer {PAYMENTS_KEY}"}) as client:
        for path in ("imports", "adjustments", "months/2026-10"):
            assert (await client.get(f"{API}/{path}")).status_code == 403


def test_the_day_of_the_bill_is_the_day_of_the_attempt() -> None:
    assert (NOON_US - FORTY_DAYS_US) // 86_400_000_000 * 86_400 == 1_790_812_800 + 18 * 86_400
