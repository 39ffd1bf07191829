"""`fareway keys create|list|rotate|revoke`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from pydantic import TypeAdapter, ValidationError

from gateway.auth.directory import KeyRecord, KeySource
from gateway.auth.keys import Environment, hash_key, make_key
from gateway.budgets.messages import BudgetChange, BudgetDeclaration
from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.budget_changes import budget_reports, change_budget, parse_order
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.keys_listed import key_row, key_table
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import from_microseconds, system_clock
from gateway.fleet import build_fleet
from gateway.key_rotation import GRACE_HOURS, GRACE_HOURS_MAX, HOUR_US, is_void, succeed
from gateway.ledger.errors import LedgerError
from gateway.ledger.views import KeyCreation, KeyRevocation, StoredKey
from gateway.limits.amounts import (
    CONCURRENCY_MAX,
    PER_MINUTE_MAX,
    TOKENS_PER_MINUTE_MAX,
    LimitAmounts,
)
from gateway.routing.scope import KeyScope, matches_glob
from gateway.settings.database import connection_url
from gateway.settings.declared_keys import fixed_key_records
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from gateway.settings.scalars import Name
from gateway.settings.secrets import Label, load_master_keys
from gateway.settings.validation import hint

if TYPE_CHECKING:
    from gateway.ledger.service import LedgerService

app = typer.Typer(help="Make, list, rotate and revoke API keys.", rich_markup_mode=None)

ACTOR = "cli"
EnvironmentOption = Annotated[
    str, typer.Option("--environment", help="live or test, shown in the key.")
]


@app.command("create")
def create(
    team: Annotated[str, typer.Option("--team", help="Team of the configuration.")],
    name: Annotated[str, typer.Option("--name", help="What the key is for.")],
    project: Annotated[str, typer.Option("--project", help="Project of the team.")] = "",
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="Model the key may use; repeat. Default: all of the team's."),
    ] = None,
    tags: Annotated[
        str, typer.Option("--tags", help="Privacy tags that its requests carry: a,b.")
    ] = "",
    expires_days: Annotated[
        int | None, typer.Option("--expires-days", min=1, help="Days until it is void.")
    ] = None,
    budget_usd: Annotated[
        str | None, typer.Option("--budget-usd", help="What the key may spend in a window.")
    ] = None,
    budget_window: Annotated[
        str, typer.Option("--budget-window", help="day, week, month, fiscal or total.")
    ] = "month",
    budget_on_exceed: Annotated[
        str, typer.Option("--budget-on-exceed", help="block, cheapest_only or alert.")
    ] = "block",
    rpm: Annotated[
        int | None, typer.Option("--rpm", min=1, max=PER_MINUTE_MAX, help="Requests per minute.")
    ] = None,
    tpm: Annotated[
        int | None,
        typer.Option("--tpm", min=1, max=TOKENS_PER_MINUTE_MAX, help="Tokens per minute."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=CONCURRENCY_MAX, help="Requests in flight."),
    ] = None,
    environment: EnvironmentOption = "live",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it; it is shown only now."""
    shown = _environment(environment)
    made = anyio.run(
        create_key,
        _load(config),
        NewKeyOrder(
            team=team,
            name=name,
            project=project,
            models=None if not model else tuple(model),
            tags=tuple(sorted({tag.strip() for tag in tags.split(",") if tag.strip()})),
            expires_days=expires_days,
            environment=shown,
            limits=_given_limits(rpm, tpm, concurrency),
            budget=None
            if budget_usd is None
            else {
                "usd": budget_usd,
                "window": budget_window,
                "on_exceed": budget_on_exceed,
            },
        ),
    )
    if as_json:
        typer.echo(json.dumps({"key": made.text, "key_id": made.key_id, "team": team}))
    else:
        typer.echo(made.text)
        typer.echo(f"key id {made.key_id}, team {team}; it is shown only now", err=True)


def _environment(given: str) -> Environment:
    if given not in ("live", "test"):
        raise typer.BadParameter("must be live or test", param_hint="--environment")
    return "live" if given == "live" else "test"


def _given_limits(rpm: int | None, tpm: int | None, concurrency: int | None) -> LimitAmounts | None:
    given = LimitAmounts(rpm=rpm, tpm=tpm, concurrency=concurrency)
    return None if given.is_unlimited else given


