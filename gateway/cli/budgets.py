"""`fareway budgets list|set`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, cast

import anyio
import typer

from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclaration,
    BudgetReport,
    BudgetSource,
    ExpiredLeases,
    LeaseWriteOff,
)
from gateway.budgets.reports import budget_document, expired_document
from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.budget_changes import (
    ACTOR,
    budget_reports,
    change_budget,
    offline_ledger,
    parse_order,
)
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.keys import known_keys
from gateway.cli.options import ConfigOption, JsonOption
from gateway.ledger.errors import LedgerError
from gateway.settings.budget_orders import BudgetOrder
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from gateway.settings.validation import hint

app = typer.Typer(help="See budgets and set them.", rich_markup_mode=None)

_REMEDY = "`fareway budgets list` shows the budgets"


@app.command("list", short_help="List every budget and where it stands.")
def list_all(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List every budget in force: limit, spent, reserved, exposed, and when it starts again."""
    loaded = load_guarded(config, environ=process_environ())
    reports = anyio.run(budget_reports, loaded)
    if as_json:
        document = {"budgets": [budget_document(report) for report in reports]}
        typer.echo(json.dumps(document, indent=2))
    elif reports:
        for line in _table(reports):
            typer.echo(line)
    else:
        typer.echo("no budgets are in force", err=True)


