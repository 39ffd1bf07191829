"""`fareway init`: a configuration file to start from."""

from __future__ import annotations

from pathlib import Path

import typer

from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption
from gateway.settings.environment import CONFIG_VARIABLE, DEFAULT_CONFIG, process_environ
from gateway.settings.loader import template


def init(config: ConfigOption = None) -> None:
    """Write a commented fareway.yaml to start from; never replaces a file."""
    path = config or Path(process_environ().get(CONFIG_VARIABLE) or DEFAULT_CONFIG)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template("starter.yaml"))
    except FileExistsError as error:
        raise CliFault(
            f"{path} is already there; remove it first, or name another with --config"
        ) from error
    except OSError as error:
        raise CliFault(f"{path} cannot be written: {error.strerror}") from error
    typer.echo(f"wrote {path}; next: fareway config check --config {path}")
