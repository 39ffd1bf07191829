"""Every form that does something does it once, however often a browser sends it: a double click."""

from __future__ import annotations

import re
import secrets
from importlib import resources

import anyio
import pytest

from gateway.access.permissions import ROUTES
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, running_pages
from tests.gateway.test_pages_budgets_keys import PASSWORD, person
from tests.gateway.test_pages_finance import SAME, logged_in

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
OTHER = "quite other words of one's own"
NO_ACTS = {"/ui/login", "/ui/logout"}
"""What opens and ends sessions may happen twice."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that its tests can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    async with running_pages(tmp_path_factory.mktemp("pages")) as pages:
        yield pages


async def form_of(client, **fields: str) -> dict[str, str]:
    page = PageReader((await client.get("/ui/account")).text)
    return {"token": page.fields["token"], "once": secrets.token_hex(16), **fields}


async def twice(client, path: str, **fields: str) -> list:
    """Send a form as a double click does: again before the first answer is there."""
    form = await form_of(client, **fields)
    answers: list = []

    async def send() -> None:
        answers.append(await client.post(path, data=form, headers=SAME))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        tasks.start_soon(send)
    answers.append(await client.post(path, data=form, headers=SAME))
    return answers


def made_key(answer) -> str:
    assert answer.status_code == 200, PageReader(answer.text).text
    (key,) = re.findall(r'readonly value="(fw_live_[^"]*)"', answer.text)
    return key


async def keys(client, name: str) -> list[dict]:
    found = (await client.get("/admin/v1/keys")).json()["keys"]
    return [one for one in found if one["name"].split(" ")[0] == name]


async def acts(client, subject: str) -> list[str]:
    lines = (await client.get("/admin/v1/audit?limit=500")).json()["lines"]
    return sorted(line["action"] for line in lines if line["subject"] == subject)


async def test_a_key_is_made_once_and_each_answer_shows_the_same(shared) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        fields = {"team": "payments", "name": "doubled", "budget_usd": "2"}
        answers = await twice(client, "/ui/keys", **fields)
        assert len({made_key(one) for one in answers}) == 1
        (key,) = await keys(admin, "doubled")
        budgets = (await admin.get("/admin/v1/budgets")).json()["budgets"]
        assert [one["limit_usd"] for one in budgets if one["key_id"] == key["key_id"]] == ["2"]
        headers = {"authorization": f"Bearer {made_key(answers[0])}"}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_a_form_that_is_sent_again_with_other_values_is_refused(shared) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        form = await form_of(client, team="payments", name="changed", budget_usd="3")
        made_key(await client.post("/ui/keys", data=form, headers=SAME))
        for changes in ({"budget_usd": "4"}, {"budget_usd": ""}, {"team": "search"}):
            again = await client.post("/ui/keys", data={**form, **changes}, headers=SAME)
            assert again.status_code == 422
            assert "sent before with other values" in again.text
        (key,) = await keys(admin, "changed")
        budgets = (await admin.get("/admin/v1/budgets")).json()["budgets"]
        assert [one["limit_usd"] for one in budgets if one["key_id"] == key["key_id"]] == ["3"]


async def test_a_key_that_cannot_be_made_leaves_no_budget_and_its_form_may_be_sent_again(
    shared,
) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        taken = await admin.post("/admin/v1/keys", json={"team": "payments", "name": "taken"})
        form = await form_of(client, team="payments", name="taken", budget_usd="5")
        refused = await client.post("/ui/keys", data=form, headers=SAME)
        assert refused.status_code == 422
        await admin.delete(f"/admin/v1/keys/{taken.json()['key_id']}")
        budgets = (await admin.get("/admin/v1/budgets")).json()["budgets"]
        assert "5" not in [one["limit_usd"] for one in budgets]
        made_key(await client.post("/ui/keys", data=form, headers=SAME))
        budgets = (await admin.get("/admin/v1/budgets")).json()["budgets"]
        assert "5" in [one["limit_usd"] for one in budgets]


@pytest.mark.parametrize("hours", ["0", "24"])
async def test_a_key_gets_one_successor(shared, hours: str) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        name = f"old{hours}"
        order = {"team": "payments", "name": name, "budget": {"usd": "7"}}
        old = (await admin.post("/admin/v1/keys", json=order)).json()["key_id"]
        answers = await twice(client, f"/ui/keys/{old}", do="rotate", grace_hours=hours)
        assert len({made_key(one) for one in answers}) == 1
        found = await keys(admin, name)
        assert [one["name"] for one in found] == [name, f"{name} 2"]
        assert len([one for one in found if one["state"] == "active"]) == 1 + (hours != "0")
        successor = found[1]["key_id"]
        budgets = (await admin.get("/admin/v1/budgets")).json()["budgets"]
        assert [one["limit_usd"] for one in budgets if one["key_id"] == successor] == ["7"]
        assert await acts(admin, successor) == ["key.create"]


async def test_a_successor_is_not_made_again_after_it_is_void_or_for_other_hours(shared) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        order = {"team": "payments", "name": "voided"}
        old = (await admin.post("/admin/v1/keys", json=order)).json()["key_id"]
        form = await form_of(client, do="rotate", grace_hours="5")
        made_key(await client.post(f"/ui/keys/{old}", data=form, headers=SAME))
        other = {**form, "grace_hours": "0"}
        again = await client.post(f"/ui/keys/{old}", data=other, headers=SAME)
        assert "sent before with other values" in again.text
        found = await keys(admin, "voided")
        assert [one["state"] for one in found] == ["active", "active"]
        await admin.delete(f"/admin/v1/keys/{found[1]['key_id']}")
        again = await client.post(f"/ui/keys/{old}", data=form, headers=SAME)
        assert again.status_code == 422
        assert "void by now" in again.text
        assert len(await keys(admin, "voided")) == 2


async def test_a_successor_that_was_shown_outlives_a_second_form_that_fails(shared) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        order = {"team": "payments", "name": "shown"}
        old = (await admin.post("/admin/v1/keys", json=order)).json()["key_id"]
        form = await form_of(client, do="rotate", grace_hours="0")
        made_key(await client.post(f"/ui/keys/{old}", data=form, headers=SAME))
        shared.refused_revocations.add(old)
        try:
            again = await client.post(f"/ui/keys/{old}", data=form, headers=SAME)
        finally:
            shared.refused_revocations.clear()
        assert again.status_code >= 400
        assert [one["state"] for one in await keys(admin, "shown")] == ["revoked", "active"]


async def test_a_key_is_revoked_once(shared) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        order = {"team": "payments", "name": "revoked"}
        key_id = (await admin.post("/admin/v1/keys", json=order)).json()["key_id"]
        answers = await twice(client, f"/ui/keys/{key_id}", do="revoke")
        assert {one.status_code for one in answers} == {303}
        assert await acts(admin, key_id) == ["key.create", "key.revoke"]


async def test_a_budget_is_added_set_and_removed_once(shared) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        budget = {"name": "one", "scope": "team", "team": "search", "window": "day"}
        answers = await twice(client, "/ui/budgets", do="add", usd="1", **budget)
        assert {one.headers["location"] for one in answers} == {"/ui/budgets?done=set"}
        form = await form_of(client, do="set", usd="2", **budget)
        await client.post("/ui/budgets", data=form, headers=SAME)
        body = {name: budget[name] for name in ("scope", "team", "window")}
        await admin.put("/admin/v1/budgets/one", json={**body, "usd": "3"})
        # An old page that is reloaded changes nothing back.
        again = await client.post("/ui/budgets", data=form, headers=SAME)
        assert again.status_code == 303
        found = (await admin.get("/admin/v1/budgets")).json()["budgets"]
        assert [one["limit_usd"] for one in found if one["name"] == "one"] == ["3"]
        answers = await twice(client, "/ui/budgets", do="remove", name="one")
        assert {one.headers["location"] for one in answers} == {"/ui/budgets?done=removed"}
        assert await acts(admin, "one") == ["budget.remove", *["budget.set"] * 3]


async def test_a_person_is_made_and_changed_once_with_one_link(shared) -> None:
    async with shared.browser() as client, shared.admin() as admin:
        await logged_in(client, ADMIN_KEY)
        fields = {"login": "twin", "name": "Twin", "roles": "auditor"}
        answers = await twice(client, "/ui/users", **fields)
        links = {re.findall(r'id="link" type="text" readonly value="([^"]*)"', one.text)[0]
                 for one in answers}  # fmt: skip
        assert len(links) == 1
        assert "Set the password" in (await client.get(links.pop())).text
        people = (await admin.get("/admin/v1/users")).json()["users"]
        (twin,) = [one["id"] for one in people if one["login"] == "twin"]
        for fields in ({"do": "roles", "roles": "finance_viewer"}, {"do": "disable"},
                       {"do": "enable"}, {"do": "reset"}):  # fmt: skip
            answers = await twice(client, f"/ui/users/{twin}", **fields)
            assert {one.status_code for one in answers} == {200}
        links = {re.findall(r'readonly value="([^"]*)"', one.text)[0] for one in answers}
        assert len(links) == 1, "of the reset"
        assert "Set the password" in (await client.get(links.pop())).text
        assert await acts(admin, f"person:{twin}") == [
            "person.create", "person.disable", "person.enable", "person.reset_password",
            "person.set_role", "person.set_role",
        ]  # fmt: skip


async def test_a_password_is_changed_once_and_no_answer_says_that_it_was_wrong(shared) -> None:
    async with person(shared, "finance_viewer") as client, shared.admin() as admin:
        fields = {"old": PASSWORD, "new": OTHER, "again": OTHER}
        answers = await twice(client, "/ui/account/password", **fields)
        assert [one.status_code for one in answers] == [200, 200, 200]
        lines = (await admin.get("/admin/v1/audit?limit=500")).json()["lines"]
        last = [one["action"] for one in lines[:3]]
        assert last == ["person.set_password", "login", "person.set_password"]


async def test_another_password_in_a_form_that_was_sent_is_not_said_to_be_set(shared) -> None:
    """As after the browser's Back: the form is the old one, and its new password would be lost."""
    async with person(shared, "policy_approver") as client, shared.admin() as admin:
        form = await form_of(client, old=PASSWORD, new=OTHER, again=OTHER)
        assert (await client.post("/ui/account/password", data=form, headers=SAME)).is_success
        third = f"{OTHER}, once more"
        form |= {"old": OTHER, "new": third, "again": third}
        again = await client.post("/ui/account/password", data=form, headers=SAME)
        assert again.status_code == 422
        assert "sent before with other values" in again.text
        order = {"login": "linked", "name": "Linked", "roles": ["auditor"]}
        made = (await admin.post("/admin/v1/users", json=order)).json()
        link = made["set_password_url"]
    async with shared.browser() as client:
        page = PageReader((await client.get(link)).text)
        form = {**page.fields, "new": OTHER, "again": OTHER}
        for password, status in ((OTHER, 303), (OTHER, 303), (third, 422)):
            form |= {"new": password, "again": password}
            answer = await client.post("/ui/set-password", data=form, headers=SAME)
            assert answer.status_code == status


