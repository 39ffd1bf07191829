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
from gateway.channel import ChannelError, RemoteError
from gateway.clock import from_microseconds
from gateway.process.budget_board import REFUSALS, BudgetBoard
from gateway.process.child import Child
from gateway.process.keeper import Keeper, wait_first
from gateway.process.key_board import KeyBoard
from gateway.process.last_known import LastKnownFile, declared_only
from gateway.process.messages import DATABASE_UNAVAILABLE, UNUSABLE_DATABASE, LedgerStart
from gateway.process.notice_board import NoticeBoard
from gateway.process.preflight import ServeError

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_TIMEOUT_S = 60.0
PATIENCE_S = 3.0
"""How long a start waits for a database that does not answer: it may be starting, too."""
BUDGETS_WAIT_S = 15.0
KEEP_S = 600.0
CONFIRM_S = 30.0
RETRY_S = 0.1
RETRY_S_MAX = 2.0
TOLD_EVERY_S = 60.0
"""So often an outage that goes on is written to the log again."""


@dataclass(slots=True, kw_only=True)
class LedgerStarter:
    """Makes a ledger process that was started ready.

    Attributes:
        order: What it is told first.
        budgets: Tells it what the configuration declares.
        notices: Tells it what goes out to whom.
        monotonic_s: Seconds on a clock that never goes back.
        board: Of the keys.
        file: Keeps what is known for a start without the database; None where there is no such.
        refused: Set when it refuses for good.
        refusal: Why.
        unreachable: Set while the database does not answer a process that waits for it.
        outage: What the database said, or did not; empty while it answers.
    """

    order: Callable[[], LedgerStart]
    board: KeyBoard
    budgets: BudgetBoard
    notices: NoticeBoard
    monotonic_s: Callable[[], float]
    file: LastKnownFile | None = None
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: str = ""
    unreachable: asyncio.Event = field(default_factory=asyncio.Event)
    outage: str = ""
    _told_s: float | None = None
    _has_told: bool = False

    def __post_init__(self) -> None:
        """Keep what is known whenever it changes."""
        self.board.on_change = self.budgets.on_change = self.remember

    async def set_up(self, child: Child) -> None:
        """Have it open its database, and tell it the budgets.

        Raises:
            ChannelError: It refuses, or did not answer.
        """
        try:
            await self.take_keys(await self._when_reachable(lambda: self._start(child)))
            await self._when_reachable(lambda: self.budgets.start_with(child))
            await self._when_reachable(lambda: self.notices.start_with(child))
        except RemoteError as error:
            if error.code == UNUSABLE_DATABASE or error.code in REFUSALS:
                self.refusal = str(error)
                self.refused.set()
            raise
        self.outage, self._told_s = "", None
        self.unreachable.clear()
        self._has_told = True
        self.remember()

    async def take_keys(self, keys: list[KeyRecord]) -> None:
        """Have every worker take the keys of the database."""
        async with self.board.lock:
            if not self.board.has(keys):
                await self.board.publish(keys)

    async def wait(self, ledger: Keeper) -> None:
        """Wait for the first start, as long as it can be waited for.

        Where the database does not answer, what was known last is served by, or, with nothing
        known, the configuration alone: its keys, and those of its teams that no budget counts.

        Raises:
            ServeError: It refuses, or does not start.
        """
        outage = () if self.file is None else (self.unreachable,)
        with anyio.move_on_after(START_TIMEOUT_S):
            await wait_first(ledger.ready, self.refused, *outage)
        if self.file is not None and self.unreachable.is_set():
            with anyio.move_on_after(PATIENCE_S):
                await wait_first(ledger.ready, self.refused)
        self.check_refusal()
        if ledger.ready.is_set():
            return
        if self.file is None or not self.unreachable.is_set():
            raise ServeError(
                f"ledger did not start within {START_TIMEOUT_S:g} s:"
                f" {self.outage or ledger.fault or 'its log lines say why'}"
            )
        await self._go_without(self.file)

    async def wait_for_budgets(self, ledger: Keeper) -> None:
        """Wait for budgets, for a while; clients of budgets are told to come back from then on.

        Raises:
            ServeError: It refuses.
        """
        with anyio.move_on_after(BUDGETS_WAIT_S):
            await wait_first(ledger.ready, self.refused)
        self.check_refusal()

    def check_refusal(self) -> None:
        """Raise when the ledger process refused for good.

        Raises:
            ServeError: Why.
        """
        if self.refused.is_set():
            raise ServeError(self.refusal)

    def remember(self) -> None:
        """Keep keys and budgets for a start without the database, once it has told them."""
        rules = self.budgets.rules
        if self.file is not None and self._has_told and not self.outage and rules is not None:
            self.file.save(self.board.keys, rules)

    async def keep(self, ledger: Keeper) -> None:
        """Ask the database again and again, so that what is kept is known to hold still."""
        while True:
            await anyio.sleep(KEEP_S)
            if ledger.child is not None:
                await self.confirm(ledger.child)

    async def confirm(self, child: Child) -> None:
        """Take keys and budgets as the database tells them now, and keep them as of now.

        Where it does not answer, what is kept gets older: a later start has to know.
        """

        async def load() -> list[KeyRecord]:
            return await child.channel.call(
                "load_keys", None, result_type=list[KeyRecord], timeout_s=CONFIRM_S
            )

        try:
            # Not with the lock held, for which others would wait as long as for the database.
            if not self.board.has(await load()):
                await self.board.refresh(load)
            await self.budgets.catch_up()
        except ChannelError as error:
            logger.warning("what the database told last is not confirmed: %s", error)
        else:
            self.remember()

    async def _go_without(self, file: LastKnownFile) -> None:
        known = file.load()
        if known is None:
            logger.warning(
                "the database does not answer (%s): keys that were made by command are not known"
                " until it does, and whoever a budget counts has to wait",
                self.outage,
            )
        else:
            logger.warning(
                "the database does not answer (%s): serving by keys and budgets of %s",
                self.outage,
                from_microseconds(known.at_us).isoformat(timespec="seconds"),
            )
        keys = [] if known is None else known.keys
        rules = declared_only(self.budgets.declared) if known is None else known.budgets
        async with self.board.lock:
            if not self._has_told:
                await self.board.publish(keys, is_complete=False)
        async with self.budgets.lock:
            if self.budgets.rules is None:
                await self.budgets.publish(rules)

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
