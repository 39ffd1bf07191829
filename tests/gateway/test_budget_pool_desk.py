"""Slabs out of Redis, with a Redis that does what a test says."""

from __future__ import annotations

import anyio
import pytest

from gateway.ledger import pool_desk
from tests.gateway.test_budget_redis import WANT, Scripted, desk_of
from tests.gateway.test_ledger_budgets import request

pytestmark = pytest.mark.anyio


class Silent(Scripted):
    """Takes what lies in it for ever, from the first time on that somebody asks."""

    def __init__(self) -> None:
        super().__init__(fails=False)
        self.is_asked = anyio.Event()

    async def run(self, calls):
        if any(call.script == pool_desk.TAKE for call in calls):
            self.is_asked.set()
            await anyio.sleep_forever()
        return [0 for _ in calls]


async def test_who_left_while_waiting_is_passed_over_when_redis_goes(monkeypatch):
    monkeypatch.setattr(pool_desk, "BATCH_MAX", 1)
    found: list[dict] = []
    silent = Silent()

    async def claim(claims):
        raise AssertionError(claims)

    async with desk_of(silent, claim) as desk:

        async def take() -> None:
            found.append(await desk.take(request(WANT), "w"))

        async def leave() -> None:
            with anyio.move_on_after(0.01):
                await take()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await silent.is_asked.wait()
            tasks.start_soon(leave)
            tasks.start_soon(take)
    assert found == [{}, {}]
