"""People with passwords, and browsers that are logged in, for tests of the pages."""

from __future__ import annotations

from contextlib import asynccontextmanager

import httpx

from gateway.access.people import NewPerson, Person, new_code
from gateway.access.roles import parse_grant
from tests.gateway.page_reader import PageReader
from tests.gateway.pages_harness import ORIGIN, Pages

SAME = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}
PASSWORD = "a few words of one's own"
SESSION_COOKIE = "fareway_session"


async def make(pages: Pages, login: str, *roles: str) -> Person:
    """Make a person with a password, as the command and the link do."""
    code, digest = new_code(fixed_bytes(login))
    person = await pages.ledger.call(
        "create_person",
        NewPerson(
            login=login,
            name=login.title(),
            grants=tuple(map(parse_grant, roles)),
            code=digest,
            actor="cli",
        ),
        result_type=Person,
        timeout_s=10,
    )
    async with pages.browser() as client:
        form = PageReader((await client.get("/ui/set-password", params={"code": code})).text).fields
        answer = await client.post(
            "/ui/set-password", data={**form, "new": PASSWORD, "again": PASSWORD}, headers=SAME
        )
        assert answer.status_code == 303, answer.text
    return person


def fixed_bytes(login: str):
    return lambda size: (login.encode() * size)[:size]


async def log_in(client: httpx.AsyncClient, login: str, password: str = PASSWORD, **more):
    """Fill in the form with a name and a password."""
    form = PageReader((await client.get("/ui/login")).text).fields
    data = {**form, "login": login, "password": password, **more}
    return await client.post("/ui/login", data=data, headers=SAME)


@asynccontextmanager
async def logged_in(pages: Pages, login: str):
    """A browser with somebody's session."""
    async with pages.browser() as client:
        answer = await log_in(client, login)
        assert answer.status_code == 303, answer.text
        yield client


async def csrf(client: httpx.AsyncClient) -> dict[str, str]:
    """Headers with which a page of ours calls the API."""
    token = (await client.get("/admin/v1/session")).json()["csrf"]
    return {**SAME, "x-fareway-csrf": token}
