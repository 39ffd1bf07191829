"""The budgets of one machine: workers, the board and a ledger, over real channels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import pytest

from gateway.budgets import refills
from gateway.budgets.holds import Hold, Holds
from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclarations,
    BudgetReport,
    BudgetRule,
    BudgetRules,
    BudgetSource,
    ExpiredLeases,
    LeaseRequest,
    LeaseWriteOff,
)
from gateway.channel import CallTimeout, Channel, ChannelError, RemoteError, method, socket_pair
from gateway.clock import Clock
from gateway.errors import BudgetExceeded, BudgetUnavailable
from gateway.process import budget_board
from gateway.process.budget_board import BudgetBoard
from gateway.process.budget_link import make_holds
from gateway.process.messages import RecallBudgets
from gateway.telemetry.sources import budget_series
from tests.gateway.ledger_samples import FakeClock
from tests.gateway.test_budget_holds import APPS, CENT, USD, rule
from tests.support.budget_ledger import MemoryLedger

pytestmark = pytest.mark.anyio


class Ended:
    """Stands for a process that is killed."""

    def __init__(self, channel: Channel) -> None:
        self.was_killed = False
        self._channel = channel

    def kill(self) -> None:
        self.was_killed = True
        self._channel.close()

    async def wait(self) -> int:
        return -9


@dataclass
class Member:
    """The supervisor's view of a child."""

    name: str
    channel: Channel
    process: Ended = field(init=False)

    def __post_init__(self) -> None:
        self.process = Ended(self.channel)


@dataclass
class Machine:
    board: BudgetBoard
    ledger: MemoryLedger
    time: FakeClock
    tasks: Any
    workers: list[Holds] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    is_away: bool = False
    process: Member = None  # type: ignore[assignment]
    declared: list[BudgetDeclarations] = field(default_factory=list)
    ends: list[Channel] = field(default_factory=list)

    def connect(
        self, name: str, theirs_methods: dict, ours_methods: dict
    ) -> tuple[Channel, Channel]:
        ours, theirs = socket_pair()
        channel = Channel(ours, ours_methods, name=name)
        end = Channel(theirs, theirs_methods, name="supervisor")
        for one in (channel, end):
            self.tasks.start_soon(one.run)
            self.ends.append(one)
        return channel, end

    async def start_worker(self, known: BudgetRules | None = None) -> Holds:
        number = len(self.workers)
        methods: dict = {}
        channel, end = self.connect(f"worker-{number}", methods, self.board.methods())
        clock = Clock(wall_us=lambda: self.time.wall, monotonic_s=asyncio.get_running_loop().time)
        holds = make_holds(
            end, clock=clock, directory=f"worker-{number}", session=bytes([number]) * 16
        )

        async def follow(rules: BudgetRules, _fds: Sequence[int]) -> None:
            holds.follow(rules)

        async def recall(wanted: RecallBudgets, _fds: Sequence[int]) -> dict[bytes, int]:
            return holds.recall(wanted.buckets)

        methods["update_budgets"] = method(BudgetRules, follow)
        methods["recall_budgets"] = method(RecallBudgets, recall)
        member = Member(f"worker-{number}", channel)
        async with self.board.joining(member, known=known):
            self.members.append(member)
            self.workers.append(holds)
        self.tasks.start_soon(holds.run)
        return holds

    async def hold(self, worker: int, amount: int) -> Hold:
        holds = self.workers[worker]
        return holds.take(APPS, amount) or await holds.wait(APPS, amount)


GONE = ExpiredLeases(
    budget="all", window_start_us=0, directory="gone", session=bytes(16), leases=1,
    amount_pico_usd=5, renewed_at_us=7,
)  # fmt: skip


async def expired(_params: None, _fds: Sequence[int]) -> list[ExpiredLeases]:
    return [GONE]


async def write_off(order: LeaseWriteOff, _fds: Sequence[int]) -> list[ExpiredLeases]:
    return [msgspec.structs.replace(GONE, directory=order.directory)]


