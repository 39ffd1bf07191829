"""Limits that several machines share, decided in Redis; without it, each machine has its share.

Everything that a worker asks goes through one connection, and what gathers while it waits for an
answer goes out together. Nobody waits longer than `budget_s`: then `take` says None, as it does for
as long as Redis is not there, and whoever asked decides with the limits divided by the machines
seen lately. What Redis has forgotten (a restart, an eviction) counts as at rest, but for requests
in flight, which every worker tells again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import anyio
import msgspec

from gateway.limits import scripts
from gateway.limits.gcra import MINUTE_US, Bucket
from gateway.limits.local import Use
from gateway.limits.rules import LimitKind, LimitRule
from gateway.limits.standing import CONCURRENCY_WAIT_US, Meter, Shortage, Standing

logger = logging.getLogger(__name__)

BUDGET_S: Final = 0.05
GRACE_TURNS: Final = 8
"""Turns of the loop in which an answer still counts: after a long turn it may be here already, and
only not have been read."""

PATIENCE: Final = 5
"""So many budgets pass before a connection is given up: a pause of ours is none of Redis's."""

CONNECT_S: Final = 1.0
BEAT_S: Final = 5.0
LEASE_US: Final = 20_000_000
"""How long a worker's requests in flight count without a sign of it: four beats."""

MACHINES_US: Final = 60_000_000
"""How long a machine counts as there."""

PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
BATCH_MAX: Final = 256
WAITING_MAX: Final = 10_000
MACHINES_KEY: Final = "fareway:machines"
_PER_LIMIT: Final = 5  # numbers of an answer
_SAME: Final = "same"
_LESS: Final = "less"  # what `scripts.GIVE` does with the worker's requests in flight


class Unreachable(Exception):
    """Redis does not answer, or not as it should; the message says how, and no secret."""


class Connection(Protocol):
    """One connection to Redis; `gateway.limits.redis_link` has the real one."""

    async def run(self, calls: Sequence[ScriptCall]) -> Sequence[Sequence[int] | int]:
        """Run scripts in order and return their answers.

        Raises:
            Unreachable: It did not answer, or refused.
        """
        ...

    async def close(self) -> None:
        """Close it; never raises and never waits long."""
        ...


class ScriptCall(msgspec.Struct, frozen=True):
    """One script with its keys and arguments.

    Attributes:
        script: Its text.
        keys: What it reads and writes.
        arguments: Everything else.
    """

    script: str
    keys: Sequence[str]
    arguments: Sequence[str | int]


class SharedCharge(msgspec.Struct, frozen=True, gc=False):
    """What a request took of one limit.

    Attributes:
        rule: The limit.
        tokens: How many tokens.
        busy_us: How far ahead its requests were behind this one.
        at_us: When, on our clock.
    """

    rule: LimitRule
    tokens: int
    busy_us: int
    at_us: int


class SharedTaken(msgspec.Struct, frozen=True):
    """What a request took, and where its limits stand."""

    charges: Sequence[SharedCharge]
    standing: Standing


class SharedRefused(msgspec.Struct, frozen=True):
    """A request took nothing."""

    shortage: Shortage
    standing: Standing


SharedOutcome = SharedTaken | SharedRefused


class _Ask(msgspec.Struct):
    """A request that waits for its decision."""

    rules: Sequence[LimitRule]
    tokens: int
    future: asyncio.Future[SharedOutcome | None]


