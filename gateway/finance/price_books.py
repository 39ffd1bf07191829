"""Proposals of other prices: kept by a reconciliation run, accepted or rejected by a person.

A decision changes no price and no entry: it is kept, with who took it and why, and says what has to
be put into the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.finance.bill_messages import Reconcile
from gateway.finance.errors import NotFound, Refused
from gateway.finance.price_drift import PRICE_KEYS, Drift, is_same_price, price_of
from gateway.finance.price_messages import (
    DecidePrice,
    ListPriceProposals,
    PriceEvidence,
    PriceProposal,
    PriceState,
)
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import price_proposal

LINES_KEPT = 200
_LISTED_MAX = 1_000
_DECIDED = (PriceState.ACCEPTED.value, PriceState.REJECTED.value)


def keep_drifts(
    connection: sa.Connection,
    order: Reconcile,
    drifts: Sequence[Drift],
    *,
    run_id: int,
    now_us: int,
) -> tuple[int, ...]:
    """Propose what a run found in place of what waits from earlier runs of the month.

    What was decided for the same prices of the month, by the run's own tolerance, is not proposed
    again.

    Args:
        connection: In a write transaction that has the lock of the audit log.
        order: The run.
        drifts: Found by it.
        run_id: Its number.
        now_us: Microseconds since the epoch.

    Returns:
        The numbers of the proposals.
    """
    _withdraw(connection, order, now_us=now_us)
    table = price_proposal
    decided = _proposals(connection, table.c.month == order.month, table.c.state.in_(_DECIDED))
    made: list[int] = []
    for drift in drifts:
        if any(_is_about(one, drift, order.tolerances.price_ratio) for one in decided):
            continue
        done = connection.execute(sa.insert(table).values(_row(order, drift, run_id, now_us)))
        [number] = cast("Sequence[int]", done.inserted_primary_key)
        made.append(number)
        append_audit(
            connection,
            at_us=now_us,
            actor=order.actor,
            action="price.propose",
            subject=str(number),
            details={
                "deployment": f"{drift.account}/{drift.model}",
                "meter": drift.meter,
                "month": order.month,
                "our_rate": str(drift.ours),
                "billed_rate": str(drift.billed),
                "run_id": run_id,
            },
        )
    return tuple(made)


def decide_price(connection: sa.Connection, decision: DecidePrice, *, now_us: int) -> PriceProposal:
    """Accept or reject a proposal, for good.

    Raises:
        NotFound: None has that number.
        Refused: It waits no more.
    """
    take(connection, Lock.AUDIT)  # of two who decide at once, the second sees what the first did
    found = price_proposal_of(connection, decision.proposal_id)
    if found.state is not PriceState.OPEN:
        raise Refused(
            f"price proposal {found.proposal_id} was {found.state.value} by {found.decided_by}"
            " already"
        )
    state = PriceState.ACCEPTED if decision.is_accepted else PriceState.REJECTED
    connection.execute(
        sa.update(price_proposal)
        .where(price_proposal.c.id == found.proposal_id)
        .values(
            state=state.value,
            decided_at_us=now_us,
            decided_by=decision.actor,
            reason=decision.reason,
        )
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=decision.actor,
        action="price.accept" if decision.is_accepted else "price.reject",
        subject=str(found.proposal_id),
        details={
            "deployment": found.deployment,
            "price_key": found.price_key,
            "our_price": found.our_price,
            "billed_price": found.billed_price,
            "reason": decision.reason,
        },
    )
    return price_proposal_of(connection, found.proposal_id)


def price_proposal_of(connection: sa.Connection, proposal_id: int) -> PriceProposal:
    """One proposal.

    Raises:
        NotFound: None has that number.
    """
    found = _proposals(connection, price_proposal.c.id == proposal_id)
    if not found:
        raise NotFound(f"no price proposal has the number {proposal_id}")
    return found[0]


def price_proposals(
    connection: sa.Connection, query: ListPriceProposals
) -> tuple[PriceProposal, ...]:
    """The newest proposals, newest first."""
    table = price_proposal
    wanted = sa.true() if query.state is None else table.c.state == query.state.value
    if query.month is not None:
        wanted &= table.c.month == query.month
    return _proposals(connection, wanted)


def numbers_of_run(connection: sa.Connection, run_id: int) -> tuple[int, ...]:
    """Numbers of the proposals that a run made."""
    table = price_proposal
    found = connection.execute(sa.select(table.c.id).where(table.c.run_id == run_id))
    return tuple(sorted(cast("Sequence[int]", found.scalars().all())))


def _withdraw(connection: sa.Connection, order: Reconcile, *, now_us: int) -> None:
    table = price_proposal
    is_open = sa.and_(table.c.month == order.month, table.c.state == PriceState.OPEN.value)
    found = connection.execute(sa.select(table.c.id).where(is_open).order_by(table.c.id))
    waiting = cast("Sequence[int]", found.scalars().all())
    if not waiting:
        return
    connection.execute(
        sa.update(table)
        .where(is_open)
        .values(
            state=PriceState.WITHDRAWN.value,
            decided_at_us=now_us,
            decided_by=f"{order.actor}, by a newer run",
        )
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="price.withdraw",
        subject=order.month,
        details={"proposals": ",".join(str(number) for number in waiting)},
    )


def _is_about(one: PriceProposal, drift: Drift, ratio: str) -> bool:
    place = (one.account, one.model, one.meter)
    return place == (drift.account, drift.model, drift.meter) and all(
        is_same_price(Fraction(was), is_, ratio)
        for was, is_ in ((one.our_rate, drift.ours), (one.billed_rate, drift.billed))
    )


def _row(order: Reconcile, drift: Drift, run_id: int, now_us: int) -> dict[str, object]:
    lines = [line.line_id for line in drift.lines if line.line_id is not None]
    imports = {line.batch_id for line in drift.lines if line.batch_id is not None}
    evidence = PriceEvidence(
        days=drift.days,
        metered_units=drift.metered_units,
        billed_units=drift.billed_units,
        billed_pico_usd=drift.billed_pico_usd,
        at_ours_pico_usd=round(drift.ours * drift.billed_units),
        imports=tuple(sorted(imports)),
        lines=tuple(sorted(lines)[:LINES_KEPT]),
        line_count=len(lines),
    )
    return {
        "at_us": now_us,
        "run_id": run_id,
        "month": order.month,
        "account": drift.account,
        "model": drift.model,
        "meter": drift.meter,
        "price_key": PRICE_KEYS[drift.meter][0],
        "our_price": f"{price_of(drift.meter, drift.ours):f}",
        "is_mixed": drift.is_mixed,
        "billed_price": f"{price_of(drift.meter, drift.billed):f}",
        "our_rate": str(drift.ours),
        "billed_rate": str(drift.billed),
        "evidence": msgspec.to_builtins(evidence),
        "state": PriceState.OPEN.value,
        "decided_at_us": None,
        "decided_by": "",
        "reason": "",
    }


def _proposals(
    connection: sa.Connection, *conditions: sa.ColumnElement[bool]
) -> tuple[PriceProposal, ...]:
    table = price_proposal
    rows = connection.execute(
        sa.select(table).where(*conditions).order_by(table.c.id.desc()).limit(_LISTED_MAX)
    )
    found: list[PriceProposal] = []
    for row in rows.mappings():
        values = {str(name): value for name, value in cast("Mapping[str, object]", row).items()}
        values["proposal_id"] = values.pop("id")
        found.append(msgspec.convert(values, PriceProposal))
    return tuple(found)
