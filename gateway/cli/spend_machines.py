"""`fareway spend machines`: what machines of our own cost, and which team bears how much of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from gateway.cli.configured import load_guarded
from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import system_clock
from gateway.finance.machines.asking import NoMeaning, question
from gateway.finance.machines.messages import (
    MachinesReport,
    ProposeMachines,
    RateKind,
)
from gateway.finance.machines.shown import as_csv, as_table, machines_document
from gateway.finance.messages import Proposal
from gateway.fleet import build_fleet
from gateway.ledger.report_formats import ReportFormat
from gateway.settings.environment import process_environ
from pricing.money import format_usd


def machines(
    month: Annotated[
        str | None,
        typer.Option(
            "--month", help="Which month (UTC); this one if not given.", show_default=False
        ),
    ] = None,
    day: Annotated[
        str | None,
        typer.Option("--day", help="Tell each hour of this day (UTC) too.", show_default=False),
    ] = None,
    rate: Annotated[
        RateKind | None,
        typer.Option(help="Rate of the shares; else finance.machines.rate.", show_default=False),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="A deployment with a price by usage to compare each pool with;"
            " else those of finance.machines.pools.",
            show_default=False,
        ),
    ] = None,
    team: Annotated[
        list[str] | None,
        typer.Option("--team", help="Only this team's shares; repeat for several."),
    ] = None,
    propose: Annotated[
        bool,
        typer.Option(
            "--propose", help="Propose adjustments from what is booked to what machines cost."
        ),
    ] = False,
    form: Annotated[ReportFormat, typer.Option("--format", help="How to print it.")] = (
        ReportFormat.TABLE
    ),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what machines of our own cost in a month, how busy they were, and who bears it."""
    loaded = load_guarded(config, environ=process_environ())
    try:
        query = question(
            month=month,
            day=day,
            rate=rate,
            against=against,
            teams=None if team is None else tuple(team),
            usual=loaded.settings.finance.machines,
            fleet=build_fleet(loaded.settings),
            now_us=system_clock().wall_us(),
        )
    except NoMeaning as error:
        raise typer.BadParameter(str(error), param_hint=f"--{error.param}") from error
    if propose:
        order = ProposeMachines(actor=actor(), month=query.month)
        _tell_proposal(ask(loaded, order, Proposal), as_json=as_json)
        return
    report = ask(loaded, query, MachinesReport)
    if as_json or form is ReportFormat.JSON:
        document = msgspec.json.encode(machines_document(report))
        typer.echo(msgspec.json.format(document).decode())
    elif form is ReportFormat.CSV:
        typer.echo(as_csv(report), nl=False)
    else:
        typer.echo(as_table(report), nl=False)


def _tell_proposal(made: Proposal, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(made)).decode())
        return
    typer.echo(
        f"proposal {made.proposal_id}: {format_usd(made.total_pico_usd)} USD in"
        f" {len(made.lines)} lines; it counts once somebody approved it"
    )
