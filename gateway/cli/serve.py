"""`fareway serve`: run the gateway until it is told to stop."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import typer

from gateway.boot import spare_what_is_there
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption
from gateway.clock import system_clock
from gateway.policy_proof import PolicyUnproved
from gateway.process.launch import HeadStart
from gateway.process.preflight import ServeError
from gateway.process.serve import prepare
from gateway.settings.environment import config_path, process_environ
from gateway.settings.loader import load
from gateway.telemetry.logs import set_up_logging


def serve(context: typer.Context, config: ConfigOption = None) -> None:
    """Run the gateway: supervisor, workers, ledger process and engines."""
    from pathlib import Path

    environ = process_environ()
    path = config or config_path(environ, Path.cwd())
    loaded = load(path, environ=environ, today=datetime.now(UTC).date())
    set_up_logging("supervisor", log_format=loaded.settings.telemetry.log_format)
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    try:
        prepared = prepare(
            loaded,
            config_path=None if path is None else path.absolute(),
            environ=environ,
            clock=system_clock(),
            on_ready=lambda url: typer.echo(f"fareway is ready at {url}/v1", err=True),
            on_progress=_say_progress,
            head_start=context.find_object(HeadStart),
            on_set_up=_say_set_up,
        )
        if prepared.admin_key_once is not None:
            typer.echo(f"administrator's key, shown only now: {prepared.admin_key_once}", err=True)
        spare_what_is_there()
        anyio.run(prepared.supervisor.run)
    except (ServeError, PolicyUnproved) as error:
        raise CliFault(str(error)) from error


def _say_set_up(link: str) -> None:
    typer.echo(f"first administrator, once, within 24 hours: {link}", err=True)


def _say_progress(done_bytes: int, total_bytes: int | None, what: str) -> None:
    if total_bytes is not None and done_bytes == total_bytes:
        typer.echo(f"fetched {what} ({total_bytes // 1_000_000} MB)", err=True)
