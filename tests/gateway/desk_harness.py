"""A desk for people on a database of its own, of SQLite and of PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.access.passwords import PasswordCost
from gateway.access.people import (
    AuditQuery,
    Caller,
    CodeUse,
    NewPerson,
    OidcLogin,
    PasswordLogin,
    Passwords,
    Person,
    SessionQuery,
    digest_of,
)
from gateway.access.roles import parse_grant
from gateway.ledger.database import reading_engine, writing_engine
from gateway.ledger.faults import explaining
from gateway.ledger.people_desk import PeopleDesk
from tests.gateway.ledger_samples import FakeClock, make_database

CHEAP = PasswordCost(memory_kib=8, passes=1, lanes=1)
PASSWORD = "a few words of one's own"
ANOTHER = "some other words than these"
HERE = Caller(address="192.0.2.7")
DAY_S = 24 * 3600


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request, tmp_path) -> str:
    """An empty ledger of each kind."""
    if request.param == "sqlite":
        return make_database(tmp_path)
    return request.getfixturevalue("postgres_ledger_url")


@dataclass
class Office:
    """A desk, its clock, and what happens elsewhere just before its next write."""

    writer: AsyncEngine
    reader: AsyncEngine
    cost: PasswordCost = CHEAP
    time: FakeClock = field(default_factory=FakeClock)
    before_write: list[Callable[[], object]] = field(default_factory=list)
    sessions: Iterator[str] = field(
        default_factory=lambda: itertools.chain("s", map("later {}".format, itertools.count()))
    )
    desk: PeopleDesk = field(init=False)

    def __post_init__(self) -> None:
        self.desk = self.new_desk(self.cost)

    def new_desk(self, cost: PasswordCost) -> PeopleDesk:
        numbers = itertools.count(1)
        return PeopleDesk(
            read=self.read,
            write=self.write,
            clock=self.time.clock,
            random_bytes=lambda size: next(numbers).to_bytes(size, "little"),
            cost=cost,
        )

    async def read(self, run):
        with explaining():
            async with self.reader.begin() as connection:
                return await connection.run_sync(run)

    async def write(self, run):
        with explaining():
            async with self.writer.begin() as connection:
                if self.before_write:
                    await connection.run_sync(self.before_write.pop(0))
            async with self.writer.begin() as connection:
                return await connection.run_sync(run)

    async def invite(self, login: str, *roles: str) -> Person:
        """Somebody with a link and no password yet."""
        return await self.desk.create_person(new_person(login, *roles))

    async def make(self, login: str, *roles: str) -> Person:
        """Somebody with a password."""
        await self.invite(login, *roles)
        return await self.desk.use_code(CodeUse(code=code_of(login), password=PASSWORD))

    async def log_in(self, login: str, password: str = PASSWORD, session: str = "", **more):
        session = session or next(self.sessions)
        order = {"session": digest(session), "lifetime_s": 8 * 3600, "caller": HERE} | more
        order = {"passwords": Passwords.ALWAYS} | order
        return await self.desk.log_in_password(
            PasswordLogin(login=login, password=password, **order)
        )

    async def who(self, session: str = "s", idle_s: int = 3600):
        """Whose session it is, None for nobody's."""
        found = await self.desk.find_session(SessionQuery(session=digest(session), idle_s=idle_s))
        return found[0] if found else None

    async def audit(self, count: int = 100) -> list[tuple[str, str, str]]:
        """Actor, action and details by name, oldest first; the chain holds."""
        verified = await self.desk.verify_audit()
        lines = await self.desk.read_audit(AuditQuery(count=count))
        assert verified.faults == ()
        assert verified.head == (lines[0].hash if lines else b"")
        return [(line.actor, line.action, line.details) for line in reversed(lines)]

    async def actions(self) -> list[str]:
        return [action for _, action, _ in await self.audit()]


@asynccontextmanager
async def open_office(url: str, **options):
    writer, reader = writing_engine(url), reading_engine(url)
    try:
        yield Office(writer, reader, **options)
    finally:
        await writer.dispose()
        await reader.dispose()


def digest(text: str) -> bytes:
    return digest_of(text.encode())


def code_of(login: str) -> bytes:
    return digest(f"the link of {login}")


def grants(*roles: str):
    return tuple(map(parse_grant, roles))


def new_person(login: str, /, *roles: str, **changes) -> NewPerson:
    values = {
        "login": login,
        "name": login.title(),
        "grants": grants(*(roles or ("auditor",))),
        "code": code_of(login),
        "actor": "cli",
    }
    return NewPerson(**(values | changes))


def oidc_login(state: str = "first", session: str = "s", **changes) -> OidcLogin:
    values = {
        "issuer": "https://id.example",
        "subject": "0042",
        "name": "Olga",
        "grants": grants("finance_viewer"),
        "state": digest(state),
        "session": digest(session),
        "lifetime_s": 8 * 3600,
        "caller": HERE,
    }
    return OidcLogin(**(values | changes))
