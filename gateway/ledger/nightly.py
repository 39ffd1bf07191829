"""The daily check: sums and chains of the days that were touched, while everything else goes on.

Once a day, some minutes after the hour that the settings name, one of the machines goes through
every day with new entries (`check_plan`), quarter by quarter (`day_checks`), then through the audit
chain and the digests of closed months of which a day was touched, or that did not hold before. Each
step is a short transaction that reads, and between two steps it rests as long as the last one took,
so it uses half a core at most. What it finds is kept, told by metrics, `doctor` and the log, and
posted to the webhooks. It never changes a sum: that is `fareway ledger verify --rebuild`.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.to_thread
import sqlalchemy as sa

from gateway.clock import Clock, from_microseconds
from gateway.ledger import budget_alerts, check_plan, day_checks, periods
from gateway.ledger.audit import ChainWalk
from gateway.ledger.check_plan import TOLD_MAX, CheckState, Findings
from gateway.ledger.database import Blocking, blocking_reader
from gateway.ledger.day_checks import HOUR_US, Uncharged
from gateway.ledger.errors import LedgerError
from gateway.ledger.faults import explaining
from gateway.ledger.grains import DAY_US, QUARTER_US
from gateway.ledger.month_digest import close_faults

_log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 300.0
"""How often to look whether a check is due."""
JITTER_S = (60.0, 1_800.0)
"""So long after the hour, or after the start: machines, and gateways, do not begin together."""
_RENEW_S = 60.0

Write = Callable[[Callable[[sa.Connection], object]], Awaitable[object]]


@dataclass(slots=True, kw_only=True)
class Nightly:
    """Makes the daily check of one machine.

    Attributes:
        database_url: Which database.
        write: Runs a short transaction that writes.
        clock: Time.
        hour: The hour of the day, in UTC; None for no check.
        rng: For the minutes after it.
        rest: Between two steps, as often as long as the step took.
        state: What is known of the last check, of whatever machine.
    """

    database_url: str
    write: Write
    clock: Clock
    hour: int | None
    rng: random.Random = field(default_factory=random.SystemRandom)
    rest: float = 1.0
    state: CheckState = field(default_factory=CheckState)
    _holder: str = field(default_factory=lambda: secrets.token_hex(8))

    async def run(self) -> None:
        """Make a check a day until cancelled."""
        if self.hour is None:
            return
        jitter_us = int(self.rng.uniform(*JITTER_S) * 1e6)
        started_us = self.clock.wall_us()
        while True:
            try:
                await self.look()
                due_us = self.due_from_us()
                now_us = self.clock.wall_us()
                if self.state.began_at_us < due_us and now_us >= (
                    max(due_us, started_us) + jitter_us
                ):
                    await self.check(due_from_us=due_us)
            except LedgerError as error:
                _log.warning("the daily check waits: %s", error)
            await anyio.sleep(LOOK_S)

    def due_from_us(self) -> int:
        """The last time that it was the hour: a check that began before is not the last one due."""
        assert self.hour is not None
        shift_us = self.hour * HOUR_US
        return (self.clock.wall_us() - shift_us) // DAY_US * DAY_US + shift_us

    async def look(self) -> None:
        """Learn how the last check went, whoever made it."""
        database = blocking_reader(self.database_url)
        try:
            self.state = await self._step(database, check_plan.load_state)
        finally:
            await anyio.to_thread.run_sync(database.dispose)

    async def check(self, *, due_from_us: int) -> bool:
        """Make a check that is due.

        Args:
            due_from_us: One that began since is this one.

        Returns:
            Whether it was made: not when another machine makes it, or has made it.

        Raises:
            DatabaseUnavailable: The database did not answer; it can be begun again.
        """
        days: tuple[int, ...] | None = None

        def claim(connection: sa.Connection) -> None:
            nonlocal days
            days = check_plan.claim(
                connection,
                now_us=self.clock.wall_us(),
                due_from_us=due_from_us,
                holder=self._holder,
            )

        await self.write(claim)
        if days is None:
            return False
        database = blocking_reader(self.database_url)
        try:
            found = await self._examine(database, days)
        finally:
            await anyio.to_thread.run_sync(database.dispose)
        return found is not None and await self._tell(found)

    async def _examine(self, database: Blocking, days: tuple[int, ...]) -> Findings | None:
        """Go through the days and the chains; None when somebody else has taken over."""
        told: list[str] = []
        faulty_days: list[int] = []
        count = 0
        renewed_s = self.clock.monotonic_s()
        for day_us in days:
            sums, others = await self._examine_day(database, day_us)
            if sums:
                faulty_days.append(day_us)
            count += len(sums) + len(others)
            told += [*sums, *others][: TOLD_MAX - len(told)]
            if self.clock.monotonic_s() - renewed_s >= _RENEW_S:
                if not await self._renew():
                    return None
                renewed_s = self.clock.monotonic_s()
        chains = await self._audit_faults(database)
        faulty_months: list[str] = []
        before = await self._step(database, check_plan.load_state)
        for month in sorted({*map(periods.month_of, days), *before.faulty_months}):
            if closed := await self._step(database, _close_faults, month):
                faulty_months.append(month)
                chains += closed
        told += chains[: TOLD_MAX - len(told)]
        return Findings(
            days=len(days),
            count=count + len(chains),
            told=tuple(told),
            faulty_days=tuple(faulty_days),
            faulty_months=tuple(faulty_months),
        )

    async def _examine_day(self, database: Blocking, day_us: int) -> tuple[list[str], list[str]]:
        """What is wrong with the sums of a day, and what was counted and not charged."""
        sums: list[str] = []
        uncharged: dict[tuple[str, str, bool], Uncharged] = {}
        for start_us in await self._step(database, day_checks.quarters_in_use, day_us):
            sums += await self._step(database, day_checks.quarter_faults, start_us)
            end_us = start_us + QUARTER_US
            for one in await self._step(database, day_checks.uncharged, start_us, end_us):
                _add(uncharged, one)
        sums += await self._step(database, day_checks.day_faults, day_us)
        day = from_microseconds(day_us).date()
        return sums, [f"on {day} {one}" for one in uncharged.values()]

    async def _audit_faults(self, database: Blocking) -> list[str]:
        walk = ChainWalk()
        faults: list[str] = []
        while not walk.is_at_end:
            faults += await self._step(database, walk.page)
        return faults

    async def _step(self, database: Blocking, read: Callable[..., T], *arguments: object) -> T:
        """Read in a transaction of its own, in a thread, then rest as long."""

        def run() -> T:
            with explaining(), database.engine.begin() as connection:
                return read(connection, *arguments)

        began_s = self.clock.monotonic_s()
        found = await anyio.to_thread.run_sync(database.run, run)
        await anyio.sleep(self.rest * (self.clock.monotonic_s() - began_s))
        return found

    async def _renew(self) -> bool:
        is_ours = False

        def renew(connection: sa.Connection) -> None:
            nonlocal is_ours
            now_us = self.clock.wall_us()
            is_ours = check_plan.renew(connection, now_us=now_us, holder=self._holder)

        await self.write(renew)
        return is_ours

    async def _tell(self, found: Findings) -> bool:
        """Keep what was found, and have the webhooks told of it in the same transaction."""
        is_ours = False

        def finish(connection: sa.Connection) -> None:
            nonlocal is_ours
            now_us = self.clock.wall_us()
            is_ours = check_plan.finish(connection, found, now_us=now_us, holder=self._holder)
            if is_ours and found.count:
                budget_alerts.tell(connection, document(found, now_us=now_us), now_us=now_us)

        await self.write(finish)
        if is_ours:
            await self.look()
            for sentence in found.told:
                _log.error("daily check: %s", sentence)
            _log.info("daily check of %d days: %d findings", found.days, found.count)
        return is_ours


def document(found: Findings, *, now_us: int) -> dict[str, object]:
    """What a webhook is told of a check that found something; no content, no key."""
    return {
        "type": "ledger.check",
        "findings": found.count,
        "first": list(found.told),
        "days": [from_microseconds(day_us).date().isoformat() for day_us in found.faulty_days],
        "mend": "fareway ledger verify tells all of it; sums are mended by its --rebuild",
        "at": from_microseconds(now_us).isoformat(),
    }


def _close_faults(connection: sa.Connection, month: str) -> list[str]:
    return [*close_faults(connection, only={month})]


def _add(known: dict[tuple[str, str, bool], Uncharged], one: Uncharged) -> None:
    key = (one.deployment, one.price_version, one.is_unpriced)
    before = known.get(key)
    known[key] = Uncharged(
        deployment=one.deployment,
        price_version=one.price_version,
        is_unpriced=one.is_unpriced,
        attempts=one.attempts + (before.attempts if before else 0),
        units=one.units + (before.units if before else 0),
    )
