"""`fareway spend journal`: a month's spend as a balanced journal for the general ledger."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_close import month_of_option
from gateway.clock import from_microseconds
from gateway.finance.errors import FinanceError
from gateway.finance.journal_csv import journal_csv
from gateway.finance.journal_messages import IssueJournal, JournalDocument, ShowJournal
from gateway.finance.journal_orders import journal_posting
from gateway.finance.spend_question import Reporting
from gateway.settings.environment import process_environ
from pricing.money import format_usd


def journal(
    month: Annotated[
        str | None,
        typer.Option("--month", help="Which month, such as 2026-10.", show_default=False),
    ] = None,
    draft: Annotated[
        bool,
        typer.Option("--draft", help="Of a month that is not closed: a draft, issued to nobody."),
    ] = False,
    revise: Annotated[
        bool,
        typer.Option("--revise", help="Issue another one where the configuration changed since."),
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the CSV to a file.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Issue the journal of a closed month, once; asked again, it comes again unchanged.

    Debits are by cost centre, credits by who is paid; both sum to what the month was closed with.
    """
    if (as_csv or out is not None) and as_json:
        raise typer.BadParameter("take one of --csv, --out and --json")
    if draft and revise:
        raise typer.BadParameter("take one of --draft and --revise")
    wanted = month_of_option(month)
    loaded = load_guarded(config, environ=process_environ())
    reporting = Reporting.of(loaded.settings, base_dir=loaded.base_dir)
    try:
        posting = journal_posting(reporting, wanted)
    except FinanceError as error:
        raise CliFault(str(error)) from error
    order = (
        ShowJournal(month=wanted, posting=posting, is_draft=True)
        if draft
        else IssueJournal(actor=actor(), month=wanted, posting=posting, is_revision=revise)
    )
    found = ask(loaded, order, JournalDocument)
    if out is not None:
        out.write_text(journal_csv(found), encoding="utf-8", newline="")
        typer.echo(f"{out}: {found.number}, {len(found.lines)} lines")
    elif as_csv:
        typer.echo(journal_csv(found), nl=False)
    elif as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print(found)
    if not found.is_current:
        typer.echo(
            f"note: {found.number} was issued with other accounts or cost centres than those of"
            " now; --revise issues another one, and the first has to be reversed",
            err=True,
        )


def _print(found: JournalDocument) -> None:
    typer.echo(f"{found.number}  {found.entity}  {found.posting_date}  {found.currency}")
    for line in found.lines:
        is_debit = Decimal(line.debit) > 0
        sides = (line.debit, "") if is_debit else ("", line.credit)
        amounts = " ".join(f"{side:>16}" for side in sides)
        typer.echo(f"  {line.account:<12} {line.cost_centre:<12} {amounts}  {line.text}")
    typer.echo(f"  {'total':<25} {found.total:>16} {found.total:>16}")
    for what, amount in (
        ("booked", found.booked_pico_usd),
        ("corrections of closed months", found.late_pico_usd),
        ("adjustments", found.adjusted_pico_usd),
        ("total", found.total_pico_usd),
    ):
        typer.echo(f"  {what:<28} {format_usd(amount)} USD")
    if found.rate_day:
        typer.echo(
            f"  rate {found.rate} {found.currency} per USD of {found.rate_day}, {found.rate_source}"
        )
    if found.issued_at_us is not None:
        at = f"{from_microseconds(found.issued_at_us):%Y-%m-%d %H:%M} UTC"
        typer.echo(f"  issued {at} by {found.issued_by}")
    typer.echo(f"  digest {found.digest}")