@asynccontextmanager
async def machine(*rules: BudgetRule, workers: int = 0):
    time = FakeClock()
    ledger = MemoryLedger(rules=BudgetRules(rules=rules, revision=1), wall_us=lambda: time.wall)
    async with anyio.create_task_group() as tasks:
        made: Machine

        async def ready() -> Member:
            if made.is_away:
                raise RemoteError("ledger_unavailable", "the ledger process is being started again")
            return made.process

        board = BudgetBoard(
            members=lambda: made.members,
            ledger=ready,
            monotonic_s=asyncio.get_running_loop().time,
        )
        made = Machine(board=board, ledger=ledger, time=time, tasks=tasks)

        async def lease(request: LeaseRequest, _fds: Sequence[int]):
            return await ledger.lease(request)

        async def states(_params: None, _fds: Sequence[int]):
            return await ledger.states()

        async def reports(_params: None, _fds: Sequence[int]):
            return [
                BudgetReport(
                    rule=ledger.rule(state.budget_id), alerts_at=(), source=BudgetSource.FILE,
                    state=state, expired_pico_usd=0,
                )
                for state in await ledger.states()
            ]  # fmt: skip

        async def declare(declared: BudgetDeclarations, _fds: Sequence[int]):
            made.declared.append(declared)
            return ledger.rules

        async def change(_change: BudgetChange, _fds: Sequence[int]):
            return ledger.rules

        async def known(_params: None, _fds: Sequence[int]):
            return ledger.rules

        channel, _ = made.connect(
            "ledger",
            {
                "lease_budgets": method(LeaseRequest, lease),
                "budget_states": method(type(None), states),
                "budget_reports": method(type(None), reports),
                "set_budgets": method(BudgetDeclarations, declare),
                "change_budget": method(BudgetChange, change),
                "expired_leases": method(type(None), expired),
                "write_off_leases": method(LeaseWriteOff, write_off),
                "budget_rules": method(type(None), known),
            },
            {},
        )
        made.process = Member("ledger", channel)
        for _ in range(workers):
            await made.start_worker()
        await board.start_with(made.process)
        yield made
        for end in made.ends:
            end.close()
        tasks.cancel_scope.cancel()


async def test_four_workers_let_through_exactly_what_fits():  # GW-092
    async with machine(rule(limit_pico_usd=10 * CENT), workers=4) as here:
        let, refused = [], []

        async def ask(worker: int) -> None:
            try:
                let.append(await here.hold(worker, CENT))
            except BudgetExceeded as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(ask, number % 4)
        assert (len(let), len(refused)) == (10, 40)
        for held in let:
            here.ledger.book(held.lease_ids, held.amount_pico_usd, 0)
        assert here.ledger.bucket(1).reserved == 0, "once all is booked nothing is left behind"
        assert await here.hold(2, 10 * CENT)


