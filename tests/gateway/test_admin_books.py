"""`/admin/v1` for what commands do with the books: the ledger's check, statements, notices."""

from __future__ import annotations

import csv
import io

import pytest
import typer

from gateway.access.permissions import ROUTES
from gateway.budgets.messages import AlertWebhook
from gateway.cli.main import build
from gateway.notices.messages import NoticeDeclarations, Schedule
from tests.gateway.ledger_samples import PRICE_PICO
from tests.gateway.pages_harness import PAYMENTS_KEY, running_pages
from tests.gateway.test_ledger_alerts import SECRET
from tests.gateway.test_pages_admin import code_of

pytestmark = pytest.mark.anyio

DAY_US = 24 * 3_600 * 10**6
MONTH, WEEK = "2026-11", "2026-W46"
"""Of two weeks before the samples' today, November 28."""
COST = 100 * PRICE_PICO


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that the tests share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    async with running_pages(tmp_path_factory.mktemp("shared")) as pages:
        await pages.book(ago_us=14 * DAY_US)
        await pages.book(team="search", project="", ago_us=14 * DAY_US)
        yield pages


async def test_the_ledger_is_verified_and_nothing_is_changed(shared) -> None:
    async with shared.admin() as client:
        await client.get("/admin/v1/spend")  # loads what was written
        found = (await client.get("/admin/v1/ledger/verification")).json()
        assert (found["faults"], found["events"]) == ([], 2)
        assert (found["cost_pico_usd"], found["cost_usd"]) == (2 * COST, "0.00001")
        shared.ledger_is_away = True
        try:
            away = await client.get("/admin/v1/ledger/verification")
        finally:
            shared.ledger_is_away = False
        assert (away.status_code, code_of(away)) == (503, "ledger_unavailable")
        refused = await client.post("/admin/v1/ledger/verification")
        assert refused.status_code == 405


@pytest.mark.parametrize("period", [MONTH, WEEK])
async def test_a_statement_is_the_same_as_json_csv_and_page(shared, period: str) -> None:
    path = f"/admin/v1/finance/statements/{period}"
    async with shared.admin() as client:
        found = (await client.get(path, params={"team": "payments"})).json()
        assert found["total"]["charged_pico_usd"] == COST
        table = await client.get(path, params={"team": "payments", "format": "csv"})
        assert table.headers["content-type"] == "text/csv; charset=utf-8"
        [*_, total] = csv.DictReader(io.StringIO(table.text, newline=""))
        assert int(total["amount_pico_usd"]) == COST
        page = await client.get(path, params={"team": "payments", "format": "html"})
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "payments" in page.text
        assert "<script" not in page.text


WRONG = {
    "no team": (f"/{MONTH}", {}, 422),
    "another form": (f"/{MONTH}", {"team": "x", "format": "pdf"}, 422),
    "an unknown parameter": (f"/{MONTH}", {"team": "x", "teams": "y"}, 422),
    "no period": ("/november", {"team": "x"}, 422),
    "a week that is none": ("/2026-W58", {"team": "x"}, 409),
}


@pytest.mark.parametrize(("path", "params", "status"), WRONG.values(), ids=WRONG.keys())
async def test_a_statement_without_meaning_is_refused(shared, path, params, status) -> None:
    async with shared.admin() as client:
        answer = await client.get(f"/admin/v1/finance/statements{path}", params=params)
    assert answer.status_code == status, answer.text


async def test_a_statement_is_sent_once_and_again_when_asked(shared) -> None:
    path = f"/admin/v1/finance/statements/{WEEK}/send"
    async with shared.admin() as client:
        refused = await client.post(path, json={"team": "payments"})
        assert (refused.status_code, code_of(refused)) == (409, "finance_conflict")
        assert "nothing of finance.statements sends" in refused.text
        weekly = Schedule(
            name="weekly", teams=(), every="week", after="end", mail=(), webhooks=("hook",)
        )
        hook = AlertWebhook(name="hook", url="http://127.0.0.1:9/", secret=SECRET)
        wanted = NoticeDeclarations(schedules=(weekly,), webhooks=(hook,))
        await shared.ledger.call("set_notices", wanted, result_type=type(None), timeout_s=30)
        sent = await client.post(path, json={"team": "payments"})
        assert sent.json() == {"period": WEEK, "team": "payments", "schedules": 1}
        twice = await client.post(path, json={"team": "payments"})
        assert (twice.status_code, "sent already" in twice.text) == (409, True)
        again = await client.post(path, json={"team": "payments", "again": True})
        assert again.json()["schedules"] == 1
        unknown = await client.post(path, json={"team": "payments", "twice": True})
        assert unknown.status_code == 422
        open_month = await client.post(
            f"/admin/v1/finance/statements/{MONTH}/send", json={"team": "payments"}
        )
        assert open_month.status_code == 409
        listed = (await client.get("/admin/v1/finance/notices")).json()["notices"]
        assert [one["recipient"] for one in listed] == ["webhook:hook"] * 2
        assert {one["subject"] for one in listed} == {f"Fareway: statement of payments, {WEEK}"}


