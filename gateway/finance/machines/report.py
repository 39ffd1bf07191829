"""A month of machines as a report, and as the adjustments that bring the ledger to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, cast

import msgspec
import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance.adjustments import propose
from gateway.finance.errors import Refused
from gateway.finance.machines.allocation import (
    Part,
    Shared,
    Stretch,
    Used,
    User,
    allocate,
    busy_rate_of,
)
from gateway.finance.machines.compared import break_even_card, percent_text
from gateway.finance.machines.hours import HOUR_US
from gateway.finance.machines.messages import (
    GPU_METER,
    IDLE_TEAM,
    BreakEvenCard,
    HostedPrice,
    MachineHour,
    MachineShare,
    MachinesReport,
    MachineSummary,
    ProposeMachines,
    RateKind,
    ShowMachines,
    UnitCost,
)
from gateway.finance.machines.reading import MonthOfMachines, read_month
from gateway.finance.messages import (
    UNATTRIBUTED,
    AdjustmentKind,
    AdjustmentLine,
    Proposal,
    Propose,
)
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import adjustment_proposal, spend_adjustment
from pricing.money import TOKENS_PER_MTOK, format_usd
from pricing.shares import split

COST_KINDS = (AdjustmentKind.TRUE_UP.value, AdjustmentKind.LATE.value)
"""Adjustments that bring what is booked for a machine to what it cost."""
_RATIO_PARTS = 10**12
_DAY_US = 24 * HOUR_US
_REASON = "machines of {month}: what they cost, less what was booked for their use"


def machines_report(
    connection: sa.Connection, query: ShowMachines, *, now_us: int
) -> MachinesReport:
    """What machines cost in a month and who bears it; changes nothing.

    Args:
        connection: In a transaction.
        query: What is asked.
        now_us: No time after it is counted.
    """
    month = read_month(connection, query.month, now_us=now_us)
    pools = _pools(month)
    shares = tuple(share for pool in pools.values() for share in pool.shares(query.rate))
    if query.teams is not None:
        own = frozenset(query.teams)
        return _report(
            month,
            query,
            now_us,
            shares=tuple(share for share in shares if share.team in own and not share.is_rest),
        )
    shared = [one for pool in pools.values() for one in pool.shared]
    return _report(
        month,
        query,
        now_us,
        shares=shares,
        cost_pico_usd=sum(one.cost_pico_usd for one in shared),
        machines=tuple(_summaries(month, shared)),
        units=tuple(pool.unit_cost() for pool in pools.values()),
        break_even=tuple(_cards(pools.values(), query.hosted)),
        days=tuple(_cut(shared, lambda at_us: at_us - at_us % _DAY_US)),
        hours=tuple(_cut(_on_day(shared, query.day), lambda at_us: at_us)),
        gaps=() if month.is_closed else month.gaps,
    )


def shared_hours(month: MonthOfMachines) -> list[Shared]:
    """Every stretch of a month with what it cost and who bears it."""
    return allocate(month.stretches, month.uses, month_us=month.end_us - month.start_us)


def propose_machines(connection: sa.Connection, order: ProposeMachines, *, now_us: int) -> Proposal:
    """Propose what brings the month's bookings for machines to what they cost.

    What was posted for the month before counts as booked, so that it can be proposed again.

    Raises:
        Refused: The month is not over or not complete, a proposal for it waits, or there is nothing
            to bring about.
    """
    take(connection, Lock.AUDIT)  # of two who propose at once, the second sees the first's
    month = read_month(connection, order.month, now_us=now_us)
    if now_us < month.end_us:
        raise Refused(f"{order.month} is not over; what its machines cost is not known yet")
    if month.gaps and not month.is_closed:
        raise Refused(f"{order.month} is not complete: {'; '.join(month.gaps)}")
    waiting = waiting_proposals(connection, order.month)
    if waiting:
        raise Refused(f"proposal {waiting[0]} for the machines of {order.month} waits already")
    lines = open_lines(connection, month)
    if not lines:
        raise Refused(f"for {order.month} the ledger holds just what its machines cost")
    wanted = Propose(
        actor=order.actor,
        period=order.month,
        kind=AdjustmentKind.TRUE_UP,
        reason=_REASON.format(month=order.month),
        lines=lines,
    )
    return propose(connection, wanted, now_us=now_us)


def waiting_proposals(connection: sa.Connection, month: str) -> Sequence[int]:
    """Numbers of proposals for the machines of a month that nobody decided."""
    table = adjustment_proposal
    chosen = sa.select(table.c.id).where(
        table.c.period == month,
        table.c.state == "proposed",
        table.c.reason == _REASON.format(month=month),
    )
    found = connection.execute(chosen.order_by(table.c.id))
    return cast("Sequence[int]", found.scalars().all())


def close_fault(connection: sa.Connection, month: str, *, now_us: int) -> str:
    """What of machines keeps a month from being closed, as a sentence; empty when nothing does.

    Pools at a nominal rate cost nobody that amount, so it need not be in the books.
    """
    facts = read_month(connection, month, now_us=now_us)
    if facts.gaps:
        return "; ".join(facts.gaps)
    nominal = {term.pool for term in facts.terms if term.terms.is_nominal}
    owed = [
        (place, amount) for place, amount in _owed(connection, facts) if place.pool not in nominal
    ]
    if not owed:
        return ""
    names = ", ".join(sorted({place.pool for place, _ in owed}))
    total = format_usd(sum(amount for _, amount in owed))
    return f"{names}: {total} USD of machine cost are not booked (`spend machines --propose`)"


def open_lines(connection: sa.Connection, month: MonthOfMachines) -> tuple[AdjustmentLine, ...]:
    """By pool, team and project, what is neither booked nor posted yet; empty when all is."""
    return tuple(
        AdjustmentLine(
            amount_pico_usd=amount,
            team=place.team,
            project=place.project,
            # A pool is all of a provider, or a deployment of it.
            account=place.pool.partition("/")[0],
            model=place.pool.partition("/")[2],
            meter=GPU_METER,
        )
        for place, amount in _owed(connection, month)
    )


class Place(NamedTuple):
    """Who owes for which pool."""

    pool: str
    team: str
    project: str


def _owed(connection: sa.Connection, month: MonthOfMachines) -> list[tuple[Place, int]]:
    """What machines cost less what is booked and posted for it, in order; without what is even."""
    owed: dict[Place, int] = {}
    pools = _pools(month)
    for pool in pools.values():
        for share in pool.shares(RateKind.ACTUAL):
            place = Place(share.pool, share.team or UNATTRIBUTED, share.project)
            owed[place] = owed.get(place, 0) + share.actual_pico_usd - share.booked_pico_usd
    for place, amount in posted(connection, month.month, pools.keys()):
        owed[place] = owed.get(place, 0) - amount
    return [(place, amount) for place, amount in sorted(owed.items()) if amount]


def posted(
    connection: sa.Connection, month: str, pools: Collection[str]
) -> Iterator[tuple[Place, int]]:
    """What earlier proposals brought about; what only moves among teams changes no cost.

    Args:
        connection: In a transaction.
        month: Which it is about.
        pools: Known ones.
    """
    table = spend_adjustment
    about = sa.case((table.c.original_period != "", table.c.original_period), else_=table.c.period)
    chosen = sa.select(
        table.c.account, table.c.model, table.c.team, table.c.project, table.c.amount_pico_usd
    ).where(about == month, table.c.meter == GPU_METER, table.c.kind.in_(COST_KINDS))
    rows = connection.execute(chosen).all()
    for account, model, team, project, amount in cast(
        "Sequence[tuple[str, str, str, str, int]]", rows
    ):
        deployment = f"{account}/{model}"
        pool = deployment if deployment in pools else account
        yield Place(pool, team, project), int(amount)


@dataclass(slots=True, kw_only=True)
class _Pool:
    """A pool's month."""

    pool: str
    shared: list[Shared] = field(default_factory=list[Shared])
    uses: dict[User, Used] = field(default_factory=dict[User, Used])

    @property
    def cost_pico_usd(self) -> int:
        return sum(one.cost_pico_usd for one in self.shared)

    @property
    def is_nominal(self) -> bool:
        return any(one.stretch.terms.is_nominal for one in self.shared)

    def shares(self, rate: RateKind) -> Iterator[MachineShare]:
        """Who bears what: the largest first, the rest last."""
        parts: dict[User, Part] = {user: Part() for user in self.uses}
        rest = Part()
        for one in self.shared:
            rest += one.rest
            for user, part in one.parts.items():
                parts[user] = parts.get(user, Part()) + part
        whole = self.cost_pico_usd
        users = sorted(parts, key=lambda user: (-parts[user].actual_pico_usd, user))
        amounts = [*(parts[user].actual_pico_usd for user in users), rest.actual_pico_usd]
        ratios = split(_RATIO_PARTS, amounts) if whole else (0,) * len(amounts)
        left = whole
        for user, ratio in zip(users, ratios[:-1], strict=True):
            share = self._share(user, parts[user], self.uses.get(user, Used()), ratio, rate)
            left -= share.cost_pico_usd
            yield share
        owner = User(team=IDLE_TEAM, project="", deployment="")
        rest_of = {
            kind: whole - sum(_at(part, kind) for part in parts.values()) for kind in RateKind
        }
        row = self._share(owner, rest, Used(), ratios[-1], rate)
        yield _as_rest(row, rest_of, left)

    def unit_cost(self) -> UnitCost:
        """What a million tokens cost."""
        tokens = sum(used.tokens for used in self.uses.values())
        busy = sum(
            (busy_rate_of(one.stretch.terms) * one.stretch.busy_us for one in self.shared),
            Fraction(0),
        )
        effective = busy_only = None
        if tokens:
            effective = round(Fraction(self.cost_pico_usd * TOKENS_PER_MTOK, tokens))
            busy_only = round(busy * TOKENS_PER_MTOK / tokens)
        return UnitCost(
            pool=self.pool,
            tokens=tokens,
            is_nominal=self.is_nominal,
            effective_pico_usd_per_mtok=effective,
            busy_pico_usd_per_mtok=busy_only,
        )

    def card(self, hosted: HostedPrice) -> BreakEvenCard:
        """What is used beside what a vendor would take for it."""
        return break_even_card(
            self.pool,
            hosted,
            cost_pico_usd=self.cost_pico_usd,
            up_us=sum(one.stretch.up_us for one in self.shared),
            busy_us=sum(one.stretch.busy_us for one in self.shared),
            used=sum(self.uses.values(), Used()),
            is_nominal=self.is_nominal,
        )

    def _share(
        self, user: User, part: Part, used: Used, ratio: int, rate: RateKind
    ) -> MachineShare:
        return MachineShare(
            pool=self.pool,
            team=user.team,
            project=user.project,
            deployment=user.deployment,
            is_rest=False,
            is_slice=not user.deployment,
            is_nominal=self.is_nominal,
            used_us=part.used_us,
            borne_us=part.borne_us,
            attempts=used.attempts,
            input_tokens=used.input_tokens,
            cached_input_tokens=used.cached_input_tokens,
            output_tokens=used.output_tokens,
            cost_pico_usd=_at(part, rate),
            booked_pico_usd=used.booked_pico_usd,
            marginal_pico_usd=part.marginal_pico_usd,
            standard_pico_usd=part.standard_pico_usd,
            actual_pico_usd=part.actual_pico_usd,
            ratio=_decimals(ratio, _RATIO_PARTS),
        )


