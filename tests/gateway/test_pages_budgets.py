"""`/admin/v1/budgets`: strict bodies, effective answers, and where each budget stands."""

from __future__ import annotations

import pytest

from gateway.budgets.messages import (
    BudgetDeclaration,
    BudgetDeclarations,
    BudgetRules,
    BudgetScope,
    LeaseReply,
    LeaseRequest,
    LeaseWant,
)
from gateway.clock import from_microseconds
from gateway.ledger.budget_leases import LEASE_S
from tests.gateway.ledger_samples import PRICE_PICO
from tests.gateway.pages_harness import running_pages

pytestmark = pytest.mark.anyio

TEAM = {"scope": "team", "team": "payments", "usd": "0.05"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that tests that change nothing can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway for tests of refusals."""
    async with running_pages(tmp_path_factory.mktemp("shared")) as pages:
        yield pages


async def test_a_budget_is_set_and_its_effective_values_come_back(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        await pages.book(tokens=100)
        await pages.ledger.call("flush", None, result_type=type(None), timeout_s=30)
        answer = await client.put("/admin/v1/budgets/payments, monthly/cap", json=TEAM)
        assert answer.status_code == 200
        budget = answer.json()
        spent = 100 * PRICE_PICO
        assert budget == {
            "name": "payments, monthly/cap",
            "scope": "team",
            "team": "payments",
            "project": None,
            "key_id": None,
            "cost_tag": None,
            "window": "month",
            "time_zone": "UTC",
            "on_exceed": "block",
            "alerts_at": [50, 80, 100],
            "source": "database",
            "window_start": "2026-11-01T00:00:00Z",
            "resets_at": "2026-12-01T00:00:00Z",
            "limit_usd": "0.05",
            "limit_pico_usd": 50_000_000_000,
            "spent_usd": "0.000005",
            "spent_pico_usd": spent,
            "reserved_usd": "0",
            "reserved_pico_usd": 0,
            "exposed_usd": "0",
            "exposed_pico_usd": 0,
            "room_usd": "0.049995",
            "room_pico_usd": 50_000_000_000 - spent,
            "expired_usd": "0",
            "expired_pico_usd": 0,
        }
        assert (await client.get("/admin/v1/budgets")).json() == {"budgets": [budget]}
        again = {**TEAM, "usd": "1", "window": "total", "on_exceed": "alert", "alerts_at": [90]}
        changed = (await client.put("/admin/v1/budgets/payments, monthly/cap", json=again)).json()
        assert (changed["limit_usd"], changed["resets_at"]) == ("1", None)
        gone = await client.delete("/admin/v1/budgets/payments, monthly/cap")
        assert gone.json() == {"name": "payments, monthly/cap", "state": "removed"}
        assert (await client.get("/admin/v1/budgets")).json() == {"budgets": []}
        answer = await client.delete("/admin/v1/budgets/payments, monthly/cap")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "budget_not_found")
        lines = (await client.get("/admin/v1/audit")).json()["lines"]
        changes = [line for line in lines if line["action"].startswith("budget.")]
        assert [line["action"] for line in changes] == ["budget.remove", "budget.set", "budget.set"]
        assert {line["actor"] for line in changes} == {"admin-key"}


async def test_what_a_worker_that_is_gone_has_reserved_is_shown_and_written_off(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        endless = {**TEAM, "window": "total"}
        assert (await client.put("/admin/v1/budgets/cap", json=endless)).status_code == 200
        assert (await client.get("/admin/v1/budgets/expired")).json() == {"expired": []}
        amount = 30_000_000_000
        want = LeaseWant(
            budget_id=1, window_start_us=0, wanted_pico_usd=amount, at_least_pico_usd=amount
        )
        asked = LeaseRequest(directory="gone", session=b"s" * 16, wants=(want,))
        await pages.ledger.call("lease_budgets", asked, result_type=LeaseReply, timeout_s=30)
        heard_of = pages.time.wall
        pages.time.pass_s(LEASE_S)
        (found,) = (await client.get("/admin/v1/budgets/expired")).json()["expired"]
        assert found == {
            "budget": "cap",
            "window_start": "1970-01-01T00:00:00Z",
            "worker": "gone",
            "session": (b"s" * 16).hex(),
            "leases": 1,
            "amount_usd": "0.03",
            "amount_pico_usd": amount,
            "heard_of_at": from_microseconds(heard_of).isoformat().replace("+00:00", "Z"),
        }
        for body in ({}, {"worker": "gone", "all": True}, {"worker": ""}):
            answer = await client.post("/admin/v1/budgets/write-off", json=body)
            assert answer.status_code == 422
        done = await client.post("/admin/v1/budgets/write-off", json={"worker": "gone"})
        assert done.json() == {"written_off": [found]}
        (budget,) = (await client.get("/admin/v1/budgets")).json()["budgets"]
        assert budget["reserved_pico_usd"] == 0
        again = await client.post("/admin/v1/budgets/write-off", json={"worker": "gone"})
        assert (again.status_code, again.json()["error"]["code"]) == (404, "reservation_not_found")
        (line, *_) = (await client.get("/admin/v1/audit")).json()["lines"]
        assert (line["action"], line["actor"]) == ("budget.write_off", "admin-key")


async def test_budgets_of_the_file_are_changed_only_there(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        declared = BudgetDeclaration(name="cap", scope=BudgetScope.ORGANISATION, limit_pico_usd=5)
        await pages.ledger.call(
            "set_budgets",
            BudgetDeclarations(budgets=(declared,)),
            result_type=BudgetRules,
            timeout_s=30,
        )
        for answer in (
            await client.put("/admin/v1/budgets/cap", json=TEAM),
            await client.delete("/admin/v1/budgets/cap"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "budget_conflict")


async def test_a_key_is_made_together_with_its_budget(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as client:
        body = {"team": "payments", "name": "k", "budget": {"usd": "0.0005", "window": "day"}}
        answer = await client.post("/admin/v1/keys", json=body)
        assert answer.status_code == 201
        made = answer.json()
        assert (made["budget"]["usd"], made["budget"]["window"]) == ("0.0005", "day")
        (budget,) = (await client.get("/admin/v1/budgets")).json()["budgets"]
        assert (budget["scope"], budget["key_id"]) == ("key", made["key_id"])
        assert (budget["limit_usd"], budget["team"]) == ("0.0005", "payments")
        # A key that cannot be made leaves no budget behind.
        answer = await client.post("/admin/v1/keys", json=body)
        assert answer.status_code == 409
        assert len((await client.get("/admin/v1/budgets")).json()["budgets"]) == 1
        # A budget of it can be set anew by its id.
        again = {"scope": "key", "key_id": made["key_id"], "usd": "2"}
        answer = await client.put(f"/admin/v1/budgets/{budget['name']}", json=again)
        assert (answer.status_code, answer.json()["team"]) == (200, "payments")


# GW-095: an old or misspelt name is an error, never a key or a team without a limit.
REFUSED = {
    "a misspelt field": ({**TEAM, "max_usd": "0.0005"}, "max_usd"),
    "no amount": ({"scope": "team", "team": "payments"}, "usd"),
    "an amount as a binary fraction": ({**TEAM, "usd": 0.05}, "usd"),
    "an amount below zero": ({**TEAM, "usd": "-1"}, "usd"),
    "more than SQLite can hold": ({**TEAM, "usd": "9000001"}, None),
    "a scope without its name": ({"scope": "team", "usd": "1"}, None),
    "a name that has no effect": ({**TEAM, "project": "fraud"}, None),
    "a team that there is not": ({**TEAM, "team": "nobody"}, "team"),
    "a project that there is not": (
        {"scope": "project", "team": "payments", "project": "x", "usd": "1"},
        "project",
    ),
    "a key that there is not": ({"scope": "key", "key_id": "nobody", "usd": "1"}, "key_id"),
    "a window that there is not": ({**TEAM, "window": "hour"}, "window"),
    "a zone that there is not": ({**TEAM, "time_zone": "Mars/Base"}, "time_zone"),
    "thresholds that fall": ({**TEAM, "alerts_at": [80, 50]}, "alerts_at"),
}


@pytest.mark.parametrize(("body", "param"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_no_budget_is_refused(shared, body, param) -> None:
    async with shared.admin() as client:
        answer = await client.put("/admin/v1/budgets/x", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_field")
        if param is not None:
            assert answer.json()["error"]["param"] == param
        assert (await client.get("/admin/v1/budgets")).json() == {"budgets": []}


@pytest.mark.parametrize("field", ["budgett", "max_budget"])
async def test_a_key_with_an_unknown_field_is_not_made(shared, field) -> None:
    async with shared.admin() as client:
        body = {"team": "payments", "name": "k", field: {"max_usd": "0.0005"}}
        answer = await client.post("/admin/v1/keys", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (422, field)
        keys = (await client.get("/admin/v1/keys")).json()["keys"]
        assert all(key["name"] != "k" for key in keys)
