"""The pages of budgets and keys: the API's checks, own teams only, secrets shown once, all audited."""

from __future__ import annotations

import re
import secrets
from contextlib import asynccontextmanager

import pytest

from gateway.access.people import NewPerson, digest_of
from gateway.access.roles import parse_grant
from gateway.key_rotation import successor_name
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, PAYMENTS_KEY, running_pages
from tests.gateway.test_pages_finance import DAY_US, SAME, logged_in

pytestmark = pytest.mark.anyio
PASSWORD = "correct horse battery staple"
TEAM_BUDGET = {"scope": "team", "team": "payments", "usd": "0.01", "window": "month"}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with a month of spend and two budgets."""
    async with running_pages(tmp_path_factory.mktemp("pages")) as pages:
        for day in range(40):
            await pages.book(team="payments", project="fraud", tokens=6_000, ago_us=day * DAY_US)
            await pages.book(team="search", project="", tokens=10, ago_us=day * DAY_US)
        async with pages.admin() as client:
            for name, order in {
                "payments, month": TEAM_BUDGET,
                "search, month": {"scope": "team", "team": "search", "usd": "5"},
                "all, total": {"scope": "organisation", "usd": "100", "window": "total"},
                "fraud": {"scope": "project", "team": "payments", "project": "fraud", "usd": "1"},
            }.items():
                answer = await client.put(f"/admin/v1/budgets/{name}", json=order)
                assert answer.status_code == 200
        yield pages


@asynccontextmanager
async def person(pages, *roles: str):
    """A browser of somebody with roles."""
    login = f"p{abs(hash(roles)) % 10**9}"
    code = f"code-of-{login}"
    async with pages.browser() as client:
        people = await client.get(
            "/admin/v1/users", headers={"authorization": f"Bearer {ADMIN_KEY}"}
        )
        if login not in people.text:
            order = NewPerson(
                login=login,
                name=login,
                grants=tuple(map(parse_grant, roles)),
                code=digest_of(code.encode()),
                actor="test",
            )
            await pages.ledger.call("create_person", order, result_type=object, timeout_s=30)
            form = PageReader((await client.get(f"/ui/set-password?code={code}")).text).fields
            words = {**form, "code": code, "new": PASSWORD, "again": PASSWORD}
            await client.post("/ui/set-password", data=words, headers=SAME)
        form = PageReader((await client.get("/ui/login")).text).fields
        answer = await client.post(
            "/ui/login", data={**form, "login": login, "password": PASSWORD}, headers=SAME
        )
        assert answer.headers["location"] == "/ui"
        yield client


async def post(client, path: str, **fields: str):
    """Send a form as a page of ours does."""
    page = await client.get("/ui/account")
    form = {"token": PageReader(page.text).fields["token"], "once": secrets.token_hex(16)}
    return await client.post(path, data={**form, **fields}, headers=SAME)


def without_number(text: str) -> str:
    """A page but for the number of its forms, which is another one at each view."""
    return text.replace(PageReader(text).fields["once"], "")


def rows(text: str, table: str) -> list[list[str]]:
    return PageReader(text).tables.get(table, [])[1:]


async def test_a_budget_is_shown_as_the_api_tells_it(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        text = (await client.get("/ui/budgets")).text
        api = (await client.get("/admin/v1/budgets")).json()["budgets"]
        told = {row[0].split(" ")[0].rstrip(","): row for row in rows(text, "budgets")}
        assert len(rows(text, "budgets")) == len(api) == 4
        one = next(budget for budget in api if budget["name"] == "payments, month")
        assert f'title="{one["spent_usd"]}"' in text
        assert f'title="{one["room_usd"]}"' in text
        assert "2026-12-01 00:00" in told["payments"][1]
        assert "refuses requests" in told["payments"]
        assert told["payments"][-1].startswith("50 %, 80 %")
        assert told["all"][1] == "total, never again"


async def test_a_budget_that_will_not_do_says_when_it_ends(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        text = (await client.get("/ui/budgets")).text
        (forecast,) = (row[8] for row in rows(text, "budgets") if row[0].startswith("payments"))
        # 0.0003 USD a day: 0.009 in a month of 30, below the cent.
        assert forecast == "0.01"
        await post(
            client, "/ui/budgets", do="set", name="payments, month", scope="team",
            team="payments", usd="0.0087", window="month", on_exceed="block", alerts_at="50",
        )  # fmt: skip
        text = (await client.get("/ui/budgets")).text
        (forecast,) = (row[8] for row in rows(text, "budgets") if row[0].startswith("payments"))
        assert forecast.endswith("limit on 2026-11-29")
        await post(
            client, "/ui/budgets", do="set", name="payments, month", alerts_at="50, 80, 100",
            on_exceed="block", **TEAM_BUDGET,
        )  # fmt: skip


async def test_setting_a_budget_on_the_page_is_audited_with_who_did_it(shared) -> None:
    async with person(shared, "finance_admin") as client:
        answer = await post(
            client, "/ui/budgets", do="add", name="search, day", scope="team", team="search",
            usd="2.50", window="day", on_exceed="alert", alerts_at="",
        )  # fmt: skip
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/budgets?done=set")
        again = await post(
            client, "/ui/budgets", do="add", name="search, day", scope="team", team="search",
            usd="9",
        )  # fmt: skip
        assert again.status_code == 422
        assert "already" in again.text
        assert 'value="9"' in again.text, "what was filled in is still there"
        gone = await post(client, "/ui/budgets", do="remove", name="search, day")
        assert gone.status_code == 303
    async with shared.admin() as admin:
        entries = (await admin.get("/admin/v1/audit")).json()["lines"]
        ours = [one for one in entries if one["subject"] == "search, day"]
        assert [one["action"] for one in ours] in (
            ["budget.remove", "budget.set"],
            ["budget.set", "budget.remove"],
        )
        assert all(one["actor"].startswith("person:") for one in ours)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"do": "add", "name": "x", "scope": "team", "team": "nobody", "usd": "1"}, "nobody"),
        ({"do": "add", "name": "x", "scope": "team", "team": "payments", "usd": "-1"}, "usd"),
        ({"do": "add", "name": "x", "scope": "team", "usd": "1"}, "team"),
        ({"do": "add", "name": "", "scope": "organisation", "usd": "1"}, "name"),
        (
            {"do": "set", "name": "x", "scope": "organisation", "usd": "1", "alerts_at": "a"},
            "alerts",
        ),
        ({"do": "remove", "name": "nothing"}, "nothing"),
        ({"do": "burn"}, "what to do"),
    ],
)
async def test_what_a_budget_cannot_be_is_told(shared, fields, word) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        answer = await post(client, "/ui/budgets", **fields)
        assert answer.status_code == 422
        problem = re.search(r'id="problem">([^<]*)', answer.text)
        assert problem is not None
        assert word in problem[1]


async def test_a_team_owner_sees_and_sets_the_teams_parts_only(shared) -> None:
    async with person(shared, "team_owner@payments") as client:
        text = (await client.get("/ui/budgets")).text
        assert {row[0].split(",")[0].split(" ")[0] for row in rows(text, "budgets")} == {
            "payments",
            "fraud",
        }
        assert "search, " not in text
        assert "team search" not in text
        assert text.count('value="remove"') == 1, "its project's, not the team's own"
        for fields in (
            {"scope": "organisation"},
            {"scope": "team", "team": "payments"},
            {"scope": "team", "team": "search"},
            {"scope": "cost_tag", "cost_tag": "env=prod"},
        ):
            answer = await post(client, "/ui/budgets", do="add", name="mine", usd="1", **fields)
            assert answer.status_code == 422, fields
        for name in ("search, month", "payments, month"):
            assert (await post(client, "/ui/budgets", do="remove", name=name)).status_code == 422
    async with person(shared, "team_member@payments") as client:
        assert (await client.get("/ui/budgets")).status_code == 200
        assert "<h2>" not in (await client.get("/ui/budgets")).text
        assert (await post(client, "/ui/budgets", do="remove", name="fraud")).status_code == 403
    async with shared.browser() as client:
        await logged_in(client, PAYMENTS_KEY)
        assert (await client.get("/ui/budgets")).status_code == 403
        assert (await client.get("/ui/keys")).status_code == 403


async def test_a_key_is_made_shown_once_replaced_and_revoked(shared) -> None:
    async with person(shared, "team_owner@payments") as client:
        made = await post(
            client, "/ui/keys", team="payments", name="ci", project="fraud", models="small",
            expires_days="30", rpm="60", budget_usd="1.50", budget_window="day",
        )  # fmt: skip
        assert made.status_code == 200
        (secret,) = re.findall(
            r'id="made-key" type="text" readonly value="(fw_live_[^"]*)"', made.text
        )
        text = (await client.get("/ui/keys")).text
        assert secret not in text
        (row,) = (row for row in rows(text, "keys") if row[0].startswith("ci "))
        assert row[1:4] == ["payments", "fraud", "active"]
        assert "60 requests a minute" in row
        key_id = row[0].split(" ")[1]
        after = await post(client, f"/ui/keys/{key_id}", do="rotate", grace_hours="24")
        (second,) = re.findall(r'readonly value="(fw_live_[^"]*)"', after.text)
        assert second != secret
        listed = {row[0].rpartition(" ")[0]: row for row in rows(after.text, "keys")}
        assert set(listed) >= {"ci", "ci 2"}
        void_from = listed["ci"][-2]
        assert void_from < listed["ci 2"][-2]
        budgets = (await client.get("/admin/v1/budgets")).json()["budgets"]
        assert [one["limit_usd"] for one in budgets if one["scope"] == "key"] == ["1.5", "1.5"]
        for name in ("ci", "ci 2"):
            one = listed[name][0].rpartition(" ")[2]
            assert (await post(client, f"/ui/keys/{one}", do="revoke")).status_code == 303
        assert "ci " not in str(
            [row[0] for row in rows((await client.get("/ui/keys")).text, "keys")]
        )
        void = (await client.get("/ui/keys?void=1")).text
        assert {"ci", "ci 2"} <= {row[0].rpartition(" ")[0] for row in rows(void, "keys")}
        gone = await post(client, f"/ui/keys/{key_id}", do="rotate", grace_hours="1")
        assert "void" in gone.text
    async with shared.admin() as admin:
        entries = (await admin.get("/admin/v1/audit")).json()["lines"]
        actions = [one["action"] for one in entries if one["subject"] == key_id]
        assert sorted(actions) == ["key.create", "key.expire", "key.revoke"]


async def test_a_key_without_grace_is_void_at_once(shared) -> None:
    async with shared.admin() as client:
        order = {"team": "payments", "name": "once"}
        made = (await client.post("/admin/v1/keys", json=order)).json()
        path = f"/admin/v1/keys/{made['key_id']}/rotation"
        answer = await client.post(path, json={"grace_hours": 0})
        assert answer.status_code == 201
        states = {
            one["name"]: one["state"] for one in (await client.get("/admin/v1/keys")).json()["keys"]
        }
        assert (states["once"], states["once 2"]) == ("revoked", "active")
        assert (await client.post(path, json={"grace_hours": 1})).status_code == 409
        assert (await client.post(path, json={"grace_hours": 400})).status_code == 422
        foreign = "/admin/v1/keys/abcdefghjkmn/rotation"
        assert (await client.post(foreign, json={})).status_code == 404
        fixed = next(
            one
            for one in (await client.get("/admin/v1/keys")).json()["keys"]
            if one["source"] == "file"
        )
        answer = await client.post(f"/admin/v1/keys/{fixed['key_id']}/rotation", json={})
        assert answer.status_code == 409


async def test_keys_of_others_are_as_if_they_were_not_there(shared) -> None:
    async with shared.admin() as client:
        order = {"team": "search", "name": "theirs"}
        theirs = (await client.post("/admin/v1/keys", json=order)).json()["key_id"]
    async with person(shared, "team_owner@payments") as client:
        assert theirs not in (await client.get("/ui/keys?void=1")).text
        foreign = await post(client, f"/ui/keys/{theirs}", do="revoke")
        unknown = await post(client, "/ui/keys/abcdefghjkmn", do="revoke")
        assert foreign.status_code == unknown.status_code == 422
        assert without_number(foreign.text.replace(theirs, "")) == without_number(
            unknown.text.replace("abcdefghjkmn", "")
        )
        rotated = await post(client, f"/ui/keys/{theirs}", do="rotate", grace_hours="1")
        assert rotated.status_code == 422
        made = await post(client, "/ui/keys", team="search", name="mine")
        assert made.status_code == 422
        assert "fw_live_" not in made.text
    async with person(shared, "team_member@payments") as client:
        assert rows((await client.get("/ui/keys")).text, "keys") == []
        made = await post(client, "/ui/keys", team="payments", name="member's own")
        assert "fw_live_" in made.text
        (own,) = rows((await client.get("/ui/keys")).text, "keys")
        assert own[0].startswith("member's own")
    async with person(shared, "auditor") as client:
        text = (await client.get("/ui/keys")).text
        assert "This month" not in text
        assert "fixed" in text
        assert (await post(client, "/ui/keys", team="payments", name="x")).status_code == 403


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"name": "x", "expires_days": "soon"}, "expires_days"),
        ({"name": "x", "expires_days": "0"}, "expires_days"),
        ({"name": "x", "rpm": "1.5"}, "rpm"),
        ({"name": ""}, "name"),
        ({"name": "x", "models": "none-such"}, "none-such"),
        ({"name": "x", "budget_usd": "a lot"}, "budget"),
        ({"name": "fixed"}, "fixed"),
    ],
)
async def test_what_a_key_cannot_be_is_told_and_the_form_stays(shared, fields, word) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        answer = await post(client, "/ui/keys", team="payments", **fields)
        assert answer.status_code == 422
        problem = re.search(r'id="problem">([^<]*)', answer.text)
        assert problem is not None
        assert word in problem[1]
        assert (await post(client, "/ui/keys/abcdefghjkmn", do="eat")).status_code == 422


async def test_while_the_ledger_is_away_the_pages_say_so(shared) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        token = PageReader((await client.get("/ui/account")).text).fields["token"]
        shared.ledger_is_away = True
        try:
            for path in ("/ui/budgets", "/ui/keys"):
                assert (await client.get(path)).status_code == 503
                form = {"token": token, "once": "0" * 32, "do": "remove", "name": "fraud"}
                assert (await client.post(path, data=form, headers=SAME)).status_code == 503
        finally:
            shared.ledger_is_away = False


NAMES = {
    "the first successor": ("ci", {"ci"}, "ci 2"),
    "the next one": ("ci 2", {"ci", "ci 2"}, "ci 3"),
    "past one that is taken": ("ci", {"ci 2", "ci 3"}, "ci 4"),
    "of a long name": ("x" * 128, set(), "x" * 121 + " 2"),
    "of a number alone": ("7", set(), "7 2"),
}


@pytest.mark.parametrize(("name", "taken", "wanted"), NAMES.values(), ids=NAMES.keys())
def test_a_successor_has_a_name_that_says_so(name, taken, wanted) -> None:
    assert successor_name(name, taken) == wanted


async def test_spend_of_a_key_is_shown_to_whoever_may_see_spend_of_its_team(shared) -> None:
    async with person(shared, "auditor", "team_member@payments") as client:
        text = (await client.get("/ui/keys")).text
    spent = {row[1]: row[4] for row in PageReader(text).tables["keys"][1:]}
    assert spent["search"] == "–"
    assert spent["payments"] != "–"
