"""Closing a month: a checklist with reasons, a soft step, and a hard one that is never undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance import close_proposals
from gateway.finance.close_items import ITEM_OPEN, OK, accept, check_nothing_open
from gateway.finance.close_messages import (
    CloseDelays,
    CloseItem,
    CloseMonth,
    CloseProposal,
    CloseReport,
    CloseStatus,
    CloseStep,
    ProposeClose,
)
from gateway.finance.errors import Refused
from gateway.finance.machines.report import close_fault
from gateway.finance.runs import READ, latest_run
from gateway.finance.shown import counted
from gateway.finance.sides import load_exposed
from gateway.ledger import schema
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, is_postgresql, take
from gateway.ledger.finance_tables import (
    adjustment_proposal,
    import_batch,
    period_close,
    recon_diff,
)
from gateway.ledger.month_digest import month_digest, month_figures, month_sum
from gateway.ledger.periods import (
    CLOSED,
    closed_through,
    late_in,
    month_bounds_us,
    month_of,
    next_month,
)
from gateway.ledger.verify import Since, Verification
from pricing.money import format_usd

OPEN, SOFT = "open", "soft"
_QUARANTINED = "quarantined "


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What was found out about the ledger as a whole before a close.

    Attributes:
        verification: What `ledger verify` found.
        is_loaded: Whether everything that was written is loaded, as far as anybody can tell.
        since: What that rests on where only what changed was verified; None of a whole one.
    """

    verification: Verification
    is_loaded: bool
    since: Since | None = None


def close_status(
    connection: sa.Connection, query: CloseStatus, books: Books, *, now_us: int
) -> CloseReport:
    """Where a month stands; changes nothing.

    Args:
        connection: In a transaction.
        query: Which month, and the step that the checklist is for.
        books: Of the same moment.
        now_us: Microseconds since the epoch.
    """
    closed = closed_report(connection, query.month)
    if closed is not None:
        return closed
    items = _checklist(connection, query.month, query.step, query.delays, books, now_us)
    return _open_report(connection, query.month, _row(connection, query.month), items)


def closed_report(connection: sa.Connection, month: str) -> CloseReport | None:
    """How a month was closed; None while it is not."""
    row = _row(connection, month)
    if row is None or row["state"] != CLOSED:
        return None
    return _closed_report(connection, month, row)


def close_month(
    connection: sa.Connection, order: CloseMonth, books: Books, *, now_us: int
) -> CloseReport:
    """Close a month, one step.

    Args:
        connection: In a write transaction; entries cannot be added until it ends.
        order: Which month, how far, and what is accepted.
        books: Found out just before.
        now_us: Microseconds since the epoch.

    Raises:
        Refused: It is closed already, or an item of the checklist is open; all are named.
    """
    take(connection, Lock.AUDIT)  # nobody who knows the month as open still posts to it
    _lock_events(connection)
    row = _row(connection, order.month)
    if row is not None and (row["state"] == CLOSED or order.step is CloseStep.SOFT):
        raise Refused(f"{order.month} is {row['state']} already; a close is never undone")
    order = close_proposals.as_proposed(connection, order)
    found = _checklist(connection, order.month, order.step, order.delays, books, now_us)
    items = accept(found, order.accepted)
    check_nothing_open(order.month, items)
    if order.step is CloseStep.SOFT:
        return _close_soft(connection, order, items, now_us=now_us)
    return _close_hard(connection, order, row, items, now_us=now_us)


