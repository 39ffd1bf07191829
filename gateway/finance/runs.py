"""A reconciliation run: reads both sides of a month, keeps what it found, proposes corrections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance import price_books
from gateway.finance.adjustments import PROPOSED, REJECTED, propose
from gateway.finance.bill_messages import (
    AccountCoverage,
    Difference,
    ListRuns,
    Reconcile,
    ReconciliationRun,
    ShowRun,
)
from gateway.finance.cells import Metered
from gateway.finance.errors import NotFound, Refused
from gateway.finance.generation_books import LISTED_MAX, generations_of
from gateway.finance.generation_messages import Generation, ListGenerations
from gateway.finance.matching import DifferenceKind, Found, Sides, compare, token_counts
from gateway.finance.messages import UNATTRIBUTED, AdjustmentKind, AdjustmentLine, Propose
from gateway.finance.price_drift import Drift, drifts
from gateway.finance.shown import counted
from gateway.finance.sides import load_sides, unreadable_accounts
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import (
    adjustment_proposal,
    import_batch,
    recon_diff,
    recon_run,
    spend_adjustment,
)
from pricing.money import format_usd
from pricing.shares import split
from pricing.usage import Meter

READ, PARTIAL = "read", "partial"
_LISTED_MAX = 200
_WHOLE = "all"
"""Meter of a rounding of usage where the bill names neither model nor meter; a bill's own line of
rounding has none."""
_KINDS: Mapping[str, AdjustmentKind] = {
    DifferenceKind.MISSING_EVENT: AdjustmentKind.TRUE_UP,
    DifferenceKind.EXTRA_EVENT: AdjustmentKind.TRUE_UP,
    DifferenceKind.PRICE_DRIFT: AdjustmentKind.TRUE_UP,
    DifferenceKind.TIER: AdjustmentKind.TRUE_UP,
    DifferenceKind.FX: AdjustmentKind.TRUE_UP,
    DifferenceKind.ROUNDING: AdjustmentKind.ROUNDING,
    DifferenceKind.TAX: AdjustmentKind.TAX,
    DifferenceKind.CREDIT: AdjustmentKind.CREDIT,
}
"""What corrects a difference; late ones are not corrected before they are final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """What was read and compared, before any of it is kept.

    Attributes:
        sides: What was compared.
        found: Every difference.
        accounts: Coverage of each account.
        basis: Newest import and newest adjustment that were read.
        drifts: Prices that the bills imply and that are not ours.
    """

    sides: Sides
    found: Sequence[Found]
    accounts: Sequence[AccountCoverage]
    basis: tuple[int, int]
    drifts: Sequence[Drift] = ()


def reconcile(connection: sa.Connection, order: Reconcile, *, now_us: int) -> ReconciliationRun:
    """Compare a month and keep the result, in one write transaction."""
    return keep_run(connection, order, prepare(connection, order, now_us=now_us), now_us=now_us)


def prepare(connection: sa.Connection, order: Reconcile, *, now_us: int) -> PreparedRun:
    """Read both sides of a month and compare them; writes nothing, may take long.

    Args:
        connection: In a transaction; one state of the database is read.
        order: Month, tolerances, aliases.
        now_us: Microseconds since the epoch.
    """
    sides = load_sides(connection, order.month)
    as_of = from_microseconds(now_us).date()
    final = (as_of - timedelta(days=order.tolerances.delay_days)).isoformat()
    return PreparedRun(
        sides=sides,
        found=compare(sides, order.tolerances, order.aliases, as_of=as_of),
        accounts=_accounts(sides, unreadable_accounts(connection), final=final),
        basis=_basis(connection),
        drifts=drifts(sides, order.tolerances, order.aliases, as_of=as_of),
    )


