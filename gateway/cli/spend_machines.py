"""`fareway spend machines`: what machines of our own cost, and which team bears how much of it."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import typer

from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_close import month_of_option
from gateway.clock import system_clock
from gateway.finance.machines.messages import (
    MachinesReport,
    ProposeMachines,
    RateKind,
    ShowMachines,
)
from gateway.finance.machines.shown import as_csv, as_table, machines_document
from gateway.finance.messages import Proposal
from gateway.ledger.periods import month_of
from gateway.ledger.report_formats import ReportFormat
from gateway.settings.environment import process_environ
from gateway.settings.loader import load
from pricing.money import format_usd

_DAY = re.compile(r"([0-9]{4}-(?:0[1-9]|1[0-2]))-[0-9]{2}", re.ASCII)


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
    loaded = load(config, environ=process_environ())
    wanted = _month(month, day)
    if propose:
        made = ask(loaded, ProposeMachines(actor=actor(), month=wanted), Proposal)
        if as_json:
            typer.echo(msgspec.json.format(msgspec.json.encode(made)).decode())
        else:
            typer.echo(
                f"proposal {made.proposal_id}: {format_usd(made.total_pico_usd)} USD in"
                f" {len(made.lines)} lines; it counts once somebody approved it"
            )
        return
    query = ShowMachines(
        month=wanted,
        rate=rate or RateKind(loaded.settings.finance.machines.rate),
        day=day,
        teams=None if team is None else tuple(team),
    )
    report = ask(loaded, query, MachinesReport)
    if as_json or form is ReportFormat.JSON:
        document = msgspec.json.encode(machines_document(report))
        typer.echo(msgspec.json.format(document).decode())
    elif form is ReportFormat.CSV:
        typer.echo(as_csv(report), nl=False)
    else:
        typer.echo(as_table(report), nl=False)


def _month(month: str | None, day: str | None) -> str:
    """The month that is meant, also where only a day of it is given."""
    of_day = None if day is None else _DAY.fullmatch(day)
    if day is not None:
        if of_day is None:
            raise typer.BadParameter("must be a day such as 2026-10-17", param_hint="--day")
        if month not in (None, of_day[1]):
            raise typer.BadParameter(f"is no day of {month}", param_hint="--day")
        return of_day[1]
    if month is None:
        return month_of(system_clock().wall_us())
    return month_of_option(month)
