"""People on pages and API: roles to the letter, sessions that end at once, no forged forms."""

from __future__ import annotations

import re

import pytest

from gateway.access.permissions import ROUTES, Action
from gateway.access.roles import GRANTABLE, TEAM_ROLES
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ADMIN_KEY, ORIGIN, PAYMENTS_KEY, running_pages
from tests.gateway.people_harness import (
    PASSWORD,
    SAME,
    SESSION_COOKIE,
    csrf,
    log_in,
    logged_in,
    make,
)
from tests.gateway.test_access_permissions import matrix

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the module, so that tests that change nothing can share a gateway."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(tmp_path_factory):
    """A gateway with one person of each role, `team_*` of payments, and spend of two teams."""
    async with running_pages(tmp_path_factory.mktemp("shared")) as pages:
        await pages.book(tokens=3)
        await pages.book(tokens=5, team="search", project="", model="secret-model", key_id="k9")
        for role in sorted(GRANTABLE):
            team = "@payments" if role in TEAM_ROLES else ""
            await make(pages, role.value, f"{role.value}{team}")
        yield pages


BODIES = {
    ("POST", "/admin/v1/keys"): {"team": "nowhere", "name": "x"},
    ("POST", "/admin/v1/users"): {"login": "NO", "roles": ["auditor"]},
    ("PATCH", "/admin/v1/users/{person}"): {},
}
PUBLIC = {route for route, action in ROUTES.items() if action is Action.PUBLIC}


@pytest.mark.ci
async def test_every_route_answers_every_role_as_the_matrix_says(shared) -> None:
    table = matrix()
    for role in sorted(GRANTABLE):
        async with logged_in(shared, role.value) as client:
            headers = await csrf(client)
            for method, path in sorted(set(ROUTES) - PUBLIC):
                allowed = table[method, path][role] != "-"
                body = BODIES.get((method, path))
                where = re.sub(r"\{\w+\}", "nobody-knows", path)
                if path.startswith("/ui"):
                    token = PageReader((await client.get("/ui")).text).fields["token"]
                    answer = await client.request(
                        method, where, data={"token": token} if method == "POST" else None,
                        headers=SAME,
                    )  # fmt: skip
                else:
                    answer = await client.request(method, where, json=body, headers=headers)
                said = (role, method, path, answer.status_code, answer.text[:300])
                if allowed:
                    assert answer.status_code in (200, 404, 422), said
                    assert "role_required" not in answer.text, said
                else:
                    assert answer.status_code == 403, said
                    assert "none of your roles" in answer.text, said


async def test_without_a_session_no_route_but_the_public_ones_says_anything(shared) -> None:
    async with shared.browser() as client:
        for method, path in sorted(set(ROUTES) - PUBLIC):
            where = re.sub(r"\{\w+\}", "x", path)
            answer = await client.request(method, where, headers=SAME)
            if path.startswith("/ui"):
                assert answer.status_code == 303, where
                assert answer.headers["location"].startswith("/ui/login"), where
            else:
                assert answer.status_code == 401, where


async def test_a_team_sees_nothing_of_another_by_no_parameter(shared) -> None:
    asked = (
        "/ui",
        "/admin/v1/spend",
        "/admin/v1/spend?by=project",
        "/admin/v1/spend?by=model&by=deployment",
        "/admin/v1/spend?by=key",
        "/admin/v1/spend?team=search",
        "/admin/v1/spend?key=k9&by=key",
        "/admin/v1/spend?model=secret-model",
        "/admin/v1/requests",
        "/admin/v1/requests?team=search",
        "/admin/v1/requests?team=",
        "/admin/v1/keys",
        "/admin/v1/teams",
    )
    for login in ("team_member", "team_owner"):
        async with logged_in(shared, login) as client:
            for path in asked:
                answer = await client.get(path)
                assert answer.status_code == 200, (path, answer.text)
                # What was asked comes back as it was asked; all the rest must not name it.
                found = answer.text
                if "/spend" in path or "/requests" in path:
                    told = answer.json()
                    asked_for = ("query", "team")
                    found = str({name: told[name] for name in told if name not in asked_for})
                assert "search" not in found, (login, path)
                assert "secret-model" not in found, (login, path)
            spend = (await client.get("/admin/v1/spend")).json()
            assert [row["team"] for row in spend["rows"]] == ["payments"]
            nothing = (await client.get("/admin/v1/spend?team=search")).json()
            nobody = (await client.get("/admin/v1/spend?team=no-such-team")).json()
            assert nothing["rows"] == nobody["rows"] == []
            assert nothing["total"] == nobody["total"]