def _pools(month: MonthOfMachines) -> Mapping[str, _Pool]:
    """Pools by name. What was booked in hours that are not paid for stays as it is booked."""
    pools: dict[str, _Pool] = {}
    paid: set[tuple[str, int]] = set()
    for one in shared_hours(month):
        name = one.stretch.pool
        pools.setdefault(name, _Pool(pool=name)).shared.append(one)
        paid.add((name, one.stretch.hour_us))
    for (name, hour_us), uses in month.uses.items():
        if (name, hour_us) in paid:
            known = pools[name].uses
            for user, used in uses.items():
                known[user] = known.get(user, Used()) + used
    return dict(sorted(pools.items()))


def _cards(pools: Iterable[_Pool], hosted: Sequence[HostedPrice]) -> Iterator[BreakEvenCard]:
    by_pool = {one.pool: one for one in hosted}
    for pool in pools:
        price = by_pool.get(pool.pool, by_pool.get(""))
        if price is not None:
            yield pool.card(price)


def _report(
    month: MonthOfMachines,
    query: ShowMachines,
    now_us: int,
    *,
    shares: tuple[MachineShare, ...],
    cost_pico_usd: int | None = None,
    machines: tuple[MachineSummary, ...] = (),
    units: tuple[UnitCost, ...] = (),
    break_even: tuple[BreakEvenCard, ...] = (),
    days: tuple[MachineHour, ...] = (),
    hours: tuple[MachineHour, ...] = (),
    gaps: tuple[str, ...] = (),
) -> MachinesReport:
    return MachinesReport(
        month=month.month,
        rate=query.rate,
        as_of_us=min(now_us, month.end_us),
        is_closed=month.is_closed,
        is_restricted=cost_pico_usd is None,
        cost_pico_usd=sum(share.cost_pico_usd for share in shares)
        if cost_pico_usd is None
        else cost_pico_usd,
        machines=machines,
        shares=shares,
        units=units,
        break_even=break_even,
        days=days,
        hours=hours,
        gaps=gaps,
    )


