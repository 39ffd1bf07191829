"""Budgets of one machine: who must know them, and who gets what of them.

Workers ask here for slabs, and here the ledger process is asked. Where it has no room for a request
that waits, the other workers give back what they do not use, and it is asked once more: only then
is the request refused.

A change of budgets reaches every worker before the command that made it returns, as with keys
(`key_board`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec

from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclarations,
    BudgetReport,
    BudgetRules,
    BudgetState,
    ExpiredLeases,
    LeaseReply,
    LeaseRequest,
    LeaseWant,
    LeaseWriteOff,
)
from gateway.budgets.refills import NOT_CARRIED_OUT
from gateway.channel import ChannelError, Method, RemoteError, method
from gateway.process.child import Child
from gateway.process.messages import RecallBudgets
from gateway.process.telling import tell, tell_all

logger = logging.getLogger(__name__)

REFUSALS = frozenset({"budget_conflict", "budget_too_large"})
"""Codes that say that the configuration's budgets cannot be had beside those of the database."""

_UPDATE = "update_budgets"
LEDGER_READY_S = 1.5
"""How long a worker's question waits for a ledger process that is being started: the requests
behind it wait two seconds."""
LEDGER_CALL_S = 10.0
DECLARE_S = 30.0
RECALL_S = 0.5
"""A worker that does not answer in this time keeps what it has."""
UNANSWERED_MAX = 1_024
STATES_FRESH_S = 1.0
"""So old may be what one worker is told because another one asked before."""


