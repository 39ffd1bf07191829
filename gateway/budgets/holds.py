"""Holds of a worker: who has to hold what before an attempt, and where the slabs come from.

Nothing here is done per request but a look-up and `slabs.hold`. Slabs are asked for ahead of need,
in a task of their own, one request per bucket at a time. Only where no slab has room does a request
wait, for the ledger's answer and never longer than `WAIT_S`: what the ledger says has no room is
refused, and what it does not say in time is not let through.

    Holds.take ── slab has room ─────────────────────────── Hold
        └─ waits ── run: LeaseRequest → supervisor → ledger ─┬─ lease ── Hold
                                                             ├─ shortage ── BudgetExceeded
                                                             └─ silence ── BudgetUnavailable

Budgets that never block take no holds: `alert` is the ledger's matter alone, and `cheapest_only`
goes by what the ledger last told (`standing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio
import msgspec

from gateway.budgets.messages import (
    BudgetRule,
    BudgetRules,
    BudgetState,
    LeaseReply,
    LeaseRequest,
    OnExceed,
)
from gateway.budgets.refills import IDLE_S, Errand, Refills
from gateway.budgets.refusals import exceeded, unavailable, unbounded
from gateway.budgets.rules import Spender, counts
from gateway.budgets.slabs import Bucket, Budget, Slab, hold
from gateway.budgets.standing import Standing
from gateway.channel import ChannelError
from gateway.clock import Clock
from gateway.errors import GatewayError

logger = logging.getLogger(__name__)

WAIT_S = 5.0
"""Longest time that a request waits for room; nearly always it is some milliseconds."""
KNOWN_MAX = 8192
"""Combinations of team, project, key and cost tags whose budgets are remembered."""


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an attempt may spend; no attempt is written down without one.

    Attributes:
        at_us: The instant whose windows it counts in, and the attempt's; None for no budget, which
            leaves it to the journal.
        amount_pico_usd: Held in each lease.
        lease_ids: One per budget that it counts against.
        places: Where it came from, in the same order.
    """

    at_us: int | None = None
    amount_pico_usd: int = 0
    lease_ids: tuple[bytes, ...] = ()
    places: tuple[tuple[Bucket, Slab], ...] = ()


NO_HOLD = Hold()
"""Of an attempt that counts against no budget that blocks, or can cost nothing."""


class _Waiter(msgspec.Struct, kw_only=True, eq=False):
    """A request that waits for room."""

    spender: Spender
    amount_pico_usd: int
    granted: asyncio.Future[Hold]