def propose_close(
    connection: sa.Connection, order: ProposeClose, books: Books, *, now_us: int
) -> CloseProposal:
    """Say what a hard close would freeze, for somebody else to confirm.

    Args:
        connection: In a write transaction; entries cannot be added until it ends.
        order: Which month, and what is accepted.
        books: Found out just before.
        now_us: Microseconds since the epoch.

    Raises:
        Refused: It is closed already, or an item of the checklist is open; all are named.
    """
    take(connection, Lock.AUDIT)
    _lock_events(connection)
    row = _row(connection, order.month)
    if row is not None and row["state"] == CLOSED:
        raise Refused(f"{order.month} is closed already; a close is never undone")
    found = _checklist(connection, order.month, CloseStep.HARD, order.delays, books, now_us)
    check_nothing_open(order.month, accept(found, order.accepted))
    digest, figures = month_digest(connection, order.month)
    return close_proposals.keep(connection, order, digest, figures, now_us=now_us)


def _close_soft(
    connection: sa.Connection, order: CloseMonth, items: Sequence[CloseItem], *, now_us: int
) -> CloseReport:
    connection.execute(
        sa.insert(period_close).values(
            month=order.month,
            state=SOFT,
            soft_at_us=now_us,
            soft_by=order.actor,
            closed_at_us=None,
            closed_by="",
            accepted=order.accepted,
            figures={},
            ledger_digest=None,
            anchor=None,
        )
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="period.soft_close",
        subject=order.month,
        details={"accepted": ",".join(sorted(order.accepted))},
    )
    return _open_report(connection, order.month, _row(connection, order.month), items)


def _close_hard(
    connection: sa.Connection,
    order: CloseMonth,
    row: Mapping[str, object] | None,
    items: Sequence[CloseItem],
    *,
    now_us: int,
) -> CloseReport:
    digest, figures = month_digest(connection, order.month)
    proposed_by = close_proposals.settle(connection, order, digest, now_us=now_us)
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="period.close",
        subject=order.month,
        details={
            **close_proposals.audit_details(order.accepted, digest, figures),
            **({"proposed_by": proposed_by} if proposed_by else {}),
        },
    )
    log = schema.audit_log
    head = connection.execute(sa.select(log.c.hash).order_by(log.c.seq.desc()).limit(1))
    soft = row or {"soft_at_us": None, "soft_by": ""}
    table = period_close
    connection.execute(sa.delete(table).where(table.c.month == order.month))
    connection.execute(
        sa.insert(table).values(
            month=order.month,
            state=CLOSED,
            soft_at_us=soft["soft_at_us"],
            soft_by=soft["soft_by"],
            closed_at_us=now_us,
            closed_by=order.actor,
            accepted=msgspec.to_builtins(items),
            figures=msgspec.to_builtins(figures),
            ledger_digest=digest,
            anchor=head.scalar_one(),
        )
    )
    closed = _row(connection, order.month)
    assert closed is not None
    return _closed_report(connection, order.month, closed)


def _checklist(
    connection: sa.Connection,
    month: str,
    step: CloseStep,
    delays: CloseDelays,
    books: Books,
    now_us: int,
) -> tuple[CloseItem, ...]:
    items = [
        *_time_items(month, step, delays, now_us),
        *_ledger_items(connection, month, books),
    ]
    if step is CloseStep.HARD:
        items += [
            _earlier_months(connection, month),
            _unpriced(connection, month),
            *_reconciliation_items(connection, month),
            _proposals(connection, month),
            _item(
                "machines",
                close_fault(connection, month, now_us=now_us),
                "what our own machines cost is written down and booked",
                is_acceptable=True,
            ),
        ]
    return tuple(items)


def _item(name: str, fault: str, fine: str, *, is_acceptable: bool = False) -> CloseItem:
    state = ITEM_OPEN if fault else OK
    return CloseItem(name=name, state=state, is_acceptable=is_acceptable, sentence=fault or fine)


def _time_items(
    month: str, step: CloseStep, delays: CloseDelays, now_us: int
) -> Iterator[CloseItem]:
    end = from_microseconds(month_bounds_us(month)[1])
    now = from_microseconds(now_us)
    is_over = now >= end
    yield _item("month_over", "" if is_over else f"it ends on {end:%Y-%m-%d}", "the month is over")
    days = delays.soft_days if step is CloseStep.SOFT else delays.hard_days
    due = end + timedelta(days=days)
    yield _item(
        "delay",
        "" if now >= due else f"vendors' figures may still change until {due:%Y-%m-%d}",
        f"{days} days have passed since its end",
        is_acceptable=is_over,
    )


