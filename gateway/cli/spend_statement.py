"""`fareway spend statement`: what a team is charged for a month or a week, shown or sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import msgspec
import typer

from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway, catch_up_state
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.finance.errors import Refused
from gateway.finance.machines.shown import SLICE_NAME
from gateway.finance.spend_question import Reporting
from gateway.finance.statement_csv import statement_csv
from gateway.finance.statement_json import statement_json
from gateway.finance.statement_messages import MachinePart, ShowStatement, TeamStatement, days_of
from gateway.notices.messages import SendStatement, SentNotice
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from pricing.money import format_usd

T = TypeVar("T")
_SEND_S = 60.0


def statement(
    team: Annotated[
        str | None,
        typer.Option("--team", help="Whose; empty for spend of no team.", show_default=False),
    ] = None,
    month: Annotated[
        str | None, typer.Option("--month", help="A month, such as 2026-10.", show_default=False)
    ] = None,
    week: Annotated[
        str | None, typer.Option("--week", help="A week, such as 2026-W44.", show_default=False)
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page to read and print.", show_default=False),
    ] = None,
    send: Annotated[
        bool, typer.Option("--send", help="Send it to those whom finance.statements names.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With --send: also to those who were sent it.")
    ] = False,
    sent: Annotated[
        bool, typer.Option("--sent", help="List what was sent, and how far it got.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a team is charged, late usage and adjustments included, or send it."""
    loaded = load_guarded(config, environ=process_environ())
    if sent:
        _list_sent(loaded, as_json=as_json)
        return
    period = _period(month, week)
    if team is None:
        raise typer.BadParameter("whose statement?", param_hint="--team")
    if sum((as_csv, html is not None, send, as_json)) > 1:
        raise typer.BadParameter("take one of --csv, --html, --send and --json")
    if send:
        order = SendStatement(actor=actor(), team=team, period=period, is_again=again)
        count = _call(loaded, "send_statement", order, int)
        typer.echo(f"the statement of {period} goes out to {count} schedule{'s' * (count != 1)}")
        return
    found = _found(loaded, team, period)
    if as_csv:
        typer.echo(statement_csv(found), nl=False)
    elif html is not None:
        html.write_text(_html(found), encoding="utf-8")
        typer.echo(f"{html}: {format_usd(found.sums.total_pico_usd)} USD")
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(statement_json(found))).decode())
    else:
        _print(found)


def _period(month: str | None, week: str | None) -> str:
    if (month is None) == (week is None):
        raise typer.BadParameter("give one of --month and --week")
    period = month or week or ""
    hint = "--month" if week is None else "--week"
    try:
        days_of(period)
    except Refused as error:
        raise typer.BadParameter(str(error), param_hint=hint) from error
    if ("W" in period) != (week is not None):
        raise typer.BadParameter(f"{period!r} is none", param_hint=hint)
    return period


def _found(loaded: LoadedConfig, team: str, period: str) -> TeamStatement:
    anyio.run(catch_up_state, loaded)
    reporting = Reporting.of(loaded.settings, base_dir=loaded.base_dir)
    query = ShowStatement(
        team=team,
        period=period,
        organisation=reporting.finance.organisation,
        cost_centres=reporting.cost_centres,
    )
    return ask(loaded, query, TeamStatement)


def _call(loaded: LoadedConfig, name: str, params: object, result_type: type[T]) -> T:
    async def call() -> T:
        return await call_gateway(loaded, name, params, result_type=result_type, timeout_s=_SEND_S)

    try:
        return anyio.run(call)
    except NoGateway as error:
        raise CliFault("no gateway runs that would send anything; `fareway serve` does") from error
    except ChannelError as error:
        raise CliFault(str(error)) from error


def _html(found: TeamStatement) -> str:
    # Templates, for this one option only.
    from gateway.dashboard.finance.statement_document import statement_html
    from gateway.dashboard.templating import make_templates

    return statement_html(found, make_templates())


def _print(found: TeamStatement) -> None:
    typer.echo(f"statement of {found.team or 'no team'}, {found.period} ({found.state})")
    columns = list(found.report.columns)
    project_at, model_at = columns.index("project"), columns.index("model")
    for row in found.report.rows:
        project, model = row.group[project_at], row.group[model_at]
        centre = found.cost_centre(project)
        amount = format_usd(row.sums.cost_pico_usd)
        typer.echo(f"  {project or '-':<20} {centre or '-':<12} {model:<24} {amount:>18} USD")
    for late in found.late:
        amount = format_usd(late.amount_pico_usd)
        typer.echo(f"  late, of {late.month}: {late.project or '-'}  {amount} USD")
    for one in found.adjustments:
        amount = format_usd(one.amount_pico_usd)
        typer.echo(f"  {one.kind}: {one.project or '-'}  {amount} USD  {one.reason}")
    for what, amount in (
        ("usage on days of the period", found.report.total.cost_pico_usd),
        ("counted when it came", -found.counted_later_pico_usd),
        ("late usage of closed months", found.sums.late_pico_usd),
        ("adjustments", found.sums.adjusted_pico_usd),
        ("charged", found.sums.total_pico_usd),
    ):
        typer.echo(f"  {what:<28} {format_usd(amount)} USD")
    if found.machines is not None:
        _print_machines(found.machines)


def _print_machines(part: MachinePart) -> None:
    """What the use of machines really cost, beside what is charged for it."""
    typer.echo(f"  machines of our own, for information: {part.standing}")
    for use in part.uses:
        what = f"{use.pool}, {use.project or '-'}"
        slice_text = f", {SLICE_NAME}" if use.is_slice else ""
        nominal = " (nominal rate)" if use.is_nominal else ""
        booked, actual = format_usd(use.booked_pico_usd), format_usd(use.actual_pico_usd)
        typer.echo(f"    {what}{slice_text}: booked {booked} USD, actual {actual} USD{nominal}")


def _list_sent(loaded: LoadedConfig, *, as_json: bool) -> None:
    found = _call(loaded, "sent_notices", None, tuple[SentNotice, ...])
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    for one in found:
        state = "delivered" if one.delivered_at_us is not None else one.failure or "waits"
        if one.delivered_at_us is None and one.next_try_at_us is None:
            state = f"given up: {one.failure}"
        typer.echo(f"{one.notice_id}  {one.subject}  {one.recipient}  {state}")
