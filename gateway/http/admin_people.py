"""`/admin/v1/session`, `/users` and `/audit`: who asks, who can log in, and who did what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field

from gateway import errors
from gateway.access.asking import Asking
from gateway.access.calls import PeopleCalls
from gateway.access.people import (
    AUDIT_LINES_MAX,
    GRANTS_MAX,
    AuditLine,
    AuditQuery,
    NewPerson,
    Person,
    PersonChange,
    new_code,
)
from gateway.access.roles import Grant, parse_grant
from gateway.auth.keys import RandomBytes
from gateway.clock import from_microseconds
from gateway.dashboard.account_pages import CODE_PATH
from gateway.dashboard.shell import Shell
from gateway.dashboard.users_pages import check_teams
from gateway.http.admin_models import AdminModel
from gateway.http.service import Service

PREFIX = "/admin/v1"

RoleText = Annotated[str, Field(min_length=1, max_length=256)]
Roles = Annotated[list[RoleText], Field(min_length=1, max_length=GRANTS_MAX)]


class SessionView(AdminModel):
    """Who asks."""

    actor: str = Field(description="As the audit log names it.")
    name: str
    roles: list[str]
    csrf: str | None = Field(
        description="The header x-fareway-csrf of calls that change something with a session's"
        " cookie; null with a key, which needs none."
    )


class UserView(AdminModel):
    """Somebody who can log in."""

    id: str
    kind: Literal["local", "oidc"]
    login: str | None = Field(description="What a local person types.")
    name: str
    roles: list[str] = Field(description="`role`, or `role@team`.")
    state: Literal["active", "invited", "disabled"] = Field(
        description="Invited: local, without a password yet."
    )
    created_at: datetime
    last_login_at: datetime | None


class UserList(AdminModel):
    """Everybody, by name."""

    users: list[UserView]


class NewUserBody(AdminModel):
    """A local person to be made."""

    login: str = Field(description="What they will type.", max_length=128)
    name: str | None = Field(default=None, max_length=128, description="Null: the login name.")
    roles: Roles = Field(description="`role`, or `role@team`.")


class UserBody(AdminModel):
    """A change of a person; what is null stays. All their sessions end."""

    roles: Roles | None = Field(default=None, description="All roles from now on.")
    disabled: bool | None = Field(default=None, description="Whether they are kept out.")
    reset_password: bool = Field(
        default=False, description="Make the password void, and a link to set another one."
    )


class ChangedUser(AdminModel):
    """A person after a change."""

    user: UserView
    set_password_url: str | None = Field(
        description="Sets a password, once, within 24 hours. Shown only now."
    )


class AuditParams(AdminModel):
    """Which lines are wanted, newest first."""

    limit: int = Field(default=50, ge=1, le=AUDIT_LINES_MAX)
    before: int | None = Field(default=None, ge=1, description="Only lines with a smaller number.")


class AuditLineView(AdminModel):
    """Who did what to what."""

    number: int
    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, object]
    hash: str = Field(description="SHA-256 of this line and the hash of the line before.")


class AuditList(AdminModel):
    """Lines of the audit log, newest first."""

    lines: list[AuditLineView]


class AuditVerificationView(AdminModel):
    """Whether the chain of the audit log holds."""

    lines: int
    head: str = Field(description="Hash of the newest line; keep it elsewhere to compare.")
    faults: list[str]


class PeopleApi:
    """The routes.

    Args:
        service: The worker's parts.
        people: The ledger, about people.
        shell: What pages share.
        random_bytes: A cryptographic source, for one-time codes.
    """

    def __init__(
        self,
        service: Service,
        people: PeopleCalls,
        shell: Shell,
        *,
        random_bytes: RandomBytes,
    ) -> None:
        self._service = service
        self._people = people
        self._shell = shell
        self._random_bytes = random_bytes

    def router(self) -> APIRouter:
        """The routes as FastAPI wants them."""
        router = APIRouter(prefix=PREFIX, tags=["people"])
        routes: Sequence[tuple[str, str, Callable[..., object], str]] = (
            ("GET", "/session", self.session, "Tell who asks"),
            ("GET", "/users", self.list_users, "List everybody who can log in"),
            ("PATCH", "/users/{person}", self.change_user, "Change a person"),
            ("GET", "/audit", self.audit, "List who did what"),
            ("GET", "/audit/verification", self.verify, "Check the chain of the audit log"),
        )
        for method, path, endpoint, summary in routes:
            router.add_api_route(path, endpoint, methods=[method], summary=summary)
        router.add_api_route(
            "/users", self.create_user, methods=["POST"], status_code=201, summary="Make a person"
        )
        return router

    async def session(self, request: Request, asking: Asking) -> SessionView:
        """Tell who asks, and what a browser needs to change something."""
        return SessionView(
            actor=asking.actor,
            name=asking.name,
            roles=[grant.text for grant in asking.grants],
            csrf=self._shell.csrf(request),
        )

    async def list_users(self) -> UserList:
        """List everybody who can log in, disabled people included."""
        return UserList(users=[_user(person) for person in await self._people.list_people()])

    async def create_user(self, body: NewUserBody, request: Request, asking: Asking) -> ChangedUser:
        """Make a local person, who sets a password with a one-time link."""
        code, digest = new_code(self._random_bytes)
        person = await self._people.create_person(
            NewPerson(
                login=body.login,
                name=body.name or body.login,
                grants=self._grants(body.roles),
                code=digest,
                actor=asking.actor,
            )
        )
        return ChangedUser(user=_user(person), set_password_url=self._url(request, code))

    async def change_user(
        self,
        person: Annotated[str, Path(max_length=128, description="Id, or login name.")],
        body: UserBody,
        request: Request,
        asking: Asking,
    ) -> ChangedUser:
        """Change roles, keep somebody out or let them in, or have them set another password."""
        code, digest = new_code(self._random_bytes)
        changed = await self._people.change_person(
            PersonChange(
                person=person,
                grants=None if body.roles is None else self._grants(body.roles),
                is_disabled=body.disabled,
                code=digest if body.reset_password else None,
                actor=asking.actor,
            )
        )
        url = self._url(request, code) if body.reset_password else None
        return ChangedUser(user=_user(changed), set_password_url=url)

    async def audit(self, params: Annotated[AuditParams, Query()]) -> AuditList:
        """List who did what: keys, people, logins, failed ones too; never a password."""
        query = AuditQuery(count=params.limit, before=params.before)
        return AuditList(lines=[_line(line) for line in await self._people.read_audit(query)])

    async def verify(self) -> AuditVerificationView:
        """Follow the chain of the audit log from its first line."""
        found = await self._people.verify_audit()
        return AuditVerificationView(
            lines=found.lines, head=found.head.hex(), faults=list(found.faults)
        )

    def _grants(self, roles: Sequence[str]) -> tuple[Grant, ...]:
        try:
            grants = [parse_grant(role) for role in roles]
            return check_teams(grants, self._service.admission.teams)
        except ValueError as error:
            raise errors.InvalidField(str(error), param="roles") from error

    def _url(self, request: Request, code: str) -> str:
        return self._shell.link(request, CODE_PATH, code=code)


def _user(person: Person) -> UserView:
    state: Literal["active", "invited", "disabled"] = "active"
    if person.disabled_at_us is not None:
        state = "disabled"
    elif person.login and not person.has_password:
        state = "invited"
    seen = person.last_login_at_us
    return UserView(
        id=person.person_id,
        kind=person.kind.value,
        login=person.login or None,
        name=person.name,
        roles=[grant.text for grant in person.grants],
        state=state,
        created_at=from_microseconds(person.created_at_us),
        last_login_at=None if seen is None else from_microseconds(seen),
    )


def _line(line: AuditLine) -> AuditLineView:
    return AuditLineView(
        number=line.number,
        at=from_microseconds(line.at_us),
        actor=line.actor,
        action=line.action,
        subject=line.subject,
        details=line.details,
        hash=line.hash.hex(),
    )