@app.command("list", short_help="List every key with its state.")
def list_all(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List every key, those of the configuration file included; never the keys themselves."""
    rows = anyio.run(_rows, _load(config))
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if rows:
        for line in key_table(rows):
            typer.echo(line)
    else:
        typer.echo("no keys; make one with `fareway keys create --team TEAM --name NAME`", err=True)


@app.command("rotate", short_help="Replace a key by a successor.")
def rotate(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    grace_hours: Annotated[
        int,
        typer.Option(
            "--grace-hours", min=0, max=GRACE_HOURS_MAX, help="Hours for which the old key goes on."
        ),
    ] = GRACE_HOURS,
    environment: EnvironmentOption = "live",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key's successor and print it; it is shown only now.

    Scope, limits and budgets are the key's own.
    """
    made = anyio.run(_rotate, _load(config), key_id, grace_hours, _environment(environment))
    if as_json:
        typer.echo(json.dumps(made))
    else:
        typer.echo(made["key"])
        typer.echo(
            f"key id {made['key_id']}, team {made['team']}, name {made['name']}; it is shown only"
            f" now; key {key_id} is void from {made['replaced_until']}",
            err=True,
        )


@app.command("revoke")
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    config: ConfigOption = None,
) -> None:
    """Revoke a key; no worker takes it once this returns."""
    anyio.run(_revoke, _load(config), key_id)
    typer.echo(f"key {key_id} is revoked", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeyOrder:
    """What a new key is to be.

    Attributes:
        team: A team of the configuration.
        name: Unique among the team's keys in use.
        project: A project of the team, empty for none.
        models: Models that it may use, None for all of the team's.
        tags: Privacy tags that each of its requests carries, sorted.
        expires_days: Days until it is void, None for never.
        environment: Shown in the key.
        limits: Its own rate limits, None for none.
        budget: What it may spend, as a `KeyBudgetOrder`; None: only its team's budgets count.
    """

    team: str
    name: str
    project: str = ""
    models: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    expires_days: int | None = None
    environment: Environment = "live"
    limits: LimitAmounts | None = None
    budget: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeKey:
    """A key that was just made; its text is nowhere else."""

    text: str
    key_id: str


async def create_key(config: LoadedConfig, order: NewKeyOrder) -> MadeKey:
    """Make a key through the running gateway, or in the database of a stopped one.

    Raises:
        CliFault: The team, project, name or a model does not fit.
    """
    _check_order(config, order)
    master = load_master_keys(config, environ=process_environ(), random_bytes=secrets.token_bytes)
    key = make_key(order.environment, secrets.token_bytes)
    expires_at_us = None
    if order.expires_days is not None:
        expires = datetime.now(UTC) + timedelta(days=order.expires_days)
        expires_at_us = int(expires.timestamp() * 1_000_000)
    record = KeyRecord(
        key_id=key.key_id,
        digest=hash_key(master.derive(Label.KEY_PEPPER), key.text.encode("ascii")),
        team=order.team,
        name=order.name,
        source=KeySource.DATABASE,
        project=order.project,
        models=order.models,
        tags=order.tags,
        expires_at_us=expires_at_us,
        limits=order.limits,
    )
    await _create(config, KeyCreation(record=record, actor=ACTOR), order.budget)
    return MadeKey(text=key.text, key_id=key.key_id)


async def _create(
    config: LoadedConfig, creation: KeyCreation, budget: Mapping[str, str] | None
) -> None:
    """Make a key; its budget first, so that at no moment it may spend more."""
    record = creation.record
    if budget is None:
        await _change(config, "create_key", creation)
        return
    order = parse_order({**budget, "scope": "key", "key_id": record.key_id})
    name = f"key {record.key_id}, {order.window}"
    finance = config.settings.finance
    wanted = order.declaration(
        name,
        time_zone=finance.time_zone,
        fiscal_month=finance.fiscal_year_start_month,
        key_team=record.team,
    )
    await _create_within(config, creation, [wanted])


async def _create_within(
    config: LoadedConfig, creation: KeyCreation, budgets: Sequence[BudgetDeclaration]
) -> None:
    done: list[BudgetDeclaration] = []
    try:
        for budget in budgets:
            wanted = BudgetChange(name=budget.name, budget=budget, actor=ACTOR)
            await change_budget(config, wanted)
            done.append(budget)
        await _change(config, "create_key", creation)
    except CliFault:
        for budget in done:
            await change_budget(config, BudgetChange(name=budget.name, budget=None, actor=ACTOR))
        raise


def _check_order(config: LoadedConfig, order: NewKeyOrder) -> None:
    teams = config.settings.teams
    team = teams.get(order.team)
    if team is None:
        known = ", ".join(sorted(teams)) or "none; add one under `teams:`"
        raise CliFault(f"no team {order.team!r} in the configuration; there are: {known}")
    if order.project and order.project not in team.projects:
        raise CliFault(f"team {order.team!r} has no project {order.project!r}")
    for tag in order.tags:
        if tag not in config.settings.privacy.tags:
            known = ", ".join(sorted(config.settings.privacy.tags)) or "none"
            raise CliFault(f"no privacy tag {tag!r} in the configuration; there are: {known}")
    try:
        TypeAdapter[str](Name).validate_python(order.name)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise CliFault(f"the key's name {order.name!r} does not fit: {reason}") from error
    if any(key.name == order.name for key in team.keys):
        raise CliFault(f"the configuration file has a key named {order.name!r} in this team")
    _check_models(config, order, KeyScope(models=team.models))


def _check_models(config: LoadedConfig, order: NewKeyOrder, team: KeyScope) -> None:
    fleet = build_fleet(config.settings)
    known = sorted({*fleet.models, *fleet.aliases, *fleet.deployments})
    for name in order.models or ():
        if not any(matches_glob(name, one) for one in known):
            raise CliFault(f"no model is called {name!r}{hint(name, known)}")
        if not team.names(name):
            raise CliFault(f"team {order.team!r} may not use {name!r}")


async def _rotate(
    config: LoadedConfig, key_id: str, grace_hours: int, environment: Environment
) -> dict[str, str]:
    """Make a key's successor; its budgets first, so that at no moment it may spend more."""
    declared = _not_of_file(config, key_id, "change its value there")
    stored = await stored_keys(config)
    now_us = system_clock().wall_us()
    old = next((one for one in stored if one.record.key_id == key_id), None)
    if old is None:
        raise CliFault(f"no key with the id {key_id!r}; `fareway keys list` shows them")
    if is_void(old.record, now_us):
        raise CliFault(f"key {key_id!r} is void; make a new one")
    master = load_master_keys(config, environ=process_environ(), random_bytes=secrets.token_bytes)
    key = make_key(environment, secrets.token_bytes)
    successor = succeed(
        old,
        key_id=key.key_id,
        digest=hash_key(master.derive(Label.KEY_PEPPER), key.text.encode("ascii")),
        known=[*declared, *(one.record for one in stored)],
        budgets=await budget_reports(config),
    )
    record = successor.record
    creation = KeyCreation(record=record, actor=ACTOR, owner=successor.owner)
    await _create_within(config, creation, successor.budgets)
    until_us = now_us + grace_hours * HOUR_US
    try:
        ending = KeyRevocation(key_id=key_id, actor=ACTOR, at_us=until_us)
        await _change(config, "revoke_key", ending)
    except CliFault:
        # Nobody has seen the successor, and nobody will.
        await _change(config, "revoke_key", KeyRevocation(key_id=key.key_id, actor=ACTOR))
        raise
    return {
        "key": key.text,
        "key_id": key.key_id,
        "team": record.team,
        "name": record.name,
        "replaces": key_id,
        "replaced_until": from_microseconds(until_us).isoformat(),
    }


async def _revoke(config: LoadedConfig, key_id: str) -> None:
    _not_of_file(config, key_id, "take it out there")
    await _change(config, "revoke_key", KeyRevocation(key_id=key_id, actor=ACTOR))


def _not_of_file(config: LoadedConfig, key_id: str, mend: str) -> Sequence[KeyRecord]:
    """The keys of the file, if this is none of them."""
    declared = fixed_key_records(config, environ=process_environ(), pepper=bytes(32))
    if any(record.key_id == key_id for record in declared):
        raise CliFault(f"key {key_id!r} is declared in the configuration file; {mend}")
    return declared


async def _change(config: LoadedConfig, method: str, params: KeyCreation | KeyRevocation) -> None:
    try:
        try:
            await call_gateway(config, method, params, result_type=type(None))
        except NoGateway:
            await _change_offline(config, params)
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error


async def _change_offline(config: LoadedConfig, params: KeyCreation | KeyRevocation) -> None:
    service = await _offline(config)
    try:
        if isinstance(params, KeyCreation):
            await service.create_key(params.record, actor=params.actor, owner=params.owner)
        else:
            await service.revoke_key(params.key_id, actor=params.actor, at_us=params.at_us)
    finally:
        await service.stop(drain=False)


async def stored_keys(config: LoadedConfig) -> Sequence[StoredKey]:
    """Every key of the database, revoked ones included.

    Raises:
        CliFault: The ledger cannot be read.
    """
    try:
        try:
            return await call_gateway(config, "list_keys", result_type=list[StoredKey])
        except NoGateway:
            pass  # nobody else has the database open
        service = await _offline(config)
        try:
            return await service.list_keys()
        finally:
            await service.stop(drain=False)
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error


async def _offline(config: LoadedConfig) -> LedgerService:
    from gateway.ledger.service import LedgerService  # SQLAlchemy, for a stopped gateway only

    url = connection_url(config, environ=process_environ())
    service = LedgerService(url, config.spool_dir, clock=system_clock())
    try:
        await service.start()
    except LedgerError:
        await service.stop(drain=False)
        raise
    return service


async def known_keys(config: LoadedConfig) -> Sequence[KeyRecord]:
    """Every key: those of the configuration file, and those of the database, revoked or not.

    Raises:
        CliFault: The ledger cannot be read.
        ConfigError: A fixed key cannot be read.
    """
    declared = fixed_key_records(config, environ=process_environ(), pepper=bytes(32))
    return [*declared, *(stored.record for stored in await stored_keys(config))]


async def _rows(config: LoadedConfig) -> list[dict[str, object]]:
    now_us = system_clock().wall_us()
    return [key_row(record, now_us) for record in await known_keys(config)]


def _load(config: ConfigOption) -> LoadedConfig:
    return load_guarded(config, environ=process_environ())