def _at(part: Part, rate: RateKind) -> int:
    amounts = {
        RateKind.MARGINAL: part.marginal_pico_usd,
        RateKind.STANDARD: part.standard_pico_usd,
        RateKind.ACTUAL: part.actual_pico_usd,
    }
    return amounts[rate]


def _as_rest(row: MachineShare, rest: Mapping[RateKind, int], cost_pico_usd: int) -> MachineShare:
    """The row of what no team bears, so that each column sums to the pool's cost."""
    return msgspec.structs.replace(
        row,
        is_rest=True,
        is_slice=False,
        cost_pico_usd=cost_pico_usd,
        marginal_pico_usd=rest[RateKind.MARGINAL],
        standard_pico_usd=rest[RateKind.STANDARD],
    )


def _summaries(month: MonthOfMachines, shared: Iterable[Shared]) -> Iterator[MachineSummary]:
    by_machine: dict[str, list[Shared]] = {}
    for one in shared:
        by_machine.setdefault(one.stretch.machine, []).append(one)
    last = {term.machine: term for term in month.terms}
    down = _down_us(month.stretches)
    for name, term in sorted(last.items()):
        listed = by_machine.get(name, [])
        up_us = sum(one.stretch.up_us for one in listed)
        busy_us = sum(one.stretch.busy_us for one in listed)
        cost, busy = (
            sum(one.cost_pico_usd for one in listed),
            sum(one.busy_pico_usd for one in listed),
        )
        yield MachineSummary(
            machine=name,
            pool=term.pool,
            kind=term.kind,
            gpus=term.terms.gpus,
            gpu_usd_per_hour=term.terms.gpu_usd_per_hour,
            parts=term.terms.parts,
            is_nominal=term.terms.is_nominal or any(one.stretch.terms.is_nominal for one in listed),
            up_us=up_us,
            busy_us=busy_us,
            idle_us=up_us - busy_us,
            down_us=down.get(name),
            utilisation_percent=percent_text(busy_us, up_us),
            cost_pico_usd=cost,
            busy_pico_usd=busy,
            idle_pico_usd=cost - busy,
            until_us=term.until_us,
            idle=term.terms.idle,
            slices=term.terms.slices,
        )


