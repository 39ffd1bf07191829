"""Starting the ledger process, whether its database answers or not.

A database that is out of reach is waited for in the process that was started for it: it is not
ended and started again, with ever longer pauses, for what it cannot mend. Meanwhile the gateway
serves by what it knew last (`last_known`): what is spent lies in the spools.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from gateway.auth.directory import KeyRecord
from gateway.channel import RemoteError
from gateway.process.budget_board import REFUSALS, BudgetBoard
from gateway.process.child import Child
from gateway.process.messages import DATABASE_UNAVAILABLE, UNUSABLE_DATABASE, LedgerStart
from gateway.process.notice_board import NoticeBoard

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_TIMEOUT_S = 60.0
RETRY_S = 0.1
RETRY_S_MAX = 2.0
TOLD_EVERY_S = 60.0
"""So often an outage that goes on is written to the log again."""


@dataclass(slots=True, kw_only=True)
class LedgerStarter:
    """Makes a ledger process that was started ready.

    Attributes:
        order: What it is told first.
        take_keys: Told every key of the database.
        budgets: Tells it what the configuration declares.
        notices: Tells it what goes out to whom.
        monotonic_s: Seconds on a clock that never goes back.
        refused: Set when it refuses for good.
        refusal: Why.
        unreachable: Set while the database does not answer a process that waits for it.
        outage: What the database said, or did not; empty while it answers.
    """

    order: Callable[[], LedgerStart]
    take_keys: Callable[[list[KeyRecord]], Awaitable[None]]
    budgets: BudgetBoard
    notices: NoticeBoard
    monotonic_s: Callable[[], float]
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: str = ""
    unreachable: asyncio.Event = field(default_factory=asyncio.Event)
    outage: str = ""
    _told_s: float | None = None

    async def set_up(self, child: Child) -> None:
        """Have it open its database, and tell it the budgets.

        Raises:
            ChannelError: It refuses, or did not answer.
        """
        try:
            await self.take_keys(await self._when_reachable(lambda: self._start(child)))
            await self._when_reachable(lambda: self.budgets.start_with(child))
            await self.notices.start_with(child)
        except RemoteError as error:
            if error.code == UNUSABLE_DATABASE or error.code in REFUSALS:
                self.refusal = str(error)
                self.refused.set()
            raise
        self.outage, self._told_s = "", None
        self.unreachable.clear()

    async def _start(self, child: Child) -> list[KeyRecord]:
        return await child.channel.call(
            "start", self.order(), result_type=list[KeyRecord], timeout_s=START_TIMEOUT_S
        )

    async def _when_reachable(self, call: Callable[[], Awaitable[T]]) -> T:
        wait_s = RETRY_S
        while True:
            try:
                return await call()
            except RemoteError as error:
                if error.code != DATABASE_UNAVAILABLE:
                    raise
                self._note_outage(str(error))
            await anyio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)

    def _note_outage(self, outage: str) -> None:
        now_s = self.monotonic_s()
        if self._told_s is None or now_s - self._told_s >= TOLD_EVERY_S:
            logger.warning("the ledger waits for its database: %s", outage)
            self._told_s = now_s
        self.outage = outage
        self.unreachable.set()