@app.command("set", short_help="Set a budget, or take it away.")
def set_one(
    name: Annotated[str, typer.Argument(help="What the budget is called.")],
    usd: Annotated[str | None, typer.Option("--usd", help="The amount in US dollars.")] = None,
    organisation: Annotated[
        bool, typer.Option("--organisation", help="It caps what everybody spends.")
    ] = False,
    team: Annotated[str | None, typer.Option("--team", help="It caps a team.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="It caps a project of the team.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="It caps the key of this id.")] = None,
    cost_tag: Annotated[
        str | None,
        typer.Option("--cost-tag", help="It caps a cost tag (name=value), of the team if given."),
    ] = None,
    window: Annotated[
        str | None, typer.Option("--window", help="day, week, month, fiscal or total.")
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", help="IANA name of the zone of its days.")
    ] = None,
    on_exceed: Annotated[
        str | None, typer.Option("--on-exceed", help="block, cheapest_only or alert.")
    ] = None,
    alert_at: Annotated[
        list[int] | None,
        typer.Option("--alert-at", help="Percent at which an alert goes out; repeat."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the budget away.")] = False,
    config: ConfigOption = None,
) -> None:
    """Set a budget: a new one, or another amount for one that was set here before.

    Whoever the budget caps is named with the first call; later calls may name only what changes.
    When this returns, every worker goes by it.
    """
    loaded = load_guarded(config, environ=process_environ())
    scope = _scope(organisation=organisation, team=team, project=project, key=key, tag=cost_tag)
    given = {
        "scope": scope,
        "usd": usd,
        "team": team,
        "project": project,
        "key_id": key,
        "cost_tag": cost_tag,
        "window": window,
        "time_zone": time_zone,
        "on_exceed": on_exceed,
        "alerts_at": alert_at,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if remove and changes:
        raise typer.BadParameter("takes no other option", param_hint="--remove")
    anyio.run(_set, loaded, name, None if remove else cast("dict[str, object]", changes))
    typer.echo(f"budget {name} is {'removed' if remove else 'set'}", err=True)


@app.command("expired", short_help="Show what is reserved for workers that are gone.")
def list_expired(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what is reserved for workers that were not heard of for five minutes or longer.

    It is free once their journal is loaded or the window ends. Where a journal is gone for good,
    `fareway budgets write-off` lets go of it.
    """
    loaded = load_guarded(config, environ=process_environ())
    found = anyio.run(_expired, loaded)
    documents = [expired_document(one) for one in found]
    if as_json:
        typer.echo(json.dumps({"expired": documents}, indent=2))
    for one in () if as_json else documents:
        typer.echo(_expired_line(one))
    if not documents and not as_json:
        typer.echo("nothing is reserved for a worker that is gone", err=True)


@app.command("write-off", short_help="Let go of what is reserved for a worker that is gone.")
def write_off(
    worker: Annotated[str, typer.Argument(help="Its directory, as `budgets expired` names it.")],
    config: ConfigOption = None,
) -> None:
    """Let go of what is reserved for a worker whose journal will never be loaded.

    Only for a machine that is gone: what its workers did spend of it is unknown, and counts only if
    their journal is loaded after all. Each amount is shown, and noted in the audit log.
    """
    loaded = load_guarded(config, environ=process_environ())
    order = LeaseWriteOff(directory=worker, actor=ACTOR)
    for one in anyio.run(_write_off, loaded, order):
        typer.echo(f"written off: {_expired_line(expired_document(one))}")


async def _expired(config: LoadedConfig) -> Sequence[ExpiredLeases]:
    try:
        try:
            return await call_gateway(config, "expired_leases", result_type=list[ExpiredLeases])
        except NoGateway:
            service = await offline_ledger(config)
            try:
                return await service.expired_leases()
            finally:
                await service.stop(drain=False)
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error


async def _write_off(config: LoadedConfig, order: LeaseWriteOff) -> Sequence[ExpiredLeases]:
    try:
        try:
            return await call_gateway(
                config, "write_off_leases", order, result_type=list[ExpiredLeases]
            )
        except NoGateway:
            service = await offline_ledger(config)
            try:
                return await service.write_off_leases(order)
            finally:
                await service.stop(drain=False)
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error


def _expired_line(document: dict[str, object]) -> str:
    return (
        f"{document['budget']}, window of {document['window_start']}: {document['amount_usd']} USD"
        f" for {document['worker']}, last heard of at {document['heard_of_at']}"
    )


def _scope(
    *, organisation: bool, team: str | None, project: str | None, key: str | None, tag: str | None
) -> str | None:
    """The scope that the options name; None when they name nobody."""
    if organisation:
        return "organisation"
    if key is not None:
        return "key"
    if tag is not None:
        return "cost_tag"
    if project is not None:
        return "project"
    return None if team is None else "team"


async def _set(config: LoadedConfig, name: str, changes: dict[str, object] | None) -> None:
    budget = None
    if changes is not None:
        present = next((one for one in await budget_reports(config) if one.rule.name == name), None)
        budget = await _declaration(config, name, _completed(name, changes, present))
    await change_budget(config, BudgetChange(name=name, budget=budget, actor=ACTOR))


def _completed(
    name: str, changes: dict[str, object], present: BudgetReport | None
) -> dict[str, object]:
    """What a budget shall be, with what is not named as it was."""
    if "scope" in changes:
        return changes
    if present is None:
        raise CliFault(
            f"no budget is called {name!r} yet; say whom it caps: --organisation, --team, --key or"
            f" --cost-tag; {_REMEDY}"
        )
    if present.source is BudgetSource.FILE:
        raise CliFault(
            f"the budget {name!r} is declared in the configuration file; change it there"
        )
    document = budget_document(present)
    document["usd"] = document["limit_usd"]
    kept = {field: document[field] for field in BudgetOrder.model_fields}
    if kept["scope"] == "key":
        kept["team"] = None
    return kept | changes


async def _declaration(
    config: LoadedConfig, name: str, wanted: dict[str, object]
) -> BudgetDeclaration:
    """The budget as the ledger is told.

    Raises:
        CliFault: It is no budget, or counts nobody.
    """
    if "usd" not in wanted:
        raise CliFault("say the amount with --usd")
    order = parse_order(wanted)
    key_team = await _check(config, order)
    finance = config.settings.finance
    return order.declaration(
        name,
        time_zone=finance.time_zone,
        fiscal_month=finance.fiscal_year_start_month,
        key_team=key_team,
    )


async def _check(config: LoadedConfig, order: BudgetOrder) -> str:
    """Refuse a budget that would count nobody; the team of the key that it counts."""
    teams = config.settings.teams
    if order.team is not None and order.team not in teams:
        raise CliFault(f"no team {order.team!r} in the configuration{hint(order.team, teams)}")
    if order.project is not None and order.project not in teams[order.team or ""].projects:
        raise CliFault(f"team {order.team!r} has no project {order.project!r}")
    if order.key_id is None:
        return ""
    for record in await known_keys(config):
        if record.key_id == order.key_id:
            return record.team
    raise CliFault(f"no key with the id {order.key_id!r}; `fareway keys list` shows them")


_COLUMNS = {
    "name": "name",
    "window": "window",
    "limit_usd": "limit",
    "spent_usd": "spent",
    "reserved_usd": "reserved",
    "exposed_usd": "exposed",
    "room_usd": "room",
    "resets_at": "resets at",
    "on_exceed": "on exceed",
    "source": "set in",
}


def _table(reports: Sequence[BudgetReport]) -> Iterator[str]:
    """Aligned columns under their names, and a remark where a worker was not heard of."""
    documents = [budget_document(report) for report in reports]
    cells = [
        tuple(_COLUMNS.values()),
        *(tuple(_cell(document[name]) for name in _COLUMNS) for document in documents),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()
    for document in documents:
        if cast("int", document["expired_pico_usd"]) > 0:
            yield (
                f"{document['name']}: {document['expired_usd']} USD of what is reserved belongs to"
                " workers that were not heard of for long; it is free once their spool is loaded"
                " or the window ends"
            )


def _cell(value: object) -> str:
    return "never" if value is None else str(value)
