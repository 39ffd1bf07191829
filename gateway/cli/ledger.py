"""`fareway ledger verify`: whether the books hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import anyio
import msgspec
import typer

from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.budget_changes import ACTOR, offline_ledger
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.ledger.errors import LedgerError
from gateway.ledger.reading import read_ledger
from gateway.ledger.rebuild import RebuiltDay
from gateway.ledger.verify import Verification, verify
from gateway.settings.database import connection_url
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from pricing.money import format_usd

REBUILD_TIMEOUT_S = 600.0

app = typer.Typer(help="Check the ledger.", rich_markup_mode=None)


@app.callback()
def ledger() -> None:
    """Check the ledger."""


@app.command("verify", short_help="Recompute costs and sums, check the spools.")
def verify_ledger(
    config: ConfigOption = None,
    as_json: JsonOption = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="First make the sums of every day anew that are not those of its entries.",
        ),
    ] = False,
) -> None:
    """Recompute costs and roll-ups, check the spools; exit 1 when something does not hold."""
    loaded = load_guarded(config, environ=process_environ())
    try:
        rebuilt: Sequence[RebuiltDay] = anyio.run(_rebuild, loaded) if rebuild else ()
        found = read_ledger(
            connection_url(loaded, environ=process_environ()), verify, loaded.spool_dir
        )
    except (ChannelError, LedgerError) as error:
        raise CliFault(str(error)) from error
    if as_json:
        document = {**msgspec.to_builtins(found), "rebuilt": msgspec.to_builtins(rebuilt)}
        typer.echo(json.dumps(document, indent=2))
    else:
        for day in rebuilt:
            typer.echo(
                f"rebuilt {day.day}: {day.events} entries, the sums said"
                f" {format_usd(day.cost_before_pico_usd)} USD,"
                f" now {format_usd(day.cost_pico_usd)} USD"
            )
        _print(found)
    if found.faults:
        raise typer.Exit(1)


async def _rebuild(config: LoadedConfig) -> Sequence[RebuiltDay]:
    """Have the running gateway do it, or do it in the database of a stopped one."""
    try:
        return await call_gateway(
            config, "rebuild_sums", ACTOR, result_type=list[RebuiltDay], timeout_s=REBUILD_TIMEOUT_S
        )
    except NoGateway:
        service = await offline_ledger(config)
        try:
            return await service.rebuild_sums(actor=ACTOR)
        finally:
            await service.stop(drain=False)


def _print(found: Verification) -> None:
    for fault in found.faults:
        typer.echo(f"fault: {fault}", err=True)
    verdict = f"{len(found.faults)} faults" if found.faults else "ok"
    typer.echo(
        f"{verdict}: {found.events} entries, {format_usd(found.cost_pico_usd)} USD booked, "
        f"{found.open_intents} attempts open, {found.backlog_records} records not loaded yet"
    )
