"""A request for slabs that is said again is answered with what was done the first time."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
import sqlalchemy as sa

from gateway.ledger import budget_schema, lease_desk
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.lease_answers import KEEP_S
from gateway.ledger.service import LedgerService
from tests.gateway.ledger_samples import FakeClock, intent, make_database, open_spool
from tests.gateway.test_ledger_budgets import (
    LIMIT,
    ask,
    budget,
    declare,
    request,
    serving,
    stand,
)

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


async def answers(service: LedgerService) -> int:
    async with service._reader.begin() as connection:
        table = budget_schema.lease_answer
        found = await connection.execute(sa.select(sa.func.count()).select_from(table))
        return found.scalar_one()


async def test_what_was_granted_and_given_back_is_done_once(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (first,) = (await ask(service, 70)).leases
        asked = {"number": 2, "returns": {first.lease_id: 30}}
        reply = await ask(service, 50, **asked)
        again = await ask(service, 50, **asked, is_repeat=True)
        assert (reply.is_repeat, again.is_repeat) == (False, True)
        assert again.leases == reply.leases
        assert again.rules_revision == reply.rules_revision
        assert await stand(service) == (0, 70 - 30 + 50, 0)
        # Other sessions have numbers of their own.
        other = await ask(service, 50, number=2, session=2, is_repeat=True)
        assert (other.is_repeat, len(other.leases)) == (False, 1)
        assert (await service.verify()).faults == ()


async def test_what_was_not_done_is_done_when_it_is_said_again(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (whole,) = (await ask(service, LIMIT)).leases
        assert (await ask(service, 50, number=2)).leases == ()
        await service.lease_budgets(request(returns={whole.lease_id: LIMIT}, number=3))
        assert len((await ask(service, 50, number=2, is_repeat=True)).leases) == 1
        assert await stand(service) == (0, 50, 0)


async def test_what_was_found_after_loading_is_found_again(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (lease,) = (await ask(service, LIMIT)).leases
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        hold = {"hold_pico_usd": LIMIT, "lease_ids": (lease.lease_id,), "exposure_pico_usd": 0}
        spool.append(intent(1, **hold))
        await spool.close()  # its attempt is lost with the first load, which frees the hold
        reply = await ask(service, 50, session=2, number=1)
        assert len(reply.leases) == 1
        again = await ask(service, 50, session=2, number=1, is_repeat=True)
        assert again.leases == reply.leases
        _, reserved, _ = await stand(service)
        assert reserved == 50


async def test_a_last_try_has_an_answer_of_its_own(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        first = await ask(service, 50, number=1)
        last = await ask(service, 60, number=1, is_last_try=True)
        again = await ask(service, 60, number=1, is_last_try=True, is_repeat=True)
        assert again.leases == last.leases != first.leases
        assert await stand(service) == (0, 110, 0)


async def test_a_lease_that_is_gone_meanwhile_is_not_answered(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (lease,) = (await ask(service, 50, number=1)).leases
        await service.lease_budgets(request(returns={lease.lease_id: 20}))
        (again,) = (await ask(service, 50, number=1, is_repeat=True)).leases
        assert (again.lease_id, again.amount_pico_usd) == (lease.lease_id, 30)
        await service.lease_budgets(request(returns={lease.lease_id: 30}))
        reply = await ask(service, 50, number=1, is_repeat=True)
        assert (reply.leases, reply.is_repeat) == ((), True)


async def test_answers_are_kept_for_as_long_as_somebody_may_ask_again(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        await ask(service, 50, number=1)
        await service.lease_budgets(request(number=2))  # nothing was done, nothing to be kept
        await service._leases.sweep()
        assert await answers(service) == 1
        clock.pass_s(KEEP_S + 1)
        await service._leases.sweep()
        assert await answers(service) == 0


async def test_sweeping_goes_on_after_an_outage_and_rests_where_nothing_is_granted(
    tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(lease_desk, "SWEEP_S", 0.005)
    swept: list[bool] = []
    outage = DatabaseUnavailable("locked")
    async with serving(make_database(tmp_path), tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        desk = service._leases
        sweep = desk.sweep

        async def watched() -> int:
            swept.append(True)
            if len(swept) == 1:
                raise outage
            return await sweep()

        monkeypatch.setattr(type(desk), "sweep", lambda _self: watched())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.run)
            with anyio.fail_after(5):
                while len(swept) < 2:
                    await anyio.sleep(0.005)
            await anyio.sleep(0.05)
            assert len(swept) == 2
            await ask(service, 50, number=1)
            with anyio.fail_after(5):
                while len(swept) < 3:
                    await anyio.sleep(0.005)
            tasks.cancel_scope.cancel()