class Holds:
    """All budgets of a worker.

    Attributes:
        is_free: Whether there are budgets to look at, the common case of none being one look.
        standing: What is known of budgets that narrow the choice.
    """

    def __init__(
        self,
        *,
        lease: Callable[[LeaseRequest], Awaitable[LeaseReply]],
        standing: Standing,
        clock: Clock,
        directory: str = "",
        session: bytes = bytes(16),
        wait_s: float = WAIT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """Begin without knowing the budgets: nothing is let through before `follow` told them.

        Args:
            lease: Asks the ledger for slabs; raises `ChannelError` where it cannot.
            standing: Where budgets stand that narrow the choice.
            clock: Time.
            directory: Name of the worker's spool directory.
            session: Of its spool writer.
            wait_s: Longest time that a request waits.
            idle_s: After so long without use a bucket is given back.
        """
        self.is_free = False
        self.standing = standing
        self._lease = lease
        self._clock = clock
        self._directory = directory
        self._session = session
        self._wait_s = wait_s
        self._refills = Refills(clock, idle_s=idle_s)
        self._revision: int | None = None
        self._budgets: dict[int, Budget] = {}
        self._narrowing: tuple[BudgetRule, ...] = ()
        self._known: dict[tuple[object, ...], tuple[Budget, ...]] = {}
        self._waiters: deque[_Waiter] = deque()
        self._told = asyncio.Event()
        self._is_closed = False

    def follow(self, rules: BudgetRules) -> None:
        """Take the budgets in force; an older revision than the known one changes nothing."""
        if self._revision is not None and rules.revision < self._revision:
            return
        self._revision = rules.revision
        blocking = {
            rule.budget_id: rule for rule in rules.rules if rule.on_exceed is OnExceed.BLOCK
        }
        for budget_id in self._budgets.keys() - blocking.keys():
            self._refills.let_go(self._budgets.pop(budget_id).bucket)
        for budget_id, rule in blocking.items():
            budget = self._budgets.get(budget_id)
            if budget is None:
                self._budgets[budget_id] = Budget(rule)
            else:
                self._refills.let_go(budget.follow(rule))
        narrowing = [rule for rule in rules.rules if rule.on_exceed is OnExceed.CHEAPEST_ONLY]
        self._narrowing = tuple(narrowing)
        self._known.clear()
        self.is_free = not blocking and not narrowing
        self._told.set()
        self._serve({})
        self._refills.wake.set()

    def take(self, spender: Spender, amount_pico_usd: int | None) -> Hold | None:
        """Hold what an attempt can cost at most, out of what is in hand.

        Args:
            spender: Whom it is booked on.
            amount_pico_usd: The most that it can cost; None when nothing bounds it.

        Returns:
            None where it has to be waited for (`wait`).

        Raises:
            BudgetExceeded: Nothing bounds it, and a budget that blocks has to be kept.
        """
        if self._revision is None:
            return None
        budgets = self._applying(spender)
        if not budgets or amount_pico_usd == 0:
            return NO_HOLD
        if amount_pico_usd is None:
            raise unbounded(budgets[0].rule)
        return self._hold(budgets, amount_pico_usd)

    async def wait(self, spender: Spender, amount_pico_usd: int | None) -> Hold:
        """As `take`, waiting for room where there is none in hand.

        Raises:
            BudgetExceeded: A budget has no room.
            BudgetUnavailable: Nobody said in time whether it has.
        """
        try:
            async with asyncio.timeout(self._wait_s):
                await self._told.wait()
                if self._is_closed:
                    raise unavailable("this process is ending")
                found = self.take(spender, amount_pico_usd)
                return found or await self._wait(spender, amount_pico_usd or 0)
        except TimeoutError as error:
            raise unavailable("the ledger did not answer in time") from error

    async def _wait(self, spender: Spender, amount_pico_usd: int) -> Hold:
        granted: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(spender=spender, amount_pico_usd=amount_pico_usd, granted=granted)
        self._waiters.append(waiter)
        self._refills.wake.set()
        try:
            return await granted
        except asyncio.CancelledError:
            # It may have been granted in the same turn of the loop in which its client left.
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.undo(granted.result())
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def undo(self, taken: Hold) -> None:
        """Give a hold back whose attempt was never written down; no other one ever is."""
        for bucket, slab in taken.places:
            bucket.put_back(slab, taken.amount_pico_usd)
            budget = self._budgets.get(bucket.rule.budget_id)
            if budget is None or budget.bucket is not bucket:
                self._refills.let_go(bucket)

    def is_narrowed(self, spender: Spender) -> bool:
        """Whether a budget is used up that leaves only the cheapest deployments; never waits."""
        at_us = self._clock.wall_us()
        found = False
        for rule in self._narrowing:
            if counts(rule, spender) and self.standing.is_used_up(rule, at_us):
                found = True
        return found

    def recall(self, keys: Iterable[tuple[int, int]]) -> dict[bytes, int]:
        """Let go of what is in hand in some buckets, for somebody who needs it.

        Args:
            keys: Budget and first microsecond of the window, each.

        Returns:
            What is given back, by lease.
        """
        wanted = set(keys)
        given: dict[bytes, int] = {}
        for bucket in self._buckets():
            if bucket.key in wanted:
                given.update(bucket.give_back())
        return given

    async def run(self) -> None:
        """Ask for slabs and give back what is idle, until cancelled; asleep with nothing due."""
        async with anyio.create_task_group() as tasks:
            self.standing.start(tasks)
            refills = self._refills
            while True:
                refills.wake.clear()
                waiting = self._waiting()
                due = refills.due(self._buckets(), waiting, looks_ahead=not self._is_closed)
                if due is not None:
                    tasks.start_soon(self._ask, due)
                with anyio.move_on_after(refills.rest_s(self._buckets(), waiting)):
                    await refills.wake.wait()

    async def close(self) -> None:
        """Give everything back that is unused; nothing is held afterwards."""
        self._is_closed = True
        for waiter in list(self._waiters):
            self._refuse(waiter, unavailable("this process is ending"))
        for bucket in self._buckets():
            self._refills.let_go(bucket)
        errand = self._refills.errand({})
        if errand.returns:
            await self._ask(errand)

    def _applying(self, spender: Spender) -> tuple[Budget, ...]:
        """The blocking budgets that count what somebody spends, from the widest."""
        key = (spender.team, spender.project, spender.key_id, spender.cost_tags)
        found = self._known.get(key)
        if found is None:
            found = tuple([one for one in self._budgets.values() if counts(one.rule, spender)])
            if len(self._known) >= KNOWN_MAX:  # clients can make up cost tags without end
                self._known.clear()
            self._known[key] = found
        return found

    def _hold(self, budgets: Sequence[Budget], amount_pico_usd: int) -> Hold | None:
        at_us, now_us = self._clock.wall_us(), self._refills.now_us()
        buckets = [one.bucket_at(at_us) or self._turn(one, at_us) for one in budgets]
        slabs = hold(buckets, amount_pico_usd, now_us=now_us)
        if slabs is None:
            return None
        self._refills.note_hold(buckets, now_us)
        return Hold(
            at_us=at_us,
            amount_pico_usd=amount_pico_usd,
            lease_ids=tuple([slab.lease_id for slab in slabs]),
            places=tuple(zip(buckets, slabs, strict=True)),
        )

    def _turn(self, budget: Budget, at_us: int) -> Bucket:
        bucket, before = budget.turn(at_us, now_us=self._refills.now_us())
        self._refills.let_go(before)
        return bucket

    def _buckets(self) -> list[Bucket]:
        return [one.bucket for one in self._budgets.values() if one.bucket is not None]

    def _waiting(self) -> dict[Bucket, list[int]]:
        """What is waited for, by bucket that has no room for it, in the order of coming."""
        found: dict[Bucket, list[int]] = {}
        at_us = self._clock.wall_us()
        for waiter in self._waiters:
            for budget in self._applying(waiter.spender):
                bucket = budget.bucket_at(at_us) or self._turn(budget, at_us)
                if bucket.fitting(waiter.amount_pico_usd) is None:
                    found.setdefault(bucket, []).append(waiter.amount_pico_usd)
        return found

    async def _ask(self, errand: Errand) -> None:
        request = LeaseRequest(
            directory=self._directory,
            session=self._session,
            wants=tuple(errand.wants.values()),
            returns=errand.returns,
            number=errand.number,
            is_repeat=errand.tries > 0,
        )
        try:
            reply = await self._lease(request)
        except ChannelError as error:
            self._fail(errand, error)
            return
        short = self._refills.note_reply(errand, reply)
        current = self._buckets()
        for bucket in errand.wants:
            if self._is_closed or bucket not in current:
                self._refills.let_go(bucket)
        self._serve(short)
        for bucket in self._waiting():
            if bucket in short:
                bucket.pause_until_us = 0  # less may fit than was asked for
        self._refills.wake.set()

    def _serve(self, short: dict[Bucket, BudgetState]) -> None:
        """Give what came to those who wait, in order, and refuse what does not fit."""
        for waiter in list(self._waiters):
            if waiter.granted.done():
                continue
            budgets = self._applying(waiter.spender)
            found = self._hold(budgets, waiter.amount_pico_usd) if budgets else NO_HOLD
            if found is not None:
                waiter.granted.set_result(found)
                self._waiters.remove(waiter)
                continue
            for budget in budgets:
                state = None if budget.bucket is None else short.get(budget.bucket)
                if state is not None and waiter.amount_pico_usd > state.room_pico_usd:
                    error = exceeded(budget.rule, state, waiter.amount_pico_usd)
                    self._refuse(waiter, error)
                    break

    def _fail(self, errand: Errand, error: ChannelError) -> None:
        logger.warning("no slabs of budgets from the ledger: %s", error)
        self._refills.note_failure(errand, error)
        for waiter in list(self._waiters):
            if any(one.bucket in errand.wants for one in self._applying(waiter.spender)):
                self._refuse(waiter, unavailable(str(error)))
        self._refills.wake.set()

    def _refuse(self, waiter: _Waiter, error: GatewayError) -> None:
        self._waiters.remove(waiter)
        if not waiter.granted.done():
            waiter.granted.set_exception(error)
