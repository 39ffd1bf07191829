"""`fareway spend report`: what was spent, from the ledger's database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import sqlalchemy as sa
import typer

from gateway.cli import (
    spend_close,
    spend_commitments,
    spend_journal,
    spend_reconcile,
    spend_statement,
    spend_story,
)
from gateway.cli.admin import CaughtUp, catch_up_state
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_export import export
from gateway.cli.spend_machines import machines
from gateway.clock import system_clock
from gateway.finance.errors import FinanceError
from gateway.finance.spend_question import Reporting, SpendWords, spend_query
from gateway.ledger import node
from gateway.ledger.backlog import Backlog, measure
from gateway.ledger.dialects import is_postgresql
from gateway.ledger.errors import BadQuery, LedgerError
from gateway.ledger.reading import read_ledger
from gateway.ledger.report_corrections import answer_spend_query
from gateway.ledger.report_formats import ReportFormat, render
from gateway.ledger.store import load_cursors
from gateway.ledger.views import GroupBy, SpendQuery, SpendReport, is_dimension
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig

app = typer.Typer(help="Report what was spent.", rich_markup_mode=None)


app.command("close", short_help="Show a month's checklist, or close the month.")(spend_close.close)
app.command("journal", short_help="Issue a closed month's journal.")(spend_journal.journal)
app.command("statement", short_help="Show or send what a team is charged.")(
    spend_statement.statement
)
app.command("bridge", short_help="Explain a month against another.")(spend_story.bridge)
app.command("anomalies", short_help="List days that stood out.")(spend_story.anomalies)
app.add_typer(spend_reconcile.app, name="reconcile")
app.add_typer(
    spend_commitments.app, name="commitments", short_help="Show and record commitments and credits."
)


@app.callback()
def spend() -> None:
    """Report what was spent."""


app.command("export")(export)
app.command("machines", short_help="Show what our own machines cost, and who bears it.")(machines)


def _names(text: str) -> tuple[str, ...]:
    """Dimensions of a comma-separated list; anything else is wrong usage."""
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if not is_dimension(name)]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(GroupBy)}, cost_tag:<name>")
    return names


Values = list[str] | None


@app.command("report", short_help="Sum what is in the ledger.")
def report(
    by: Annotated[
        str,
        typer.Option(
            help="What there is a row for, several separated by commas: team, project, cost_centre,"
            " key, model, provider, deployment, privacy_tags, privacy_tag, status, quality,"
            " cost_tag:<name>, hour, day, week, month, fiscal_year."
        ),
    ] = "team",
    from_: Annotated[
        str | None, typer.Option("--from", help="First day or instant.", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="First day or instant not counted.", show_default=False),
    ] = None,
    month: Annotated[
        str | None, typer.Option(help="A month, such as 2026-11.", show_default=False)
    ] = None,
    last_month: Annotated[
        bool, typer.Option("--last-month", help="The month before this one.", show_default=False)
    ] = False,
    zone: Annotated[
        str | None,
        typer.Option(
            help="Time zone of hours, days and months [default: finance.time_zone].",
            show_default=False,
        ),
    ] = None,
    currency: Annotated[
        str | None,
        typer.Option(
            help="Currency beside dollars [default: finance.currency].", show_default=False
        ),
    ] = None,
    team: Annotated[
        Values, typer.Option(help="Only this team; repeat for several.", show_default=False)
    ] = None,
    project: Annotated[
        Values, typer.Option(help="Only projects of this name.", show_default=False)
    ] = None,
    cost_centre: Annotated[
        Values, typer.Option(help="Only what this cost centre is charged.", show_default=False)
    ] = None,
    key: Annotated[
        Values, typer.Option(help="Only the key of this id.", show_default=False)
    ] = None,
    model: Annotated[Values, typer.Option(help="Only this model.", show_default=False)] = None,
    provider: Annotated[
        Values, typer.Option(help="Only this provider.", show_default=False)
    ] = None,
    deployment: Annotated[
        Values, typer.Option(help="Only this deployment.", show_default=False)
    ] = None,
    privacy_tag: Annotated[
        Values, typer.Option(help="Only requests that carry this privacy tag.", show_default=False)
    ] = None,
    status: Annotated[
        Values, typer.Option(help="Only attempts that ended so.", show_default=False)
    ] = None,
    quality: Annotated[
        Values, typer.Option(help="Only counts of this quality.", show_default=False)
    ] = None,
    cost_tag: Annotated[
        Values,
        typer.Option(help="Only requests with this cost tag, name=value.", show_default=False),
    ] = None,
    with_adjustments: Annotated[
        bool,
        typer.Option(
            "--with-adjustments",
            help="Also what the months are charged for: adjustments, and usage that came late.",
            show_default=False,
        ),
    ] = False,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="How to print it.")
    ] = ReportFormat.TABLE,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sum what is in the ledger; amounts are exact to the picodollar.

    A running gateway is asked to load first what it has written.
    """
    given = {
        GroupBy.TEAM: team,
        GroupBy.PROJECT: project,
        GroupBy.COST_CENTRE: cost_centre,
        GroupBy.KEY: key,
        GroupBy.MODEL: model,
        GroupBy.PROVIDER: provider,
        GroupBy.DEPLOYMENT: deployment,
        GroupBy.PRIVACY_TAG: privacy_tag,
        GroupBy.STATUS: status,
        GroupBy.QUALITY: quality,
    }
    words = SpendWords(
        by=_names(by),
        from_=from_,
        to=to,
        month=month,
        is_last_month=last_month,
        zone=zone,
        currency=currency,
        filters={name: values for name, values in given.items() if values},
        cost_tags=cost_tag or (),
        with_adjustments=with_adjustments,
    )
    loaded = load_guarded(config, environ=process_environ())
    try:
        now_us = system_clock().wall_us()
        query = spend_query(
            words, Reporting.of(loaded.settings, base_dir=loaded.base_dir), now_us=now_us
        )
        found = _ask(loaded, query, now_us=now_us)
    except BadQuery as error:
        raise typer.BadParameter(str(error)) from error
    except (LedgerError, FinanceError) as error:
        raise CliFault(str(error)) from error
    typer.echo(render(found, ReportFormat.JSON if as_json else form), nl=False)


def _ask(loaded: LoadedConfig, query: SpendQuery, *, now_us: int) -> SpendReport:
    """The report, with a remark where it cannot be complete."""
    state = anyio.run(catch_up_state, loaded)
    url = connection_url(loaded, environ=process_environ())
    found, waiting = read_ledger(url, _report, query, loaded.spool_dir, now_us)
    if state is CaughtUp.BEHIND:
        typer.echo("note: the running gateway has written more than is loaded yet", err=True)
    elif state is CaughtUp.NO_GATEWAY and waiting.records:
        typer.echo(
            f"note: about {waiting.records:,} records in {loaded.spool_dir} are not in the ledger"
            " yet, and no gateway runs that would load them; `fareway serve` does",
            err=True,
        )
    return found


def _report(
    connection: sa.Connection, query: SpendQuery, spool_root: Path, now_us: int
) -> tuple[SpendReport, Backlog]:
    """The report and what it cannot hold yet, of one state of the database."""
    directories = sorted(path for path in spool_root.glob("*") if path.is_dir())
    prefix = node.load(spool_root) if is_postgresql(connection) else ""
    waiting = measure(directories, load_cursors(connection, prefix), now_us=now_us)
    return answer_spend_query(connection, query), waiting
