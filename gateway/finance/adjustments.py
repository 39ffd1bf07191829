"""Adjustments: proposed, approved by somebody else, posted for good; never an edit of an event.

`adjustments` is what reports and exports read: each is a row of its own beside the ledger's sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from gateway.finance.errors import NotFound, Refused
from gateway.finance.messages import (
    PICO_USD_MAX,
    Adjustment,
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    ListAdjustments,
    ListProposals,
    Proposal,
    Propose,
)
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import adjustment_proposal, spend_adjustment
from gateway.ledger.periods import closed_through, next_month
from pricing.money import format_usd

PROPOSED, POSTED, REJECTED = "proposed", "posted", "rejected"
_SUM_TO_ZERO = frozenset({AdjustmentKind.ALLOCATION, AdjustmentKind.REATTRIBUTION})
_LISTED_MAX = 1_000


def adjustments(connection: sa.Connection, query: ListAdjustments) -> tuple[Adjustment, ...]:
    """Posted adjustments, by the month that they count in, then in the order of posting."""
    table = spend_adjustment
    conditions: list[sa.ColumnElement[bool]] = []
    if query.from_period is not None:
        conditions.append(table.c.period >= query.from_period)
    if query.to_period is not None:
        conditions.append(table.c.period < query.to_period)
    if query.posted_us is not None:
        conditions += [table.c.at_us >= query.posted_us[0], table.c.at_us < query.posted_us[1]]
    if query.team is not None:
        conditions.append(table.c.team == query.team)
    if query.of_month is not None:
        month = query.of_month
        # What is about a closed month counts in a later one, so no earlier one is looked at.
        conditions.append(table.c.period >= month)
        conditions.append(sa.or_(table.c.period == month, table.c.original_period == month))
    rows = connection.execute(
        sa.select(table).where(*conditions).order_by(table.c.period, table.c.id)
    )
    return tuple(_adjustment(_named(cast("Mapping[str, object]", row))) for row in rows.mappings())


def propose(
    connection: sa.Connection, wanted: Propose, *, now_us: int, run_id: int | None = None
) -> Proposal:
    """Keep adjustments for approval.

    Args:
        connection: In a write transaction.
        wanted: What is proposed; its amounts are bounded by its type.
        now_us: Microseconds since the epoch.
        run_id: The run that it comes from.

    Raises:
        Refused: A line is of no amount or its day is none, or a move between teams does not sum
            to zero.
    """
    for line in wanted.lines:
        _check_line(line)
    total = sum(line.amount_pico_usd for line in wanted.lines)
    if abs(total) > PICO_USD_MAX:
        raise Refused(f"the lines sum to {format_usd(total)} USD, more than the books can hold")
    if wanted.kind in _SUM_TO_ZERO and total:
        raise Refused(
            f"the lines of {wanted.kind} sum to {format_usd(total)} USD; what one team gets another"
            " must give, so they have to sum to 0"
        )
    done = connection.execute(
        sa.insert(adjustment_proposal).values(
            at_us=now_us,
            proposed_by=wanted.actor,
            period=wanted.period,
            kind=wanted.kind.value,
            reason=wanted.reason,
            total_pico_usd=total,
            lines=[msgspec.structs.asdict(line) for line in wanted.lines],
            run_id=run_id,
            state=PROPOSED,
            decided_at_us=None,
            decided_by="",
        )
    )
    [proposal_id] = cast("Sequence[int]", done.inserted_primary_key)
    append_audit(
        connection,
        at_us=now_us,
        actor=wanted.actor,
        action="adjustment.propose",
        subject=str(proposal_id),
        details={
            "period": wanted.period,
            "kind": wanted.kind.value,
            "total_pico_usd": total,
            "lines": len(wanted.lines),
            "run_id": run_id,
        },
    )
    return proposal(connection, proposal_id)


def decide(connection: sa.Connection, decision: Decide, *, now_us: int) -> Proposal:
    """Post a proposal's lines as adjustments, or reject it.

    What is about a closed month is counted in the first open one, with the closed month kept as
    `original_period`; a true-up is then `late`.

    Raises:
        NotFound: No such proposal.
        Refused: It was decided before, or the proposer tries to approve although others could.
    """
    take(connection, Lock.AUDIT)  # of two who decide at once, the second sees what the first did
    found = proposal(connection, decision.proposal_id)
    if found.state != PROPOSED:
        raise Refused(
            f"proposal {found.proposal_id} was {found.state} by {found.decided_by} already"
        )
    is_own = decision.actor == found.proposed_by
    if decision.is_approved and is_own and not decision.is_alone:
        raise Refused(
            f"{decision.actor} proposed this and cannot approve it too; somebody else has to look"
        )
    table = adjustment_proposal
    state = POSTED if decision.is_approved else REJECTED
    connection.execute(
        sa.update(table)
        .where(table.c.id == found.proposal_id)
        .values(state=state, decided_at_us=now_us, decided_by=decision.actor)
    )
    period = _open_period(connection, found.period)
    if decision.is_approved:
        _post(connection, found, period=period, actor=decision.actor, now_us=now_us)
    append_audit(
        connection,
        at_us=now_us,
        actor=decision.actor,
        action="adjustment.post" if decision.is_approved else "adjustment.reject",
        subject=str(found.proposal_id),
        details={
            "period": period,
            "total_pico_usd": found.total_pico_usd,
            "proposed_by": found.proposed_by,
            "is_alone": int(is_own),
            **({"reason": decision.reason} if decision.reason else {}),
        },
    )
    return proposal(connection, found.proposal_id)


def proposal(connection: sa.Connection, proposal_id: int) -> Proposal:
    """One proposal.

    Raises:
        NotFound: None has that number.
    """
    found = _proposals(connection, adjustment_proposal.c.id == proposal_id)
    if not found:
        raise NotFound(f"no proposal has the number {proposal_id}")
    return found[0]


def proposals(connection: sa.Connection, query: ListProposals) -> tuple[Proposal, ...]:
    """The newest proposals, newest first."""
    table = adjustment_proposal
    wanted = sa.true() if query.state is None else table.c.state == query.state
    if query.period is not None:
        wanted &= table.c.period == query.period
    return _proposals(connection, wanted)


def _open_period(connection: sa.Connection, period: str) -> str:
    """The month itself while it is open, else the first one that is."""
    through = closed_through(connection)
    return period if through is None or period > through else next_month(through)


def _post(
    connection: sa.Connection, found: Proposal, *, period: str, actor: str, now_us: int
) -> None:
    is_late = period != found.period
    is_late_true_up = is_late and found.kind is AdjustmentKind.TRUE_UP
    kind = AdjustmentKind.LATE if is_late_true_up else found.kind
    rows = [
        {
            "at_us": now_us,
            "period": period,
            "original_period": found.period if is_late else "",
            "kind": kind.value,
            "amount_pico_usd": line.amount_pico_usd,
            "team": line.team,
            "project": line.project,
            "account": line.account,
            "model": line.model,
            "meter": line.meter,
            "day": line.day,
            "event_id": bytes.fromhex(line.event_id) if line.event_id else None,
            "invoice_line_id": line.invoice_line_id,
            "proposal_id": found.proposal_id,
            "reason": found.reason,
            "proposed_by": found.proposed_by,
            "approved_by": actor,
        }
        for line in found.lines
    ]
    connection.execute(sa.insert(spend_adjustment), rows)


def _check_line(line: AdjustmentLine) -> None:
    if not line.amount_pico_usd:
        raise Refused(f"a line for team {line.team!r} is of no amount; leave it out")
    if not line.team:
        raise Refused("a line names no team; spend of nobody is that of `unattributed`")
    if line.day:
        try:
            date.fromisoformat(line.day)
        except ValueError as error:
            raise Refused(f"{line.day} is no day of the calendar") from error


def _proposals(
    connection: sa.Connection, condition: sa.ColumnElement[bool]
) -> tuple[Proposal, ...]:
    table = adjustment_proposal
    rows = connection.execute(
        sa.select(table).where(condition).order_by(table.c.id.desc()).limit(_LISTED_MAX)
    )
    found: list[Proposal] = []
    for row in rows.mappings():
        values = _named(cast("Mapping[str, object]", row))
        values["proposal_id"] = values.pop("id")
        found.append(msgspec.convert(values, Proposal))
    return tuple(found)


def _named(row: Mapping[str, object]) -> dict[str, Any]:
    """A row by plain column names; the driver's are of a type of their own."""
    return {str(name): value for name, value in row.items()}


def _adjustment(values: dict[str, Any]) -> Adjustment:
    values["adjustment_id"] = values.pop("id")
    event_id = cast("bytes | None", values["event_id"])
    values["event_id"] = "" if event_id is None else event_id.hex()
    return msgspec.convert(values, Adjustment)
