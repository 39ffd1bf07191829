"""Budgets in the ledger: rows, leases and what booking does to them."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclaration,
    BudgetDeclarations,
    BudgetRule,
    BudgetScope,
    BudgetSource,
    BudgetWindow,
    LeaseReply,
    LeaseRequest,
    LeaseWant,
    OnExceed,
)
from gateway.ledger import budget_leases
from gateway.ledger.budget_deltas import BudgetMatcher, Owner
from gateway.ledger.budget_leases import LEASE_S, slab
from gateway.ledger.errors import BudgetConflict, BudgetTooLarge, UnknownBudget
from gateway.ledger.service import LedgerService
from tests.gateway.ledger_samples import (
    NOON_US,
    PRICE_PICO,
    FakeClock,
    event_id,
    intent,
    make_database,
    open_spool,
    settlement,
)

pytestmark = pytest.mark.anyio

TEAM, PROJECT, KEY = "payments", "fraud", "abcdefghjkmn"
MONTH_START_US = 1_793_491_200_000_000  # 2026-11-01T00:00:00Z
MONTH_END_US = 1_796_083_200_000_000
COST = 100 * PRICE_PICO
"""What a settled sample costs."""
EXPOSURE = 7_000_000
LIMIT = 1_000_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, migrated and empty."""
    if request.param == "sqlite":
        return make_database(tmp_path)
    return request.getfixturevalue("postgres_ledger_url")


@asynccontextmanager
async def serving(url: str, tmp_path: Path, clock: FakeClock):
    service = LedgerService(url, tmp_path / "spool", clock=clock.clock)
    try:
        yield service
    finally:
        await service.stop(drain=False)


def budget(name: str = "team", **changes) -> BudgetDeclaration:
    values = {
        "name": name,
        "scope": BudgetScope.TEAM,
        "team": TEAM,
        "limit_pico_usd": LIMIT,
    }
    return BudgetDeclaration(**(values | changes))


def declare(*budgets: BudgetDeclaration) -> BudgetDeclarations:
    return BudgetDeclarations(budgets=budgets)


def want(budget_id: int = 1, **changes) -> LeaseWant:
    values = {
        "budget_id": budget_id,
        "window_start_us": MONTH_START_US,
        "at_least_pico_usd": 0,
        "wanted_pico_usd": 0,
    }
    return LeaseWant(**(values | changes))


def request(*wants: LeaseWant, session: int = 1, **changes) -> LeaseRequest:
    return LeaseRequest(
        **({"directory": "worker-0", "session": event_id(session), "wants": wants} | changes)
    )


async def ask(service: LedgerService, amount: int, **changes) -> LeaseReply:
    wanted = want(at_least_pico_usd=amount, wanted_pico_usd=amount)
    return await service.lease_budgets(request(wanted, **changes))


async def stand(service: LedgerService, index: int = 0) -> tuple[int, int, int]:
    """Spent, reserved and exposed of a budget's present window."""
    state = (await service.budget_states())[index]
    return state.spent_pico_usd, state.reserved_pico_usd, state.exposed_pico_usd


# Each line: what waits, what is wanted, what remains, and the slab.
SLABS = {
    "a hundredth of what remains is the most": (0, 10**9, 1_000_000, None, 0),
    "a hundredth is granted where it is worth it": (0, 20_000, 1_000_000, None, 10_000),
    "no more than is wanted": (0, 5_000, 1_000_000, None, 5_000),
    "at least what waits, however much that is of it": (900_000, 900_000, 1_000_000, None, 900_000),
    "more than what waits where a hundredth is more": (10, 8_000, 1_000_000, None, 8_000),
    "what waits and does not fit is short": (1_000_001, 1_000_001, 1_000_000, "short", 0),
    "all that remains can be had": (1_000_000, 1_000_000, 1_000_000, None, 1_000_000),
    "nothing remains and nothing waits": (0, 1_000, 0, None, 0),
    "nothing remains and something waits": (1, 1_000, 0, "short", 0),
}


@pytest.mark.parametrize(
    ("at_least", "wanted", "room", "short", "amount"), SLABS.values(), ids=SLABS.keys()
)
def test_slab(at_least: int, wanted: int, room: int, short: str | None, amount: int) -> None:
    found = slab(want(at_least_pico_usd=at_least, wanted_pico_usd=wanted), room)
    assert found == (None if short else amount)