class SharedLimits:
    """One worker's side of the limits in Redis.

    Args:
        connect: Makes a connection that has answered once, or raises `Unreachable`.
        worker: Names this worker among all that ever were.
        machine: Names its machine.
        now_us: Our clock, for durations.
        budget_s: Longest that a request waits.
        beat_s: Time between signs of life.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        worker: str,
        machine: str,
        now_us: Callable[[], int],
        budget_s: float = BUDGET_S,
        beat_s: float = BEAT_S,
    ) -> None:
        self._connect = connect
        self._worker = worker
        self._machine = machine
        self._now_us = now_us
        self._budget_s = budget_s
        self._beat_s = beat_s
        self._waiting: deque[_Ask | ScriptCall] = deque()
        self._wake = asyncio.Event()
        self._tried = asyncio.Event()
        self._told = asyncio.Event()
        self._own: dict[str, int] = {}
        self._is_due = False  # to tell what is in flight, before the next sign of life
        self._fault = "it was not asked yet"
        self.is_up = False
        self.machines = 1

    @property
    def fault(self) -> str:
        """Why limits are divided instead of shared, empty while they are shared."""
        if self.is_up:
            return ""
        return (
            f"Redis cannot be used ({self._fault}); this machine holds limits alone, at 1 of"
            f" {self.machines} equal shares"
        )

    async def wait_tried(self) -> None:
        """Return once Redis was reached, or was found not to be there."""
        await self._tried.wait()

    async def wait_told(self) -> None:
        """Return once Redis has been sent what it was to be told, or is not there."""
        while self.is_up and self._waiting:
            self._told.clear()
            await self._told.wait()

    async def take(self, rules: Sequence[LimitRule], tokens: int) -> SharedOutcome | None:
        """Take a request and its tokens of every limit, or nothing of any.

        Args:
            rules: The limits.
            tokens: What the request may use; of a limit with a smaller burst, that burst.

        Returns:
            None when Redis cannot say so in time.
        """
        if not self.is_up or len(self._waiting) >= WAITING_MAX:
            return None
        future: asyncio.Future[SharedOutcome | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Ask(rules, tokens, future))
        self._wake.set()
        try:
            await asyncio.wait((future,), timeout=self._budget_s)
            for _ in range(GRACE_TURNS):
                if future.done():
                    return future.result()
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if future.done():
                self._give_back(future.result())
            else:
                future.cancel()
            raise
        future.cancel()  # an answer that comes all the same is given back, see `_answer`
        return None

    def settle(self, charges: Sequence[SharedCharge], use: Use) -> None:
        """Count a request out, and correct what it took by what it used."""
        elapsed_us = self._now_us()
        for charge in charges:
            rule, requests_us, tokens_us = charge.rule, 0, 0
            if rule.requests is not None and not use.was_served:
                # Only what time has not paid for yet, as `Bucket.undone`.
                left_us = charge.busy_us - (elapsed_us - charge.at_us)
                requests_us = -max(min(cost_us(rule.requests, 1), left_us), 0)
            if rule.tokens is not None:
                tokens_us = cost_us(rule.tokens, use.tokens) - cost_us(rule.tokens, charge.tokens)
                tokens_us = tokens_us if use.is_final else max(tokens_us, 0)
            count = _SAME
            if rule.concurrency is not None:
                count = _LESS
                self._note(rule, -1)
            if requests_us or tokens_us or count != _SAME:
                self._call(self._give(limit_key(rule), requests_us, tokens_us, count))

    def count(self, rules: Sequence[LimitRule], change: int) -> None:
        """Count a request in or out that was admitted without Redis; it is told later."""
        for rule in rules:
            if rule.concurrency is not None:
                self._note(rule, change)
                if change < 0:
                    self._is_due = True
        if self._is_due:
            self._wake.set()

    async def run(self) -> None:
        """Keep a connection, and answer, until cancelled."""
        pause_s = PAUSE_MIN_S
        try:
            while True:
                began_us = self._now_us()
                try:
                    await self._run_once()
                except Unreachable as error:
                    self._note_down(str(error))
                # A Redis that answers for a moment now and then must not be asked all the time.
                has_held = self._now_us() - began_us > self._beat_s * 1_000_000
                pause_s = PAUSE_MIN_S if has_held else min(pause_s * 2, PAUSE_MAX_S)
                await anyio.sleep(pause_s)
        finally:
            self._refuse_waiting()
            self.is_up = False

    async def _run_once(self) -> None:
        """Serve on one connection until that fails.

        Raises:
            Unreachable: It did, or could not be had.
        """
        connection = await self._connect()
        try:
            await self._beat(connection)
            self._note_up()
            await self._serve(connection)
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()

    async def _serve(self, connection: Connection) -> None:
        """Send what gathers, and a sign of life in between.

        Raises:
            Unreachable: It does not answer any more.
        """
        loop = asyncio.get_running_loop()
        next_beat_s = loop.time() + self._beat_s
        while True:
            if not self._waiting and not self._is_due:
                self._wake.clear()
                with anyio.move_on_after(max(next_beat_s - loop.time(), 0.0)):
                    await self._wake.wait()
            if loop.time() >= next_beat_s or self._is_due:
                await self._beat(connection)
                next_beat_s = loop.time() + self._beat_s
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_MAX))]
            # Whoever has stopped waiting is not asked for.
            batch = [one for one in batch if not (isinstance(one, _Ask) and one.future.done())]
            if not batch:
                continue
            try:
                await self._exchange(connection, batch)
            finally:
                for one in batch:
                    if isinstance(one, _Ask) and not one.future.done():
                        one.future.set_result(None)
            if not self._waiting:
                self._told.set()

    async def _exchange(self, connection: Connection, batch: Sequence[_Ask | ScriptCall]) -> None:
        calls = [self._take(one) if isinstance(one, _Ask) else one for one in batch]
        answers = await self._within_budget(connection, calls)
        for one, answer in zip(batch, answers, strict=True):
            if isinstance(one, _Ask):
                assert isinstance(answer, Sequence), "the script returns a list"
                self._answer(one, answer)

    async def _within_budget(
        self, connection: Connection, calls: Sequence[ScriptCall]
    ) -> Sequence[Sequence[int] | int]:
        try:
            async with asyncio.timeout(self._budget_s * PATIENCE):
                return await connection.run(calls)
        except TimeoutError as error:
            wait_ms = round(self._budget_s * PATIENCE * 1000)
            raise Unreachable(f"no answer within {wait_ms} ms") from error

    def _answer(self, ask: _Ask, answer: Sequence[int]) -> None:
        outcome = self._outcome(ask, answer)
        if isinstance(outcome, SharedTaken):
            self.count(ask.rules, 1)
        if ask.future.done():
            self._give_back(outcome)
        else:
            ask.future.set_result(outcome)

    def _give_back(self, outcome: SharedOutcome | None) -> None:
        """Undo what nobody waits for any more."""
        if isinstance(outcome, SharedTaken):
            self.settle(outcome.charges, Use(0, True, False))

    def _outcome(self, ask: _Ask, answer: Sequence[int]) -> SharedOutcome:
        standing, shortage, at_us = Standing(), None, self._now_us()
        charges: list[SharedCharge] = []
        for place, rule in enumerate(ask.rules):
            start = 1 + place * _PER_LIMIT
            r_wait, t_wait, is_full, r_busy, t_busy = answer[start : start + _PER_LIMIT]
            standing = standing.and_also(_meter(rule.requests, r_busy), _meter(rule.tokens, t_busy))
            for wait_us, kind in (
                (r_wait, LimitKind.RPM),
                (t_wait, LimitKind.TPM),
                (is_full * CONCURRENCY_WAIT_US, LimitKind.CONCURRENCY),
            ):
                if wait_us and (shortage is None or wait_us > shortage.wait_us):
                    shortage = Shortage(rule, kind, wait_us)
            charges.append(SharedCharge(rule, _charged(rule, ask.tokens), r_busy, at_us))
        if shortage is not None:
            return SharedRefused(shortage, standing)
        return SharedTaken(charges, standing)

    def _take(self, ask: _Ask) -> ScriptCall:
        arguments: list[str | int] = [self._worker, LEASE_US]
        keys: list[str] = []
        for rule in ask.rules:
            key = limit_key(rule)
            keys.append(key)
            requests, tokens = rule.requests, rule.tokens
            arguments += (
                (-1, -1)
                if requests is None
                else (cost_us(requests, 1), cost_us(requests, 1) * requests.burst)
            )
            arguments += (
                (-1, -1)
                if tokens is None
                else (cost_us(tokens, _charged(rule, ask.tokens)), cost_us(tokens, tokens.burst))
            )
            arguments += (
                -1 if rule.concurrency is None else rule.concurrency,
                self._own.get(key, 0),
            )
        return ScriptCall(scripts.TAKE, keys, arguments)

    def _give(self, key: str, requests_us: int, tokens_us: int, count: str | int) -> ScriptCall:
        arguments = (self._worker, LEASE_US, requests_us, tokens_us, count)
        return ScriptCall(scripts.GIVE, (key,), arguments)

    def _call(self, call: ScriptCall) -> None:
        """Have something told; without Redis it is not, what is in flight is told anew later."""
        if self.is_up and len(self._waiting) < WAITING_MAX:
            self._waiting.append(call)
            self._wake.set()

    async def _beat(self, connection: Connection) -> None:
        """Say that this machine and its requests in flight are there; learn of the others."""
        self._is_due = False
        calls = [ScriptCall(scripts.BEAT, (MACHINES_KEY,), (self._machine, MACHINES_US))]
        # What waits to be counted out is counted out after this.
        leaving = Counter(
            one.keys[0]
            for one in self._waiting
            if isinstance(one, ScriptCall) and one.arguments[-1] == _LESS
        )
        for key, count in list(self._own.items()):
            told = count + leaving[key]
            calls.append(self._give(key, 0, 0, told))
            if not told:
                del self._own[key]
        answers = await self._within_budget(connection, calls)
        assert isinstance(answers[0], int), "the script returns a number"
        self.machines = max(answers[0], 1)

    def _note(self, rule: LimitRule, change: int) -> None:
        key = limit_key(rule)
        # Zeros stay until they are told.
        self._own[key] = max(self._own.get(key, 0) + change, 0)

    def _note_up(self) -> None:
        logger.info("limits are shared through Redis")
        self.is_up = True
        self._tried.set()

    def _note_down(self, fault: str) -> None:
        was_told = self._tried.is_set() and not self.is_up
        self.is_up, self._fault = False, fault
        self._tried.set()
        self._refuse_waiting()
        if not was_told:
            logger.warning("%s", self.fault)

    def _refuse_waiting(self) -> None:
        self._told.set()
        while self._waiting:
            one = self._waiting.popleft()
            if isinstance(one, _Ask) and not one.future.done():
                one.future.set_result(None)


def cost_us(bucket: Bucket, units: int) -> int:
    """Whole microseconds that units take, rounded up: Redis may admit less, and never more."""
    return -(-units * MINUTE_US // bucket.rate)


def limit_key(rule: LimitRule) -> str:
    """Where Redis keeps a limit: digests of ids, and its tenant as the hash tag."""
    return f"fareway:{{{rule.tenant.hex()}}}:{rule.digest.hex()}"


def digest_of(script: str) -> str:
    """What Redis calls a script that it has been given."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _charged(rule: LimitRule, tokens: int) -> int:
    return 0 if rule.tokens is None else min(tokens, rule.tokens.burst)


def _meter(bucket: Bucket | None, busy_us: int) -> Meter | None:
    if bucket is None:
        return None
    room_us = cost_us(bucket, 1) * bucket.burst
    left = max(room_us - busy_us, 0) // cost_us(bucket, 1)
    return Meter(bucket.rate, left, busy_us)