def _down_us(stretches: Iterable[Stretch]) -> Mapping[str, int]:
    """By machine that anybody looked at; also of time that is not paid for."""
    found: dict[str, int] = {}
    for one in stretches:
        if one.down_us is not None:
            found[one.machine] = found.get(one.machine, 0) + one.down_us
    return found


def _on_day(shared: Iterable[Shared], day: str | None) -> list[Shared]:
    return [
        one
        for one in shared
        if day is not None and f"{from_microseconds(one.stretch.start_us):%Y-%m-%d}" == day
    ]


def _cut(shared: Iterable[Shared], start_of: Callable[[int], int]) -> Iterator[MachineHour]:
    """Stretches added up by machine and by what their hour begins in."""
    cells: dict[tuple[str, int], list[Shared]] = {}
    for one in shared:
        stretch = one.stretch
        cells.setdefault((stretch.machine, start_of(stretch.hour_us)), []).append(one)
    for (machine, start_us), listed in sorted(cells.items()):
        up_us = sum(one.stretch.up_us for one in listed)
        busy_us = sum(one.stretch.busy_us for one in listed)
        cost = sum(one.cost_pico_usd for one in listed)
        busy = sum(one.busy_pico_usd for one in listed)
        yield MachineHour(
            machine=machine,
            start_us=start_us,
            up_us=up_us,
            busy_us=busy_us,
            idle_us=up_us - busy_us,
            cost_pico_usd=cost,
            busy_pico_usd=busy,
            idle_pico_usd=cost - busy,
        )


def _decimals(parts: int, of: int) -> str:
    """Parts of one as exact decimal text."""
    whole, rest = divmod(parts, of)
    decimals = f"{rest:012d}".rstrip("0")
    return f"{whole}.{decimals}" if decimals else str(whole)
