"""`fareway spend report`: what was spent, from the ledger's database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import anyio
import typer

from gateway.cli import spend_close, spend_reconcile
from gateway.cli.admin import catch_up
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_export import export
from gateway.clock import to_microseconds
from gateway.ledger.errors import BadQuery, LedgerError
from gateway.ledger.reading import read_ledger
from gateway.ledger.report_formats import ReportFormat, render
from gateway.ledger.reports import GroupBy, SpendQuery, spend_report
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import load

app = typer.Typer(help="Report what was spent.", rich_markup_mode=None)


app.command("close", short_help="Show a month's checklist, or close the month.")(spend_close.close)
app.add_typer(spend_reconcile.app, name="reconcile")


@app.callback()
def spend() -> None:
    """Report what was spent."""


app.command("export")(export)


def _group(text: str) -> tuple[GroupBy, ...]:
    """Dimensions of a comma-separated list; anything else is wrong usage."""
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in {one.value for one in GroupBy}]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(GroupBy)}")
    return tuple(GroupBy(name) for name in names)


def _instant_us(text: str | None) -> int | None:
    """Microseconds of an ISO 8601 day or instant; UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is no day or instant such as 2026-11-01 or 2026-11-01T06:00"
        ) from error
    return to_microseconds(at if at.tzinfo else at.replace(tzinfo=UTC))


@app.command("report")
def report(
    by: Annotated[
        str, typer.Option(help="team, project, model, deployment, key or day; several: team,model.")
    ] = "team",
    from_: Annotated[
        str | None, typer.Option("--from", help="First day or instant (UTC).", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="First day or instant not counted (UTC).", show_default=False),
    ] = None,
    team: Annotated[str | None, typer.Option(help="Only this team.", show_default=False)] = None,
    project: Annotated[
        str | None, typer.Option(help="Only projects of this name.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.", show_default=False)] = None,
    deployment: Annotated[
        str | None, typer.Option(help="Only this deployment.", show_default=False)
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Only the key of this id.", show_default=False)
    ] = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="How to print it.")
    ] = ReportFormat.TABLE,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sum what is in the ledger; amounts are exact to the picodollar.

    A running gateway is asked to load first what it has written.
    """
    wanted = {
        GroupBy.TEAM: team,
        GroupBy.PROJECT: project,
        GroupBy.MODEL: model,
        GroupBy.DEPLOYMENT: deployment,
        GroupBy.KEY: key,
    }
    query = SpendQuery(
        group_by=_group(by),
        from_us=_instant_us(from_),
        to_us=_instant_us(to),
        filters={name: value for name, value in wanted.items() if value is not None},
    )
    loaded = load(config, environ=process_environ())
    if not anyio.run(catch_up, loaded):
        typer.echo("note: the running gateway has written more than is loaded yet", err=True)
    try:
        found = read_ledger(connection_url(loaded, environ=process_environ()), spend_report, query)
    except BadQuery as error:
        raise typer.BadParameter(str(error)) from error
    except LedgerError as error:
        raise CliFault(str(error)) from error
    typer.echo(render(found, ReportFormat.JSON if as_json else form), nl=False)