async def test_a_number_of_somebody_elses_form_tells_nothing_of_what_it_made(shared) -> None:
    async with shared.browser() as client, person(shared, "platform_admin") as other:
        await logged_in(client, ADMIN_KEY)
        form = await form_of(client, team="payments", name="whose")
        key = made_key(await client.post("/ui/keys", data=form, headers=SAME))
        users = await form_of(client, login="whose", name="Whose", roles="auditor")
        made = await client.post("/ui/users", data=users, headers=SAME)
        (link,) = re.findall(r'readonly value="([^"]*)"', made.text)
        for path, sent, secret in (("/ui/keys", form, key), ("/ui/users", users, link)):
            taken = {**sent, "token": (await form_of(other))["token"]}
            answer = await other.post(path, data=taken, headers=SAME)
            assert answer.status_code == 422
            assert secret not in answer.text


ACTING = {
    "/ui/keys": {"team": "payments", "name": "x"},
    "/ui/keys/abcdefghjkmn": {"do": "rotate", "grace_hours": "1"},
    "/ui/budgets": {"do": "add", "name": "x", "scope": "organisation", "usd": "1"},
    "/ui/users": {"login": "x", "roles": "auditor"},
    "/ui/users/x": {"do": "disable"},
}


@pytest.mark.parametrize("path", ACTING)
@pytest.mark.parametrize("number", [None, "", "1", "G" * 32])
async def test_a_form_without_a_number_does_nothing(shared, path: str, number) -> None:
    async with shared.browser() as client:
        await logged_in(client, ADMIN_KEY)
        form = await form_of(client, **ACTING[path])
        del form["once"]
        if number is not None:
            form["once"] = number
        answer = await client.post(path, data=form, headers=SAME)
        assert answer.status_code == 422
        assert "form is not complete; open the page again" in answer.text


def test_every_form_that_acts_carries_a_number() -> None:
    found: dict[str, bool] = {}
    for template in resources.files("gateway.dashboard").joinpath("templates").iterdir():
        for form in re.findall(
            r'<form[^>]*method="post".*?</form>', template.read_text(), re.DOTALL
        ):
            path = re.search(r'action="([^"]*)"', form)
            assert path is not None
            found[path[1]] = found.get(path[1], True) and "tokens(" in form
    assert {path for path, is_safe in found.items() if not is_safe} == NO_ACTS
    posted = {
        re.sub(r"{.*?}", "{}", path)
        for method, path in ROUTES
        if method == "POST" and path.startswith("/ui")
    }
    assert posted == {re.sub(r"{{.*?}}", "{}", path) for path in found}
