"""Holds of a worker: what is let through, what waits and for how long, what is given back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from gateway.budgets import refills
from gateway.budgets.holds import NO_HOLD, Hold, Holds
from gateway.budgets.messages import BudgetRule, BudgetRules, BudgetScope, BudgetWindow, OnExceed
from gateway.budgets.refills import NOT_CARRIED_OUT
from gateway.budgets.standing import Standing
from gateway.channel import CallTimeout, RemoteError
from gateway.clock import Clock
from gateway.errors import BudgetExceeded, BudgetUnavailable
from tests.gateway.ledger_samples import NOON_US, FakeClock
from tests.support.budget_ledger import MemoryLedger

pytestmark = pytest.mark.anyio

CENT = 10**10
USD = 10**12


@dataclass(frozen=True)
class Someone:
    team: str = "apps"
    project: str = ""
    key_id: str = "k1"
    cost_tags: tuple[tuple[str, str], ...] = ()


APPS = Someone()


def rule(budget_id: int = 1, **changes) -> BudgetRule:
    facts = {
        "budget_id": budget_id, "name": f"budget {budget_id}", "scope": BudgetScope.TEAM,
        "team": "apps", "limit_pico_usd": USD, "window": BudgetWindow.DAY,
    }  # fmt: skip
    return BudgetRule(**{**facts, **changes})


@dataclass
class Worker:
    holds: Holds
    ledger: MemoryLedger
    time: FakeClock

    async def hold(self, amount: int | None, who: Someone = APPS) -> Hold:
        taken = self.holds.take(who, amount)
        return taken if taken is not None else await self.holds.wait(who, amount)

    async def settle(self) -> None:
        """Until the tasks that are under way have had their turns."""
        for _ in range(20):
            await anyio.sleep(0)


@asynccontextmanager
async def running(*rules: BudgetRule, **options):
    time = FakeClock()
    ledger = MemoryLedger(rules=BudgetRules(rules=rules, revision=1), wall_us=lambda: time.wall)
    # Real durations, an instant that moves only when told.
    clock = Clock(wall_us=lambda: time.wall, monotonic_s=asyncio.get_running_loop().time)
    holds = Holds(
        lease=ledger.lease,
        standing=Standing(ledger.states, clock.monotonic_s),
        clock=clock,
        **options,
    )
    holds.follow(ledger.rules)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holds.run)
        yield Worker(holds=holds, ledger=ledger, time=time)
        tasks.cancel_scope.cancel()


async def test_without_budgets_nothing_is_held_and_nobody_is_asked():
    async with running() as worker:
        assert worker.holds.is_free
        assert worker.holds.take(APPS, None) is NO_HOLD
        assert worker.ledger.requests == []


async def test_who_no_budget_counts_and_what_costs_nothing_holds_nothing():
    async with running(rule()) as worker:
        assert not worker.holds.is_free
        assert worker.holds.take(Someone(team="others"), None) is NO_HOLD
        assert worker.holds.take(APPS, 0) is NO_HOLD


async def test_nothing_is_let_through_before_the_budgets_are_known():
    holds = unknowing(wait_s=0.05)
    assert holds.take(APPS, 5) is None
    with pytest.raises(BudgetUnavailable, match="in time"):
        await holds.wait(APPS, 5)


async def test_who_came_before_the_budgets_were_known_goes_on_then():
    holds = unknowing(wait_s=30)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(holds.wait, APPS, 5)
        await anyio.sleep(0.01)
        holds.follow(BudgetRules())


def unknowing(wait_s: float) -> Holds:
    time = FakeClock()
    ledger = MemoryLedger(rules=BudgetRules(), wall_us=lambda: time.wall)
    return Holds(
        lease=ledger.lease, standing=Standing(ledger.states, lambda: 0.0), clock=time.clock,
        wait_s=wait_s,
    )  # fmt: skip


async def test_the_first_hold_waits_for_a_slab_and_the_next_ones_take_no_time():
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        first = await worker.hold(CENT)
        assert (first.amount_pico_usd, first.at_us) == (CENT, NOON_US)
        assert len(first.lease_ids) == 1
        again = worker.holds.take(APPS, CENT)
        assert again is not None
        assert again.lease_ids == first.lease_ids
        assert len(worker.ledger.requests) == 1


async def test_a_request_counts_in_every_budget_that_applies_or_in_none():
    project = rule(2, scope=BudgetScope.PROJECT, project="fraud", limit_pico_usd=CENT)
    async with running(rule(), project) as worker:
        fraud = Someone(project="fraud")
        held = await worker.hold(CENT, fraud)
        assert len(held.lease_ids) == 2
        before = worker.ledger.bucket(1).reserved - sum(
            bucket.in_hand_pico_usd for bucket in worker.holds._buckets() if bucket.key[0] == 1
        )
        with pytest.raises(BudgetExceeded, match="budget 2"):
            await worker.hold(1, fraud)
        in_hand = sum(b.in_hand_pico_usd for b in worker.holds._buckets() if b.key[0] == 1)
        assert worker.ledger.bucket(1).reserved - in_hand == before


async def test_a_refusal_names_the_budget_what_is_taken_and_when_it_starts_again():
    async with running(rule(name="team apps, day")) as worker:
        bucket = worker.ledger.bucket(1)
        bucket.spent, bucket.exposed = USD // 2, USD // 4
        with pytest.raises(BudgetExceeded) as refused:
            await worker.hold(USD // 2)
        assert refused.value.message == (
            "budget 'team apps, day' has no room: this request may cost up to 0.5 USD, and of 1 USD"
            " there are 0.5 spent, 0 reserved, 0.25 exposed by attempts whose bill is unknown;"
            " it starts again at 2026-11-29T00:00:00Z"
        )
        assert await worker.hold(USD // 4)


async def test_a_budget_in_total_never_starts_again():
    async with running(rule(window=BudgetWindow.TOTAL, limit_pico_usd=0)) as worker:
        with pytest.raises(BudgetExceeded, match="it never starts again"):
            await worker.hold(1)


async def test_an_attempt_without_a_known_price_is_not_let_through_a_budget_that_blocks():
    async with running(rule()) as worker:
        with pytest.raises(BudgetExceeded, match="known price"):
            await worker.hold(None)


async def test_of_many_at_once_exactly_those_are_let_through_that_fit():  # GW-092
    async with running(rule(limit_pico_usd=10 * CENT)) as worker:
        let, refused = [], []

        async def ask() -> None:
            try:
                let.append(await worker.hold(CENT))
            except BudgetExceeded as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(ask)
        assert (len(let), len(refused)) == (10, 40)
        assert worker.ledger.bucket(1).room == 0


async def test_what_fits_is_let_through_beside_what_does_not():
    async with running(rule(limit_pico_usd=10 * CENT)) as worker:
        results: dict[int, str] = {}

        async def ask(amount: int) -> None:
            try:
                await worker.hold(amount)
                results[amount] = "let"
            except BudgetExceeded:
                results[amount] = "refused"

        async with anyio.create_task_group() as tasks:
            for cents in (11, 20, 3, 4):
                tasks.start_soon(ask, cents * CENT)
        assert results == {
            11 * CENT: "refused", 20 * CENT: "refused", 3 * CENT: "let", 4 * CENT: "let",
        }  # fmt: skip


async def test_one_question_per_bucket_is_under_way():
    async with running(rule(limit_pico_usd=1000 * USD)) as worker:
        most = at_once = 0

        async def slow(_request) -> None:
            nonlocal most, at_once
            at_once += 1
            most = max(most, at_once)
            await anyio.sleep(0.01)
            at_once -= 1

        worker.ledger.before = slow
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(worker.hold, USD)
        assert most == 1


async def test_slabs_are_asked_for_before_they_are_used_up():
    async with running(rule(limit_pico_usd=10_000 * USD)) as worker:
        await worker.hold(USD)
        for _ in range(200):
            assert worker.holds.take(APPS, USD) is not None, "no request waits"
            await worker.settle()


async def test_a_request_belongs_to_the_window_of_its_instant():
    async with running(rule(limit_pico_usd=2 * CENT)) as worker:
        first = await worker.hold(2 * CENT)
        with pytest.raises(BudgetExceeded):
            await worker.hold(CENT)
        worker.time.wall += 12 * 3_600_000_000 - 1
        with pytest.raises(BudgetExceeded):
            await worker.hold(CENT)
        worker.time.wall += 1  # midnight
        second = await worker.hold(2 * CENT)
        assert second.at_us == worker.time.wall
        assert second.lease_ids != first.lease_ids


async def test_what_is_left_of_a_window_that_ended_is_given_back():
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        await worker.hold(CENT)
        old = worker.ledger.bucket(1)
        worker.time.wall += 24 * 3_600_000_000
        await worker.hold(CENT)
        await worker.settle()
        assert old.reserved == CENT, "the hold stays until it is booked"


async def test_what_nobody_uses_is_given_back():
    async with running(rule(limit_pico_usd=100 * USD), idle_s=0.02) as worker:
        await worker.hold(CENT)
        assert worker.ledger.bucket(1).reserved > CENT
        with anyio.fail_after(2):
            while worker.ledger.bucket(1).reserved > CENT:
                await anyio.sleep(0.005)
        asked = len(worker.ledger.requests)
        await anyio.sleep(0.1)
        assert len(worker.ledger.requests) == asked, "an idle worker asks for nothing"


async def test_a_client_that_leaves_while_it_waits_holds_nothing():
    async with running(rule(limit_pico_usd=CENT)) as worker:
        worker.ledger.before = lambda _request: anyio.sleep(0.02)
        with anyio.move_on_after(0.005):
            await worker.hold(CENT)
        assert await worker.hold(CENT)


async def test_a_grant_in_the_turn_in_which_the_client_leaves_is_undone():
    async with running(rule(limit_pico_usd=CENT)) as worker:
        started = anyio.Event()

        async def slow(_request) -> None:
            started.set()
            await anyio.sleep(0)

        worker.ledger.before = slow
        task = asyncio.ensure_future(worker.hold(CENT))
        await started.wait()
        while not any(w.granted.done() for w in worker.holds._waiters) and worker.holds._waiters:
            await anyio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert worker.holds.take(APPS, CENT) is not None


async def test_an_attempt_that_was_never_written_down_gives_its_hold_back():
    async with running(rule(limit_pico_usd=CENT)) as worker:
        worker.holds.undo(await worker.hold(CENT))
        held = worker.holds.take(APPS, CENT)
        assert held is not None
        worker.time.wall += 24 * 3_600_000_000
        bucket = worker.ledger.bucket(1, NOON_US)
        await worker.hold(CENT)
        worker.holds.undo(held)
        await worker.settle()
        assert bucket.reserved == 0, "the window is over, so it goes to the ledger"


async def test_with_the_ledger_away_holds_in_hand_go_on_and_others_are_told_to_come_back():
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        await worker.hold(CENT)
        worker.ledger.fault = RemoteError(NOT_CARRIED_OUT, "being started again")
        assert worker.holds.take(APPS, CENT)
        with anyio.fail_after(1):
            with pytest.raises(BudgetUnavailable, match="being started again") as refused:
                await worker.hold(50 * USD)
        assert refused.value.retry_after_s
        worker.ledger.fault = None
        assert await worker.hold(50 * USD)


async def test_a_ledger_that_is_silent_makes_nobody_hang():
    async with running(rule(), wait_s=0.05) as worker:
        worker.ledger.before = lambda _request: anyio.sleep_forever()
        with anyio.fail_after(1):
            with pytest.raises(BudgetUnavailable, match="in time"):
                await worker.hold(CENT)


RETURNS = {
    "not carried out": {"fault": RemoteError(NOT_CARRIED_OUT, "away")},
    "an unknown outcome, and not done": {"fault": CallTimeout("silent")},
    "an unknown outcome, and done": {"lost": CallTimeout("silent")},
}


@pytest.mark.parametrize("faults", RETURNS.values(), ids=RETURNS.keys())
async def test_returns_whose_call_failed_are_given_back_once(faults, monkeypatch):
    monkeypatch.setattr(refills, "FAILED_PAUSE_S", 0.01)
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        await worker.hold(CENT)
        worker.ledger.__dict__.update(faults)
        worker.holds.follow(BudgetRules(revision=2))  # the budget is gone, its leases go back
        await worker.settle()
        worker.ledger.fault = worker.ledger.lost = None
        worker.holds.follow(BudgetRules(revision=3))
        with anyio.fail_after(5):
            while worker.ledger.bucket(1).reserved != CENT:
                await anyio.sleep(0.005)
        await anyio.sleep(0.03)
        assert worker.ledger.bucket(1).reserved == CENT


@pytest.mark.parametrize("is_granted", [True, False], ids=["granted", "not granted"])
async def test_a_slab_whose_answer_was_lost_is_asked_for_again_and_granted_once(
    is_granted, monkeypatch
):
    monkeypatch.setattr(refills, "FAILED_PAUSE_S", 0.02)
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        name = "lost" if is_granted else "fault"
        setattr(worker.ledger, name, CallTimeout("silent"))
        with pytest.raises(BudgetUnavailable):
            await worker.hold(CENT)
        # Nothing else is asked about this bucket meanwhile.
        with pytest.raises(BudgetUnavailable):
            await worker.hold(CENT)
        setattr(worker.ledger, name, None)
        assert await worker.hold(CENT)
        first, *others = worker.ledger.requests
        assert {asked.number for asked in others} == {first.number}
        assert all(asked.is_repeat and asked.wants == first.wants for asked in others)
        assert len(worker.ledger.leases) == 1


async def test_a_question_that_never_has_an_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(refills, "FAILED_PAUSE_S", 0.01)
    monkeypatch.setattr(refills, "REPEAT_S", 0.05)
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        worker.ledger.fault = CallTimeout("silent")
        with anyio.fail_after(10):
            while len({asked.number for asked in worker.ledger.requests}) < 2:
                with pytest.raises(BudgetUnavailable):
                    await worker.hold(CENT)
        worker.ledger.fault = None
        assert await worker.hold(CENT)


async def test_what_is_unused_is_given_up_when_it_is_recalled():
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        held = await worker.hold(CENT)
        ((key, bucket),) = worker.ledger.buckets.items()
        assert worker.holds.recall([(9, 9)]) == {}
        given = worker.holds.recall([key])
        assert given == {held.lease_ids[0]: bucket.reserved - CENT}
        assert worker.holds.take(APPS, CENT) is None


async def test_at_the_end_everything_unused_is_given_back():
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        await worker.hold(CENT)
        await worker.holds.close()
        assert worker.ledger.bucket(1).reserved == CENT


async def test_a_slab_that_comes_after_the_end_is_given_back():
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        worker.ledger.before = lambda _request: anyio.sleep(0.01)
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(BudgetUnavailable, match="ending"):
                    await worker.hold(CENT)

            tasks.start_soon(ask)
            await anyio.sleep(0.002)
            await worker.holds.close()
            await anyio.sleep(0.05)
        with pytest.raises(BudgetUnavailable, match="ending"):
            await worker.hold(CENT)
        assert worker.ledger.bucket(1).reserved == 0


async def test_who_waits_for_a_budget_that_is_taken_away_goes_on():
    async with running(rule()) as worker:
        worker.ledger.before = lambda _request: anyio.sleep(0.05)
        async with anyio.create_task_group() as tasks:
            got: list[Hold] = []

            async def ask() -> None:
                got.append(await worker.hold(CENT))

            tasks.start_soon(ask)
            await anyio.sleep(0.01)
            worker.holds.follow(BudgetRules(revision=2))
        assert got == [NO_HOLD]
        worker.holds.follow(BudgetRules(rules=(rule(),), revision=1))
        assert worker.holds.is_free, "older news change nothing"


async def test_leases_are_renewed_while_something_counts_on_them(monkeypatch):
    monkeypatch.setattr("gateway.budgets.refills.RENEW_S", 0.02)
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        await worker.hold(CENT)
        with anyio.fail_after(2):
            while len(worker.ledger.requests) < 4:
                await anyio.sleep(0.005)
        assert [request.wants for request in worker.ledger.requests[1:]] == [()] * 3


async def test_a_used_up_budget_leaves_the_cheapest_alone_once_the_ledger_said_so():
    narrowing = rule(on_exceed=OnExceed.CHEAPEST_ONLY, limit_pico_usd=CENT)
    async with running(narrowing) as worker:
        holds = worker.holds
        worker.ledger.bucket(1).spent = CENT
        assert holds.take(APPS, 5 * USD) is NO_HOLD, "it never blocks"
        assert not holds.is_narrowed(APPS)
        assert not holds.is_narrowed(Someone(team="others"))
        with anyio.fail_after(1):
            while not holds.is_narrowed(APPS):
                await anyio.sleep(0.001)
        assert not holds.is_narrowed(Someone(team="others"))
        worker.time.wall += 24 * 3_600_000_000
        assert not holds.is_narrowed(APPS), "the next window has spent nothing"


async def test_a_budget_that_only_alerts_is_the_ledgers_matter():
    async with running(rule(on_exceed=OnExceed.ALERT, limit_pico_usd=0)) as worker:
        assert worker.holds.is_free
        assert worker.holds.take(APPS, USD) is NO_HOLD


async def test_where_a_budget_stands_is_asked_for_again_after_a_failure(monkeypatch):
    monkeypatch.setattr("gateway.budgets.standing.FRESH_S", 0.01)
    fails = True
    calls = 0

    async def fetch():
        nonlocal calls
        calls += 1
        if fails:
            raise CallTimeout("silent")
        return []

    standing = Standing(fetch, asyncio.get_running_loop().time)
    narrowing = rule(limit_pico_usd=0)
    async with anyio.create_task_group() as tasks:
        standing.start(tasks)
        with anyio.fail_after(1):
            while calls < 2:
                assert standing.is_used_up(narrowing, NOON_US), "nothing fits into a limit of 0"
                await anyio.sleep(0.002)
            fails = False
            while calls < 4:
                standing.is_used_up(narrowing, NOON_US)
                await anyio.sleep(0.002)
        tasks.cancel_scope.cancel()
