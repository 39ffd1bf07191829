"""`fareway prices`: prices that vendors' bills imply, accepted or rejected by a person."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.configured import load_guarded
from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_close import month_of_option
from gateway.finance.price_messages import (
    DecidePrice,
    ListPriceProposals,
    PriceProposal,
    PriceState,
    how_to_set,
)
from gateway.settings.environment import process_environ
from pricing.money import format_usd

app = typer.Typer(
    help="See prices that bills imply, and decide.", rich_markup_mode=None, no_args_is_help=True
)

_REASON_MAX = 500
NumberArgument = Annotated[int, typer.Argument(help="Number of the proposal.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="Why, in one sentence.", show_default=False)
]


@app.command("proposals", short_help="List prices that bills imply.")
def proposals(
    state: Annotated[
        PriceState | None,
        typer.Option("--state", help="Only those of a state.", show_default=False),
    ] = None,
    month: Annotated[
        str | None, typer.Option("--month", help="Only of this month.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List them, newest first, with our price, that of the bill, and what it rests on."""
    query = ListPriceProposals(state=state, month=None if month is None else month_of_option(month))
    loaded = load_guarded(config, environ=process_environ())
    found = ask(loaded, query, tuple[PriceProposal, ...])
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    for one in found:
        evidence = one.evidence
        days = f"{evidence.days[0]} to {evidence.days[-1]} ({len(evidence.days)} with usage)"
        by = f" by {one.decided_by}: {one.reason}" if one.decided_by else ""
        ours = f"{one.our_price}{' (mean)' if one.is_mixed else ''}"
        typer.echo(
            f"{one.proposal_id}  {one.month}  {one.deployment}  {one.price_key}: ours {ours},"
            f" billed {one.billed_price}  {one.state.value}{by}"
        )
        typer.echo(
            f"    {days}; {evidence.billed_units:,} units billed"
            f" {format_usd(evidence.billed_pico_usd)} USD, at our price"
            f" {format_usd(evidence.at_ours_pico_usd)} USD; {evidence.line_count} lines of imports"
            f" {', '.join(str(number) for number in evidence.imports)}"
        )


@app.command("accept", short_help="Accept a price that a bill implies.")
def accept(
    proposal_id: NumberArgument,
    reason: ReasonOption,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept it and say what to put into the configuration; nothing that was booked changes."""
    _decide(proposal_id, reason, config, is_accepted=True, as_json=as_json)


@app.command("reject", short_help="Reject a price that a bill implies.")
def reject(
    proposal_id: NumberArgument,
    reason: ReasonOption,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reject it; the same prices of the same month are not proposed again."""
    _decide(proposal_id, reason, config, is_accepted=False, as_json=as_json)


def _decide(
    proposal_id: int, reason: str, config: Path | None, *, is_accepted: bool, as_json: bool
) -> None:
    if not reason.strip() or len(reason) > _REASON_MAX:
        raise typer.BadParameter(f"must be 1 to {_REASON_MAX} characters", param_hint="--reason")
    decision = DecidePrice(
        actor=actor(), proposal_id=proposal_id, is_accepted=is_accepted, reason=reason.strip()
    )
    done = ask(load_guarded(config, environ=process_environ()), decision, PriceProposal)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(done)).decode())
        return
    typer.echo(f"price proposal {done.proposal_id} is {done.state.value}")
    if is_accepted:
        typer.echo(how_to_set(done))