def _ledger_items(connection: sa.Connection, month: str, books: Books) -> Iterator[CloseItem]:
    intent = schema.attempt_intent
    end_us = month_bounds_us(month)[1]
    count = sa.select(sa.func.count()).select_from(intent).where(intent.c.at_us < end_us)
    open_attempts = connection.execute(count).scalar_one()
    waiting = books.verification.backlog_records
    lacking = "" if books.is_loaded else f"{counted(waiting, 'record', 'records')} in the spools"
    if open_attempts:
        lacking = f"{counted(open_attempts, 'attempt', 'attempts')} neither settled nor given up"
    yield _item("spools_loaded", lacking, "everything that was written is loaded")
    faults = [f for f in books.verification.faults if not f.startswith(_QUARANTINED)]
    told = f"{counted(len(faults), 'fault', 'faults')}, all by `ledger verify`: "
    yield _item(
        "ledger_verified",
        told + "; ".join(faults[:3]) if faults else "",
        _held(books.since),
    )
    quarantined = books.verification.quarantined
    yield _item(
        "quarantine",
        f"{counted(quarantined, 'record', 'records')} could not be booked" if quarantined else "",
        "nothing lies in quarantine",
        is_acceptable=True,
    )


def _held(since: Since | None) -> str:
    if since is None:
        return "costs, roll-ups and chains hold"
    at = from_microseconds(since.checked_at_us)
    days = counted(since.days, "day of the month that has", "days of the month that have")
    again = f", and {days} changed since {'hold' if since.days > 1 else 'holds'}"
    return (
        f"held at the daily check of {at:%Y-%m-%d %H:%M} UTC{again if since.days else ''};"
        " a close verifies everything once more"
    )


def _earlier_months(connection: sa.Connection, month: str) -> CloseItem:
    event = schema.spend_event
    oldest_us = cast(
        "int | None", connection.execute(sa.select(sa.func.min(event.c.at_us))).scalar_one()
    )
    through = closed_through(connection)
    first = month if oldest_us is None else month_of(oldest_us)
    lacking = first if through is None else next_month(through)
    is_next = lacking >= month
    return _item(
        "earlier_months",
        "" if is_next else f"{lacking} has to be closed first",
        "every month before it is closed or empty",
    )


def _unpriced(connection: sa.Connection, month: str) -> CloseItem:
    unpriced = month_sum(connection, month, "unpriced_count")
    return _item(
        "unpriced",
        f"{counted(unpriced, 'attempt', 'attempts')} without price, in no sum" if unpriced else "",
        "every attempt has a price",
        is_acceptable=True,
    )


def _reconciliation_items(connection: sa.Connection, month: str) -> Iterator[CloseItem]:
    run = latest_run(connection, month)
    table = import_batch
    newest = cast("int | None", connection.execute(sa.select(sa.func.max(table.c.at_us))).scalar())
    fault = ""
    if run is None:
        fault = "no reconciliation was run"
    elif newest is not None and newest > run.at_us:
        fault = f"files were imported after run {run.run_id}; run it again"
    elif run.state != READ:
        lacking = ", ".join(
            f"{one.account} {one.state}" + (" in part" if one.state == "read" else "")
            for one in run.accounts
            if one.state not in ("read", "own machine") or one.outside_pico_usd
        )
        fault = f"run {run.run_id} could not compare everything: {lacking}"
    elif late := _late_differences(connection, run.run_id):
        said = counted(late, "difference that was", "differences that were")
        fault = f"run {run.run_id} has {said} not final; run it again"
    yield _item(
        "reconciliation",
        fault,
        "" if run is None else f"run {run.run_id} compared every account",
        is_acceptable=True,
    )
    final = {
        (one.account, day)
        for one in (() if run is None else run.accounts)
        for day in one.compared_days
    }
    exposed = [
        row for row in load_exposed(connection, month) if (row.account, row.day) not in final
    ]
    total = sum(row.exposure_pico_usd for row in exposed)
    yield _item(
        "exposures",
        f"{counted(len(exposed), 'attempt', 'attempts')} of unknown bill:"
        f" up to {format_usd(total)} USD"
        if exposed
        else "",
        "no attempt's bill is unknown, or a bill says what it was",
        is_acceptable=True,
    )


