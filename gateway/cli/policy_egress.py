"""`fareway policy egress`: where a configuration connects to, for the network to enforce."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gateway.cli.configured import load_guarded
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import from_microseconds, system_clock
from gateway.egress.destinations import destinations
from gateway.egress.rules import Format, rules
from gateway.settings.environment import process_environ


def egress(
    form: Annotated[Format, typer.Option("--format", help="Whose rules.")] = Format.NFTABLES,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write where the service may connect to as rules of the network; --json prints the list."""
    environ = process_environ()
    today = from_microseconds(system_clock().wall_us()).date()
    loaded = load_guarded(config, environ=environ, today=today)
    listed = destinations(loaded.settings, environ=environ, today=today)
    if not as_json:
        typer.echo(rules(listed, form), nl=False)
        return
    shown = [
        {
            "host": one.host,
            "port": one.port,
            "purpose": one.purpose,
            "setting": one.setting,
            "reach": one.reach,
            "roles": sorted(one.roles),
        }
        for one in listed
    ]
    typer.echo(json.dumps({"mode": loaded.settings.egress.mode, "destinations": shown}, indent=2))
