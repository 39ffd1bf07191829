"""`fareway users create|list|set-role|disable|enable|reset-password`: who can log in."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast
from urllib.parse import urlencode

import anyio
import typer

from gateway.access.people import NewPerson, Person, PersonChange, new_code
from gateway.access.roles import Grant, parse_grant
from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import from_microseconds, system_clock
from gateway.ledger.errors import LedgerError
from gateway.process.messages import ServiceStatus
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig

if TYPE_CHECKING:
    from gateway.ledger.people_desk import PeopleDesk

T = TypeVar("T")

app = typer.Typer(help="Say who can log in, and with which roles.", rich_markup_mode=None)

ACTOR = "cli"
CODE_PATH = "/ui/set-password"
_COLUMNS = ("id", "login", "name", "kind", "state", "roles", "last_login_at")

PersonArgument = Annotated[
    str, typer.Argument(help="Login name, or the id that `users list` shows.")
]
RoleOption = Annotated[
    list[str],
    typer.Option("--role", help="A role, or ROLE@TEAM for a team's role; repeat for several."),
]


@app.command("create", short_help="Make a person and print their one-time link.")
def create(
    login: Annotated[str, typer.Argument(help="What they will type.")],
    role: RoleOption,
    name: Annotated[str, typer.Option("--name", help="For people; default: the login name.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a person and print the link with which they set a password; it is shown only now."""
    loaded = _load(config)
    code, digest = new_code(secrets.token_bytes)
    order = NewPerson(
        login=login, name=name or login, grants=_grants(loaded, role), code=digest, actor=ACTOR
    )
    person = _run(loaded, "create_person", order, Person, lambda desk: desk.create_person(order))
    _print_link(loaded, person, code, as_json=as_json)


@app.command("list", short_help="List everybody who can log in.")
def list_all(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List everybody who can log in, disabled people included."""
    people = _run(_load(config), "list_people", None, list[Person], _list)
    rows = [_row(person) for person in people]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        for line in _table(rows):
            typer.echo(line)
    else:
        typer.echo("nobody; make one with `fareway users create LOGIN --role ROLE`", err=True)


@app.command("set-role")
def set_role(person: PersonArgument, role: RoleOption, config: ConfigOption = None) -> None:
    """Set all roles of a person; their sessions end."""
    loaded = _load(config)
    change = PersonChange(person=person, grants=_grants(loaded, role), actor=ACTOR)
    changed = _change(loaded, change)
    roles = ", ".join(grant.text for grant in changed.grants)
    typer.echo(f"{changed.name} is {roles}; their sessions have ended", err=True)


@app.command("disable", short_help="Keep a person out; sessions end at once.")
def disable(person: PersonArgument, config: ConfigOption = None) -> None:
    """Keep a person out; their sessions have ended when this returns."""
    changed = _change(_load(config), PersonChange(person=person, is_disabled=True, actor=ACTOR))
    typer.echo(f"{changed.name} is disabled; their sessions have ended", err=True)


@app.command("enable")
def enable(person: PersonArgument, config: ConfigOption = None) -> None:
    """Let a person in again."""
    changed = _change(_load(config), PersonChange(person=person, is_disabled=False, actor=ACTOR))
    typer.echo(f"{changed.name} is enabled", err=True)


@app.command("reset-password", short_help="Make a password void; print a link.")
def reset_password(
    person: PersonArgument, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Make a person's password void, and print a link to set another; it is shown only now."""
    loaded = _load(config)
    code, digest = new_code(secrets.token_bytes)
    changed = _change(loaded, PersonChange(person=person, code=digest, actor=ACTOR))
    _print_link(loaded, changed, code, as_json=as_json)


def _load(config: ConfigOption) -> LoadedConfig:
    return load_guarded(config, environ=process_environ())


def _grants(config: LoadedConfig, roles: Sequence[str]) -> tuple[Grant, ...]:
    try:
        grants = [parse_grant(role) for role in roles]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--role") from error
    teams = config.settings.teams
    for grant in grants:
        if grant.team and grant.team not in teams:
            known = ", ".join(sorted(teams)) or "none; add one under `teams:`"
            raise CliFault(f"no team {grant.team!r} in the configuration; there are: {known}")
    return tuple(grants)


def _change(config: LoadedConfig, change: PersonChange) -> Person:
    return _run(config, "change_person", change, Person, lambda desk: desk.change_person(change))


async def _list(desk: PeopleDesk) -> list[Person]:
    return list(await desk.list_people())


def _run(
    config: LoadedConfig,
    name: str,
    params: object,
    result_type: type[T],
    offline: Callable[[PeopleDesk], Coroutine[Any, Any, T]],
) -> T:
    """Ask the running gateway, or the database of a stopped one."""
    return anyio.run(_ask, config, name, params, result_type, offline)


async def _ask(
    config: LoadedConfig,
    name: str,
    params: object,
    result_type: type[T],
    offline: Callable[[PeopleDesk], Coroutine[Any, Any, T]],
) -> T:
    try:
        try:
            return await call_gateway(config, name, params, result_type=result_type)
        except NoGateway:
            pass  # nobody else has the database open
        from gateway.ledger.service import LedgerService  # SQLAlchemy, for a stopped gateway only

        service = LedgerService(config.database_url, config.spool_dir, clock=system_clock())
        await service.start()
        try:
            return await offline(service.people)
        finally:
            await service.stop(drain=False)
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error


def _print_link(config: LoadedConfig, person: Person, code: str, *, as_json: bool) -> None:
    url = f"{anyio.run(_base_url, config)}{CODE_PATH}?{urlencode({'code': code})}"
    if as_json:
        typer.echo(json.dumps({"id": person.person_id, "set_password_url": url}))
        return
    typer.echo(url)
    typer.echo(
        f"{person.name} sets a password with it, once, within 24 hours; it is shown only now",
        err=True,
    )


async def _base_url(config: LoadedConfig) -> str:
    """Where browsers find the gateway, as far as is known."""
    public = config.settings.login.public_url
    if public is not None:
        return public
    server = config.settings.server
    try:
        return (await call_gateway(config, "status", result_type=ServiceStatus)).url
    except (NoGateway, ChannelError):
        return f"http://{server.host}:{server.port}"


def _row(person: Person) -> dict[str, object]:
    state = "active"
    if person.disabled_at_us is not None:
        state = "disabled"
    elif person.login and not person.has_password:
        state = "invited"
    seen = person.last_login_at_us
    return {
        "id": person.person_id,
        "login": person.login or None,
        "name": person.name,
        "kind": person.kind.value,
        "state": state,
        "roles": [grant.text for grant in person.grants],
        "last_login_at": None if seen is None else from_microseconds(seen).isoformat(),
    }


def _table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Aligned columns under their names."""
    cells = [_COLUMNS, *(tuple(_cell(row[column]) for column in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return ", ".join(cast("list[str]", value)) if isinstance(value, list) else str(value)