async def test_generations_are_asked_by_month_and_state(shared) -> None:
    path = "/admin/v1/finance/generations"
    async with shared.admin() as client:
        found = await client.get(path, params={"month": MONTH, "state": "missing"})
        assert found.json() == {"generations": []}
        for wrong in ({}, {"month": MONTH, "state": "odd"}, {"month": MONTH, "by": "day"}):
            assert (await client.get(path, params=wrong)).status_code == 422


async def test_a_key_of_a_team_opens_none_of_it(shared) -> None:
    async with shared.browser(headers={"x-api-key": PAYMENTS_KEY}) as client:
        for path in ("ledger/verification", "finance/notices", f"finance/statements/{MONTH}"):
            answer = await client.get(f"/admin/v1/{path}", params={"team": "search"})
            assert (answer.status_code, code_of(answer)) == (403, "admin_required")


OF_THE_API = {
    "keys create": ("POST", "/keys"),
    "keys list": ("GET", "/keys"),
    "keys rotate": ("POST", "/keys/{key_id}/rotation"),
    "keys revoke": ("DELETE", "/keys/{key_id}"),
    "budgets list": ("GET", "/budgets"),
    "budgets set": ("PUT", "/budgets/{name:path}"),
    "budgets expired": ("GET", "/budgets/expired"),
    "budgets write-off": ("POST", "/budgets/write-off"),
    "users create": ("POST", "/users"),
    "users list": ("GET", "/users"),
    "users set-role": ("PATCH", "/users/{person}"),
    "users disable": ("PATCH", "/users/{person}"),
    "users enable": ("PATCH", "/users/{person}"),
    "users reset-password": ("PATCH", "/users/{person}"),
    "audit verify": ("GET", "/audit/verification"),
    "ledger verify": ("GET", "/ledger/verification"),
    "spend report": ("GET", "/spend"),
    "spend export": ("GET", "/spend/export"),
    "spend machines": ("GET", "/spend/machines"),
    "spend close": ("POST", "/finance/months/{month}/close"),
    "spend journal": ("POST", "/finance/months/{month}/journal"),
    "spend statement": ("POST", "/finance/statements/{period}/send"),
    "spend bridge": ("GET", "/finance/months/{month}/bridge"),
    "spend anomalies": ("GET", "/finance/anomalies"),
    "spend reconcile import": ("POST", "/finance/imports"),
    "spend reconcile imports": ("GET", "/finance/imports"),
    "spend reconcile run": ("POST", "/finance/reconciliations"),
    "spend reconcile runs": ("GET", "/finance/reconciliations"),
    "spend reconcile show": ("GET", "/finance/reconciliations/{run_id}"),
    "spend reconcile generations": ("GET", "/finance/generations"),
    "spend reconcile proposals": ("GET", "/finance/proposals"),
    "spend reconcile propose": ("POST", "/finance/proposals"),
    "spend reconcile approve": ("POST", "/finance/proposals/{proposal_id}/approve"),
    "spend reconcile reject": ("POST", "/finance/proposals/{proposal_id}/reject"),
    "spend reconcile adjustments": ("GET", "/finance/adjustments"),
    "prices proposals": ("GET", "/finance/price-proposals"),
    "prices accept": ("POST", "/finance/price-proposals/{proposal_id}/accept"),
    "prices reject": ("POST", "/finance/price-proposals/{proposal_id}/reject"),
    "spend commitments": ("GET", "/finance/commitments"),
    "spend commitments record": ("POST", "/finance/commitments"),
    "spend commitments withdraw": ("POST", "/finance/commitments/{name}/withdraw"),
}
"""What does over HTTP what a command does."""
OF_A_MACHINE = frozenset(
    {
        "init",
        "quickstart",
        "serve",
        "doctor",
        "config",
        "models",
        "explain",
        "policy",
        "db",
        "bench",
    }
)
"""Commands about files, processes and the speed of the machine that they run on."""


def commands(group, above: str = ""):
    """Every command that can be run, by its words."""
    for name, command in group.commands.items():
        words = f"{above} {name}".strip()
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield words
            yield from commands(command, words)
        else:
            yield words


async def test_everything_that_a_command_does_with_the_books_is_there_over_http() -> None:
    group = typer.main.get_command(build([], loads_all=True))
    found = {words for words in commands(group) if words.split()[0] not in OF_A_MACHINE}
    assert found == set(OF_THE_API)
    for method, path in OF_THE_API.values():
        assert (method, f"/admin/v1{path}") in ROUTES
