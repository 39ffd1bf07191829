"""The ledger process's work, without its process: loading, keys, budgets, reports, checks."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.access.passwords import PasswordCost
from gateway.auth.directory import KeyRecord
from gateway.budgets.messages import (
    BudgetChange,
    BudgetDeclarations,
    BudgetReport,
    BudgetRules,
    BudgetState,
    ExpiredLeases,
    LeaseReply,
    LeaseRequest,
    LeaseWriteOff,
)
from gateway.clock import Clock, uuid7_maker
from gateway.forms import FormSent
from gateway.ledger import attempts, budgets, expired_leases, keys, migrate, partitions, rebuild
from gateway.ledger.alert_sender import AlertSender
from gateway.ledger.attempt_views import Attempt, AttemptPage, AttemptQuery, RequestQuery
from gateway.ledger.database import BUSY_S, is_postgresql, reading_engine, write, writing_engine
from gateway.ledger.errors import LedgerError
from gateway.ledger.faults import explaining
from gateway.ledger.forms import once
from gateway.ledger.lease_desk import LeaseDesk
from gateway.ledger.loader import Loader
from gateway.ledger.news import News
from gateway.ledger.nightly import Nightly
from gateway.ledger.people_desk import PeopleDesk
from gateway.ledger.rebuild import RebuiltDay
from gateway.ledger.recent import recent_requests
from gateway.ledger.report_corrections import answer_spend_query
from gateway.ledger.rounds import LoaderLimits, LoaderStats
from gateway.ledger.tag_sums import list_cost_tags
from gateway.ledger.verify import Since, Verification, verify, verify_since
from gateway.ledger.views import RecentRequest, SpendQuery, SpendReport, StoredKey
from gateway.limits.shared import Connection

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_log = logging.getLogger(__name__)

MAINTAIN_S = 3_600.0
MAINTAIN_RETRY_S = 60.0


class LedgerService:
    """Owns the database: the one place that writes it while the gateway runs.

    Args:
        database_url: `sqlite:///path`, or `postgresql://user:password@host/database`.
        spool_root: Holds one directory per worker.
        clock: Time for keys and expiry.
        limits: Sizes and intervals of the loader.
        busy_s: How long to wait for another process's lock on the database.
        rng: For ids of leases.
        keep_events_months: As `retention.events_months`.
        cost_tags: Those that have sums of their own; None leaves that as it is.
        check_hour: As `storage.check_hour`.
        password_cost: What a password's hash costs; that of `PasswordCost` when None.
        redis: Connects to a Redis that helps with budgets, on PostgreSQL only; None for none.
        on_news: Called after keys or budgets have changed, by whatever machine, where several can;
            raises `ChannelError` where that was not taken, and is called again then.
    """

    def __init__(
        self,
        database_url: str,
        spool_root: Path,
        *,
        clock: Clock,
        limits: LoaderLimits | None = None,
        busy_s: float = BUSY_S,
        rng: random.Random | None = None,
        keep_events_months: int | None = None,
        cost_tags: tuple[str, ...] | None = None,
        check_hour: int | None = None,
        password_cost: PasswordCost | None = None,
        redis: Callable[[], Awaitable[Connection]] | None = None,
        on_news: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._url = database_url
        self._spool_root = spool_root
        self._clock = clock
        self._keep_events_months = keep_events_months
        self._writer: AsyncEngine = writing_engine(database_url, busy_s=busy_s)
        self._reader: AsyncEngine = reading_engine(database_url, busy_s=busy_s)
        self._loader = Loader(self._writer, spool_root, clock=clock, limits=limits)
        self._alerts = AlertSender(self._read, self._write, clock=clock)
        self._cost_tags = cost_tags
        self.nightly = Nightly(
            database_url=database_url, write=self._write, clock=clock, hour=check_hour
        )
        """The daily check."""
        self._leases = LeaseDesk(
            database_url,
            spool_root,
            write=self._write,
            flush=self._loader.flush,
            clock=clock,
            new_id=uuid7_maker(clock, rng or random.SystemRandom()),
            redis=redis,
            busy_s=busy_s,
        )
        self._news: News | None = None
        if on_news is not None and is_postgresql(database_url):
            self._news = News(database_url, on_news, clock=clock)
        self._stopped = anyio.Event()
        self._stopped.set()
        self.people = PeopleDesk(
            read=self._read,
            write=self._write,
            clock=clock,
            random_bytes=secrets.token_bytes,
            cost=password_cost or PasswordCost(),
        )
        """Logging in, and everything about people."""

    async def start(self) -> None:
        """Bring the schema up to date.

        Raises:
            DatabaseUnavailable: Another process held the database too long.
        """
        await anyio.to_thread.run_sync(migrate.upgrade, self._url)

    async def run(self) -> None:
        """Load spools until `stop`; to be run in a task group of the process."""
        self._stopped = anyio.Event()
        try:
            await self._list_cost_tags()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._alerts.run)
                tasks.start_soon(self._maintain)
                tasks.start_soon(self.nightly.run)
                tasks.start_soon(self._leases.run)
                if self._news is not None:
                    tasks.start_soon(self._news.run)
                await self._loader.run()
                tasks.cancel_scope.cancel()
        finally:
            self._stopped.set()

    async def _maintain(self) -> None:
        """Make and drop months of events from time to time, where the database has any."""
        while is_postgresql(self._url):
            wait_s = MAINTAIN_S
            try:
                await self.maintain()
            except LedgerError as error:
                _log.warning("months of events: trying again in %d s: %s", MAINTAIN_RETRY_S, error)
                wait_s = MAINTAIN_RETRY_S
            await anyio.sleep(wait_s)

    async def maintain(self) -> tuple[str, ...]:
        """Make the months of events that come next, and drop those past their time.

        Returns:
            The months that were dropped, `YYYY-MM`.

        Raises:
            DatabaseUnavailable: The database did not answer, or readers kept it too long.
        """

        def run(connection: sa.Connection) -> tuple[str, ...]:
            now_us = self._clock.wall_us()
            return partitions.maintain(
                connection, now_us=now_us, keep_months=self._keep_events_months
            )

        return await self._write(run)

    async def _list_cost_tags(self) -> None:
        """Give the cost tags of the configuration sums of their own, made from all events."""
        names = self._cost_tags
        if names is None:
            return
        try:
            await self._write(lambda connection: list_cost_tags(connection, names))
        except LedgerError as error:
            # The sums stay right for the names that had some; another one waits for the next start.
            _log.warning("finance.cost_tags waits for the next start: %s", error)

    async def set_cost_tags(self, names: tuple[str, ...]) -> None:
        """Give these cost tags sums of their own from now on, made from all events."""
        if names != self._cost_tags:
            self._cost_tags = names
            await self._list_cost_tags()

    async def stop(self, *, drain: bool) -> None:
        """End `run` and close the database.

        Args:
            drain: Load first what the spools hold, and free what is reserved for nobody. Without
                it, or when the database does not take it, the records stay in the spools for the
                next start.
        """
        try:
            if drain:
                await self._loader.flush()
                await self._leases.take_back_unclaimed()
        finally:
            self._loader.stop()
            with anyio.CancelScope(shield=True):
                await self._stopped.wait()
                await self._writer.dispose()
                await self._reader.dispose()
                await self._leases.close()

    async def flush(self) -> None:
        """Load everything that was written before the call.

        Raises:
            DatabaseUnavailable: The database did not take it; nothing is lost.
        """
        await self._loader.flush()

    def stats(self) -> LoaderStats:
        """What was loaded and waits, how the last check went, whether others are heard of."""
        stats, checked = self._loader.stats, self.nightly.state
        stats.checked_at_s = checked.finished_at_us // 1_000_000
        stats.check_findings = checked.findings
        if self._news is not None:
            stats.news_age_ms = round(self._news.age_s * 1_000)
            stats.news_fault = self._news.fault
        stats.pool_grants, stats.pool_fault = self._leases.pool_grants, self._leases.pool_fault
        return stats

    async def create_key(
        self, record: KeyRecord, *, actor: str, owner: str = "", form: FormSent | None = None
    ) -> int:
        """Add a key; returns the new revision of the key directory.

        Raises:
            KeyConflict: The id exists, or the team has a key of that name in use.
            BadQuery: The form asked for another key when it was sent before.
        """

        def create(connection: sa.Connection) -> int:
            now_us = self._clock.wall_us()

            def act() -> str:
                keys.create_key(connection, record, actor=actor, owner=owner, now_us=now_us)
                return record.key_id

            once(connection, form, act, actor=actor, now_us=now_us)
            return keys.load_all_keys(connection)[0]

        return await self._write(create)

    async def revoke_key(self, key_id: str, *, actor: str, at_us: int | None = None) -> int:
        """Make a key void, at once or from an instant on; returns the directory's new revision.

        Raises:
            UnknownKey: No key of that id was made here.
        """

        def revoke(connection: sa.Connection) -> int:
            now_us = self._clock.wall_us()
            if at_us is not None and at_us > now_us:
                keys.expire_key(connection, key_id, at_us, actor=actor, now_us=now_us)
            else:
                keys.revoke_key(connection, key_id, actor=actor, now_us=now_us)
            return keys.load_all_keys(connection)[0]

        return await self._write(revoke)

    async def list_keys(self) -> tuple[StoredKey, ...]:
        """Every key made here, revoked ones included."""
        return await self._read(keys.list_keys)

    async def load_all_keys(self) -> tuple[int, tuple[KeyRecord, ...]]:
        """The revision of the key directory and every record."""
        return await self._read(keys.load_all_keys)

    async def set_budgets(self, declarations: BudgetDeclarations) -> BudgetRules:
        """Make the configuration's budgets those that it names; returns every budget in force.

        Raises:
            BudgetConflict: One has the name of a budget that was set by hand.
            BudgetTooLarge: The database cannot hold such a limit.
        """

        def declare(connection: sa.Connection) -> BudgetRules:
            return budgets.declare(connection, declarations, now_us=self._clock.wall_us())

        rules = await self._write(declare)
        self._alerts.set_webhooks(declarations.webhooks)
        return rules

    async def change_budget(self, change: BudgetChange) -> BudgetRules:
        """Set a budget by hand or take it away; returns every budget in force from then on.

        Raises:
            BudgetConflict: The configuration file declares one of that name.
            BudgetTooLarge: The database cannot hold such a limit.
            UnknownBudget: There is none to take away.
        """

        def run(connection: sa.Connection) -> BudgetRules:
            now_us = self._clock.wall_us()
            return budgets.change(connection, change, now_us=now_us)

        return await self._write(run)

    async def budget_rules(self) -> BudgetRules:
        """Every budget in force."""
        return await self._read(budgets.load_rules)

    async def lease_budgets(self, request: LeaseRequest) -> LeaseReply:
        """Grant a worker what fits of what it wants."""
        return await self._leases.lease(request)

    async def expired_leases(self) -> tuple[ExpiredLeases, ...]:
        """What is reserved for workers that were not heard of for long."""

        def load(connection: sa.Connection) -> tuple[ExpiredLeases, ...]:
            return expired_leases.load_expired(connection, now_us=self._clock.wall_us())

        return await self._read(load)

    async def write_off_leases(self, order: LeaseWriteOff) -> tuple[ExpiredLeases, ...]:
        """Let go of what is reserved for one of them; what that was.

        Raises:
            UnknownLease: It has nothing that has expired.
        """

        def run(connection: sa.Connection) -> tuple[ExpiredLeases, ...]:
            return expired_leases.write_off(connection, order, now_us=self._clock.wall_us())

        return await self._write(run)

    async def budget_reports(self) -> tuple[BudgetReport, ...]:
        """Every budget in force with its present window, from the widest to the narrowest."""

        def load(connection: sa.Connection) -> tuple[BudgetReport, ...]:
            return budgets.load_reports(connection, now_us=self._clock.wall_us())

        return await self._read(load)

    async def budget_states(self) -> list[BudgetState]:
        """Where the present window of every budget in force stands."""
        return [report.state for report in await self.budget_reports()]

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sum what is loaded; `flush` first for what was written a moment ago.

        Raises:
            BadQuery: The query has no meaning.
        """
        return await self._read(answer_spend_query, query)

    async def recent_requests(
        self, count: int, team: str | None = None, teams: Sequence[str] | None = None
    ) -> tuple[RecentRequest, ...]:
        """The newest requests, newest first; of one team or of some when these are given."""
        return await self._read(recent_requests, count, team, teams)

    async def load_attempts(self, query: AttemptQuery) -> AttemptPage:
        """A page of single attempts, newest first.

        Raises:
            BadQuery: A filter has no meaning.
        """
        return await self._read(attempts.load_attempts, query)

    async def load_request(self, query: RequestQuery) -> tuple[Attempt, ...]:
        """Every booked attempt of a request; none where it may not be seen."""
        return await self._read(attempts.load_request, query)

    async def verify(self) -> Verification:
        """Check the database and the spools."""
        return await self._read(verify, self._spool_root)

    async def verify_since(self, month: str) -> tuple[Verification, Since | None]:
        """Check what the last daily check does not speak for; see `verify.verify_since`."""
        now_us = self._clock.wall_us()
        return await self.read_apart(
            lambda connection: verify_since(connection, self._spool_root, month, now_us=now_us)
        )

    async def rebuild_sums(self, *, actor: str) -> tuple[RebuiltDay, ...]:
        """Make the sums anew of every day on which they are not those of the events.

        Each day is a transaction, during which nothing is loaded, and a line in the audit log.

        Raises:
            DatabaseUnavailable: The database did not answer; days that are done stay done.
        """
        now_us = self._clock.wall_us()
        done: list[RebuiltDay] = []
        for day_us in await self.read_apart(partial(rebuild.days_of, now_us=now_us)):
            if await self.read_apart(partial(rebuild.is_wrong, day_us=day_us)):
                mend = partial(rebuild.rebuild_day, day_us=day_us, actor=actor, now_us=now_us)
                done.append(await self.write_apart(mend))
        return tuple(done)

    async def read_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Read on a connection of its own, in a thread: for what takes long."""
        return await anyio.to_thread.run_sync(self._run_apart, reading_engine, run)

    async def write_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Write in one transaction on a connection of its own, in a thread.

        Nothing is loaded meanwhile; what takes long should be read before.
        """
        async with self._loader.turn:
            return await anyio.to_thread.run_sync(self._run_apart, writing_engine, run)

    def _run_apart(
        self, make_engine: Callable[[str], AsyncEngine], run: Callable[[sa.Connection], T]
    ) -> T:
        async def run_once() -> T:
            engine = make_engine(self._url)
            try:
                async with engine.begin() as connection:
                    return await connection.run_sync(run)
            finally:
                await engine.dispose()

        with explaining():
            return anyio.run(run_once)

    async def _write(self, run: Callable[[sa.Connection], T]) -> T:
        with explaining():
            # Between two rounds of the loader, which would hold the database's lock.
            async with self._loader.turn:
                return await write(self._writer, run)

    async def _read(self, run: Callable[[sa.Connection, *Ts], T], *arguments: *Ts) -> T:
        with explaining():
            async with self._reader.begin() as connection:
                return await connection.run_sync(run, *arguments)