async def test_a_lease_is_reserved_and_what_does_not_fit_is_told(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        rules = await service.set_budgets(declare(budget()))
        assert [(rule.budget_id, rule.name) for rule in rules.rules] == [(1, "team")]
        reply = await ask(service, LIMIT - 10)
        (lease,) = reply.leases
        assert (lease.budget_id, lease.amount_pico_usd) == (1, LIMIT - 10)
        assert (lease.window_start_us, lease.window_end_us) == (MONTH_START_US, MONTH_END_US)
        assert reply.rules_revision == rules.revision
        assert await stand(service) == (0, LIMIT - 10, 0)
        reply = await ask(service, 11)
        assert reply.leases == ()
        (state,) = reply.shortages
        assert (state.room_pico_usd, state.limit_pico_usd) == (10, LIMIT)
        assert len((await ask(service, 10)).leases) == 1
        assert await stand(service) == (0, LIMIT, 0)


async def test_what_was_read_never_decides(url, tmp_path, clock, monkeypatch):
    read = budget_leases.load_state
    stale = {"reserved_pico_usd": 0}
    monkeypatch.setattr(
        budget_leases, "load_state", lambda *of: msgspec.structs.replace(read(*of), **stale)
    )
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        assert len((await ask(service, LIMIT)).leases) == 1
        reply = await ask(service, 1)
        assert (reply.leases, len(reply.shortages)) == ((), 1)
        assert await stand(service) == (0, LIMIT, 0)


async def test_a_booked_attempt_gives_up_its_hold_and_counts_what_it_cost(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (lease,) = (await ask(service, 50_000_000)).leases
        hold = {"hold_pico_usd": 9_000_000, "lease_ids": (lease.lease_id,)}
        with_spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        with_spool.append(intent(1, **hold))
        await service.flush()
        assert await stand(service) == (0, 50_000_000, 0)
        with_spool.append(settlement(1))
        with_spool.append(settlement(1))
        await service.flush()
        assert await stand(service) == (COST, 41_000_000, 0)
        assert (await service.verify()).faults == ()
        await with_spool.close()


async def test_leases_of_a_session_that_is_over_are_released_once_it_is_loaded(
    url, tmp_path, clock
):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        (lease,) = (await ask(service, 50_000_000)).leases
        hold = {"hold_pico_usd": 9_000_000, "lease_ids": (lease.lease_id,)}
        spool.append(intent(1, **hold))
        await spool.close()
        await service.flush()
        # The attempt is lost: its exposure counts, and everything that was reserved is free.
        assert await stand(service) == (0, 0, EXPOSURE)
        assert (await service.verify()).faults == ()


async def test_a_later_session_does_not_release_the_leases_of_a_living_one(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        directory = tmp_path / "spool" / "worker-0"
        first = open_spool(directory, session=1, clock=clock.clock)
        await ask(service, 50_000_000, session=1)
        first.append(intent(1))
        first.append(settlement(1))
        await first.close()
        clock.pass_s(1)
        second = open_spool(directory, session=2, clock=clock.clock)
        clock.pass_s(1)
        await ask(service, 30_000_000, session=2)
        await service.flush()
        assert await stand(service) == (COST, 30_000_000, 0)
        await second.close()


async def test_what_a_worker_gives_back_is_free_again(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (lease,) = (await ask(service, 50)).leases
        await service.lease_budgets(request(returns={lease.lease_id: 20}))
        assert await stand(service) == (0, 30, 0)
        # What a recall gathered comes with another worker's question.
        await service.lease_budgets(request(session=2, returns={lease.lease_id: 10}))
        assert await stand(service) == (0, 20, 0)
        await service.lease_budgets(request(returns={lease.lease_id: 99, event_id(9): 5}))
        assert await stand(service) == (0, 0, 0)


async def test_a_lease_that_nobody_renews_stays_counted_and_is_marked(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget(window=BudgetWindow.DAY)))
        day_start_us = NOON_US - NOON_US % 86_400_000_000
        wanted = want(window_start_us=day_start_us, at_least_pico_usd=50, wanted_pico_usd=50)
        await service.lease_budgets(request(wanted))
        clock.pass_s(LEASE_S - 1)
        await service.lease_budgets(request())
        clock.pass_s(LEASE_S - 1)
        (report,) = await service.budget_reports()
        assert (report.state.reserved_pico_usd, report.expired_pico_usd) == (50, 0)
        clock.pass_s(1)
        await service.flush()
        (report,) = await service.budget_reports()
        assert (report.state.reserved_pico_usd, report.expired_pico_usd) == (50, 50)
        clock.pass_s(86_400)
        await service.flush()
        async with service._reader.connect() as connection:
            found = await connection.execute(sa.text("SELECT reserved_pico_usd FROM budget_bucket"))
            assert found.scalars().all() == [0]


async def test_a_new_budget_begins_with_what_its_window_has_spent(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        for n in range(1, 4):
            spool.append(intent(n))
            spool.append(settlement(n))
        spool.append(intent(4, team="search", project=""))
        spool.append(settlement(4, status="unknown_billing", quality="unknown"))
        await service.flush()
        scopes = (
            budget("all", scope=BudgetScope.ORGANISATION, team=""),
            budget("team"),
            budget("project", scope=BudgetScope.PROJECT, project=PROJECT),
            budget("key", scope=BudgetScope.KEY, key_id=KEY),
            budget("tag", scope=BudgetScope.COST_TAG, team="", cost_tag=("env", "prod")),
            budget("team's tag", scope=BudgetScope.COST_TAG, cost_tag=("env", "prod")),
            budget("other tag", scope=BudgetScope.COST_TAG, team="", cost_tag=("env", "dev")),
        )
        await service.set_budgets(declare(*scopes))
        states = {
            report.rule.name: (report.state.spent_pico_usd, report.state.exposed_pico_usd)
            for report in await service.budget_reports()
        }
        everything, teams, nothing = (4 * COST, EXPOSURE), (3 * COST, 0), (0, 0)
        assert states == {
            "all": everything,
            "team": teams,
            "project": teams,
            "key": everything,
            "tag": everything,
            "team's tag": teams,
            "other tag": nothing,
        }
        assert (await service.verify()).faults == ()
        await spool.close()


async def test_a_late_settlement_takes_the_exposure_back(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        spool.append(intent(1, lifetime_s=1.0))
        await service.flush()
        clock.pass_s(120)
        await service.flush()
        assert await stand(service) == (0, 0, EXPOSURE)
        spool.append(settlement(1))
        await service.flush()
        assert await stand(service) == (COST, 0, 0)
        assert (await service.verify()).faults == ()
        await spool.close()


async def test_what_was_held_is_exposed_where_no_quote_says_more(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (lease,) = (await ask(service, 50)).leases
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        hold = {"hold_pico_usd": 20, "lease_ids": (lease.lease_id,), "exposure_pico_usd": None}
        spool.append(intent(1, **hold))
        await spool.close()
        await service.flush()
        assert await stand(service) == (0, 0, 20)
        assert (await service.verify()).faults == ()


async def test_changing_a_limit_keeps_what_was_spent_and_reserved(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        first = await service.set_budgets(declare(budget()))
        await ask(service, 50)
        changed = budget(limit_pico_usd=60, on_exceed=OnExceed.ALERT, alerts_at=(90,))
        rules = await service.set_budgets(declare(changed))
        assert rules.revision > first.revision
        assert await stand(service) == (0, 50, 0)
        assert (await ask(service, 11)).shortages[0].limit_pico_usd == 60
        (report,) = await service.budget_reports()
        assert (report.rule.budget_id, report.rule.on_exceed) == (1, OnExceed.ALERT)
        assert report.alerts_at == (90,)
        assert await service.set_budgets(declare(changed)) == rules


async def test_a_budget_that_counts_something_else_is_another_one(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        await ask(service, 50)
        rules = await service.set_budgets(declare(budget(window=BudgetWindow.WEEK)))
        assert [rule.budget_id for rule in rules.rules] == [2]
        assert await stand(service) == (0, 0, 0)
        # A worker with the old rules gets nothing, and hears that they are old.
        reply = await ask(service, 1)
        assert (reply.leases, reply.shortages) == ((), ())
        assert reply.rules_revision == rules.revision


async def test_a_budget_that_the_file_no_longer_names_is_retired(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        by_hand = BudgetChange(name="mine", budget=budget("mine"), actor="ann")
        await service.change_budget(by_hand)
        rules = await service.set_budgets(declare())
        assert [rule.name for rule in rules.rules] == ["mine"]
        assert rules == await service.budget_rules()


async def test_names_are_unique_across_file_and_database(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        for change in (budget(), None):
            with pytest.raises(BudgetConflict, match="'team' is declared in the configuration"):
                await service.change_budget(BudgetChange(name="team", budget=change, actor="admin"))
        await service.change_budget(BudgetChange(name="mine", budget=budget("mine"), actor="a"))
        with pytest.raises(BudgetConflict, match="set with `fareway budgets set`"):
            await service.set_budgets(declare(budget("mine")))
        assert [r.source for r in await service.budget_reports()] == [
            BudgetSource.DATABASE,
            BudgetSource.FILE,
        ]
        await service.change_budget(BudgetChange(name="mine", budget=None, actor="admin"))
        with pytest.raises(UnknownBudget, match="no budget is called 'mine'"):
            await service.change_budget(BudgetChange(name="mine", budget=None, actor="admin"))
        assert (await service.verify()).faults == ()


async def test_sqlite_refuses_a_limit_that_it_cannot_hold(tmp_path, clock):
    url = make_database(tmp_path)
    async with serving(url, tmp_path, clock) as service:
        with pytest.raises(BudgetTooLarge, match="over 9,000,000 USD"):
            await service.set_budgets(declare(budget(limit_pico_usd=9 * 10**18 + 1)))
        await service.set_budgets(declare(budget(limit_pico_usd=9 * 10**18)))
        assert (await ask(service, 10**18)).shortages == ()


async def test_a_want_for_no_window_of_the_budget_gets_nothing(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        wanted = want(window_start_us=MONTH_START_US + 1, at_least_pico_usd=5, wanted_pico_usd=5)
        reply = await service.lease_budgets(request(wanted))
        assert (reply.leases, reply.shortages) == ((), ())


async def test_a_shortage_is_told_only_after_the_spools_were_loaded(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        (lease,) = (await ask(service, LIMIT)).leases
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        spool.append(intent(1, hold_pico_usd=LIMIT, lease_ids=(lease.lease_id,)))
        spool.append(settlement(1))
        assert len((await ask(service, LIMIT - COST)).leases) == 1
        await spool.close()


# GW-098: a budget that starts again in its own zone, and the window before can still be asked for.
async def test_a_new_window_starts_with_its_whole_limit(url, tmp_path, clock):
    async with serving(url, tmp_path, clock) as service:
        seoul = budget(time_zone="Asia/Seoul", limit_pico_usd=COST)
        await service.set_budgets(declare(seoul))
        end_us = (await service.budget_states())[0].window_end_us
        clock.pass_s((end_us - clock.wall) / 1e6 - 60)
        spool = open_spool(tmp_path / "spool" / "worker-0", clock=clock.clock)
        spool.append(intent(1, at_us=clock.wall))
        spool.append(settlement(1))
        await service.flush()
        (full,) = await service.budget_states()
        assert (full.window_end_us, full.room_pico_usd) == (end_us, 0)
        clock.pass_s(120)
        (fresh,) = await service.budget_states()
        assert (fresh.window_start_us, fresh.room_pico_usd) == (end_us, COST)
        wanted = want(window_start_us=end_us, at_least_pico_usd=COST, wanted_pico_usd=COST)
        assert len((await service.lease_budgets(request(wanted))).leases) == 1
        async with service._reader.connect() as connection:
            found = await connection.execute(
                sa.text("SELECT spent_pico_usd FROM budget_bucket ORDER BY window_start_us")
            )
            assert found.scalars().all() == [COST, 0]
        await spool.close()


async def test_ahead_of_need_a_bucket_without_room_gives_nothing_and_tells_nothing(
    url, tmp_path, clock
):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget()))
        reply = await service.lease_budgets(request(want(wanted_pico_usd=LIMIT)))
        assert (reply.leases, reply.shortages) == ((), ())
        reply = await service.lease_budgets(request(want(wanted_pico_usd=LIMIT // 50)))
        assert [lease.amount_pico_usd for lease in reply.leases] == [LIMIT // 100]


def test_what_is_remembered_of_owners_has_a_bound():
    rule = BudgetRule(
        budget_id=1,
        name="all",
        scope=BudgetScope.ORGANISATION,
        limit_pico_usd=1,
        window=BudgetWindow.TOTAL,
    )
    matcher = BudgetMatcher([rule], owners_max=2)
    for number in range(5):
        owner = Owner("payments", "", f"key-{number}", ())
        assert [budget_id for budget_id, _ in matcher.buckets(owner, NOON_US)] == [1]
    assert len(matcher._of_owner) <= 2


# Each line: what is spoiled, and what `ledger verify` says of it.
SPOILED = {
    "more is reserved than leased": (
        "UPDATE budget_bucket SET reserved_pico_usd = reserved_pico_usd + 1",
        "51 is reserved, the leases say 50",
    ),
    "more is spent than the events say": (
        "UPDATE budget_bucket SET spent_pico_usd = 1",
        "1 is spent, the events say 0",
    ),
    "more is exposed than the events say": (
        "UPDATE budget_bucket SET exposed_pico_usd = 7",
        "7 is exposed, the events say 0",
    ),
    "a lease without its bucket": ("DELETE FROM budget_bucket", "50 is leased for the window of"),
}


@pytest.mark.parametrize(("statement", "expected"), SPOILED.values(), ids=SPOILED.keys())
async def test_verify_finds_budgets_that_do_not_hold(
    url, tmp_path, clock, statement: str, expected: str
):
    async with serving(url, tmp_path, clock) as service:
        await service.set_budgets(declare(budget(), budget("all", scope=BudgetScope.ORGANISATION)))
        await service.set_budgets(declare(budget()))
        await ask(service, 50)
        async with service._writer.begin() as connection:
            await connection.execute(sa.text(statement))
        faults = (await service.verify()).faults
        assert any(expected in fault for fault in faults), faults
