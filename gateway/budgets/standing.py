"""Where budgets stand that never block, as the ledger last told; asked for while requests come.

A budget with `cheapest_only` is used up where what is booked, reserved and exposed reaches its
limit. What is known may be a second old, or as old as the last request: nothing is asked while
nobody spends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from gateway.budgets.messages import BudgetRule, BudgetState
from gateway.channel import ChannelError

logger = logging.getLogger(__name__)

FRESH_S = 1.0
"""So old may be what is gone by before it is asked for again."""


class Standing:
    """What the ledger told of budgets' buckets.

    Args:
        fetch: Asks for all of them; raises `ChannelError` where it cannot.
        monotonic_s: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[Sequence[BudgetState]]],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._fetch = fetch
        self._monotonic_s = monotonic_s
        self._states: dict[int, list[BudgetState]] = {}
        self._asked_s: float | None = None
        self._wanted = asyncio.Event()

    def is_used_up(self, rule: BudgetRule, at_us: int) -> bool:
        """Whether a budget has nothing left in the window of an instant; never waits.

        A bucket that was not told of has nothing booked in it.
        """
        if self._asked_s is None or self._monotonic_s() - self._asked_s >= FRESH_S:
            self._wanted.set()
        for state in self._states.get(rule.budget_id, ()):
            if state.window_start_us <= at_us < state.window_end_us:
                # The rule's limit is the newer one where it was changed.
                used = state.spent_pico_usd + state.reserved_pico_usd + state.exposed_pico_usd
                return used >= rule.limit_pico_usd
        return rule.limit_pico_usd == 0

    def start(self, tasks: TaskGroup) -> None:
        """Fetch in a task group whenever what is known has become old and somebody looked."""
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            if self._asked_s is not None:
                await anyio.sleep(max(self._asked_s + FRESH_S - self._monotonic_s(), 0.0))
            self._asked_s = self._monotonic_s()
            self._wanted.clear()
            try:
                states = await self._fetch()
            except ChannelError as error:
                logger.warning("where budgets stand was not told: %s", error)
                continue
            found: dict[int, list[BudgetState]] = {}
            for state in states:
                found.setdefault(state.budget_id, []).append(state)
            self._states = found
