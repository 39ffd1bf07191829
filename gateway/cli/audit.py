"""`fareway audit verify`: whether the audit log is what was written."""

from __future__ import annotations

import json

import typer

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.ledger.audit import verify_audit
from gateway.ledger.errors import LedgerError
from gateway.ledger.reading import read_ledger
from gateway.settings.environment import process_environ

app = typer.Typer(help="Check the audit log.", rich_markup_mode=None)


@app.callback()
def audit() -> None:
    """Check the audit log."""


@app.command("verify", short_help="Follow the chain of hashes from the first line.")
def verify(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Follow the chain of hashes; exit 1 when a line was changed, left out or put in."""
    loaded = load_guarded(config, environ=process_environ())
    try:
        found = read_ledger(loaded.database_url, verify_audit)
    except LedgerError as error:
        raise CliFault(str(error)) from error
    if as_json:
        document = {"lines": found.lines, "head": found.head.hex(), "faults": list(found.faults)}
        typer.echo(json.dumps(document, indent=2))
    else:
        for fault in found.faults:
            typer.echo(f"fault: {fault}", err=True)
        verdict = f"{len(found.faults)} faults" if found.faults else "ok"
        typer.echo(f"{verdict}: {found.lines} lines, head {found.head.hex() or '-'}")
    if found.faults:
        raise typer.Exit(1)