def keep_run(
    connection: sa.Connection, order: Reconcile, prepared: PreparedRun, *, now_us: int
) -> ReconciliationRun:
    """Keep what was found and propose corrections; earlier runs' open proposals are withdrawn.

    Args:
        connection: In a write transaction.
        order: What was asked.
        prepared: What was found.
        now_us: Microseconds since the epoch.

    Raises:
        Refused: A file was imported or an adjustment posted since it was prepared.
    """
    take(connection, Lock.AUDIT)  # nothing is imported or posted from here on
    if prepared.basis != _basis(connection):
        raise Refused("bills or adjustments changed while they were compared; run it again")
    found = prepared.found
    run_id = _add_run(connection, order, prepared.accounts, now_us=now_us)
    places: dict[int, int] = {}
    if order.proposes:
        _withdraw(connection, order, now_us=now_us)
        sides = prepared.sides
        places = _propose(connection, order, found, sides, run_id=run_id, now_us=now_us)
        price_books.keep_drifts(connection, order, prepared.drifts, run_id=run_id, now_us=now_us)
    rows = [
        {
            **msgspec.structs.asdict(one.difference),
            "run_id": run_id,
            "proposal_id": places.get(index),
        }
        for index, one in enumerate(found)
    ]
    if rows:
        connection.execute(sa.insert(recon_diff), rows)
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="reconciliation.run",
        subject=str(run_id),
        details={
            "month": order.month,
            "differences": len(found),
            "difference_pico_usd": sum(one.difference.amount_pico_usd for one in found),
            "proposals": ",".join(str(number) for number in sorted(set(places.values()))),
        },
    )
    return show_run(connection, ShowRun(run_id=run_id))


def _basis(connection: sa.Connection) -> tuple[int, int]:
    newest = [
        cast("int | None", connection.execute(sa.select(sa.func.max(table.c.id))).scalar_one())
        for table in (import_batch, spend_adjustment)
    ]
    return newest[0] or 0, newest[1] or 0


def runs(connection: sa.Connection, query: ListRuns) -> tuple[ReconciliationRun, ...]:
    """The newest runs without their differences, newest first."""
    table = recon_run
    condition = sa.true() if query.month is None else table.c.month == query.month
    return tuple(_runs(connection, condition))


def show_run(connection: sa.Connection, query: ShowRun) -> ReconciliationRun:
    """One run with its differences.

    Raises:
        NotFound: None has that number.
    """
    found = _runs(connection, recon_run.c.id == query.run_id)
    if not found:
        raise NotFound(f"no reconciliation run has the number {query.run_id}")
    table = recon_diff
    rows = connection.execute(
        sa.select(table).where(table.c.run_id == query.run_id).order_by(table.c.id)
    )
    differences = tuple(
        msgspec.convert(_named(row, ("id", "run_id")), Difference) for row in rows.mappings()
    )
    numbers = {one.proposal_id for one in differences if one.proposal_id is not None}
    return msgspec.structs.replace(
        found[0],
        differences=differences,
        proposal_ids=tuple(sorted(numbers)),
        price_proposal_ids=price_books.numbers_of_run(connection, query.run_id),
    )


def latest_run(connection: sa.Connection, month: str) -> ReconciliationRun | None:
    """The newest run of a month without its differences; None when there is none."""
    return next(iter(runs(connection, ListRuns(month=month))), None)


def list_generations(connection: sa.Connection, query: ListGenerations) -> tuple[Generation, ...]:
    """Generations of a month as they match now, at most `LISTED_MAX`."""
    sides = load_sides(connection, query.month)
    return tuple(islice(generations_of(sides.billed, sides.sent, query), LISTED_MAX))


def is_own_machine(rows: Sequence[Metered]) -> bool:
    """Whether everything that an account cost is time of a machine of ours: nobody bills it."""
    return bool(rows) and all(
        row.meter == Meter.GPU_US.value for row in rows if row.cost_pico_usd or row.units
    )