async def test_what_exists_elsewhere_is_refused_in_the_words_of_what_does_not(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as admin:
        await make(pages, "owner", "team_owner@payments")
        other = (await admin.post("/admin/v1/keys", json={"team": "search", "name": "n"})).json()
        fixed = next(
            key["key_id"]
            for key in (await admin.get("/admin/v1/keys")).json()["keys"]
            if (key["team"], key["source"]) == ("search", "file")
        )
        async with logged_in(pages, "owner") as client:
            headers = await csrf(client)
            said = set()
            for key_id in (other["key_id"], fixed, "abcdefghijkl"):
                answer = await client.delete(f"/admin/v1/keys/{key_id}", headers=headers)
                assert answer.status_code == 404
                said.add(answer.json()["error"]["message"].replace(key_id, "ID"))
            assert len(said) == 1
            messages = set()
            for team in ("search", "no-such-team"):
                order = {"team": team, "name": "x"}
                answer = await client.post("/admin/v1/keys", json=order, headers=headers)
                assert answer.status_code == 422
                messages.add(answer.json()["error"]["message"].replace(team, "TEAM"))
            assert messages == {"no team 'TEAM'"}
            order = {"team": "payments", "name": "x", "models": ["chat-smal"]}
            near = await client.post("/admin/v1/keys", json=order, headers=headers)
            assert "chat-small" in near.json()["error"]["message"]
        keys = (await admin.get("/admin/v1/keys")).json()["keys"]
        assert {key["state"] for key in keys} == {"active"}


async def test_a_member_has_own_keys_and_an_owner_those_of_the_team(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "anna", "team_member@payments")
        await make(pages, "bert", "team_member@payments")
        await make(pages, "olga", "team_owner@payments")
        made = {}
        for login in ("anna", "bert"):
            async with logged_in(pages, login) as client:
                headers = await csrf(client)
                order = {"team": "payments", "name": login}
                answer = await client.post("/admin/v1/keys", json=order, headers=headers)
                assert answer.status_code == 201, answer.text
                made[login] = answer.json()["key_id"]
                keys = (await client.get("/admin/v1/keys")).json()["keys"]
                assert [key["name"] for key in keys] == [login]
        async with logged_in(pages, "anna") as client:
            headers = await csrf(client)
            theirs = await client.delete(f"/admin/v1/keys/{made['bert']}", headers=headers)
            assert theirs.status_code == 404
            own = await client.delete(f"/admin/v1/keys/{made['anna']}", headers=headers)
            assert own.status_code == 200
        async with logged_in(pages, "olga") as client:
            keys = (await client.get("/admin/v1/keys")).json()["keys"]
            assert {key["name"] for key in keys} == {"anna", "bert", "fixed"}
            headers = await csrf(client)
            gone = await client.delete(f"/admin/v1/keys/{made['bert']}", headers=headers)
            assert gone.status_code == 200


async def test_a_changed_role_counts_at_once_and_ends_the_sessions(tmp_path) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as admin:
        person = await make(pages, "anna", "platform_admin")
        async with logged_in(pages, "anna") as client, logged_in(pages, "anna") as other:
            assert (await client.get("/admin/v1/users")).status_code == 200
            changed = await admin.patch(
                f"/admin/v1/users/{person.person_id}", json={"roles": ["team_member@search"]}
            )
            assert changed.status_code == 200, changed.text
            for browser in (client, other):
                assert (await browser.get("/admin/v1/users")).status_code == 401
                assert (await browser.get("/ui")).status_code == 303
            await log_in(client, "anna")
            assert (await client.get("/admin/v1/users")).status_code == 403


ENDINGS = {
    "disabling": {"disabled": True},
    "a password that was reset": {"reset_password": True},
}


@pytest.mark.parametrize("change", ENDINGS.values(), ids=ENDINGS.keys())
async def test_whoever_is_kept_out_is_out_at_once(tmp_path, change) -> None:
    async with running_pages(tmp_path) as pages, pages.admin() as admin:
        await make(pages, "anna", "auditor")
        async with logged_in(pages, "anna") as client:
            assert (await admin.patch("/admin/v1/users/anna", json=change)).status_code == 200
            assert (await client.get("/ui")).status_code == 303
            refused = await log_in(client, "anna")
            assert refused.status_code == 401
            assert "the name or the password is not right" in refused.text
            if "disabled" in change:
                await admin.patch("/admin/v1/users/anna", json={"disabled": False})
                assert (await log_in(client, "anna")).status_code == 303


async def test_logging_out_everywhere_ends_every_session_of_the_person_only(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "anna", "auditor")
        await make(pages, "bert", "auditor")
        async with (
            logged_in(pages, "anna") as here,
            logged_in(pages, "anna") as there,
            logged_in(pages, "bert") as other,
        ):
            page = PageReader((await here.get("/ui/account")).text)
            cookie = here.cookies[SESSION_COOKIE]
            out = await here.post(
                "/ui/logout", data={"token": page.fields["token"], "everywhere": "yes"},
                headers=SAME,
            )  # fmt: skip
            assert out.headers["location"] == "/ui/login"
            assert SESSION_COOKIE not in here.cookies
            assert (await there.get("/ui")).status_code == 303
            assert (await other.get("/ui")).status_code == 200
            here.cookies.set(SESSION_COOKIE, cookie)
            assert (await here.get("/ui")).status_code == 303, "a kept cookie is no session"


async def test_a_login_gives_a_new_cookie_and_ends_the_one_before(tmp_path) -> None:
    async with running_pages(tmp_path) as pages:
        await make(pages, "anna", "auditor")
        async with logged_in(pages, "anna") as client, pages.browser() as thief:
            planted = client.cookies[SESSION_COOKIE]
            thief.cookies.set(SESSION_COOKIE, planted)
            form = PageReader((await thief.get("/ui/login")).text).fields
            assert form == {}, "who has a session is sent on"
            client.cookies.delete(SESSION_COOKIE)
            form = PageReader((await client.get("/ui/login")).text).fields
            client.cookies.set(SESSION_COOKIE, planted)
            data = {**form, "login": "anna", "password": PASSWORD}
            assert (await client.post("/ui/login", data=data, headers=SAME)).status_code == 303
            values = [c.value for c in client.cookies.jar if c.name == SESSION_COOKIE]
            assert any(value != planted for value in values)
            assert (await thief.get("/ui")).status_code == 303, "a planted cookie opens nothing"


FORGED = {
    "no token": {"origin": ORIGIN, "sec-fetch-site": "same-origin"},
    "another token": {**SAME, "x-fareway-csrf": "0" * 64},
    "a token that is not ASCII": {**SAME, "x-fareway-csrf": "é"},
    "from another site": {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    "from a sibling": {"origin": ORIGIN, "sec-fetch-site": "same-site"},
    "from nowhere": {},
}


@pytest.mark.parametrize("headers", FORGED.values(), ids=FORGED.keys())
async def test_another_site_changes_nothing_with_a_browsers_cookie(shared, headers) -> None:
    async with logged_in(shared, "platform_admin") as client:
        right = (await csrf(client))["x-fareway-csrf"]
        if "sec-fetch-site" not in headers or headers["sec-fetch-site"] != "same-origin":
            headers = {**headers, "x-fareway-csrf": right}
        order = {"team": "payments", "name": "forged"}
        raw = {name: value.encode("utf-8") for name, value in headers.items()}
        for method, path, body in (
            ("POST", "/admin/v1/keys", order),
            ("DELETE", "/admin/v1/keys/x", None),
            ("PATCH", "/admin/v1/users/auditor", {"disabled": True}),
        ):
            answer = await client.request(method, path, json=body, headers=raw)
            assert answer.status_code == 403, (method, path, answer.text)
            assert answer.json()["error"]["code"] == "csrf_required"
        form = {"login": "x", "roles": "platform_admin", "token": right}
        if "x-fareway-csrf" not in headers or headers["x-fareway-csrf"] != right:
            form["token"] = headers.get("x-fareway-csrf", "")
        page = await client.post("/ui/users", data=form, headers=raw)
        assert page.status_code == 403
        assert "Nothing was changed" in page.text
        assert (await client.get("/admin/v1/users")).text.count('"login":"x"') == 0


async def test_a_key_in_a_header_needs_no_token_and_wins_over_a_cookie(shared) -> None:
    async with logged_in(shared, "auditor") as client:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        told = (await client.get("/admin/v1/session", headers=headers)).json()
        assert (told["actor"], told["csrf"]) == ("admin-key", None)
        assert (await client.get("/admin/v1/status", headers=headers)).status_code == 200
        wrong = await client.get("/admin/v1/audit", headers={"x-api-key": PAYMENTS_KEY})
        assert wrong.status_code == 403


async def test_a_team_keys_session_opens_the_dashboard_and_no_administration(shared) -> None:
    async with shared.browser() as client:
        form = PageReader((await client.get("/ui/login?with=key")).text).fields
        data = {**form, "key": PAYMENTS_KEY}
        assert (await client.post("/ui/login", data=data, headers=SAME)).status_code == 303
        page = PageReader((await client.get("/ui")).text)
        assert [row[0] for row in page.tables["spend"]] == ["Team", "payments", "Total"]
        assert (await client.get("/ui/users")).status_code == 403
        for path in ("/admin/v1/spend", "/admin/v1/keys", "/admin/v1/session"):
            assert (await client.get(path)).status_code == 403
