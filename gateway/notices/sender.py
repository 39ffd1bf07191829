"""Makes notices when they are due, and sends them until they are taken, beside everything else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, TypeVar

import aiohttp
import anyio
import anyio.to_thread
import sqlalchemy as sa
from jinja2 import Environment

from gateway.clock import Clock
from gateway.dashboard.templating import make_templates
from gateway.finance.errors import FinanceError
from gateway.ledger.errors import LedgerError
from gateway.ledger.signed_post import POST_S, post_signed
from gateway.notices import outbox, statements
from gateway.notices.anomalies import anomalies_of, yesterday
from gateway.notices.mail import make_message, send_mail
from gateway.notices.messages import (
    MAIL,
    WEBHOOK,
    NoticeDeclarations,
    SendStatement,
    SentNotice,
)
from gateway.notices.outbox import Parcel
from gateway.notices.statements import Wanted

_log = logging.getLogger(__name__)

T = TypeVar("T")
POLL_S = 30.0
_LOOK_MAX = 16
"""So many parcels are sent before the next look."""
MAIL_S = 120.0
"""A server that has not taken a message in this time is tried again later."""
_NOT_HERE = "is not configured on this machine"


class Ledger(Protocol):
    """What is needed of the ledger's service."""

    async def flush(self) -> None:
        """Load everything that was written before the call."""
        ...

    async def read_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Read on a connection of its own, in a thread."""
        ...

    async def write_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Write in one transaction on a connection of its own, in a thread."""
        ...


