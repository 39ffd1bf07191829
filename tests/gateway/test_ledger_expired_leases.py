"""What a worker that is gone has reserved is shown, and let go of by hand with a line for it."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from gateway.access.people import AuditQuery
from gateway.budgets.messages import BudgetWindow, LeaseWriteOff
from gateway.ledger import expired_leases
from gateway.ledger.budget_leases import LEASE_S
from gateway.ledger.database import writing_engine
from gateway.ledger.errors import UnknownLease
from tests.gateway.ledger_samples import NOON_US, FakeClock, event_id, make_database
from tests.gateway.test_ledger_budgets import budget, declare, request, serving, stand, want

pytestmark = pytest.mark.anyio


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, migrated and empty."""
    if request.param == "sqlite":
        return make_database(tmp_path)
    return request.getfixturevalue("postgres_ledger_url")


async def test_what_is_reserved_for_a_worker_that_is_gone_is_written_off_once(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget(window=BudgetWindow.TOTAL)))
        one = want(window_start_us=0, at_least_pico_usd=30, wanted_pico_usd=30)
        for _ in range(2):
            await service.lease_budgets(request(one, directory="gone"))
        assert await service.expired_leases() == ()
        clock.pass_s(LEASE_S)
        await service.lease_budgets(request(one, directory="alive", session=2))
        (found,) = await service.expired_leases()
        named = found.directory
        assert named.endswith("gone")
        assert (found.budget, found.session, found.leases) == ("team", event_id(1), 2)
        assert (found.amount_pico_usd, found.renewed_at_us) == (60, NOON_US)
        alive = named.removesuffix("gone") + "alive"
        with pytest.raises(UnknownLease, match="alive' has expired"):
            await service.write_off_leases(LeaseWriteOff(directory=alive, actor="ann"))
        order = LeaseWriteOff(directory=named, actor="ann")
        assert await service.write_off_leases(order) == (found,)
        assert await stand(service) == (0, 30, 0)
        assert await service.expired_leases() == ()
        with pytest.raises(UnknownLease):
            await service.write_off_leases(order)
        (line, *_) = await service.people.read_audit(AuditQuery(count=9))
        assert (line.actor, line.action, line.subject) == ("ann", "budget.write_off", "team")
        assert line.details["amount_pico_usd"] == "60"
        assert (await service.verify()).faults == ()


async def test_what_two_operators_write_off_at_once_is_written_off_once(
    postgres_ledger_url, tmp_path, clock
):
    async with serving(postgres_ledger_url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget(window=BudgetWindow.TOTAL)))
        one = want(window_start_us=0, at_least_pico_usd=30, wanted_pico_usd=30)
        await service.lease_budgets(request(one, directory="gone"))
        clock.pass_s(LEASE_S)
        (found,) = await service.expired_leases()
        order = LeaseWriteOff(directory=found.directory, actor="ann")

        async def write_off_too() -> None:
            with pytest.raises(UnknownLease):
                await service.write_off_leases(order)

        other = writing_engine(postgres_ledger_url)
        async with anyio.create_task_group() as tasks, other.begin() as connection:
            await connection.run_sync(
                lambda held: expired_leases.write_off(held, order, now_us=clock.wall)
            )
            tasks.start_soon(write_off_too)
            await anyio.sleep(0.1)
        await other.dispose()
        lines = await service.people.read_audit(AuditQuery(count=9))
        assert [line.action for line in lines].count("budget.write_off") == 1
