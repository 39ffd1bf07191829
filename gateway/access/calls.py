"""What pages and API ask of the ledger process about people, without the channel behind it.

`gateway.ledger.people_desk` answers; the names of the calls are its methods.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from gateway.access.people import (
    AuditLine,
    AuditQuery,
    AuditVerification,
    CodeState,
    CodeUse,
    FailedLogin,
    KeyLogin,
    LoginAnswer,
    LoginState,
    NewPerson,
    OidcLogin,
    PasswordChange,
    PasswordLogin,
    Passwords,
    Person,
    PersonChange,
    SessionEnd,
    SessionQuery,
    WebSession,
)

T = TypeVar("T")


class Ask(Protocol):
    """Calls a method of the ledger process; raises what it refuses with."""

    async def __call__(
        self, name: str, params: object, result_type: type[T], /, *, timeout_s: float = ...
    ) -> T:
        """Call it."""
        ...


class PeopleCalls:
    """Each raises `LedgerUnavailable` without an answer.

    What the ledger refuses is an `InvalidField`, a `PersonConflict` or a `PersonNotFound`.

    Args:
        ask: Reaches the ledger process.
        write_timeout_s: How long a change may take.
    """

    def __init__(self, ask: Ask, *, write_timeout_s: float) -> None:
        self._ask = ask
        self._write_s = write_timeout_s

    async def list_people(self) -> list[Person]:
        """Everybody, by name."""
        return await self._ask("list_people", None, list[Person])

    async def create_person(self, order: NewPerson) -> Person:
        """Make a local person."""
        return await self._ask("create_person", order, Person, timeout_s=self._write_s)

    async def change_person(self, change: PersonChange) -> Person:
        """Change a person; all their sessions end."""
        return await self._ask("change_person", change, Person, timeout_s=self._write_s)

    async def login_state(self, passwords: Passwords) -> LoginState:
        """What a login form may offer."""
        return await self._ask("login_state", passwords, LoginState)

    async def log_in_password(self, login: PasswordLogin) -> LoginAnswer:
        """Open a session for a name and a password."""
        return await self._ask("log_in_password", login, LoginAnswer, timeout_s=self._write_s)

    async def log_in_key(self, login: KeyLogin) -> LoginAnswer:
        """Open a session for a key, or count one that is none."""
        return await self._ask("log_in_key", login, LoginAnswer, timeout_s=self._write_s)

    async def log_in_oidc(self, login: OidcLogin) -> LoginAnswer:
        """Open a session for somebody whom the identity provider vouches for."""
        return await self._ask("log_in_oidc", login, LoginAnswer, timeout_s=self._write_s)

    async def note_failed_login(self, failed: FailedLogin) -> None:
        """Keep that a login through the identity provider came to nothing."""
        await self._ask("note_failed_login", failed, type(None))

    async def find_session(self, query: SessionQuery) -> WebSession | None:
        """Whose session it is; None when there is none any more."""
        found = await self._ask("find_session", query, list[WebSession])
        return found[0] if found else None

    async def end_session(self, end: SessionEnd) -> None:
        """Log out."""
        await self._ask("end_session", end, type(None), timeout_s=self._write_s)

    async def code_state(self, code: bytes) -> CodeState:
        """What a one-time code is good for."""
        return await self._ask("code_state", code, CodeState)

    async def use_code(self, use: CodeUse) -> Person:
        """Set a password with a one-time code."""
        return await self._ask("use_code", use, Person, timeout_s=self._write_s)

    async def change_password(self, change: PasswordChange) -> LoginAnswer:
        """Set another password for whoever is logged in."""
        return await self._ask("change_password", change, LoginAnswer, timeout_s=self._write_s)

    async def read_audit(self, query: AuditQuery) -> list[AuditLine]:
        """Lines of the audit log, newest first."""
        return await self._ask("read_audit", query, list[AuditLine])

    async def verify_audit(self) -> AuditVerification:
        """Follow the whole chain of the audit log."""
        return await self._ask("verify_audit", None, AuditVerification, timeout_s=self._write_s)
