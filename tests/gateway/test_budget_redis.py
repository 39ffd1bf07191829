"""Budgets with a real Redis over PostgreSQL: it is asked first, and need never be believed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import redis

from gateway.budgets.messages import BudgetChange, BudgetScope, BudgetWindow, LeaseReply
from gateway.budgets.rules import window_of_rule
from gateway.clock import system_clock
from gateway.ledger import lease_desk, pool_desk
from gateway.ledger.budget_pool import POOL_S, SLABS
from gateway.ledger.errors import DatabaseUnavailable
from gateway.ledger.lease_desk import RENEW_S
from gateway.ledger.pool_desk import SCRIPTS, PoolDesk
from gateway.ledger.service import LedgerService
from gateway.limits.redis_link import RedisLink
from gateway.limits.shared import Connection, Unreachable
from tests.gateway import budget_machines
from tests.gateway.ledger_samples import FakeClock
from tests.gateway.test_ledger_budgets import (
    LIMIT,
    MONTH_START_US,
    budget,
    declare,
    request,
    stand,
    want,
)

pytestmark = pytest.mark.anyio

SLAB = LIMIT // 1_000


@dataclass
class Machine:
    """One ledger on the shared database and the shared Redis."""

    service: LedgerService
    client: redis.Redis
    clock: FakeClock

    async def ask(self, amount: int = SLAB, *, session: int = 1, **changes) -> LeaseReply:
        wanted = want(at_least_pico_usd=amount, wanted_pico_usd=amount)
        return await self.service.lease_budgets(request(wanted, session=session, **changes))

    async def fill(self) -> None:
        """Ask until slabs lie in Redis; the session is known to the database then."""
        for _ in range(2):
            await self.ask()
        await until(lambda: len(self.pooled()) == SLABS)

    def pooled(self) -> dict[bytes, float]:
        """Ids of leases in Redis, with about how much they are."""
        return {
            member: score
            for key in self.client.keys("fareway:{budgets:*")
            for member, score in self.client.zrange(key, 0, -1, withscores=True)
        }

    @property
    def grants(self) -> int:
        return self.service.stats().pool_grants


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not is_so():
            await anyio.sleep(0.005)


def link_to(url: str) -> Callable[[], asyncio.Future]:
    async def connect() -> Connection:
        return await RedisLink.connect(url, None, SCRIPTS)

    return connect


@asynccontextmanager
async def machine(
    url: str, redis_url: str, folder: Path, clock: FakeClock, connect=None
) -> AsyncIterator[Machine]:
    service = LedgerService(
        url, folder / "spool", clock=clock.clock, redis=connect or link_to(redis_url)
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.run)
        with redis.Redis.from_url(redis_url) as client:
            await service.set_budgets(declare(budget()))
            if connect is None:
                await until(lambda: service._leases._pool.is_up)
            yield Machine(service, client, clock)
        await service.stop(drain=True)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_what_is_asked_for_again_and_again_comes_out_of_redis(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        assert await stand(here.service) == (0, (2 + SLABS) * SLAB, 0)
        leases = [lease for _ in range(SLABS) for lease in (await here.ask()).leases]
        assert here.grants == SLABS
        assert {(one.amount_pico_usd, one.window_start_us) for one in leases} == {
            (SLAB, MONTH_START_US)
        }
        assert len({lease.lease_id for lease in leases}) == SLABS
        # Nothing more was reserved, and each is the worker's own: it can give it back.
        assert await stand(here.service) == (0, (2 + SLABS) * SLAB, 0)
        await here.service.lease_budgets(request(returns={leases[0].lease_id: SLAB}))
        assert await stand(here.service) == (0, (1 + SLABS) * SLAB, 0)
        assert (await here.service.verify()).faults == ()


async def test_nobody_is_refused_for_want_of_what_lies_in_redis(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        room = LIMIT - 2 * SLAB
        reply = await here.ask(room, is_last_try=True)
        assert [lease.amount_pico_usd for lease in reply.leases] == [room]
        assert await stand(here.service) == (0, LIMIT, 0)
        # Their ids are still there, and nobody gets anything for them.
        assert len(here.pooled()) == SLABS
        reply = await here.ask()
        assert (reply.leases, len(reply.shortages)) == ((), 1)
        assert here.grants == 0


async def test_a_redis_that_tells_old_things_gives_nobody_a_slab_twice(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        old = {key: here.client.dump(key) for key in here.client.keys("fareway:{budgets:*")}
        before = [lease.lease_id for _ in range(SLABS) for lease in (await here.ask()).leases]
        for key, value in old.items():
            here.client.restore(key, 0, value, replace=True)
        # The control: whoever believes Redis lets somebody spend what another one has.
        believed = {here.client.eval(pool_desk.TAKE, 1, key, SLAB)[0] for key in old}
        assert {bytes.fromhex(text.decode()) for text in believed} <= set(before)
        after = [lease.lease_id for _ in range(SLABS) for lease in (await here.ask()).leases]
        assert len({*before, *after}) == 2 * SLABS
        assert (await here.service.verify()).faults == ()


async def test_what_nobody_claims_returns(postgres_ledger_url, redis_url, tmp_path, clock):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        here.client.flushdb()
        assert await here.service._leases.sweep() == 0
        clock.pass_s(POOL_S)
        assert await here.service._leases.sweep() == SLABS * SLAB
        assert await stand(here.service) == (0, 2 * SLAB, 0)
        assert (await here.service.verify()).faults == ()


async def test_who_goes_leaves_nothing_reserved_for_nobody(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as one:
        await one.fill()
        assert await stand(one.service) == (0, (2 + SLABS) * SLAB, 0)
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as later:
        # What the two requests got is still their session's.
        assert await stand(later.service) == (0, 2 * SLAB, 0)


async def test_an_expired_slab_is_nobodys_although_it_lies_in_redis(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        clock.pass_s(POOL_S)
        assert len((await here.ask()).leases) == 1
        assert here.grants == 0


CHANGES = {
    "lowered": budget("mine", limit_pico_usd=3 * SLAB),
    "made another one": budget("mine", time_zone="Asia/Seoul"),
    "taken away": None,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_budget_that_changes_leaves_nothing_in_redis_to_be_had(
    postgres_ledger_url, redis_url, tmp_path, clock, change
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.service.set_budgets(declare())
        mine = BudgetChange(name="mine", budget=budget("mine"), actor="ann")
        rules = await here.service.change_budget(mine)
        (number,) = [rule.budget_id for rule in rules.rules]
        one = want(number, at_least_pico_usd=SLAB, wanted_pico_usd=SLAB)
        for _ in range(2):
            await here.service.lease_budgets(request(one))
        await until(lambda: len(here.pooled()) == SLABS)
        await here.service.change_budget(BudgetChange(name="mine", budget=change, actor="ann"))
        replies = [await here.service.lease_budgets(request(one)) for _ in range(3)]
        granted = sum(len(reply.leases) for reply in replies)
        assert granted == (1 if change is CHANGES["lowered"] else 0)
        assert here.grants == 0
        assert (await here.service.verify()).faults == ()


async def test_where_a_bucket_is_asked_about_seldom_nothing_is_laid_in(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        for _ in range(3):
            await here.ask()
            clock.pass_s(2)
        assert await stand(here.service) == (0, 3 * SLAB, 0)


async def test_close_to_the_limit_nothing_is_laid_in(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        for _ in range(3):
            await here.ask(LIMIT // 50)
        assert await stand(here.service) == (0, 3 * LIMIT // 50, 0)


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_64_clients_of_8_machines_are_admitted_exactly_what_fits(
    postgres_ledger_url, redis_url, tmp_path
):
    """GW-092 for slabs that come out of Redis: parallel requests never share what remains."""
    amount, fits, tries = 25, 400, 7
    service = LedgerService(postgres_ledger_url, tmp_path / "spool", clock=system_clock())
    small = budget(limit_pico_usd=amount * fits + amount - 1, window=BudgetWindow.TOTAL)
    rules = await service.set_budgets(declare(small))
    assert window_of_rule(rules.rules[0], 1).start_us == budget_machines.START_US
    command = [sys.executable, "-m", "tests.gateway.budget_machines", postgres_ledger_url]
    command += [redis_url, *map(str, (8, amount, tries))]
    running = [await anyio.open_process(command, stderr=None) for _ in range(8)]
    outputs = [(await process.stdout.receive()).decode().split() for process in running]
    assert [await process.wait() for process in running] == [0] * 8
    assert sum(int(got) for got, _ in outputs) == fits
    assert sum(int(grants) for _, grants in outputs) > 0
    assert await stand(service) == (0, fits * amount, 0)
    assert (await service.verify()).faults == ()
    await service.stop(drain=False)


FAULTS = ["kill", "freeze", "full"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_without_redis_the_database_grants_within_a_bounded_wait(
    postgres_ledger_url, redis_server, tmp_path, clock, fault
):
    async with machine(postgres_ledger_url, redis_server.url, tmp_path, clock) as here:
        await here.fill()
        if fault == "full":
            here.client.config_set("maxmemory", "1")
        else:
            getattr(redis_server, fault)()
        with anyio.fail_after(10):
            for _ in range(2 * SLABS):
                assert len((await here.ask()).leases) == 1
        await until(lambda: bool(here.service.stats().pool_fault))
        assert here.grants <= SLABS
        # All that there is can be had, what lies in Redis too.
        _, reserved, _ = await stand(here.service)
        with anyio.fail_after(10):
            free = LIMIT - 2 * SLAB - 2 * SLABS * SLAB
            assert len((await here.ask(free, is_last_try=True)).leases) == 1
        assert (await here.service.verify()).faults == ()
        if fault == "kill":
            redis_server.start()
        elif fault == "freeze":
            redis_server.thaw()
        else:
            here.client.config_set("maxmemory", "0")
        await until(lambda: not here.service.stats().pool_fault)


async def test_what_is_remembered_of_buckets_and_sessions_is_bounded(
    postgres_ledger_url, redis_url, tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(pool_desk, "BUCKETS_MAX", 0)
    monkeypatch.setattr(lease_desk, "SESSIONS_MAX", 1)
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        for session in (1, 2, 3):
            await here.ask(session=session)
        assert await stand(here.service) == (0, 3 * SLAB, 0)
        assert len(here.service._leases._renewed_s) == 1


async def test_a_session_that_the_database_has_not_seen_for_long_asks_there(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        assert len((await here.ask(session=9)).leases) == 1
        assert here.grants == 0
        clock.monotonic += RENEW_S + 1
        assert len((await here.ask()).leases) == 1
        assert here.grants == 0
        assert len((await here.ask()).leases) == 1
        assert here.grants == 1


async def test_of_several_wants_what_redis_has_not_comes_from_the_database(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        other = budget("other", scope=BudgetScope.ORGANISATION, team="")
        await here.service.set_budgets(declare(budget(), other))
        await here.fill()
        wants = [want(one, at_least_pico_usd=SLAB, wanted_pico_usd=SLAB) for one in (1, 2)]
        reply = await here.service.lease_budgets(request(*wants))
        assert sorted(lease.budget_id for lease in reply.leases) == [1, 2]
        assert here.grants == 1
        assert (await here.service.verify()).faults == ()


async def test_while_too_many_wait_the_database_is_asked(
    postgres_ledger_url, redis_url, tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(pool_desk, "WAITING_MAX", 0)
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        assert len((await here.ask()).leases) == 1
        assert here.grants == 0


async def test_who_waits_when_redis_goes_is_answered_by_the_database(
    postgres_ledger_url, redis_url, tmp_path, clock, monkeypatch
):
    monkeypatch.setattr(pool_desk, "BATCH_MAX", 2)
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        pool = here.service._leases._pool
        replies: list[LeaseReply] = []

        async def ask() -> None:
            replies.append(await here.ask())

        async with anyio.create_task_group() as tasks:
            for _ in range(7):
                tasks.start_soon(ask)
            await until(lambda: bool(pool._asks))
            here.client.client_kill_filter(_type="normal", skipme=True)
        assert [len(reply.leases) for reply in replies] == [1] * 7
        assert (await here.service.verify()).faults == ()


class Scripted:
    """A connection that finds the same id for everybody, or fails when it is asked."""

    def __init__(self, *, fails: bool, answer: object = (b"ab" * 16,)) -> None:
        self.fails = fails
        self.answer = list(answer) if isinstance(answer, tuple) else answer

    async def run(self, calls):
        if self.fails and any(call.script == pool_desk.TAKE for call in calls):
            raise Unreachable("gone")
        return [self.answer if call.script == pool_desk.TAKE else 0 for call in calls]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def desk_of(connection: Scripted, claim) -> AsyncIterator[PoolDesk]:
    async def connect() -> Connection:
        return connection

    async def identify() -> str:
        return "one"

    desk = PoolDesk(connect, identify=identify, claim=claim, clock=FakeClock().clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(desk.run)
        await until(lambda: desk.is_up)
        yield desk
        tasks.cancel_scope.cancel()


WANT = want(at_least_pico_usd=SLAB, wanted_pico_usd=SLAB)


async def test_whoever_waits_when_the_connection_fails_is_answered_with_nothing(monkeypatch):
    monkeypatch.setattr(pool_desk, "BATCH_MAX", 1)
    found: list[dict] = []

    async def claim(_claims):
        return {}

    async with desk_of(Scripted(fails=True), claim) as desk:

        async def take() -> None:
            found.append(await desk.take(request(WANT), "w"))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(take)
        assert found == [{}] * 3


@pytest.mark.parametrize("answer", [0, (), (b"", b""), (None,), (b"\xff",)])
async def test_what_is_no_answer_of_ours_ends_nothing(answer):
    async def claim(claims):
        raise AssertionError(claims)

    async with desk_of(Scripted(fails=False, answer=answer), claim) as desk:
        for _ in range(2):
            assert await desk.take(request(WANT), "w") == {}


async def test_who_has_left_is_not_told_of_a_claim_that_failed():
    claiming, left = anyio.Event(), anyio.Event()

    async def claim(_claims):
        claiming.set()
        await left.wait()
        raise DatabaseUnavailable("away")

    async with desk_of(Scripted(fails=False), claim) as desk:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.take, request(WANT), "w")
            await claiming.wait()
            tasks.cancel_scope.cancel()
        left.set()
        with pytest.raises(DatabaseUnavailable):
            await desk.take(request(WANT), "w")


async def test_a_gateway_starts_without_redis(postgres_ledger_url, redis_url, tmp_path, clock):
    async def connect() -> Connection:
        raise Unreachable("nobody is there")

    async with machine(postgres_ledger_url, redis_url, tmp_path, clock, connect) as here:
        assert len((await here.ask()).leases) == 1
        await until(lambda: bool(here.service.stats().pool_fault))
        assert here.service.stats().pool_fault == "nobody is there"


async def test_whether_a_claim_was_carried_out_is_not_guessed(
    postgres_ledger_url, redis_url, tmp_path, clock, monkeypatch
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()

        async def lost(*_):
            raise DatabaseUnavailable("the connection was lost")

        monkeypatch.setattr(here.service._leases._pool, "_claim", lost)
        with pytest.raises(DatabaseUnavailable):
            await here.ask()


async def test_what_came_out_of_redis_is_answered_again(
    postgres_ledger_url, redis_url, tmp_path, clock
):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        reply = await here.ask(number=7)
        assert here.grants == 1
        before = await stand(here.service)
        again = await here.ask(number=7, is_repeat=True)
        assert (again.leases, again.is_repeat) == (reply.leases, True)
        assert await stand(here.service) == before


async def test_what_no_lease_can_be_is_passed_over(postgres_ledger_url, redis_url, tmp_path, clock):
    async with machine(postgres_ledger_url, redis_url, tmp_path, clock) as here:
        await here.fill()
        (key,) = here.client.keys("fareway:{budgets:*")
        here.client.delete(key)
        here.client.zadd(key, {"nonsense": SLAB, "0" * 32: SLAB + 1, "ab": SLAB + 2})
        for _ in range(4):
            assert len((await here.ask()).leases) == 1
        assert (await here.service.verify()).faults == ()
