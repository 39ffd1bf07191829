"""Asking for slabs of budgets: out of Redis where they lie there, else from the database."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import msgspec
import sqlalchemy as sa

from gateway.budgets.messages import Lease, LeaseReply, LeaseRequest, LeaseWant
from gateway.clock import Clock
from gateway.ledger import budget_leases, budget_pool, facts, lease_answers, node
from gateway.ledger.budget_deltas import Bucket
from gateway.ledger.budget_pool import Claim, Filling
from gateway.ledger.database import is_postgresql, write, writing_engine
from gateway.ledger.errors import LedgerError
from gateway.ledger.faults import explaining
from gateway.ledger.lease_answers import Part
from gateway.ledger.pool_desk import PoolDesk
from gateway.limits.shared import Connection

T = TypeVar("T")

_log = logging.getLogger(__name__)

LOAD_BEFORE_REFUSAL_S = 1.0
"""How long a worker waits, at most, for what lies in the spools before it hears of a shortage."""
RENEW_S = 60.0
"""A session that the database has not seen for so long asks there, which renews its leases."""
SESSIONS_MAX = 10_000
SWEEP_S = 15.0


class _Write(Protocol):
    """Runs a function in a transaction that may write."""

    async def __call__(self, run: Callable[[sa.Connection], T], /) -> T: ...


class LeaseDesk:
    """Grants slabs to workers.

    Args:
        database_url: As for the service.
        spool_root: Holds one directory per worker.
        write: Runs a function in a transaction that may write, between two rounds of the loader.
        flush: Loads what lies in the spools.
        clock: Time.
        new_id: Makes ids of leases.
        redis: Connects to a Redis that helps on PostgreSQL; None for none.
        busy_s: How long to wait for another one's lock.
    """

    def __init__(
        self,
        database_url: str,
        spool_root: Path,
        *,
        write: _Write,
        flush: Callable[[], Awaitable[None]],
        clock: Clock,
        new_id: Callable[[], bytes],
        redis: Callable[[], Awaitable[Connection]] | None,
        busy_s: float,
    ) -> None:
        self._is_shared = is_postgresql(database_url)
        self._spool_root = spool_root
        self._write = write
        self._flush = flush
        self._clock = clock
        self._new_id = new_id
        self._renewed_s: dict[bytes, float] = {}
        self._has_answered = True  # before this start, perhaps
        self._pool: PoolDesk | None = None
        # A connection of its own, opened when needed: a claim waits for no round of the loader.
        self._claimer = writing_engine(database_url, busy_s=busy_s) if self._is_shared else None
        if redis is not None and self._is_shared:
            self._pool = PoolDesk(
                redis, identify=self._identify, claim=self._claim_leases, clock=clock
            )

    @property
    def pool_grants(self) -> int:
        """How many slabs came out of Redis."""
        return 0 if self._pool is None else self._pool.grants

    @property
    def pool_fault(self) -> str:
        """Why none do, empty while Redis helps or where there is none."""
        return "" if self._pool is None else self._pool.fault

    async def run(self) -> None:
        """Keep Redis, and take back what lies there for too long, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_swept)
            if self._pool is not None:
                tasks.start_soon(self._pool.run)

    async def close(self) -> None:
        """Close the connection to the database."""
        if self._claimer is not None:
            await self._claimer.dispose()

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        """Grant a worker what fits of what it wants.

        Where something does not fit, what lies in the spools is loaded first: an attempt that is
        over holds its upper bound until it is booked. Before a last try that was done already.

        Raises:
            LedgerError: The database did not answer; whether it granted is unknown.
        """
        pooled = await self._take_pooled(request)
        left = tuple([want for want in request.wants if _bucket(want) not in pooled])
        if pooled and not left:
            return LeaseReply(leases=tuple(pooled.values()))
        reply = await self._lease(msgspec.structs.replace(request, wants=left))
        return msgspec.structs.replace(reply, leases=(*pooled.values(), *reply.leases))

    async def _lease(self, request: LeaseRequest) -> LeaseReply:
        if request.is_last_try:
            return await self._grant(request, Part.LAST_TRY)
        reply = await self._grant(request, Part.FIRST)
        if not reply.shortages:
            return reply
        with anyio.move_on_after(LOAD_BEFORE_REFUSAL_S):
            await self._flush()
        short = {(state.budget_id, state.window_start_us) for state in reply.shortages}
        wants = tuple([want for want in request.wants if _bucket(want) in short])
        again = await self._grant(
            msgspec.structs.replace(request, wants=wants, returns={}, is_repeat=False), Part.AGAIN
        )
        return LeaseReply(
            leases=(*reply.leases, *again.leases),
            shortages=again.shortages,
            rules_revision=again.rules_revision,
        )

    async def _grant(self, request: LeaseRequest, part: Part) -> LeaseReply:
        request = msgspec.structs.replace(request, directory=self._named(request.directory))
        filling = Filling()
        if self._pool is not None:
            filling = Filling(hot=self._pool.hot(request.wants))

        def run(connection: sa.Connection) -> LeaseReply:
            now_us = self._clock.wall_us()
            answered = lease_answers.load(connection, request) if request.is_repeat else None
            if answered is not None:
                return answered
            reply = budget_leases.grant(
                connection, request, now_us=now_us, new_id=self._new_id, filling=filling
            )
            if reply.leases or request.returns:
                lease_answers.keep(
                    connection,
                    session=request.session,
                    number=request.number,
                    part=part,
                    reply=reply,
                    now_us=now_us,
                )
            return reply

        reply = await self._write(run)
        self._has_answered = True
        if self._pool is not None:
            self._note_renewed(request.session)
            self._pool.put(filling.made)
        return reply

    async def _take_pooled(self, request: LeaseRequest) -> dict[Bucket, Lease]:
        """What Redis has of what is wanted, by bucket; only for what the database need not see."""
        is_for_database = request.returns or request.is_last_try or request.is_repeat
        if self._pool is None or not request.wants or is_for_database:
            return {}
        renewed_s = self._renewed_s.get(request.session)
        if renewed_s is None or self._clock.monotonic_s() - renewed_s > RENEW_S:
            return {}
        return await self._pool.take(request, self._named(request.directory))

    async def _claim_leases(self, claims: Sequence[Claim]) -> dict[bytes, Lease]:
        assert self._claimer is not None, "where there is a pool, there is PostgreSQL"
        now_us = self._clock.wall_us()

        def run(connection: sa.Connection) -> dict[bytes, Lease]:
            until_us = budget_leases.lease_until_us(now_us)
            found = budget_pool.claim(connection, claims, now_us=now_us, expires_at_us=until_us)
            answers: dict[tuple[bytes, int | None, int], list[Lease]] = {}
            for one in claims:
                if one.lease_id in found:
                    asked = (one.session, one.number, -one.turn)
                    answers.setdefault(asked, []).append(found[one.lease_id])
            for (session, number, part), leases in answers.items():
                lease_answers.keep(
                    connection,
                    session=session,
                    number=number,
                    part=part,
                    reply=LeaseReply(leases=tuple(leases)),
                    now_us=now_us,
                )
            return found

        with explaining():
            return await write(self._claimer, run)

    async def _identify(self) -> str:
        """A name of this database, for keys in Redis."""
        return await self._write(
            lambda connection: facts.keep_fact(connection, "installation", secrets.token_hex(8))
        )

    async def _keep_swept(self) -> None:
        while True:
            await anyio.sleep(SWEEP_S)
            # Where others write too, their slabs are looked for also while nobody asks here.
            if not (self._is_shared or self._has_answered):
                continue
            try:
                await self.sweep()
            except LedgerError as error:
                _log.warning("unclaimed slabs of budgets wait for the next sweep: %s", error)

    async def sweep(self) -> int:
        """Take back what lay unclaimed for too long; how much that was, in picodollars.

        Answers that nobody asks for any more go, too.

        Raises:
            LedgerError: The database did not answer.
        """

        def run(connection: sa.Connection) -> int:
            now_us = self._clock.wall_us()
            lease_answers.forget(connection, now_us=now_us)
            return budget_pool.take_back(connection, budget_pool.past(now_us))

        self._has_answered = False
        return await self._write(run)

    async def take_back_unclaimed(self) -> None:
        """Free all slabs that lie in Redis: whoever goes leaves nothing reserved for nobody.

        Those that another machine put there go, too; it finds nothing, and reserves anew.

        Raises:
            LedgerError: The database did not answer; they go when their time is over.
        """
        if self._pool is not None:
            await self._write(lambda connection: budget_pool.take_back(connection, sa.true()))

    def _note_renewed(self, session: bytes) -> None:
        if len(self._renewed_s) >= SESSIONS_MAX:
            self._renewed_s.clear()
        self._renewed_s[session] = self._clock.monotonic_s()

    def _named(self, directory: str) -> str:
        """A worker's directory as the database knows it."""
        return node.make(self._spool_root) + directory if self._is_shared else directory


def _bucket(want: LeaseWant) -> Bucket:
    return want.budget_id, want.window_start_us
