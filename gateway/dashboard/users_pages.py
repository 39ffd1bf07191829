"""People as a platform admin sees and changes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from fastapi import Request, Response

from gateway.access.people import NewPerson, Person, PersonChange, PersonKind, new_code
from gateway.access.permissions import Action, restriction_for
from gateway.access.roles import GRANTABLE, TEAM_ROLES, Grant, parse_grant
from gateway.clock import from_microseconds
from gateway.dashboard.account_pages import CODE_PATH
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.shell import Shell, form_of
from gateway.errors import CallerFault


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLine:
    """One row of the table of people.

    Attributes:
        roles: As they are written: `team_owner@payments auditor`.
        way: How they log in.
        state: `active`, `disabled` or `invited`.
        last_login: UTC, or a dash.
        can_change: Whether roles and password are ours to change.
    """

    person_id: str
    name: str
    login: str
    roles: str
    way: str
    state: str
    last_login: str
    is_disabled: bool
    can_change: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersPages:
    """The list of people, and changes of it.

    Attributes:
        shell: What pages share.
        teams: Names of the configured teams at this moment.
    """

    shell: Shell
    teams: Callable[[], Collection[str]]

    def routes(self) -> Sequence[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui` and handler of each."""
        return (
            ("GET", "/users", self.users),
            ("POST", "/users", self.create),
            ("POST", "/users/{person_id}", self.change),
        )

    async def users(self, request: Request) -> Response:
        """Everybody."""
        return await self._page(request)

    async def create(self, request: Request) -> Response:
        """Make a person, and show the link with which they set a password."""
        form = await form_of(request)
        login = form.get("login", "").strip()
        try:
            sent = self.shell.sent(request, form)
            code, digest = new_code(sent.random_bytes)
            person = await self.shell.people.create_person(
                NewPerson(
                    login=login,
                    name=form.get("name", "").strip() or login,
                    grants=read_grants(form.get("roles", ""), self.teams()),
                    code=digest,
                    actor=self.shell.seen(request).viewer.actor,
                    form=sent.sent,
                )
            )
        except (CallerFault, ValueError) as error:
            return await self._page(request, message=str(error), form=form, status=422)
        return await self._page(request, link=self._link(request, code), link_of=person.name)

    async def change(self, request: Request, person_id: str) -> Response:
        """Change somebody's roles, keep them out or let them in, or void their password."""
        form = await form_of(request)
        actor, what = self.shell.seen(request).viewer.actor, form.get("do", "")
        code = ""
        try:
            sent = self.shell.sent(request, form)
            change = PersonChange(person=person_id, actor=actor, form=sent.sent)
            if what == "roles":
                grants = read_grants(form.get("roles", ""), self.teams())
                change = msgspec.structs.replace(change, grants=grants)
            elif what in ("disable", "enable"):
                change = msgspec.structs.replace(change, is_disabled=what == "disable")
            elif what == "reset":
                code, digest = new_code(sent.random_bytes)
                change = msgspec.structs.replace(change, code=digest)
            else:
                raise ValueError("the form does not say what to do")
            person = await self.shell.people.change_person(change)
        except (CallerFault, ValueError) as error:
            return await self._page(request, message=str(error), status=422)
        if code:
            return await self._page(request, link=self._link(request, code), link_of=person.name)
        return await self._page(request, done=f"{person.name} is changed; their sessions ended.")

    async def _page(
        self,
        request: Request,
        *,
        message: str = "",
        done: str = "",
        link: str = "",
        link_of: str = "",
        form: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        viewer = self.shell.seen(request).viewer
        people = await self.shell.people.list_people()
        shown = {
            **self.shell.frame(request),
            "users": [_line(person) for person in people],
            "can_change": not restriction_for(viewer, Action.CHANGE_PEOPLE).is_nothing,
            "message": message,
            "done": done,
            "link": link,
            "link_of": link_of,
            "form": {name: (form or {}).get(name, "")[:512] for name in ("login", "name", "roles")},
            "roles": sorted(
                f"{role.value}@TEAM" if role in TEAM_ROLES else role.value for role in GRANTABLE
            ),
        }
        return self.shell.page("users.html", shown, status=status)

    def _link(self, request: Request, code: str) -> str:
        return self.shell.link(request, CODE_PATH, code=code)


def read_grants(text: str, teams: Collection[str]) -> tuple[Grant, ...]:
    """Roles of a text such as `team_owner@payments, auditor`.

    Args:
        text: Separated by commas.
        teams: Those that there are.

    Raises:
        ValueError: One is no role, or names a team that is not configured.
    """
    return check_teams([parse_grant(one.strip()) for one in text.split(",") if one.strip()], teams)


def check_teams(grants: Sequence[Grant], teams: Collection[str]) -> tuple[Grant, ...]:
    """See that roles are of configured teams.

    Raises:
        ValueError: One names a team that there is not.
    """
    for grant in grants:
        if grant.team and grant.team not in teams:
            known = ", ".join(sorted(teams)) or "none"
            raise ValueError(f"no team {grant.team!r} in the configuration; there are: {known}")
    return tuple(sorted(set(grants)))


def _line(person: Person) -> UserLine:
    is_local = person.kind is PersonKind.LOCAL
    is_disabled = person.disabled_at_us is not None
    is_invited = is_local and not person.has_password
    seen = person.last_login_at_us
    return UserLine(
        person_id=person.person_id,
        name=person.name,
        login=person.login,
        roles=", ".join(grant.text for grant in person.grants),
        way="password" if is_local else "identity provider",
        state="disabled" if is_disabled else "invited" if is_invited else "active",
        last_login=NOTHING if seen is None else from_microseconds(seen).strftime("%Y-%m-%d %H:%M"),
        is_disabled=is_disabled,
        can_change=is_local,
    )
