"""`fareway ledger verify`: whether the books hold."""

from __future__ import annotations

import msgspec
import typer

from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.ledger.errors import LedgerError
from gateway.ledger.reading import read_ledger
from gateway.ledger.verify import Verification, verify
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import load
from pricing.money import format_usd

app = typer.Typer(help="Check the ledger.", rich_markup_mode=None)


@app.callback()
def ledger() -> None:
    """Check the ledger."""


@app.command("verify", short_help="Recompute costs and sums, check the spools.")
def verify_ledger(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Recompute costs and roll-ups, check the spools; exit 1 when something does not hold."""
    loaded = load(config, environ=process_environ())
    try:
        found = read_ledger(
            connection_url(loaded, environ=process_environ()), verify, loaded.spool_dir
        )
    except LedgerError as error:
        raise CliFault(str(error)) from error
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print(found)
    if found.faults:
        raise typer.Exit(1)


def _print(found: Verification) -> None:
    for fault in found.faults:
        typer.echo(f"fault: {fault}", err=True)
    verdict = f"{len(found.faults)} faults" if found.faults else "ok"
    typer.echo(
        f"{verdict}: {found.events} entries, {format_usd(found.cost_pico_usd)} USD booked, "
        f"{found.open_intents} attempts open, {found.backlog_records} records not loaded yet"
    )
