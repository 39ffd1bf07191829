"""`fareway spend commitments`: what was bought or promised ahead, and how it goes down."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from gateway.cli.configured import load_guarded
from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_reconcile import check_provider, rates_of
from gateway.finance.commitment_messages import (
    CommitmentStanding,
    ListCommitments,
    RecordCommitment,
    RecordReply,
    WithdrawCommitment,
)
from gateway.settings.environment import process_environ
from pricing.commitments import CommitmentKind
from pricing.money import format_usd

app = typer.Typer(
    help="Show commitments and prepaid credits, record and correct them.", rich_markup_mode=None
)

NameArgument = Annotated[str, typer.Argument(help="What it is called.", show_default=False)]


@app.callback(invoke_without_command=True)
def list_commitments(
    context: typer.Context, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """Show where each stands at the end of yesterday (UTC)."""
    if context.invoked_subcommand is not None:
        return
    loaded = load_guarded(config, environ=process_environ())
    found = ask(loaded, ListCommitments(), tuple[CommitmentStanding, ...])
    if as_json:
        _json(found)
        return
    for one in found:
        _show(one)
    if not found:
        typer.echo("no commitment is recorded", err=True)


@app.command("record", short_help="Record one, or correct it.")
def record(
    name: NameArgument,
    kind: Annotated[CommitmentKind, typer.Option("--kind", help="How it is paid and used.")],
    provider: Annotated[
        str, typer.Option("--provider", help="Provider of the configuration: the account.")
    ],
    amount: Annotated[str, typer.Option("--amount", help="The whole amount.")],
    first: Annotated[str, typer.Option("--from", help="First day (UTC), such as 2026-11-01.")],
    last: Annotated[str, typer.Option("--to", help="Last day (UTC), counted too.")],
    currency: Annotated[str, typer.Option("--currency", help="Of the amount.")] = "USD",
    deployment: Annotated[
        list[str] | None,
        typer.Option(
            "--deployment", help="Only this deployment; repeat for several.", show_default=False
        ),
    ] = None,
    invoice: Annotated[str, typer.Option("--invoice", help="Number of the invoice.")] = "",
    correct: Annotated[
        bool, typer.Option("--correct", help="It takes the place of what is recorded.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why it is corrected.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Record a commitment; the same one twice changes nothing."""
    loaded = load_guarded(config, environ=process_environ())
    check_provider(loaded, provider)
    rates, rates_name = rates_of(loaded)
    values = {
        "actor": actor(),
        "name": name,
        "kind": kind,
        "provider": provider,
        "amount": amount,
        "first_day": first,
        "last_day": last,
        "currency": currency,
        "deployments": deployment or [],
        "invoice": invoice,
        "is_correction": correct,
        "reason": reason,
        "rates": rates,
        "rates_name": rates_name or "finance.rates_file",
    }
    try:
        order = msgspec.convert({"type": "record_commitment", **values}, RecordCommitment)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from error
    reply = ask(loaded, order, RecordReply)
    if as_json:
        _json(reply)
    elif not reply.is_new:
        typer.echo(f"{reply.name} is recorded already, just so; nothing changed")
    else:
        typer.echo(
            f"{reply.name}, revision {reply.revision}: {format_usd(reply.amount_pico_usd)} USD,"
            f" counts from {reply.counts_from}"
        )


@app.command("withdraw", short_help="Let one draw nothing any more.")
def withdraw(
    name: NameArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, in one sentence.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Withdraw a commitment from the first open month on; what was drawn before stays."""
    loaded = load_guarded(config, environ=process_environ())
    try:
        values = {"type": "withdraw_commitment", "actor": actor(), "name": name, "reason": reason}
        order = msgspec.convert(values, WithdrawCommitment)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(str(error)) from error
    reply = ask(loaded, order, RecordReply)
    if as_json:
        _json(reply)
    elif reply.is_new:
        typer.echo(f"{reply.name} draws nothing from {reply.counts_from} on")
    else:
        typer.echo(f"{reply.name} was withdrawn before; nothing changed")


def _show(one: CommitmentStanding) -> None:
    where = ", ".join(one.deployments) or f"all of {one.provider}"
    typer.echo(
        f"{one.name}  {one.kind.value}  {one.state}  {one.amount} {one.currency}"
        f"  {one.first_day} to {one.last_day}  {where}"
    )
    typer.echo(
        f"  drawn {format_usd(one.drawn_pico_usd)}, left {format_usd(one.left_pico_usd)}, unused"
        f" {format_usd(one.unused_pico_usd)} of {format_usd(one.amount_pico_usd)} USD"
    )
    if one.runs_out_on is not None:
        band = ""
        if one.band_percent is not None:
            late = one.runs_out_late or "after its end"
            band = f" ({one.band_percent} %: {one.runs_out_early} to {late})"
        typer.echo(f"  used up on {one.runs_out_on}{band}")
    elif one.runs_out_early is not None:
        typer.echo(f"  may be used up from {one.runs_out_early} on ({one.band_percent} %)")


def _json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
