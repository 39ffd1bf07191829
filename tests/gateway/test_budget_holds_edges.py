"""Holds at their edges: who leaves, what is remembered, and whom a failure concerns."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from gateway.budgets.messages import BudgetRules, BudgetScope
from gateway.channel import RemoteError
from gateway.errors import BudgetUnavailable
from tests.gateway.test_budget_holds import CENT, USD, Someone, rule, running

pytestmark = pytest.mark.anyio


async def test_cost_tags_that_clients_make_up_are_not_remembered_without_end(monkeypatch):
    monkeypatch.setattr("gateway.budgets.holds.KNOWN_MAX", 3)
    async with running(rule(limit_pico_usd=100 * USD)) as worker:
        for number in range(20):
            await worker.hold(CENT, Someone(cost_tags=(("run", str(number)),)))
            assert len(worker.holds._known) <= 3


async def test_where_one_budget_has_room_in_hand_only_the_other_is_asked():
    project = rule(2, scope=BudgetScope.PROJECT, project="fraud", limit_pico_usd=100 * USD)
    async with running(rule(limit_pico_usd=100 * USD), project) as worker:
        await worker.hold(CENT)
        await worker.hold(CENT, Someone(project="fraud"))
        assert [want.budget_id for want in worker.ledger.requests[1].wants] == [2]


async def test_a_client_that_is_just_leaving_is_neither_served_nor_refused():
    async with running(rule()) as worker:
        worker.ledger.before = lambda _request: anyio.sleep_forever()
        for act in (
            lambda: worker.holds.follow(BudgetRules(rules=(rule(),), revision=1)),
            lambda: worker.holds.recall([]),
        ):
            task = asyncio.ensure_future(worker.hold(CENT))
            await worker.settle()
            task.cancel()  # what it waits for is over; it has not had its turn yet
            act()
            with pytest.raises(asyncio.CancelledError):
                await task
        task = asyncio.ensure_future(worker.hold(CENT))
        await worker.settle()
        task.cancel()
        await worker.holds.close()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_question_that_failed_refuses_only_who_waits_for_its_budgets():
    other = rule(2, team="others")
    async with running(rule(), other) as worker:

        async def slow(request) -> None:
            if request.wants[0].budget_id == 1:
                await anyio.sleep(0.01)
                raise RemoteError("database_unavailable", "locked")
            await anyio.sleep(0.03)

        worker.ledger.before = slow
        told: list[str] = []

        async def ask(team: str) -> None:
            try:
                await worker.hold(CENT, Someone(team=team))
                told.append(f"{team} let")
            except BudgetUnavailable:
                told.append(f"{team} told to come back")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "apps")
            await worker.settle()
            tasks.start_soon(ask, "others")
        assert told == ["apps told to come back", "others let"]