def _accounts(
    sides: Sides, unreadable: Mapping[str, str], *, final: str
) -> tuple[AccountCoverage, ...]:
    by_account: defaultdict[str, list[Metered]] = defaultdict(list)
    for row in sides.metered:
        by_account[row.account].append(row)
    exposed = {row.account for row in sides.exposed}
    names = by_account.keys() | sides.billed_days.keys() | unreadable.keys() | exposed
    covered: list[AccountCoverage] = []
    for account in sorted(names):
        rows = by_account.get(account, [])
        days = sides.billed_days.get(account, frozenset())
        counts = token_counts(sides, account)
        state = "read" if days else "own machine" if is_own_machine(rows) else "no source"
        adjusted = [row for row in sides.adjusted if row.account == account]
        covered.append(
            AccountCoverage(
                account=account,
                state="unreadable" if account in unreadable else state,
                metered_units=0 if counts is None else counts[0],
                billed_units=None if counts is None else counts[1],
                ledger_pico_usd=sum(row.cost_pico_usd for row in rows if row.day in days),
                adjusted_pico_usd=sum(
                    row.amount_pico_usd
                    for row in adjusted
                    if days and (row.day in days or not row.day)
                ),
                billed_pico_usd=sum(
                    line.amount_pico_usd for line in sides.billed if line.account == account
                ),
                outside_pico_usd=sum(row.cost_pico_usd for row in rows if row.day not in days),
                compared_days=tuple(sorted(day for day in days if day < final)),
                reason=unreadable.get(account, ""),
            )
        )
    return tuple(covered)


def _add_run(
    connection: sa.Connection,
    order: Reconcile,
    accounts: Sequence[AccountCoverage],
    *,
    now_us: int,
) -> int:
    vendors = [one for one in accounts if one.state != "own machine"]
    is_whole = all(one.state == "read" and not one.outside_pico_usd for one in vendors)
    done = connection.execute(
        sa.insert(recon_run).values(
            at_us=now_us,
            actor=order.actor,
            month=order.month,
            state=READ if is_whole else PARTIAL,
            ledger_pico_usd=sum(one.ledger_pico_usd for one in accounts),
            adjusted_pico_usd=sum(one.adjusted_pico_usd for one in accounts),
            billed_pico_usd=sum(one.billed_pico_usd for one in accounts),
            accounts=msgspec.to_builtins(accounts),
            tolerances=msgspec.to_builtins(order.tolerances),
        )
    )
    [run_id] = cast("Sequence[int]", done.inserted_primary_key)
    return run_id


def _withdraw(connection: sa.Connection, order: Reconcile, *, now_us: int) -> None:
    """Reject what earlier runs of the month proposed and nobody decided: it would count twice."""
    table = adjustment_proposal
    is_open = sa.and_(
        table.c.state == PROPOSED, table.c.period == order.month, table.c.run_id.is_not(None)
    )
    found = connection.execute(sa.select(table.c.id).where(is_open)).scalars().all()
    withdrawn = cast("Sequence[int]", found)
    if not withdrawn:
        return
    connection.execute(
        sa.update(table)
        .where(is_open)
        .values(state=REJECTED, decided_at_us=now_us, decided_by=f"{order.actor}, by a newer run")
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=order.actor,
        action="adjustment.withdraw",
        subject=order.month,
        details={"proposals": ",".join(str(number) for number in withdrawn)},
    )


