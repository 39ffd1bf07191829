"""What pages and API ask of the ledger process about people, without the channel behind it."""

from __future__ import annotations

from typing import Protocol

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


class PeopleCalls(Protocol):
    """Each raises `LedgerUnavailable` without an answer; `gateway.ledger.people_desk` gives it.

    What it refuses is an `InvalidField`, a `PersonConflict` or a `PersonNotFound`.
    """

    async def list_people(self) -> list[Person]:
        """Everybody, by name."""
        ...

    async def create_person(self, order: NewPerson) -> Person:
        """Make a local person."""
        ...

    async def change_person(self, change: PersonChange) -> Person:
        """Change a person; all their sessions end."""
        ...

    async def login_state(self, passwords: Passwords) -> LoginState:
        """What a login form may offer."""
        ...

    async def log_in_password(self, login: PasswordLogin) -> LoginAnswer:
        """Open a session for a name and a password."""
        ...

    async def log_in_key(self, login: KeyLogin) -> LoginAnswer:
        """Open a session for a key, or count one that is none."""
        ...

    async def log_in_oidc(self, login: OidcLogin) -> LoginAnswer:
        """Open a session for somebody whom the identity provider vouches for."""
        ...

    async def note_failed_login(self, failed: FailedLogin) -> None:
        """Keep that a login through the identity provider came to nothing."""
        ...

    async def find_session(self, query: SessionQuery) -> WebSession | None:
        """Whose session it is; None when there is none any more."""
        ...

    async def end_session(self, end: SessionEnd) -> None:
        """Log out."""
        ...

    async def code_state(self, code: bytes) -> CodeState:
        """What a one-time code is good for."""
        ...

    async def use_code(self, use: CodeUse) -> Person:
        """Set a password with a one-time code."""
        ...

    async def change_password(self, change: PasswordChange) -> LoginAnswer:
        """Set another password for whoever is logged in."""
        ...

    async def read_audit(self, query: AuditQuery) -> list[AuditLine]:
        """Lines of the audit log, newest first."""
        ...

    async def verify_audit(self) -> AuditVerification:
        """Follow the whole chain of the audit log."""
        ...
