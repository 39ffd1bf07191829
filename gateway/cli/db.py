"""`fareway db upgrade|current|downgrade`: the schema of the ledger's database."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.ledger import migrate
from gateway.ledger.errors import LedgerError
from gateway.ledger.versions import versions
from gateway.process import admin_socket
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig

app = typer.Typer(help="Change the schema of the ledger's database.", rich_markup_mode=None)

BASE = "base"


@app.command("upgrade", short_help="Bring the schema to this release's version.")
def upgrade(config: ConfigOption = None) -> None:
    """Bring the schema to this release's version, all of it or nothing; `serve` does the same."""
    loaded = _load(config)
    try:
        migrate.upgrade(_url(loaded))
    except LedgerError as error:
        raise CliFault(str(error)) from error
    typer.echo(f"the database is at schema version {migrate.head()}", err=True)


@app.command("current", short_help="Show the version of the schema.")
def current(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the version of the schema, and the one that this release needs."""
    try:
        found = migrate.current(_url(_load(config)))
    except LedgerError as error:
        raise CliFault(str(error)) from error
    if as_json:
        typer.echo(json.dumps({"current": found, "needed": migrate.head()}))
        return
    typer.echo(f"{found or 'none'} (this release needs {migrate.head()})")


@app.command("downgrade", short_help="Go back to an earlier schema.")
def downgrade(
    version: Annotated[str, typer.Argument(help="Version to go back to, or base for none.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Take it that what only later versions hold goes.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Go back to an earlier schema, for an earlier release; stop the gateway first."""
    known = {BASE, *versions()}
    if version not in known:
        raise typer.BadParameter(f"{version!r} is none of {', '.join(sorted(known))}")
    loaded = _load(config)
    if not accept_loss:
        raise CliFault(
            "what only later versions of the schema hold is deleted: make a back-up first, then"
            " add --accept-loss"
        )
    sock = admin_socket.connect(loaded.spool_dir)
    if sock is not None:
        sock.close()
        raise CliFault("a gateway of this configuration runs: stop it first")
    try:
        migrate.downgrade(_url(loaded), version)
    except LedgerError as error:
        raise CliFault(str(error)) from error
    typer.echo(f"the database is at schema version {version}", err=True)


def _load(config: ConfigOption) -> LoadedConfig:
    return load_guarded(config, environ=process_environ())


def _url(loaded: LoadedConfig) -> str:
    return connection_url(loaded, environ=process_environ())
