"""Passwords, one-time links and the audit log, through the pages."""

from __future__ import annotations

import re
import secrets

import httpx
import pytest

from gateway.access.people import NewPerson, Person, PersonChange, new_code
from gateway.access.roles import Grant, Role
from gateway.settings.login import LoginSettings
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, ORIGIN, running_pages
from tests.gateway.people_harness import (
    PASSWORD,
    SAME,
    SESSION_COOKIE,
    fixed_bytes,
    log_in,
    logged_in,
    make,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that tests that change nothing can share a gateway."""
    return "asyncio"


async def test_the_account_page_changes_the_password_and_ends_other_sessions(tmp_path) -> None:
    new = "other words of one's own"
    async with running_pages(tmp_path) as pages:
        await make(pages, "anna", "finance_viewer")
        async with logged_in(pages, "anna") as client, logged_in(pages, "anna") as other:
            page = PageReader((await client.get("/ui/account")).text)
            assert "finance_viewer" in page.text
            for old, first, second, status, said in (
                ("wrong", new, new, 403, "until now is not right"),
                (PASSWORD, "short", "short", 422, "12 characters or more"),
                (PASSWORD, new, "else", 422, "not the same"),
                (PASSWORD, new, new, 200, "is changed"),
            ):
                data = {**page.fields, "old": old, "new": first, "again": second}
                answer = await client.post("/ui/account/password", data=data, headers=SAME)
                assert answer.status_code == status, answer.text
                assert said in answer.text
            assert (await client.get("/ui")).status_code == 200
            assert (await other.get("/ui")).status_code == 303
            assert (await log_in(other, "anna")).status_code == 401
            assert (await log_in(other, "anna", new)).status_code == 303


async def test_guessing_waits_and_the_owners_browser_does_not(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "anna", "auditor")
        async with logged_in(pages, "anna") as owner, pages.browser() as thief:
            said = [await log_in(thief, "anna", "guess number one") for _ in range(7)]
            assert [answer.status_code for answer in said] == [401] * 6 + [429]
            assert said[-1].headers["retry-after"] == "1"
            assert "wait 1 s" in said[-1].text
            assert (await log_in(thief, "anna")).status_code == 429, "the right one waits too"
            owner.cookies.delete(SESSION_COOKIE)
            assert (await log_in(owner, "anna")).status_code == 303
            pages.time.pass_s(2)
            assert (await log_in(thief, "anna")).status_code == 303, "nobody is locked out"


async def test_nothing_tells_a_name_that_exists_from_one_that_does_not(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as admin:
        await make(pages, "anna", "auditor")
        code, digest = new_code(fixed_bytes("invited"))
        assert code
        order = NewPerson(
            login="ines", name="I", grants=(Grant(role=Role.AUDITOR),), code=digest, actor="cli"
        )
        await pages.ledger.call("create_person", order, result_type=Person, timeout_s=10)
        await make(pages, "dora", "auditor")
        await admin.patch("/admin/v1/users/dora", json={"disabled": True})
        answers = set()
        for login, password in (
            ("anna", "wrong password"),
            ("nobody", "wrong password"),
            ("ines", "wrong password"),
            ("dora", PASSWORD),
            ("ANNA ", "wrong password"),
            ("x" * 5000, "y" * 5000),
        ):
            async with pages.browser() as client:
                answer = await log_in(client, login, password)
                text = re.sub(r'value="[^"]*"', "", answer.text)
                answers.add((answer.status_code, text))
        assert len(answers) == 1
        lines = (await admin.get("/admin/v1/audit?limit=100")).json()["lines"]
        failed = [line for line in lines if line["action"] == "login.fail"]
        assert len(failed) == 6
        assert {line["details"]["reason"] for line in failed} == {"wrong_password", "disabled"}
        assert not any("wrong password" in str(line) or "nobody@" in str(line) for line in lines)


async def test_the_audit_log_has_every_change_and_login_and_no_secret(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as admin:
        made = await admin.post(
            "/admin/v1/users", json={"login": "anna", "name": "Anna", "roles": ["auditor"]}
        )
        assert made.status_code == 201, made.text
        url = made.json()["set_password_url"]
        assert url.startswith(f"{ORIGIN}/ui/set-password?code=")
        person = made.json()["user"]["id"]
        async with pages.browser() as client:
            form = PageReader((await client.get(url)).text).fields
            data = {**form, "new": PASSWORD, "again": PASSWORD}
            assert (
                await client.post("/ui/set-password", data=data, headers=SAME)
            ).status_code == 303
            again = await client.post("/ui/set-password", data=data, headers=SAME)
            assert again.headers["location"] == "/ui/login?done=password", "it was sent twice"
            other = {**data, "once": "0" * 32}
            again = await client.post("/ui/set-password", data=other, headers=SAME)
            assert "was used or is too old" in again.text
            assert (await log_in(client, "anna")).status_code == 303
            lines = (await client.get("/admin/v1/audit?limit=100")).json()["lines"]
            assert [line["action"] for line in reversed(lines)] == [
                "person.create", "person.set_role", "person.set_password", "login",
            ]  # fmt: skip
            assert lines[-1]["actor"] == "admin-key"
            assert lines[0]["actor"] == f"person:{person}"
            assert lines[-2]["details"] == {"before": "", "after": "auditor"}
            told = (await client.get("/admin/v1/audit/verification")).json()
            assert told["faults"] == []
            assert told["head"] == lines[0]["hash"]
            older = (await client.get(f"/admin/v1/audit?before={lines[1]['number']}")).json()
            assert older["lines"] == lines[2:]
        for name in ("ledger.db", "ledger.db-wal"):
            content = (pages.folder / name).read_bytes()
            for secret in (PASSWORD, url.partition("code=")[2], ADMIN_KEY):
                assert secret.encode() not in content


async def test_the_users_page_adds_changes_and_resets(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "root", "platform_admin")
        async with logged_in(pages, "root") as client:
            token = PageReader((await client.get("/ui/users")).text).fields["token"]

            async def post(path: str, **fields: str) -> httpx.Response:
                data = {"token": token, "once": secrets.token_hex(16), **fields}
                return await client.post(path, data=data, headers=SAME)

            added = await post("/ui/users", login="olga", name="Olga", roles="team_owner@payments")
            assert "/ui/set-password?code=" in added.text
            rows = {row[1]: row for row in PageReader(added.text).tables["users"]}
            assert rows["olga"][3] == "invited"
            for fields, said in (
                ({"login": "olga", "roles": "auditor"}, "has the login name"),
                ({"login": "Bad Name", "roles": "auditor"}, "a login name has"),
                ({"login": "x", "roles": "root"}, "is no role"),
                ({"login": "x", "roles": "team_owner@nowhere"}, "no team"),
                ({"login": "x", "roles": ""}, "at least one role"),
                ({"login": "x", "roles": "platform_admin, policy_approver"}, "two people"),
            ):
                answer = await post("/ui/users", **fields)
                assert answer.status_code == 422, fields
                assert said in PageReader(answer.text).text
            people = (await client.get("/admin/v1/users")).json()["users"]
            olga = next(user["id"] for user in people if user["login"] == "olga")
            path = f"/ui/users/{olga}"
            assert "is changed" in (await post(path, do="roles", roles="auditor")).text
            assert "is changed" in (await post(path, do="disable")).text
            page = await post(path, do="enable")
            assert {row[1]: row[3] for row in PageReader(page.text).tables["users"]}["olga"] == (
                "invited"
            )
            assert "/ui/set-password?code=" in (await post(path, do="reset")).text
            assert (await post(path, do="become-root")).status_code == 422
            assert (await post("/ui/users/nobody", do="disable")).status_code == 422
        async with pages.browser() as client:
            assert (await client.get("/ui/users")).headers["location"] == (
                "/ui/login?next=%2Fui%2Fusers"
            )
            form = PageReader((await client.get("/ui/login?next=%2Fui%2Fusers")).text).fields
            data = {**form, "login": "root", "password": PASSWORD}
            answer = await client.post("/ui/login", data=data, headers=SAME)
            assert answer.headers["location"] == "/ui/users"


async def test_the_first_administrator_is_made_once(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        code, digest = new_code(fixed_bytes("first"))
        for _ in range(2):
            assert await pages.ledger.call("offer_set_up", digest, result_type=bool, timeout_s=10)
        async with pages.browser() as client, pages.browser() as late:
            assert "API key" in (await client.get("/ui/login")).text, "nobody has a password yet"
            wrong = await client.get("/ui/set-password", params={"code": "a" * 32})
            assert wrong.status_code == 404
            form = PageReader(
                (await client.get("/ui/set-password", params={"code": code})).text
            ).fields
            late_form = PageReader(
                (await late.get("/ui/set-password", params={"code": code})).text
            ).fields
            data = {"login": "root", "new": PASSWORD, "again": PASSWORD}
            forged = await client.post("/ui/set-password", data={**form, **data})
            assert forged.status_code == 403
            made = await client.post("/ui/set-password", data={**form, **data}, headers=SAME)
            assert made.headers["location"] == "/ui/login?done=password"
            second = await late.post(
                "/ui/set-password", data={**late_form, **data, "login": "evil"}, headers=SAME
            )
            assert "was used or is too old" in second.text
            assert (await log_in(client, "root")).status_code == 303
            users = (await client.get("/admin/v1/users")).json()["users"]
            assert [(user["login"], user["roles"]) for user in users] == [
                ("root", ["platform_admin"])
            ]
        assert not await pages.ledger.call("offer_set_up", digest, result_type=bool, timeout_s=10)


async def test_a_one_time_link_ends_after_a_day(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.browser() as client:
        code, digest = new_code(fixed_bytes("late"))
        await pages.ledger.call("offer_set_up", digest, result_type=bool, timeout_s=10)
        pages.time.pass_s(24 * 3600)
        answer = await client.get("/ui/set-password", params={"code": code})
        assert answer.status_code == 404
        assert "was used or is too old" in answer.text


async def test_passwords_can_be_switched_off_and_keys_too(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "anna", "auditor")
        async with logged_in(pages, "anna"):
            pass
    async with (
        running_pages(tmp_path, login=LoginSettings(passwords="never")) as pages,
        pages.browser() as client,
    ):
        text = (await client.get("/ui/login")).text
        assert "API key" in text
        form = PageReader(text).fields
        data = {**form, "login": "anna", "password": PASSWORD}
        answer = await client.post("/ui/login", data=data, headers=SAME)
        assert answer.status_code == 401
        assert "passwords are switched off" in answer.text
    async with (
        running_pages(tmp_path, login=LoginSettings(api_keys=False)) as pages,
        pages.browser() as client,
    ):
        form = PageReader((await client.get("/ui/login")).text).fields
        data = {**form, "key": ADMIN_KEY}
        answer = await client.post("/ui/login", data=data, headers=SAME)
        assert answer.status_code == 401
        assert "keys do not open the dashboard here" in answer.text


async def test_without_the_ledger_nobody_is_recognised_and_the_api_still_takes_the_key(
    tmp_path,
) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "anna", "auditor")
        async with logged_in(pages, "anna") as client, pages.admin() as admin:
            pages.ledger_is_away = True
            for path in ("/ui", "/ui/login", "/ui/account", "/ui/set-password?code=x"):
                answer = await client.get(path)
                assert answer.status_code == 503, path
                assert "The ledger process does not answer" in answer.text
            assert (await client.get("/admin/v1/audit")).status_code == 503
            assert (await admin.get("/admin/v1/teams")).status_code == 200
            pages.ledger_is_away = False
            assert (await client.get("/ui")).status_code == 200


async def test_the_change_itself_goes_through_the_command_too(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        person = await make(pages, "anna", "auditor")
        async with logged_in(pages, "anna") as client:
            change = PersonChange(person="anna", is_disabled=True, actor="cli")
            told = await pages.ledger.call(
                "change_person", change, result_type=Person, timeout_s=10
            )
            assert told.person_id == person.person_id
            assert told.disabled_at_us == pages.time.wall
            assert (await client.get("/ui")).status_code == 303
