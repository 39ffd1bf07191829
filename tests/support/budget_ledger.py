"""A ledger's side of budgets in memory, by the same rules: for tests of what asks it.

It decides like the database does: a slab is granted where spent, reserved and exposed leave room
for it, of at most 1 % of what remains or else for exactly what is waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from gateway.budgets.messages import (
    BudgetRule,
    BudgetRules,
    BudgetState,
    Lease,
    LeaseReply,
    LeaseRequest,
    LeaseWant,
)
from gateway.budgets.rules import window_of_rule
from gateway.channel import ChannelError


@dataclass(kw_only=True)
class MemoryBucket:
    """One window of a budget."""

    limit: int
    end_us: int
    spent: int = 0
    reserved: int = 0
    exposed: int = 0

    @property
    def room(self) -> int:
        return max(self.limit - self.spent - self.reserved - self.exposed, 0)


@dataclass(kw_only=True)
class MemoryLedger:
    """Grants leases and takes bookings; complains about anything that a ledger could not carry out."""

    rules: BudgetRules
    wall_us: Callable[[], int]
    before: Callable[[LeaseRequest], Awaitable[None]] | None = None
    fault: ChannelError | None = None
    lost: ChannelError | None = None
    """Raised in the place of an answer, when everything was done."""
    answers: dict[tuple[bytes, int | None, bool], LeaseReply] = field(default_factory=dict)
    buckets: dict[tuple[int, int], MemoryBucket] = field(default_factory=dict)
    leases: dict[bytes, tuple[tuple[int, int], int]] = field(default_factory=dict)
    requests: list[LeaseRequest] = field(default_factory=list)

    def rule(self, budget_id: int) -> BudgetRule:
        return next(rule for rule in self.rules.rules if rule.budget_id == budget_id)

    def bucket(self, budget_id: int, at_us: int | None = None) -> MemoryBucket:
        rule = self.rule(budget_id)
        window = window_of_rule(rule, self.wall_us() if at_us is None else at_us)
        return self.buckets.setdefault(
            (budget_id, window.start_us),
            MemoryBucket(limit=rule.limit_pico_usd, end_us=window.end_us),
        )

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        self.requests.append(request)
        if self.before is not None:
            await self.before(request)
        if self.fault is not None:
            raise self.fault
        asked = (request.session, request.number, request.is_last_try)
        if request.is_repeat and asked in self.answers:
            reply = msgspec.structs.replace(self.answers[asked], is_repeat=True, shortages=())
        else:
            assert request.number is None or asked not in self.answers, "a number of its own"
            reply = self._carry_out(request)
            if request.number is not None and (reply.leases or request.returns):
                self.answers[asked] = reply
        if self.lost is not None:
            raise self.lost
        return reply

    def _carry_out(self, request: LeaseRequest) -> LeaseReply:
        for lease_id, amount in request.returns.items():
            self._release(lease_id, amount)
        leases, shortages = [], []
        for want in request.wants:
            bucket = self.bucket(want.budget_id, want.window_start_us)
            granted = self._grant(want, bucket)
            if granted is not None:
                leases.append(granted)
            elif want.at_least_pico_usd:
                shortages.append(self._state(want.budget_id, want.window_start_us, bucket))
        return LeaseReply(
            leases=tuple(leases), shortages=tuple(shortages), rules_revision=self.rules.revision
        )

    async def states(self) -> list[BudgetState]:
        return [
            self._state(budget_id, start_us, bucket)
            for (budget_id, start_us), bucket in self.buckets.items()
        ]

    def book(self, lease_ids: tuple[bytes, ...], held: int, cost: int) -> None:
        """An attempt is in the ledger: its hold is free, its cost is spent."""
        for lease_id in lease_ids:
            key, _ = self.leases[lease_id]
            self._release(lease_id, held)
            self.buckets[key].spent += cost

    def _grant(self, want: LeaseWant, bucket: MemoryBucket) -> Lease | None:
        amount = max(min(want.wanted_pico_usd, bucket.room // 100), want.at_least_pico_usd)
        if not amount or amount > bucket.room:
            return None
        bucket.reserved += amount
        lease_id = (len(self.leases) + 1).to_bytes(16, "big")
        self.leases[lease_id] = ((want.budget_id, want.window_start_us), amount)
        return Lease(
            lease_id=lease_id,
            budget_id=want.budget_id,
            window_start_us=want.window_start_us,
            window_end_us=bucket.end_us,
            amount_pico_usd=amount,
        )

    def _release(self, lease_id: bytes, amount: int) -> None:
        key, left = self.leases[lease_id]
        assert 0 < amount <= left, "a lease gives up more than it has"
        self.leases[lease_id] = (key, left - amount)
        self.buckets[key].reserved -= amount

    def _state(self, budget_id: int, start_us: int, bucket: MemoryBucket) -> BudgetState:
        return BudgetState(
            budget_id=budget_id,
            window_start_us=start_us,
            window_end_us=bucket.end_us,
            limit_pico_usd=bucket.limit,
            spent_pico_usd=bucket.spent,
            reserved_pico_usd=bucket.reserved,
            exposed_pico_usd=bucket.exposed,
        )