async def test_what_lies_idle_at_one_worker_is_recalled_for_a_request_at_another():
    async with machine(rule(limit_pico_usd=100 * CENT), workers=2) as here:
        first = await here.hold(0, CENT // 10)
        in_hand = here.ledger.bucket(1).reserved - first.amount_pico_usd
        assert in_hand > 0
        rest = here.ledger.bucket(1).room + in_hand
        assert (await here.hold(1, rest)).amount_pico_usd == rest
        assert here.ledger.bucket(1).room == 0
        last = here.ledger.requests[-1]
        assert last.is_last_try
        with pytest.raises(BudgetExceeded):
            await here.hold(0, 1)


async def test_a_worker_that_joins_has_the_budgets_of_now():
    async with machine(rule()) as here:
        late = await here.start_worker(known=None)
        assert not late.is_free
        same = await here.start_worker(known=here.board.rules)
        assert same.take(APPS, 0) is None, "what it was configured with is not told twice"


async def test_a_change_reaches_every_worker_before_it_returns():
    async with machine(rule(limit_pico_usd=CENT), workers=2) as here:
        with pytest.raises(BudgetExceeded):
            await here.hold(0, 2 * CENT)
        here.ledger.rules = BudgetRules(revision=2)
        command = BudgetChange(name="budget 1", budget=None, actor="cli")
        rules = await here.board.methods()["change_budget"].run(command, ())
        assert rules == here.ledger.rules
        assert all(worker.is_free for worker in here.workers)


async def test_a_worker_that_does_not_take_a_change_is_ended():
    async with machine(workers=2) as here:
        here.members[1].channel.close()
        async with here.board.lock:
            await here.board.publish(BudgetRules(rules=(rule(),), revision=5))
        assert [member.process.was_killed for member in here.members] == [False, True]
        assert not here.workers[0].is_free


async def test_a_change_of_another_machine_is_learnt_from_the_next_answer():
    async with machine(rule(), workers=1) as here:
        here.ledger.rules = BudgetRules(rules=(rule(limit_pico_usd=2 * USD),), revision=9)
        await here.hold(0, CENT)
        assert here.board.rules == here.ledger.rules


async def test_a_configuration_that_declares_the_same_asks_nobody():
    async with machine() as here:
        here.is_away = True
        await here.board.serve(BudgetDeclarations())
        other = BudgetDeclarations(webhooks=())
        assert other == here.board.declared
        assert len(here.declared) == 1


async def test_other_budgets_cannot_be_served_while_the_ledger_is_away():
    from gateway.budgets.messages import BudgetDeclaration, BudgetScope

    other = BudgetDeclarations(
        budgets=(BudgetDeclaration(name="all", scope=BudgetScope.ORGANISATION, limit_pico_usd=1),)
    )
    async with machine() as here:
        here.is_away = True
        with pytest.raises(ChannelError, match="started again"):
            await here.board.serve(other)
        assert here.board.declared == BudgetDeclarations()
        here.is_away = False
        await here.board.serve(other)
        assert here.board.declared == other
        assert here.declared[-1] == other


async def test_with_the_ledger_away_requests_are_told_to_come_back_and_nothing_is_lost():
    async with machine(rule(), workers=2) as here:
        held = await here.hold(0, CENT)
        here.is_away = True
        with anyio.fail_after(3):
            with pytest.raises(BudgetUnavailable, match="started again"):
                await here.hold(1, CENT)
        here.is_away = False
        await anyio.sleep(0.6)
        assert await here.hold(1, CENT)
        assert held.lease_ids


async def test_what_was_recalled_goes_along_with_the_next_try_when_the_ledger_left_between():
    async with machine(rule(limit_pico_usd=100 * CENT), workers=2) as here:
        first = await here.hold(0, CENT // 10)
        bucket = here.ledger.bucket(1)
        in_hand = bucket.reserved - first.amount_pico_usd
        here.ledger.before = _then(lambda: setattr(here, "is_away", True))
        with anyio.fail_after(3), pytest.raises(BudgetUnavailable):
            await here.hold(1, bucket.room + in_hand)
        here.is_away = False
        here.ledger.before = None
        await anyio.sleep(0.6)
        assert await here.hold(1, bucket.limit - first.amount_pico_usd)
        assert bucket.reserved == bucket.limit


@pytest.mark.parametrize("name", ["lost", "fault"], ids=["done", "not done"])
async def test_a_last_try_without_an_answer_is_said_again_and_done_once(name, monkeypatch):
    monkeypatch.setattr(refills, "FAILED_PAUSE_S", 0.02)
    async with machine(rule(limit_pico_usd=100 * CENT), workers=2) as here:
        first = await here.hold(0, CENT // 10)
        bucket = here.ledger.bucket(1)
        wanted = bucket.limit - first.amount_pico_usd

        async def before(request: LeaseRequest) -> None:
            is_lost = request.is_last_try and not request.is_repeat
            setattr(here.ledger, name, CallTimeout("silent") if is_lost else None)

        here.ledger.before = before
        with anyio.fail_after(5):
            with pytest.raises(BudgetUnavailable, match="not a second time"):
                await here.hold(1, wanted)
            assert await here.hold(1, wanted)
        assert bucket.reserved == bucket.limit
        last = [request for request in here.ledger.requests if request.is_last_try]
        assert len({request.number for request in last}) == 1
        assert [request.is_repeat for request in last] == [False, True]
        assert here.board._unanswered == {}


async def test_what_workers_that_are_gone_left_is_the_ledgers_to_tell_and_to_let_go_of():
    async with machine() as here:
        methods = here.board.methods()
        assert await methods["expired_leases"].run(None, ()) == [GONE]
        order = LeaseWriteOff(directory="other", actor="cli")
        (found,) = await methods["write_off_leases"].run(order, ())
        assert found.directory == "other"


async def test_of_last_tries_without_an_answer_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(budget_board, "UNANSWERED_MAX", 2)
    async with machine(rule()) as here:
        for number in range(3):
            here.board._remember(
                LeaseRequest(directory="w", session=bytes(16), number=number, is_last_try=True)
            )
        assert [number for _, number in here.board._unanswered] == [1, 2]


def _then(act):
    async def before(request: LeaseRequest) -> None:
        if request.wants:
            act()

    return before


async def test_states_are_asked_for_once_a_second_for_all_workers():
    async with machine(rule(), workers=1) as here:
        await here.hold(0, CENT)
        first = await here.board.states()
        here.ledger.bucket(1).spent = 77
        assert await here.board.states() == first
        here.board._states_s -= 2
        assert (await here.board.states())[0].spent_pico_usd == 77


async def test_metrics_show_budgets_in_dollars_and_none_of_a_key():
    from gateway.budgets.messages import BudgetScope

    rules = (rule(), rule(2, scope=BudgetScope.KEY, key_id="k1"))
    async with machine(*rules, workers=1) as here:
        await here.hold(0, CENT)
        here.ledger.bucket(1).spent = USD // 4
        found = {one.family: one for one in budget_series(await here.board.reports())}
        assert {one.labels for one in found.values()} == {("apps", "", "budget 1")}
        assert found["fareway_budget_limit_usd"].values == [1.0]
        reserved = found["fareway_reserved_usd"].values[0]
        assert found["fareway_budget_remaining_usd"].values == [pytest.approx(0.75 - reserved)]
    async with machine() as here:
        here.is_away = True
        assert await here.board.reports() == [], "without budgets nobody is asked"
