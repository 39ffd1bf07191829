"""Budgets under random interleavings: workers that die, loads that are cut short, late bills.

A model keeps what every attempt cost. After each step the database must agree with it: what is
spent is what the events say, what is reserved is what the leases say, and a reservation never takes
a bucket past its limit.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.budgets.messages import BudgetDeclaration, BudgetDeclarations, BudgetScope, LeaseReply
from gateway.ledger.budget_schema import budget_bucket, budget_lease
from gateway.ledger.service import LedgerService
from gateway.ledger.spool import SpoolWriter
from tests.gateway.ledger_samples import (
    FakeClock,
    intent,
    make_database,
    open_spool,
    settlement,
)
from tests.gateway.test_ledger_budgets import request, want

HOLD = 100
COST_MAX = 250
"""An attempt may cost more than it held; that is told, and no reservation follows."""
LIMIT = 1_500
WORKERS = 3
STEP = st.tuples(
    st.sampled_from(("ask", "send", "settle", "return", "die", "load", "wait", "limit")),
    st.integers(0, WORKERS - 1),
    st.integers(0, 9),
)


class Worker:
    """A worker that holds as the gateway's do: whole leases, and holds inside them."""

    def __init__(self, root: Path, number: int, clock: FakeClock) -> None:
        self.root, self.number, self.clock = root, number, clock
        self.session = number * 1_000
        self.start()

    def start(self) -> None:
        self.session += 1
        self.clock.pass_s(0.01)
        self.spool: SpoolWriter = open_spool(
            self.root / f"worker-{self.number}", session=self.session, clock=self.clock.clock
        )
        self.left: dict[bytes, int] = {}
        self.open: list[int] = []

    async def die(self) -> None:
        await self.spool.close()
        self.start()


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.service = LedgerService(
            make_database(folder), folder / "spool", clock=self.clock.clock
        )
        self.workers = [Worker(folder / "spool", number, self.clock) for number in range(WORKERS)]
        self.limit = LIMIT
        self.attempts = 0

    async def declare(self) -> None:
        team = BudgetDeclaration(
            name="team", scope=BudgetScope.TEAM, team="payments", limit_pico_usd=self.limit
        )
        everybody = BudgetDeclaration(
            name="all", scope=BudgetScope.ORGANISATION, limit_pico_usd=LIMIT * 10
        )
        await self.service.set_budgets(BudgetDeclarations(budgets=(team, everybody)))

    async def step(self, action: str, worker: Worker, number: int) -> None:
        before = await self.reserved_or_spent()
        match action:
            case "ask":
                amount = HOLD * (1 + number % 4)
                reply = await self.lease(worker, amount)
                after = await self.reserved_or_spent()
                if reply.leases:
                    assert after <= self.limit
                else:
                    assert after + amount > self.limit
                    assert reply.shortages
                return
            case "send":
                self.send(worker)
            case "settle" if worker.open:
                n = worker.open.pop(number % len(worker.open))
                worker.spool.append(bill(n, number))
            case "return" if worker.left:
                lease_id = min(worker.left)
                returns = {lease_id: worker.left.pop(lease_id)}
                await self.service.lease_budgets(request(session=worker.session, returns=returns))
            case "die":
                await worker.die()
            case "load":
                await self.service.flush()
            case "wait":
                self.clock.pass_s(0.5)
            case "limit":
                self.limit = LIMIT - HOLD * number
                await self.declare()
            case _:
                pass
        if action != "load":  # which counts what attempts cost in the end
            assert await self.reserved_or_spent() <= before

    async def lease(self, worker: Worker, amount: int) -> LeaseReply:
        wanted = want(at_least_pico_usd=amount, wanted_pico_usd=amount)
        reply = await self.service.lease_budgets(
            request(wanted, session=worker.session, directory=f"worker-{worker.number}")
        )
        for lease in reply.leases:
            worker.left[lease.lease_id] = lease.amount_pico_usd
        return reply

    def send(self, worker: Worker) -> None:
        for lease_id, left in worker.left.items():
            if left >= HOLD:
                worker.left[lease_id] = left - HOLD
                self.attempts += 1
                worker.open.append(self.attempts)
                hold = {"hold_pico_usd": HOLD, "lease_ids": (lease_id,)}
                at_us = self.clock.wall
                worker.spool.append(
                    intent(self.attempts, at_us=at_us, exposure_pico_usd=HOLD, **hold)
                )
                return

    async def reserved_or_spent(self) -> int:
        state = next(s for s in await self.service.budget_states() if s.budget_id == 1)
        return state.spent_pico_usd + state.reserved_pico_usd + state.exposed_pico_usd

    async def check(self) -> None:
        assert (await self.service.verify()).faults == ()

    async def end(self) -> None:
        for worker in self.workers:
            await worker.spool.close()
        await self.service.flush()
        await self.check()
        async with self.service._reader.connect() as connection:
            leases = await connection.execute(sa.select(sa.func.count()).select_from(budget_lease))
            reserved = await connection.execute(sa.select(budget_bucket.c.reserved_pico_usd))
            assert leases.scalar_one() == 0
            assert set(reserved.scalars().all()) == {0}
        await self.service.stop(drain=False)


def bill(n: int, number: int):
    cost = COST_MAX * number // 9
    if number == 9:
        return settlement(n, status="unknown_billing", quality="unknown", lines=(), cost_pico_usd=0)
    line = settlement(n).lines[0]
    charged = type(line)(
        meter="requests",
        units=1,
        rate_pico_usd=cost,
        rate_per_units=1,
        cost_pico_usd=cost,
    )
    return settlement(n, usage={"requests": 1}, lines=(charged,), cost_pico_usd=cost)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=5, max_size=40))
def test_budgets_agree_with_leases_and_events_whatever_happens(steps) -> None:
    async def run(folder: Path) -> None:
        world = World(folder)
        await world.declare()
        for action, worker, number in steps:
            await world.step(action, world.workers[worker], number)
            if action in ("load", "die"):
                await world.check()
        await world.end()

    with TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
