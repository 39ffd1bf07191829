"""Grants of slabs by Redis: who finds an id there, the database makes it theirs.

Everything goes through one connection and in turns. What gathers during a turn is asked in the
next: one round trip to Redis, and one transaction that claims what all of them found. Whoever finds
nothing, and everybody while Redis does not answer, asks the database as if there were no Redis
(`budget_leases.grant`), after `BUDGET_S` at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

import anyio
import msgspec

from gateway.budgets.messages import Lease, LeaseRequest, LeaseWant
from gateway.clock import Clock
from gateway.ledger.budget_deltas import Bucket
from gateway.ledger.budget_leases import WORTH
from gateway.ledger.budget_pool import POOL_S, Claim
from gateway.ledger.errors import LedgerError
from gateway.limits.shared import Connection, ScriptCall, Unreachable

logger = logging.getLogger(__name__)

BUDGET_S: Final = 0.1
"""Longest wait for Redis; then the database is asked."""
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
HOT_S: Final = 1.0
"""A bucket that is asked about again so soon gets slabs into Redis."""
ROUNDS: Final = 3
"""So often somebody looks whose find was somebody else's already."""
BATCH_MAX: Final = 256
WAITING_MAX: Final = 4_096
BUCKETS_MAX: Final = 8_192

TAKE: Final = """
local found = {}
for i, key in ipairs(KEYS) do
  found[i] = ''
  local ids = redis.call('ZRANGEBYSCORE', key, ARGV[i], '+inf', 'LIMIT', 0, 1)
  if ids[1] then
    redis.call('ZREM', key, ids[1])
    found[i] = ids[1]
  end
end
return found
"""
"""For each bucket the id of the smallest slab with at least so much, taken out; empty for none.

A score is a double: of what is very large it says only about how much it is, and the claim decides.
"""
PUT: Final = """
for i = 2, #ARGV, 2 do redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 0
"""
SCRIPTS: Final = (TAKE, PUT)

ClaimAll = Callable[[Sequence[Claim]], Awaitable[dict[bytes, Lease]]]


class _Ask(msgspec.Struct, eq=False):
    """A request that waits for what Redis has; answered with leases by want, or None."""

    request: LeaseRequest
    directory: str
    answer: asyncio.Future[dict[Bucket, Lease] | None]
    found: dict[Bucket, Lease] = {}
    rounds: int = 0