def _late_differences(connection: sa.Connection, run_id: int) -> int:
    table = recon_diff
    count = sa.select(sa.func.count()).select_from(table)
    found = connection.execute(count.where(table.c.run_id == run_id, table.c.kind == "late"))
    return found.scalar_one()


def _proposals(connection: sa.Connection, month: str) -> CloseItem:
    table = adjustment_proposal
    waiting = connection.execute(
        sa.select(table.c.id).where(table.c.period == month, table.c.state == "proposed")
    )
    numbers = cast("Sequence[int]", waiting.scalars().all())
    named = ", ".join(f"proposal {number}" for number in numbers)
    return _item(
        "proposals",
        f"neither approved nor rejected: {named}" if numbers else "",
        "every proposal was decided",
        is_acceptable=True,
    )


def _open_report(
    connection: sa.Connection,
    month: str,
    row: Mapping[str, object] | None,
    items: Sequence[CloseItem],
) -> CloseReport:
    figures = month_figures(connection, month)
    return CloseReport(
        month=month,
        state=OPEN if row is None else SOFT,
        items=tuple(items),
        events=figures.events,
        cost_pico_usd=figures.cost_pico_usd,
        adjusted_pico_usd=figures.adjusted_pico_usd,
        late_pico_usd=_late_pico_usd(connection, month),
        soft_at_us=None if row is None else cast("int", row["soft_at_us"]),
        soft_by="" if row is None else cast("str", row["soft_by"]),
        proposal=close_proposals.open_proposal(connection, month),
    )


def _closed_report(connection: sa.Connection, month: str, row: Mapping[str, object]) -> CloseReport:
    figures = cast("Mapping[str, int]", row["figures"])
    return CloseReport(
        month=month,
        state=CLOSED,
        items=msgspec.convert(row["accepted"], tuple[CloseItem, ...]),
        events=figures["events"],
        cost_pico_usd=figures["cost_pico_usd"],
        adjusted_pico_usd=figures["adjusted_pico_usd"],
        late_pico_usd=_late_pico_usd(connection, month),
        soft_at_us=cast("int | None", row["soft_at_us"]),
        soft_by=cast("str", row["soft_by"]),
        closed_at_us=cast("int", row["closed_at_us"]),
        closed_by=cast("str", row["closed_by"]),
        digest=cast("bytes", row["ledger_digest"]).hex(),
        anchor=cast("bytes", row["anchor"]).hex(),
        proposal=close_proposals.confirmed_proposal(connection, month),
    )


def _late_pico_usd(connection: sa.Connection, month: str) -> int:
    return sum(
        part.sign * (cast("int | None", part.row["cost_pico_usd"]) or 0)
        for part in late_in(connection, month)
    )


def _row(connection: sa.Connection, month: str) -> Mapping[str, object] | None:
    found = connection.execute(sa.select(period_close).where(period_close.c.month == month))
    row = found.mappings().one_or_none()
    return None if row is None else cast("Mapping[str, object]", row)


def _lock_events(connection: sa.Connection) -> None:
    """Let nobody add entries or adjustments until the transaction ends; see `periods.note_late`."""
    if is_postgresql(connection):
        connection.exec_driver_sql(
            "LOCK TABLE spend_event, spend_adjustment, period_close IN SHARE ROW EXCLUSIVE MODE"
        )