def _propose(
    connection: sa.Connection,
    order: Reconcile,
    found: Sequence[Found],
    sides: Sides,
    *,
    run_id: int,
    now_us: int,
) -> dict[int, int]:
    """Make a proposal per kind of adjustment; gives the proposal of each difference's index."""
    lines: defaultdict[AdjustmentKind, list[AdjustmentLine]] = defaultdict(list)
    indexes: defaultdict[AdjustmentKind, list[int]] = defaultdict(list)
    spent: dict[str, int] = {}
    for index, one in enumerate(found):
        kind = _KINDS.get(one.difference.kind)
        if kind is None:
            continue
        lines[kind] += _lines(one, sides, spent)
        indexes[kind].append(index)
    places: dict[int, int] = {}
    for kind, some in lines.items():
        total = sum(line.amount_pico_usd for line in some)
        made = propose(
            connection,
            Propose(
                actor=order.actor,
                period=order.month,
                kind=kind,
                reason=f"reconciliation {run_id} of {order.month}:"
                f" {counted(len(indexes[kind]), 'difference', 'differences')}"
                f" of {format_usd(total)} USD",
                lines=tuple(some),
            ),
            now_us=now_us,
            run_id=run_id,
        )
        places |= dict.fromkeys(indexes[kind], made.proposal_id)
    return places


def _lines(one: Found, sides: Sides, spent: dict[str, int]) -> Iterator[AdjustmentLine]:
    """Who pays a difference; the lines sum to it exactly.

    Args:
        one: The difference.
        sides: For what no cell is behind: the account's teams share it.
        spent: What attempts of unknown bill took already, by event; added to.
    """
    amount = one.difference.amount_pico_usd
    if one.difference.kind == DifferenceKind.MISSING_EVENT:
        left = amount
        for line in _of_unknown_bills(one, spent):
            left -= line.amount_pico_usd
            yield line
        if left:
            yield _line(one, left, UNATTRIBUTED)
        return
    rows = one.metered or tuple(
        row for row in sides.metered if row.account == one.difference.account
    )
    by_team: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        by_team[row.team, row.project] += row.cost_pico_usd
    if not any(by_team.values()):
        yield _line(one, amount, UNATTRIBUTED)
        return
    teams = sorted(by_team)
    for (team, project), part in zip(
        teams, split(amount, [by_team[place] for place in teams]), strict=True
    ):
        if part:
            yield _line(one, part, team or UNATTRIBUTED, project)


def _of_unknown_bills(one: Found, spent: dict[str, int]) -> Iterator[AdjustmentLine]:
    """What attempts of unknown bill may have cost of a missing quantity, up to their bounds."""
    rooms = [
        max(attempt.exposure_pico_usd - spent.get(attempt.event_id, 0), 0)
        for attempt in one.exposed
    ]
    amount = min(one.difference.amount_pico_usd, sum(rooms))
    if amount <= 0:
        return
    for attempt, part in zip(one.exposed, split(amount, rooms), strict=True):
        if part:
            spent[attempt.event_id] = spent.get(attempt.event_id, 0) + part
            team = attempt.team or UNATTRIBUTED
            yield _line(one, part, team, attempt.project, event_id=attempt.event_id)


def _line(
    one: Found, amount: int, team: str, project: str = "", *, event_id: str = ""
) -> AdjustmentLine:
    difference = one.difference
    is_rounding = difference.kind == DifferenceKind.ROUNDING
    # Units are those of a cell of usage only.
    is_of_usage = difference.metered_units is not None
    meter = _WHOLE if is_rounding and is_of_usage and not difference.model else difference.meter
    return AdjustmentLine(
        amount_pico_usd=amount,
        team=team,
        project=project,
        account=difference.account,
        model=difference.model,
        meter=meter,
        day=difference.day,
        event_id=event_id,
        invoice_line_id=one.line_id,
    )


def _runs(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[ReconciliationRun]:
    table = recon_run
    rows = connection.execute(
        sa.select(table).where(condition).order_by(table.c.id.desc()).limit(_LISTED_MAX)
    )
    found: list[ReconciliationRun] = []
    for row in rows.mappings():
        values = _named(row)
        values["run_id"] = values.pop("id")
        found.append(msgspec.convert(values, ReconciliationRun))
    return found


def _named(row: object, without: Sequence[str] = ()) -> dict[str, object]:
    """A row by plain column names."""
    items = cast("Mapping[str, object]", row).items()
    return {str(name): value for name, value in items if name not in without}
