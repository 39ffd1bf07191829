"""Proposals and posted adjustments as people read them, and a proposal out of a form. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gateway.dashboard.books.frame import ADJUSTMENTS_PATH, FieldFaults, instant, spoken
from gateway.dashboard.books.run_view import column, place_text
from gateway.dashboard.finance.amounts import Shown, shown
from gateway.finance.messages import (
    UNATTRIBUTED,
    Adjustment,
    AdjustmentKind,
    AdjustmentLine,
    Proposal,
    Propose,
)
from pricing.errors import InvalidAmount
from pricing.money import format_usd, parse_usd

LINES = 6
"""Lines of a form; whoever needs more sends two."""
REASON_CHARACTERS_MAX = 1_000
NAME_CHARACTERS_MAX = 256
KINDS: Mapping[str, str] = {
    AdjustmentKind.TRUE_UP: "True-up: the vendor bills otherwise than was booked",
    AdjustmentKind.CREDIT: "Credit",
    AdjustmentKind.TAX: "Tax",
    AdjustmentKind.ROUNDING: "Rounding",
    AdjustmentKind.ALLOCATION: "Allocation: a cost moved between teams",
    AdjustmentKind.REATTRIBUTION: "Re-attribution: spend of nobody given to its team",
}
"""What somebody can propose; a true-up of a closed month becomes `late` by itself."""
SUM_TO_ZERO = frozenset({AdjustmentKind.ALLOCATION.value, AdjustmentKind.REATTRIBUTION.value})
_STATES: Mapping[str, str] = {"proposed": "waits", "posted": "posted", "rejected": "rejected"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRow:
    """One amount of a proposal.

    Attributes:
        team: Who pays.
        place: Provider, model and meter.
        day: Of charge, empty for the whole month.
        event: The attempt that it settles, empty for none.
        amount: Signed.
    """

    team: str
    project: str
    place: str
    day: str
    event: str
    amount: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalLine:
    """A proposal.

    Attributes:
        number: Its number.
        href: Its page.
        kind: For people.
        state: `waits`, `posted` or `rejected`.
        is_open: Whether it waits.
        total: Sum of its lines.
        proposed: When and by whom.
        decided: The same of the decision, empty while it waits.
        run_id: The run that it comes from, None when a person made it.
    """

    number: int
    href: str
    period: str
    kind: str
    state: str
    is_open: bool
    reason: str
    total: Shown
    line_count: int
    proposed: str
    decided: str
    run_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedLine:
    """A posted adjustment.

    Attributes:
        about: The closed month that it is about, empty when it is its own.
        approved: When and by whom.
    """

    number: int
    period: str
    about: str
    kind: str
    team: str
    project: str
    place: str
    day: str
    amount: Shown
    reason: str
    approved: str
    proposal: int
    href: str


def kind_text(kind: str) -> str:
    """A kind in a word or two."""
    return {"true_up": "True-up", "reattribution": "Re-attribution"}.get(kind, kind.capitalize())


def proposal_line(one: Proposal, names: Mapping[str, str]) -> ProposalLine:
    """A proposal as text."""
    is_open = one.decided_at_us is None
    return ProposalLine(
        number=one.proposal_id,
        href=f"{ADJUSTMENTS_PATH}/{one.proposal_id}",
        period=one.period,
        kind=kind_text(one.kind),
        state=_STATES[one.state],
        is_open=is_open,
        reason=one.reason,
        total=shown(one.total_pico_usd),
        line_count=len(one.lines),
        proposed=f"{instant(one.at_us)}, {spoken(one.proposed_by, names)}",
        decided="" if is_open else f"{instant(one.decided_at_us)}, {spoken(one.decided_by, names)}",
        run_id=one.run_id,
    )


def line_rows(one: Proposal) -> list[LineRow]:
    """The amounts of a proposal; their cents add up to the cents of its total."""
    amounts = column([line.amount_pico_usd for line in one.lines])
    return [
        LineRow(
            team=line.team,
            project=line.project,
            place=_place(line.account, line.model, line.meter),
            day=line.day,
            event=line.event_id,
            amount=amount,
        )
        for line, amount in zip(one.lines, amounts, strict=True)
    ]


def posted_lines(found: Sequence[Adjustment], names: Mapping[str, str]) -> list[PostedLine]:
    """Posted adjustments; their cents add up to the cents of their total."""
    amounts = column([one.amount_pico_usd for one in found])
    return [
        PostedLine(
            number=one.adjustment_id,
            period=one.period,
            about=one.original_period,
            kind=kind_text(one.kind),
            team=one.team,
            project=one.project,
            place=_place(one.account, one.model, one.meter),
            day=one.day,
            amount=amount,
            reason=one.reason,
            approved=f"{instant(one.at_us)}, {spoken(one.approved_by, names)}",
            proposal=one.proposal_id,
            href=f"{ADJUSTMENTS_PATH}/{one.proposal_id}",
        )
        for one, amount in zip(found, amounts, strict=True)
    ]


def proposal_of(
    form: Mapping[str, str],
    *,
    actor: str,
    month: str,
    teams: Collection[str],
    providers: Collection[str],
) -> Propose:
    """What a form proposes.

    Args:
        form: As it was filled in.
        actor: Who.
        month: The month that it is about.
        teams: Configured teams.
        providers: Configured providers.

    Raises:
        FieldFaults: Something of it cannot be taken; all of it is told.
    """
    faults: dict[str, str] = {}
    kind = form.get("kind", "")
    if kind not in KINDS:
        faults["kind"] = "choose what it is"
    reason = form.get("reason", "").strip()
    if not reason:
        faults["reason"] = "say why, in one sentence: whoever approves reads it"
    elif len(reason) > REASON_CHARACTERS_MAX:
        faults["reason"] = f"at most {REASON_CHARACTERS_MAX} characters"
    lines = [
        line
        for number in range(1, LINES + 1)
        if (line := _line(form, number, faults, teams=teams, providers=providers)) is not None
    ]
    total = sum(line.amount_pico_usd for line in lines)
    if not lines and not faults:
        faults["amount-1"] = "give at least one amount"
    elif kind in SUM_TO_ZERO and total and not faults:
        faults["amount-1"] = (
            f"the amounts sum to {format_usd(total)} USD; what one team gets another must give, so"
            " they have to sum to 0"
        )
    if faults:
        raise FieldFaults(faults)
    return Propose(
        actor=actor, period=month, kind=AdjustmentKind(kind), reason=reason, lines=tuple(lines)
    )


def amount_of(text: str) -> int:
    """An amount of a form, in picodollars; not 0.

    Raises:
        ValueError: It is none; the sentence is for whoever typed it.
    """
    try:
        amount = parse_usd(text.strip().replace("\N{MINUS SIGN}", "-"))
    except InvalidAmount as error:
        raise ValueError(f"must be US dollars such as -12.50: {error}") from error
    if not amount:
        raise ValueError("an amount of 0 changes nothing; leave the line empty")
    return amount


def team_fault(team: str, teams: Collection[str]) -> str:
    """Why nobody of that name can pay, empty when somebody can."""
    if team in teams or team == UNATTRIBUTED:
        return ""
    return f"no team {team[:64]!r} in the configuration" if team else "say who pays"


def _line(
    form: Mapping[str, str],
    number: int,
    faults: dict[str, str],
    *,
    teams: Collection[str],
    providers: Collection[str],
) -> AdjustmentLine | None:
    """One line of a form; None where it is empty or wrong, which is added to the faults."""
    fields = ("team", "project", "account", "model", "amount")
    given = {name: form.get(f"{name}-{number}", "").strip() for name in fields}
    if not any(given.values()):
        return None
    found: dict[str, str] = {}
    amount = 0
    try:
        amount = amount_of(given["amount"])
    except ValueError as error:
        found[f"amount-{number}"] = str(error)
    if fault := team_fault(given["team"], teams):
        found[f"team-{number}"] = fault
    if given["account"] and given["account"] not in providers:
        found[f"account-{number}"] = f"no provider {given['account'][:64]!r} in the configuration"
    for name in ("project", "model"):
        if len(given[name]) > NAME_CHARACTERS_MAX:
            found[f"{name}-{number}"] = f"at most {NAME_CHARACTERS_MAX} characters"
    faults |= found
    if found:
        return None
    return AdjustmentLine(
        amount_pico_usd=amount,
        team=given["team"],
        project=given["project"],
        account=given["account"],
        model=given["model"],
    )


def _place(account: str, model: str, meter: str) -> str:
    parts = (account, place_text(model, meter) if model or meter else "")
    return " · ".join(part for part in parts if part)
