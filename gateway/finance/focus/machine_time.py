"""Hours of our own machines as pools of cost that teams share, from what is known of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa

from gateway.finance.focus.charges import NO_OWNER, SCALE, Owner, Resource
from gateway.finance.focus.inputs import MachinePool, MachineShare
from gateway.finance.focus.order import HOUR_US
from gateway.finance.machines.allocation import Part, Shared, Used, User
from gateway.finance.machines.messages import IdlePolicy
from gateway.finance.machines.reading import MonthOfMachines, read_month
from gateway.finance.machines.report import shared_hours
from gateway.ledger.periods import month_bounds_us, month_of, next_month
from pricing.money import Rate

METHOD = "busy-time/1"
"""Name and version of the way of sharing (`docs/finance.md`, machines of your own)."""
METHOD_OF_SLICES = "busy-time-and-reserved-slices/1"
"""The same where teams bear what is idle of their own slices."""
WORK_UNIT = "Machine Seconds"
_PER_US = SCALE // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTime:
    """Machines in a range.

    Attributes:
        pools: An hour of a machine each, by machine and start.
        replaced: Deployments and hours whose booked machine time these hold.
    """

    pools: tuple[MachinePool, ...]
    replaced: frozenset[tuple[str, int]]


def machine_time(connection: sa.Connection, from_us: int, to_us: int) -> MachineTime:
    """Read the machines of a range of whole hours.

    Args:
        connection: In a transaction.
        from_us: First instant.
        to_us: First instant after the last.
    """
    pools: list[MachinePool] = []
    replaced: set[tuple[str, int]] = set()
    month, last = month_of(from_us), month_of(to_us - 1)
    while month <= last:
        facts = read_month(connection, month, now_us=month_bounds_us(month)[1])
        told: set[tuple[str, int]] = set()
        for one in shared_hours(facts):
            hour_us, stretch = one.stretch.hour_us, one.stretch
            if from_us <= hour_us < to_us:
                # What was used in an hour stands beside the first of its stretches.
                is_first = (stretch.pool, hour_us) not in told
                told.add((stretch.pool, hour_us))
                pools.append(_pool(one, _uses(facts, one) if is_first else {}))
                replaced |= {(name, hour_us) for name in stretch.terms.deployments}
        month = next_month(month)
    return MachineTime(pools=tuple(pools), replaced=frozenset(replaced))


def _uses(facts: MonthOfMachines, one: Shared) -> Mapping[User, Used]:
    return facts.uses.get((one.stretch.pool, one.stretch.hour_us), {})


def _pool(shared: Shared, uses: Mapping[User, Used]) -> MachinePool:
    stretch, terms = shared.stretch, shared.stretch.terms
    gpu_us = stretch.up_us * terms.gpus
    start_us = stretch.hour_us
    return MachinePool(
        origin_id=f"{stretch.machine}/{stretch.start_us}",
        resource=Resource(provider=stretch.pool.partition("/")[0], deployment=stretch.machine),
        start_us=start_us,
        end_us=start_us + HOUR_US,
        gpu_us=gpu_us,
        # What an hour cost, running it included, so that price times quantity is the cost.
        rate=Rate(pico_usd=shared.cost_pico_usd, per_units=gpu_us),
        cost_pico_usd=shared.cost_pico_usd,
        method_id=METHOD_OF_SLICES if terms.idle is IdlePolicy.RESERVED else METHOD,
        work_unit=WORK_UNIT,
        shares=tuple(_shares(shared, uses)),
        is_nominal=terms.is_nominal,
        price_version=terms.price_version,
    )


def _shares(shared: Shared, uses: Mapping[User, Used]) -> Iterator[MachineShare]:
    """By team and project; who used it for no time that is borne is there with its counts."""
    found: dict[tuple[Owner, bool], MachineShare] = {}
    for user in sorted({*shared.parts, *uses}):
        owner, is_slice = Owner(team=user.team, project=user.project), not user.deployment
        part, used = shared.parts.get(user, Part()), uses.get(user, Used())
        nothing = MachineShare(owner=owner, work=0, tokens=0, is_slice=is_slice, cost_pico_usd=0)
        known = found.get((owner, is_slice), nothing)
        assert known.cost_pico_usd is not None, "begun with 0"
        found[owner, is_slice] = replace(
            known,
            work=known.work + part.borne_us * _PER_US,
            tokens=known.tokens + used.tokens,
            requests=known.requests + used.requests,
            attempts=known.attempts + used.attempts,
            cost_pico_usd=known.cost_pico_usd + part.actual_pico_usd,
        )
    yield from found.values()
    if shared.rest.borne_us:
        yield MachineShare(
            owner=NO_OWNER,
            work=shared.rest.borne_us * _PER_US,
            tokens=0,
            is_idle=True,
            cost_pico_usd=shared.rest.actual_pico_usd,
        )