class PoolDesk:
    """Hands out slabs that lie in Redis.

    Args:
        connect: Makes a connection that knows `SCRIPTS`, or raises `Unreachable`.
        identify: Names the database among all that may use this Redis.
        claim: Makes leases the sessions' that found them, in one transaction.
        clock: Time.
        budget_s: Longest wait for Redis.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        identify: Callable[[], Awaitable[str]],
        claim: ClaimAll,
        clock: Clock,
        budget_s: float = BUDGET_S,
    ) -> None:
        self.is_up = False
        self.fault = ""
        """Why the database grants alone, empty while Redis helps."""
        self.grants = 0
        """How many slabs came out of Redis."""
        self._connect = connect
        self._identify = identify
        self._claim = claim
        self._clock = clock
        self._budget_s = budget_s
        self._name = ""
        self._asks: list[_Ask] = []
        self._puts: dict[Bucket, list[Lease]] = {}
        self._wake = asyncio.Event()
        self._asked_s: dict[Bucket, float] = {}

    def hot(self, wants: Sequence[LeaseWant]) -> frozenset[Bucket]:
        """Buckets among those that are asked about now that were so a moment ago, too."""
        if not self.is_up:
            return frozenset()
        now_s = self._clock.monotonic_s()
        if len(self._asked_s) > BUCKETS_MAX:
            self._asked_s.clear()
        found: set[Bucket] = set()
        for want in wants:
            bucket = (want.budget_id, want.window_start_us)
            before_s = self._asked_s.get(bucket)
            if before_s is not None and now_s - before_s < HOT_S:
                found.add(bucket)
            self._asked_s[bucket] = now_s
        return frozenset(found)

    def put(self, leases: Sequence[Lease]) -> None:
        """Have ids of unclaimed leases lie in Redis; without Redis they are taken back in time."""
        if not (self.is_up and leases):
            return
        for lease in leases:
            self._puts.setdefault((lease.budget_id, lease.window_start_us), []).append(lease)
        self._wake.set()

    async def take(self, request: LeaseRequest, directory: str) -> dict[Bucket, Lease]:
        """What Redis has of what a worker wants, claimed.

        Args:
            request: One bucket in each want.
            directory: The worker's, with its node.

        Returns:
            A lease by bucket; nothing where Redis has nothing, or does not answer in time.

        Raises:
            LedgerError: The database did not answer; whether it claimed is unknown.
        """
        if not self.is_up or len(self._asks) >= WAITING_MAX:
            return {}
        answer: asyncio.Future[dict[Bucket, Lease] | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._asks.append(_Ask(request, directory, answer))
        self._wake.set()
        return await answer or {}

    async def run(self) -> None:
        """Keep a connection, and hand out, until cancelled."""
        pause_s = PAUSE_MIN_S
        try:
            while True:
                began_s = self._clock.monotonic_s()
                try:
                    self._name = self._name or await self._identify()
                    await self._run_once()
                except (Unreachable, LedgerError) as error:
                    self._note(str(error))
                has_held = self._clock.monotonic_s() - began_s > PAUSE_MAX_S
                pause_s = PAUSE_MIN_S if has_held else min(2 * pause_s, PAUSE_MAX_S)
                await anyio.sleep(pause_s)
        finally:
            self._go_down()

    async def _run_once(self) -> None:
        """Hand out on one connection until that fails.

        Raises:
            Unreachable: It did, or could not be had.
        """
        connection = await self._connect()
        try:
            # One that is full, or a replica, answers and takes nothing.
            probe = ScriptCall(PUT, (f"fareway:probe:{{budgets:{self._name}}}",), (1_000, 0, ""))
            await self._within_budget(connection, [probe])
            self.is_up = True
            if self.fault:
                logger.warning("Redis helps with budgets again")
                self.fault = ""
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._turn(connection)
        finally:
            self._go_down()
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def _turn(self, connection: Connection) -> None:
        """One round trip, and one transaction for what it found.

        Raises:
            Unreachable: Redis did not answer in time.
        """
        asks, self._asks = self._asks[:BATCH_MAX], self._asks[BATCH_MAX:]
        puts, self._puts = self._puts, {}
        try:
            calls = [self._put_call(bucket, leases) for bucket, leases in puts.items()]
            calls += [self._take_call(ask) for ask in asks]
            answers = await self._within_budget(connection, calls)
            await self._claim_all(asks, answers[len(puts) :])
        finally:
            for ask in asks:
                if not ask.answer.done() and ask not in self._asks:
                    ask.answer.set_result(ask.found or None)
        if self._asks:
            self._wake.set()

    async def _claim_all(self, asks: Sequence[_Ask], answers: Sequence[object]) -> None:
        """Claim what was found, and have those look again whose find was another's.

        Raises:
            Unreachable: What Redis answered is no answer of ours.
        """
        claims: list[Claim] = []
        finders: dict[bytes, tuple[_Ask, Bucket]] = {}
        for ask, answer in zip(asks, answers, strict=True):
            wants = _open(ask)
            for want, text in zip(wants, _texts(answer, len(wants)), strict=True):
                lease_id = _id(text)
                if lease_id is not None and lease_id not in finders:
                    bucket = (want.budget_id, want.window_start_us)
                    finders[lease_id] = (ask, bucket)
                    claims.append(
                        Claim(
                            lease_id=lease_id,
                            bucket=bucket,
                            at_least_pico_usd=want.at_least_pico_usd,
                            directory=ask.directory,
                            session=ask.request.session,
                            number=ask.request.number,
                            turn=ask.rounds,
                        )
                    )
        if not claims:
            return
        try:
            claimed = await self._claim(claims)
        except LedgerError as error:
            for ask in {id(ask): ask for ask, _ in finders.values()}.values():
                if not ask.answer.done():
                    ask.answer.set_exception(error)
            return
        self.grants += len(claimed)
        for lease_id, (ask, bucket) in finders.items():
            lease = claimed.get(lease_id)
            if lease is not None:
                ask.found = {**ask.found, bucket: lease}
            elif ask.rounds < ROUNDS and ask not in self._asks:
                ask.rounds += 1
                self._asks.append(ask)

    async def _within_budget(
        self, connection: Connection, calls: Sequence[ScriptCall]
    ) -> Sequence[object]:
        try:
            async with asyncio.timeout(self._budget_s):
                return await connection.run(calls)
        except TimeoutError as error:
            raise Unreachable(f"no answer within {round(self._budget_s * 1000)} ms") from error

    def _take_call(self, ask: _Ask) -> ScriptCall:
        wants = _open(ask)
        keys = [self._key((want.budget_id, want.window_start_us)) for want in wants]
        return ScriptCall(TAKE, keys, [_least(want) for want in wants])

    def _put_call(self, bucket: Bucket, leases: Sequence[Lease]) -> ScriptCall:
        arguments: list[str | int] = [round(POOL_S * 1_000)]
        for lease in leases:
            arguments += (lease.amount_pico_usd, lease.lease_id.hex())
        return ScriptCall(PUT, (self._key(bucket),), arguments)

    def _key(self, bucket: Bucket) -> str:
        # The part in braces puts all of a database's buckets into one slot of a cluster.
        return f"fareway:{{budgets:{self._name}}}:{bucket[0]}:{bucket[1]}"

    def _go_down(self) -> None:
        """Let the database answer whoever waits."""
        self.is_up = False
        self._puts.clear()
        asks, self._asks = self._asks, []
        for ask in asks:
            if not ask.answer.done():
                ask.answer.set_result(ask.found or None)

    def _note(self, fault: str) -> None:
        if not self.fault:
            logger.warning("budgets are granted by the database alone: %s", fault)
        self.fault = fault


def _open(ask: _Ask) -> list[LeaseWant]:
    """The wants that nothing was found for yet."""
    return [
        want
        for want in ask.request.wants
        if (want.budget_id, want.window_start_us) not in ask.found
    ]


def _least(want: LeaseWant) -> int:
    """The least amount that is of use, as `budget_leases.slab` goes by it."""
    return max(want.at_least_pico_usd, -(-want.wanted_pico_usd // WORTH))


def _texts(answer: object, count: int) -> Sequence[object]:
    """What was found for each bucket.

    Raises:
        Unreachable: It is nothing that our script answers, as from a server that is not Redis.
    """
    if isinstance(answer, list):
        found = cast("list[object]", answer)
        if len(found) == count:
            return found
    raise Unreachable("it answered what no script of ours answers")


def _id(text: object) -> bytes | None:
    """The id of a lease; None for nothing, and for what is none."""
    if not isinstance(text, bytes):
        return None
    try:
        lease_id = bytes.fromhex(text.decode())
    except ValueError:
        return None
    return lease_id if len(lease_id) == 16 else None