@dataclass(slots=True, kw_only=True)
class BudgetBoard:
    """Knows the budgets.

    Attributes:
        members: The workers that live and have been configured.
        ledger: The ledger process once it is ready; raises `RemoteError` when it is not.
        monotonic_s: Seconds on a clock that never goes back.
        declared: What the configuration that is served declares.
        lock: Held around every change, from the ledger's write to the last acknowledgement.
        rules: The budgets in force, None before the ledger told them.
        on_change: Called whenever there are others, before the workers hear of them.
    """

    members: Callable[[], Sequence[Child]]
    ledger: Callable[[], Awaitable[Child]]
    monotonic_s: Callable[[], float]
    declared: BudgetDeclarations = field(default_factory=BudgetDeclarations)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rules: BudgetRules | None = None
    on_change: Callable[[], None] = lambda: None
    _told: asyncio.Event = field(default_factory=asyncio.Event)
    _kept: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """What workers gave back and the ledger has not taken."""
    _unanswered: dict[tuple[bytes, int | None], LeaseRequest] = field(
        default_factory=dict[tuple[bytes, int | None], LeaseRequest]
    )
    """Last tries of which it is not known what became of them, by session and number."""
    _states: list[BudgetState] = field(default_factory=list[BudgetState])
    _states_s: float | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def joining(self, child: Child, *, known: BudgetRules | None) -> AsyncGenerator[None]:
        """Make a worker a member within the context; it has the budgets of now by then.

        Args:
            child: The worker.
            known: What it was configured with.

        Raises:
            ChannelError: It did not take what changed meanwhile.
        """
        async with self.lock:
            if self.rules is not None and known != self.rules:
                await tell(child, _UPDATE, self.rules)
            yield

    def methods(self) -> dict[str, Method]:
        """What workers and the admin socket may call."""
        return {
            "lease_budgets": method(LeaseRequest, self._lease_called),
            "budget_states": method(type(None), self._states_called),
            "change_budget": method(BudgetChange, self._change_called),
            "expired_leases": method(type(None), self._expired_called),
            "write_off_leases": method(LeaseWriteOff, self._write_off_called),
        }

    async def wait_told(self) -> None:
        """Return once the budgets in force are known."""
        await self._told.wait()

    async def start_with(self, child: Child) -> None:
        """Tell a ledger process that was started what the configuration declares.

        Raises:
            ChannelError: It refuses, or did not answer.
        """
        async with self.lock:
            await self._declare(child, self.declared)

    async def serve(self, declared: BudgetDeclarations) -> None:
        """Change to what another configuration declares; every worker has it on return.

        Raises:
            ChannelError: The ledger process is not there, or refuses; all stays as it was.
        """
        if declared == self.declared:
            return
        child = await self._ready()
        async with self.lock:
            await self._declare(child, declared)
            self.declared = declared

    async def _declare(self, child: Child, declared: BudgetDeclarations) -> None:
        rules = await child.channel.call(
            "set_budgets", declared, result_type=BudgetRules, timeout_s=DECLARE_S
        )
        await self.publish(rules)

    async def _change_called(self, change: BudgetChange, _fds: Sequence[int]) -> BudgetRules:
        child = await self.ledger()
        async with self.lock:
            rules = await child.channel.call(
                "change_budget", change, result_type=BudgetRules, timeout_s=DECLARE_S
            )
            await self.publish(rules)
        return rules

    async def _expired_called(self, _params: None, _fds: Sequence[int]) -> Sequence[ExpiredLeases]:
        child = await self.ledger()
        return await child.channel.call(
            "expired_leases", None, result_type=list[ExpiredLeases], timeout_s=LEDGER_CALL_S
        )

    async def _write_off_called(
        self, order: LeaseWriteOff, _fds: Sequence[int]
    ) -> Sequence[ExpiredLeases]:
        child = await self.ledger()
        return await child.channel.call(
            "write_off_leases", order, result_type=list[ExpiredLeases], timeout_s=LEDGER_CALL_S
        )

    async def _lease_called(self, request: LeaseRequest, _fds: Sequence[int]) -> LeaseReply:
        reply = await self.lease(request)
        if self.rules is None or reply.rules_revision > self.rules.revision:
            try:
                await self.catch_up()
            except ChannelError as error:
                logger.warning("the newest budgets were not told: %s", error)
        return reply

    async def _states_called(self, _params: None, _fds: Sequence[int]) -> list[BudgetState]:
        return await self.states()

    async def catch_up(self) -> None:
        """Take the budgets as they are now: another machine may have changed them.

        Raises:
            ChannelError: The ledger process is not there, or did not tell.
        """
        child = await self._ready()
        async with self.lock:
            rules = await child.channel.call(
                "budget_rules", None, result_type=BudgetRules, timeout_s=LEDGER_CALL_S
            )
            await self.publish(rules)

    async def publish(self, rules: BudgetRules) -> None:
        """Give every member the budgets in force; call with the lock held."""
        if rules == self.rules:
            return
        self.rules = rules
        self._told.set()
        self.on_change()
        # A worker that cannot learn that a budget was lowered must not go on spending.
        await tell_all(self.members(), _UPDATE, rules, what="budgets")

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        """Ask the ledger for slabs, and the other workers where it has no room for a request.

        Raises:
            RemoteError: The ledger process is not there, or refuses.
        """
        reply = await self._ask(request)
        waited = {
            (want.budget_id, want.window_start_us): want
            for want in request.wants
            if want.at_least_pico_usd
        }
        short = [
            want
            for state in reply.shortages
            if (want := waited.get((state.budget_id, state.window_start_us))) is not None
        ]
        before = self._unanswered.pop((request.session, request.number), None)
        if request.is_last_try or not (short or before):
            return reply
        last = await self._try_last(request, short, before)
        return LeaseReply(
            leases=(*reply.leases, *last.leases),
            shortages=last.shortages,
            rules_revision=max(reply.rules_revision, last.rules_revision),
        )

    async def _try_last(
        self, request: LeaseRequest, short: Sequence[LeaseWant], before: LeaseRequest | None
    ) -> LeaseReply:
        """Ask once more, with what the other workers do not use.

        Args:
            request: What a worker asked.
            short: What the ledger had no room for.
            before: The last try of the same request that has had no answer, None for none.

        Raises:
            RemoteError: No answer; the worker asks the same again, and is told the whole then.
        """
        await self._recall([(want.budget_id, want.window_start_us) for want in short])
        returned, self._kept = self._kept, {}
        last_try = LeaseRequest(
            directory=request.directory,
            session=request.session,
            wants=tuple(short),
            returns=returned,
            is_last_try=True,
            number=request.number,
            is_repeat=request.is_repeat,
        )
        if before is not None:
            last_try = _joined(before, last_try)
        try:
            last = await self._ask(last_try)
        except ChannelError as error:
            was_not_done = isinstance(error, RemoteError) and error.code == NOT_CARRIED_OUT
            if was_not_done and before is None:
                self._keep(returned)
            else:
                self._remember(last_try)
            # Not as not carried out: the first half was.
            raise RemoteError("ledger_unavailable", f"not a second time: {error}") from error
        if last.is_repeat:
            self._keep(returned)
        return last

    def _remember(self, last_try: LeaseRequest) -> None:
        while len(self._unanswered) >= UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]
        self._unanswered[last_try.session, last_try.number] = last_try

    async def states(self) -> list[BudgetState]:
        """Where every bucket stands; what was asked within the last second counts.

        Raises:
            RemoteError: The ledger process is not there, or refuses.
        """
        async with self._asking:
            asked_s = self._states_s
            if asked_s is None or self.monotonic_s() - asked_s >= STATES_FRESH_S:
                asked_s = self.monotonic_s()
                child = await self._ready()
                self._states = await child.channel.call(
                    "budget_states", None, result_type=list[BudgetState], timeout_s=LEDGER_CALL_S
                )
                self._states_s = asked_s
            return self._states

    async def reports(self) -> list[BudgetReport]:
        """Every budget in force and where it stands; without asking where there is none.

        Raises:
            RemoteError: The ledger process is not there, or refuses.
        """
        if self.rules is None or not self.rules.rules:
            return []
        child = await self._ready()
        return await child.channel.call(
            "budget_reports", None, result_type=list[BudgetReport], timeout_s=LEDGER_CALL_S
        )

    async def _ask(self, request: LeaseRequest) -> LeaseReply:
        child = await self._ready()
        return await child.channel.call(
            "lease_budgets", request, result_type=LeaseReply, timeout_s=LEDGER_CALL_S
        )

    async def _ready(self) -> Child:
        try:
            with anyio.fail_after(LEDGER_READY_S):
                return await self.ledger()
        except (TimeoutError, RemoteError) as error:
            raise RemoteError(
                NOT_CARRIED_OUT, "the ledger process is being started again"
            ) from error

    def _keep(self, returned: Mapping[bytes, int]) -> None:
        for lease_id, amount_pico_usd in returned.items():
            self._kept[lease_id] = self._kept.get(lease_id, 0) + amount_pico_usd

    async def _recall(self, buckets: list[tuple[int, int]]) -> None:
        """Keep what all workers give back."""

        async def recall(child: Child) -> None:
            try:
                self._keep(
                    await child.channel.call(
                        "recall_budgets",
                        RecallBudgets(buckets=buckets),
                        result_type=dict[bytes, int],
                        timeout_s=RECALL_S,
                    )
                )
            except ChannelError as error:
                logger.warning("%s gives nothing back: %s", child.name, error)

        async with anyio.create_task_group() as tasks:
            for child in self.members():
                tasks.start_soon(recall, child)


def _joined(before: LeaseRequest, last_try: LeaseRequest) -> LeaseRequest:
    """A last try that has had no answer, said again with what has come since."""
    wants = {(want.budget_id, want.window_start_us): want for want in before.wants}
    wants |= {(want.budget_id, want.window_start_us): want for want in last_try.wants}
    returns = dict(before.returns)
    for lease_id, amount_pico_usd in last_try.returns.items():
        returns[lease_id] = returns.get(lease_id, 0) + amount_pico_usd
    return msgspec.structs.replace(
        last_try, wants=tuple(wants.values()), returns=returns, is_repeat=True
    )
