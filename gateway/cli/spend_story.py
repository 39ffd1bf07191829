"""`fareway spend bridge` and `fareway spend anomalies`: why a month cost what it did."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, cast

import msgspec
import typer

from gateway.cli.configured import load_guarded
from gateway.cli.finance_calls import ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_close import month_of_option
from gateway.clock import from_microseconds, system_clock
from gateway.finance.statement_messages import days_of
from gateway.finance.story_messages import BridgeReport, FoundAnomaly, ShowAnomalies, ShowBridge
from gateway.settings.environment import process_environ
from gateway.settings.statements import AnomalySettings
from pricing.money import PICO_PER_USD, format_usd

_EFFECTS = ("volume", "mix", "output_share", "cache_rate", "price", "other")


def bridge(
    month: Annotated[
        str | None,
        typer.Option("--month", help="The later month, such as 2026-10.", show_default=False),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", help="The earlier one [default: the month before].", show_default=False
        ),
    ] = None,
    team: Annotated[
        str | None, typer.Option("--team", help="Only this team's usage.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a month's cost against another's: volume, mix, output share, cache rate, price.

    The parts sum to the difference, to the picodollar.
    """
    after = month_of_option(month)
    before = against or f"{days_of(after)[0] - timedelta(days=1):%Y-%m}"
    query = ShowBridge(before=month_of_option(before), after=after, team=team)
    loaded = load_guarded(config, environ=process_environ())
    found = ask(loaded, query, BridgeReport)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    typer.echo(f"{found.before:<20} {format_usd(found.before_pico_usd):>20} USD")
    amounts = cast("dict[str, int]", msgspec.structs.asdict(found.effects))
    for name in _EFFECTS:
        amount = amounts[f"{name}_pico_usd"]
        if amount or name != "other":
            typer.echo(f"  {name.replace('_', ' '):<18} {format_usd(amount):>20} USD")
    typer.echo(f"{found.after:<20} {format_usd(found.after_pico_usd):>20} USD")
    for one in found.products:
        typer.echo(f"  {one.deployment:<40} {format_usd(one.change_pico_usd):>20} USD")


def anomalies(
    month: Annotated[
        str | None,
        typer.Option(
            "--month", help="Days of this month [default: the last 30].", show_default=False
        ),
    ] = None,
    excess: Annotated[
        int | None,
        typer.Option(
            "--excess-usd",
            help="Least excess in whole dollars [default: finance.anomalies.excess_usd].",
            min=1,
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List days (UTC) that cost much more than such days do, with the team, model and keys."""
    loaded = load_guarded(config, environ=process_environ())
    settings = loaded.settings.finance.anomalies
    usd = excess or (AnomalySettings() if settings is None else settings).excess_usd
    last = from_microseconds(system_clock().wall_us()).date() - timedelta(days=1)
    first = last - timedelta(days=29)
    if month is not None:
        first, last = days_of(month_of_option(month))
    query = ShowAnomalies(
        first_day=first.isoformat(),
        last_day=last.isoformat(),
        excess_pico_usd=usd * PICO_PER_USD,
    )
    found = ask(loaded, query, tuple[FoundAnomaly, ...])
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    for one in found:
        keys = ", ".join(share.key_id or "no key" for share in one.keys)
        typer.echo(
            f"{one.day}  {one.team or 'no team'}  {one.model}"
            f"  {format_usd(one.amount_pico_usd)} USD, expected"
            f" {format_usd(one.expected_pico_usd)}  keys: {keys}"
        )
    if not found:
        typer.echo("no day stood out", err=True)
