"""`fareway spend close`: where a month stands, and closing it."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import typer

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import from_microseconds
from gateway.finance.close_messages import (
    CloseMonth,
    CloseProposal,
    CloseReport,
    CloseStatus,
    CloseStep,
    ProposeClose,
    VerifiedClose,
    VerifyCloses,
    WithdrawClose,
)
from gateway.finance.messages import MONTH_PATTERN
from gateway.finance.orders import close_delays
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from pricing.money import format_usd

_MONTH = re.compile(MONTH_PATTERN)
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_REASON_MAX = 500


def close(
    month: Annotated[
        str | None,
        typer.Option("--month", help="Which month, such as 2026-10.", show_default=False),
    ] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="Close it softly: late events still land in it.")
    ] = False,
    hard: Annotated[bool, typer.Option("--hard", help="Close it for good.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Say where it stands; the default.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recompute the digest of every closed month.")
    ] = False,
    propose: Annotated[
        bool, typer.Option("--propose", help="Propose to close it for good; another confirms.")
    ] = False,
    confirm: Annotated[
        str | None,
        typer.Option("--confirm", help="Close it as proposed with this digest.", metavar="DIGEST"),
    ] = None,
    withdraw: Annotated[
        str | None,
        typer.Option("--withdraw", help="Take back what was proposed.", metavar="REASON"),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", help="Open item and reason, as ITEM=REASON; repeat."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the checklist of a month, or close the month once nothing on it is open."""
    steps = (soft, hard, status, verify, propose, confirm is not None, withdraw is not None)
    if sum(steps) > 1:
        raise typer.BadParameter(
            "take one of --soft, --hard, --status, --verify, --propose, --confirm and --withdraw"
        )
    loaded = load_guarded(config, environ=process_environ())
    if verify:
        _verify(loaded, as_json=as_json)
        return
    wanted, accepted = month_of_option(month), _accepted(accept)
    delays = close_delays(loaded.settings.finance.close)
    if propose:
        proposal = ProposeClose(actor=actor(), month=wanted, accepted=accepted, delays=delays)
        _print_proposal(ask(loaded, proposal, CloseProposal), as_json=as_json)
    elif withdraw is not None:
        taken_back = WithdrawClose(actor=actor(), month=wanted, reason=_reason(withdraw))
        _print_proposal(ask(loaded, taken_back, CloseProposal), as_json=as_json)
    else:
        step = CloseStep.SOFT if soft else CloseStep.HARD
        is_closing = soft or hard or confirm is not None
        order = CloseMonth(
            actor=actor(),
            month=wanted,
            step=step,
            accepted=accepted,
            delays=delays,
            needs_two=loaded.settings.finance.close.two_person or confirm is not None,
            digest=_digest(confirm),
        )
        status_of = CloseStatus(month=wanted, step=step, delays=delays)
        report = ask(loaded, order if is_closing else status_of, CloseReport)
        _print(report, as_json=as_json)


def month_of_option(text: str | None) -> str:
    """A month of the command line; anything else is wrong usage."""
    if text is None or not _MONTH.fullmatch(text):
        raise typer.BadParameter("must be a month such as 2026-10", param_hint="--month")
    return text


def _accepted(accept: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in accept or ():
        item, mark, reason = text.partition("=")
        if not mark or not item or not reason.strip():
            raise typer.BadParameter(f"{text!r} is not ITEM=REASON", param_hint="--accept")
        found[item.strip()] = reason.strip()
    return found


def _digest(text: str | None) -> str:
    if text is not None and not _DIGEST.fullmatch(text):
        raise typer.BadParameter("must be a digest of 64 digits", param_hint="--confirm")
    return text or ""


def _reason(text: str) -> str:
    if not text.strip() or len(text) > _REASON_MAX:
        raise typer.BadParameter(f"must be 1 to {_REASON_MAX} characters", param_hint="--withdraw")
    return text.strip()


def _print_proposal(found: CloseProposal, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    if found.state == "open":
        typer.echo(f"the close of {found.month} waits for somebody else to confirm it:")
        typer.echo(f"  fareway spend close --month {found.month} --confirm {found.digest}")
    else:
        typer.echo(f"the close of {found.month} that {found.proposed_by} proposed is {found.state}")


def _verify(loaded: LoadedConfig, *, as_json: bool) -> None:
    found = ask(loaded, VerifyCloses(), tuple[VerifiedClose, ...])
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        for one in found:
            says = "holds" if one.is_same else f"does not hold, its rows give {one.digest}"
            typer.echo(f"{one.month} {one.closed_digest} {says}")
        if not found:
            typer.echo("no month is closed", err=True)
    if not all(one.is_same for one in found):
        raise CliFault("a closed month does not hold what was closed")


def _print(report: CloseReport, *, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
        return
    typer.echo(f"{report.month} is {report.state}")
    for item in report.items:
        may = " (may be accepted)" if item.state == "open" and item.is_acceptable else ""
        typer.echo(f"  {item.state:<9} {item.name:<16} {item.sentence}{may}")
    total = report.cost_pico_usd + report.adjusted_pico_usd + report.late_pico_usd
    for what, amount in (
        ("booked", report.cost_pico_usd),
        ("adjustments", report.adjusted_pico_usd),
        ("corrections of closed months", report.late_pico_usd),
        ("total", total),
    ):
        typer.echo(f"  {what:<28} {format_usd(amount)} USD")
    proposal = report.proposal
    if proposal is not None:
        at = f"{from_microseconds(proposal.at_us):%Y-%m-%d %H:%M} UTC"
        void = "" if proposal.is_current else "; VOID, the month has changed since"
        typer.echo(f"  close proposed {at} by {proposal.proposed_by}: {proposal.state}{void}")
        typer.echo(f"  digest as proposed   {proposal.digest}")
        for item, reason in sorted(proposal.accepted.items()):
            typer.echo(f"  accepted as proposed {item}: {reason}")
    if report.soft_at_us is not None:
        typer.echo(f"  soft closed {from_microseconds(report.soft_at_us):%Y-%m-%d %H:%M} UTC")
    if report.closed_at_us is not None:
        at = f"{from_microseconds(report.closed_at_us):%Y-%m-%d %H:%M} UTC"
        typer.echo(f"  closed {at} by {report.closed_by}, {report.events} entries")
        typer.echo(f"  digest of the month  {report.digest}")
        typer.echo(f"  head of audit chain  {report.anchor}; keep it outside of this database")
