"""A hard close by two people: one proposes it with a digest, another confirms just that.

A proposal holds while the month has the digest that it was made of. Every function is called in a
write transaction in which nobody else closes or posts, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.finance.close_messages import (
    CloseMonth,
    CloseProposal,
    CloseStep,
    ProposeClose,
    WithdrawClose,
)
from gateway.finance.errors import NotFound, ProposalVoid, Refused
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import close_proposal
from gateway.ledger.month_digest import MonthFigures, month_digest

OPEN, CONFIRMED, WITHDRAWN, REPLACED, VOID = "open", "confirmed", "withdrawn", "replaced", "void"


def keep(
    connection: sa.Connection,
    order: ProposeClose,
    digest: bytes,
    figures: MonthFigures,
    *,
    now_us: int,
) -> CloseProposal:
    """Keep a proposal; one of the month that is open already is replaced by it.

    Args:
        connection: In a write transaction.
        order: Who proposes what.
        digest: Of the month.
        figures: Of the month.
        now_us: Microseconds since the epoch.
    """
    _decide(connection, order.month, REPLACED, actor=order.actor, now_us=now_us)
    done = connection.execute(
        sa.insert(close_proposal).values(
            month=order.month,
            at_us=now_us,
            proposed_by=order.actor,
            accepted=order.accepted,
            figures=msgspec.to_builtins(figures),
            ledger_digest=digest,
            state=OPEN,
            decided_at_us=None,
            decided_by="",
            reason="",
        )
    )
    [proposal_id] = cast("Sequence[int]", done.inserted_primary_key)
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="period.propose_close",
        subject=order.month,
        details=audit_details(order.accepted, digest, figures),
    )
    [made] = _proposals(connection, close_proposal.c.id == proposal_id)
    return made


def audit_details(
    accepted: Collection[str], digest: bytes, figures: MonthFigures
) -> dict[str, str | int]:
    """What the audit log keeps of a month that is closed, or proposed to be."""
    return {
        "digest": digest.hex(),
        "events": figures.events,
        "cost_pico_usd": figures.cost_pico_usd,
        "adjusted_pico_usd": figures.adjusted_pico_usd,
        "accepted": ",".join(sorted(accepted)),
    }


def as_proposed(connection: sa.Connection, order: CloseMonth) -> CloseMonth:
    """The order with what was accepted when it was proposed; unchanged where one person closes.

    Raises:
        Refused: Nobody proposed it, whoever did confirms it, or something else is confirmed.
    """
    if not order.needs_two or order.step is not CloseStep.HARD:
        return order
    found = _open(connection, order.month)
    if found is None:
        raise Refused(
            f"closing {order.month} for good takes two people (finance.close.two_person): one"
            " proposes it, another confirms the digest; nobody has proposed it"
        )
    if found.proposed_by == order.actor:
        raise Refused(
            f"{order.actor} proposed to close {order.month} and cannot confirm it too; somebody"
            " else has to look"
        )
    if order.digest.lower() != found.digest:
        raise Refused(
            f"the close of {order.month} was proposed with digest {found.digest}; confirm that one,"
            f" not {order.digest or 'none'}"
        )
    if order.accepted:
        raise Refused(
            "whoever confirms a close accepts what was proposed; to accept something else, propose"
            " it anew"
        )
    return msgspec.structs.replace(order, accepted=found.accepted)


def settle(connection: sa.Connection, order: CloseMonth, digest: bytes, *, now_us: int) -> str:
    """Mark a month's proposal as confirmed by its close; gives who proposed it, empty for nobody.

    Where one person closes, a proposal from before that was so is replaced.

    Raises:
        ProposalVoid: The month has changed since.
    """
    found = _open(connection, order.month) if order.needs_two else None
    if found is None:
        _decide(connection, order.month, REPLACED, actor=order.actor, now_us=now_us)
        return ""
    if digest.hex() != found.digest:
        raise ProposalVoid(
            f"{order.month} has changed since its close was proposed: the digest was"
            f" {found.digest} and is {digest.hex()}; the proposal is void, propose it again",
            month=order.month,
            proposal_id=found.proposal_id,
        )
    _decide(connection, order.month, CONFIRMED, actor=order.actor, now_us=now_us)
    return found.proposed_by


def note_void(connection: sa.Connection, refused: ProposalVoid, *, actor: str, now_us: int) -> None:
    """Mark a proposal as void, in a transaction of its own.

    Not one that somebody made of the month as it is now, since the other one was refused.
    """
    take(connection, Lock.AUDIT)
    found = _open(connection, refused.month)
    if found is not None and found.proposal_id == refused.proposal_id:
        _decide(connection, refused.month, VOID, actor=actor, now_us=now_us)
        append_audit(
            connection,
            at_us=now_us,
            actor=actor,
            action="period.void_close",
            subject=refused.month,
            details={"reason": "the month changed after its close was proposed"},
        )


def withdraw(connection: sa.Connection, order: WithdrawClose, *, now_us: int) -> CloseProposal:
    """Take back or turn down the proposal of a month; anybody who may close may do so.

    Raises:
        NotFound: None is open.
    """
    take(connection, Lock.AUDIT)
    found = _open(connection, order.month)
    if found is None:
        raise NotFound(f"no close of {order.month} waits for confirmation")
    _decide(
        connection, order.month, WITHDRAWN, actor=order.actor, now_us=now_us, reason=order.reason
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="period.withdraw_close",
        subject=order.month,
        details={"reason": order.reason, "proposed_by": found.proposed_by},
    )
    [made] = _proposals(connection, close_proposal.c.id == found.proposal_id)
    return made


def open_proposal(connection: sa.Connection, month: str) -> CloseProposal | None:
    """The proposal that waits, and whether the month still has its digest; only reads.

    The digest is recomputed only where there is one.
    """
    found = _open(connection, month)
    if found is None:
        return None
    digest, _ = month_digest(connection, month)
    return msgspec.structs.replace(found, is_current=found.digest == digest.hex())


def confirmed_proposal(connection: sa.Connection, month: str) -> CloseProposal | None:
    """What was confirmed by the close of a month, None where one person closed it; only reads."""
    table = close_proposal
    found = _proposals(connection, table.c.month == month, table.c.state == CONFIRMED)
    return found[0] if found else None


def _open(connection: sa.Connection, month: str) -> CloseProposal | None:
    table = close_proposal
    found = _proposals(connection, table.c.month == month, table.c.state == OPEN)
    return found[0] if found else None


def _decide(
    connection: sa.Connection, month: str, state: str, *, actor: str, now_us: int, reason: str = ""
) -> None:
    """Give a month's open proposal, if there is one, another state."""
    table = close_proposal
    connection.execute(
        sa.update(table)
        .where(table.c.month == month, table.c.state == OPEN)
        .values(state=state, decided_at_us=now_us, decided_by=actor, reason=reason)
    )


def _proposals(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool]
) -> list[CloseProposal]:
    rows = connection.execute(
        sa.select(close_proposal).where(*conditions).order_by(close_proposal.c.id.desc())
    )
    found: list[CloseProposal] = []
    for row in rows.mappings():
        values = {str(name): value for name, value in cast("Mapping[str, object]", row).items()}
        figures = cast("Mapping[str, int]", values.pop("figures"))
        found.append(
            CloseProposal(
                proposal_id=cast("int", values["id"]),
                month=cast("str", values["month"]),
                at_us=cast("int", values["at_us"]),
                proposed_by=cast("str", values["proposed_by"]),
                digest=cast("bytes", values["ledger_digest"]).hex(),
                accepted=cast("dict[str, str]", values["accepted"]),
                events=figures["events"],
                cost_pico_usd=figures["cost_pico_usd"],
                adjusted_pico_usd=figures["adjusted_pico_usd"],
                state=cast("str", values["state"]),
                decided_at_us=cast("int | None", values["decided_at_us"]),
                decided_by=cast("str", values["decided_by"]),
                reason=cast("str", values["reason"]),
            )
        )
    return found