class NoticeSender:
    """Looks for what is due while anybody is to be told anything.

    Args:
        ledger: The database.
        clock: Time.
        poll_s: Time between two looks.
    """

    def __init__(self, ledger: Ledger, *, clock: Clock, poll_s: float = POLL_S) -> None:
        self._ledger = ledger
        self._clock = clock
        self._poll_s = poll_s
        self._declared = NoticeDeclarations()
        self._told = anyio.Event()
        self._made: set[tuple[str, str]] = set()
        self._watched = ""
        self._scope = anyio.CancelScope()

    def declare(self, declared: NoticeDeclarations) -> None:
        """Go by another configuration from now on."""
        self._declared = declared
        self._made.clear()  # a schedule may have other teams now
        if declared.schedules or declared.anomalies is not None:
            self._told.set()
        elif self._told.is_set():
            self._told = anyio.Event()

    def stop(self) -> None:
        """End `run`; what was under way is sent again later, under the same id."""
        self._scope.cancel()

    async def run(self) -> None:
        """Make and send what is due until stopped."""
        with self._scope:
            while True:
                await self._told.wait()
                try:
                    await self.look()
                except (LedgerError, FinanceError) as error:
                    _log.warning("notices wait: %s", error)
                await anyio.sleep(self._poll_s)

    async def look(self) -> int:
        """Make what is due, then send what is due; how many parcels that were."""
        await self._make_statements()
        await self._make_anomalies()
        return await self.send_due()

    async def send_statement(self, order: SendStatement) -> int:
        """Have a statement sent to its schedules' recipients; how many notices that makes.

        Raises:
            Refused: There is nobody to send it to, or it was sent before.
        """
        await self._ledger.flush()
        declared, now_us = self._declared, self._clock.wall_us()
        wanted = await self._ledger.read_apart(
            lambda connection: statements.statements_asked(
                connection, order, declared, self._templates, now_us=now_us
            )
        )
        return await self._keep(wanted)

    async def sent(self) -> tuple[SentNotice, ...]:
        """The newest notices and how far they got."""
        return await self._ledger.read_apart(outbox.sent)

    async def _make_statements(self) -> None:
        declared, now_us = self._declared, self._clock.wall_us()
        due = await self._ledger.write_apart(
            lambda connection: _seen_and_due(connection, declared, now_us)
        )
        left = [(one, period) for one, period in due if (one.name, period) not in self._made]
        if left:
            await self._ledger.flush()
        for schedule, period in left:
            wanted = await self._ledger.read_apart(
                lambda connection, schedule=schedule, period=period: statements.statements_due(
                    connection, schedule, period, declared, self._templates, now_us=now_us
                )
            )
            await self._keep(wanted)
            self._made.add((schedule.name, period))

    async def _make_anomalies(self) -> None:
        """Look once a day at the last whole one."""
        watch, now_us = self._declared.anomalies, self._clock.wall_us()
        day = yesterday(now_us)
        if watch is None or not watch.recipients or day == self._watched:
            return
        await self._ledger.flush()
        wanted = await self._ledger.read_apart(
            lambda connection: anomalies_of(connection, watch, day, now_us=now_us)
        )
        await self._keep(wanted)
        self._watched = day

    async def _keep(self, wanted: Sequence[Wanted]) -> int:
        def keep(connection: sa.Connection) -> int:
            made = [outbox.make(connection, one.notice, one.recipients) for one in wanted]
            return sum(made)

        return await self._ledger.write_apart(keep) if wanted else 0

    async def send_due(self) -> int:
        """Send what is due now, one after the other; how many parcels that were.

        Each is taken when its turn comes: a slow server would let the time run out for which those
        behind it are taken, and another machine would send them, too.
        """
        for count in range(_LOOK_MAX):
            now_us = self._clock.wall_us()
            if not await self._ledger.read_apart(
                lambda connection, now_us=now_us: outbox.are_due(connection, now_us=now_us)
            ):
                return count
            parcels = await self._ledger.write_apart(
                lambda connection, now_us=now_us: outbox.claim(connection, now_us=now_us, count=1)
            )
            if not parcels:
                return count  # another machine was faster
            await self._deliver(parcels[0])
        return _LOOK_MAX

    async def _deliver(self, parcel: Parcel) -> None:
        """Send one parcel, and write down how that went."""
        failure = await self._send(parcel)
        if failure:
            _log.warning(
                "notice %d was not taken by %s: %s",
                parcel.notice.notice_id,
                parcel.recipient,
                failure,
            )
        await self._ledger.write_apart(
            lambda connection: outbox.note(
                connection, parcel, failure, now_us=self._clock.wall_us()
            )
        )

    async def _send(self, parcel: Parcel) -> str:
        """Send one parcel; why it was not taken, empty when it was."""
        if parcel.recipient.startswith(MAIL):
            return await self._send_mail(parcel, parcel.recipient.removeprefix(MAIL))
        return await self._post(parcel, parcel.recipient.removeprefix(WEBHOOK))

    async def _send_mail(self, parcel: Parcel, address: str) -> str:
        server = self._declared.mail
        if server is None:
            return f"finance.mail {_NOT_HERE}"
        try:
            message = make_message(parcel.notice, sender=server.sender, recipient=address)
        except ValueError as error:
            return f"it makes no message: {error}"
        with anyio.move_on_after(MAIL_S):
            return await anyio.to_thread.run_sync(
                send_mail, server, message, abandon_on_cancel=True
            )
        return f"it was not taken within {MAIL_S:g} s"

    async def _post(self, parcel: Parcel, name: str) -> str:
        webhook = next((one for one in self._declared.webhooks if one.name == name), None)
        if webhook is None:
            return f"the webhook {_NOT_HERE}"
        files = [
            {"name": one.name, "media_type": one.media_type, "text": one.text}
            for one in parcel.notice.attachments
        ]
        timeout = aiohttp.ClientTimeout(total=POST_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            return await post_signed(
                session,
                webhook,
                message_id=f"notice-{parcel.notice.notice_id}",
                document={**parcel.notice.document, "attachments": files},
                timestamp_s=self._clock.wall_us() // 1_000_000,
            )

    @cached_property
    def _templates(self) -> Environment:
        return make_templates()


def _seen_and_due(
    connection: sa.Connection, declared: NoticeDeclarations, now_us: int
) -> list[tuple[statements.Schedule, str]]:
    statements.note_schedules(connection, declared.schedules, now_us=now_us)
    return statements.find_due(connection, declared.schedules, now_us=now_us)
