"""What other machines change: heard of within a second, and known to be unknown when it is not.

Keys and budgets change in the database, by whatever machine's command. Each change raises a number
(`facts.raise_revision`) and, on PostgreSQL, notifies everybody who listens once it is committed. A
ledger process listens, and also reads the numbers twice a second on the same connection: that finds
what a notification that was lost would have told, and that the connection itself is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from gateway.channel import ChannelError
from gateway.clock import Clock
from gateway.ledger import facts, schema
from gateway.ledger.dialects import POSTGRESQL, text
from gateway.ledger.faults import explained
from gateway.ledger.postgres import Listener, Waits

_log = logging.getLogger(__name__)

POLL_S = 0.5
"""How often the revisions are read where no notification comes."""
ANSWER_S = 2.0
"""A server that does not answer in this time is asked on another connection."""
RETRY_MIN_S = 0.05
RETRY_MAX_S = 0.4
"""Pauses between two tries to connect: a server that is back is found within a second."""

_REVISIONS = text(
    sa.select(schema.meta.c.name, schema.meta.c.value)
    .where(schema.meta.c.name.in_([sa.literal_column(f"'{name}'") for name in facts.REVISIONS]))
    .order_by(schema.meta.c.name),
    POSTGRESQL,
)


class News:
    """Tells that keys or budgets have changed, whoever changed them.

    Args:
        database_url: `postgresql://…`.
        tell: Called after a change, and once at the beginning; raises `ChannelError` where it was
            not taken, and is called again then.
        clock: Time.
        poll_s: How often to look where no notification comes.
    """

    def __init__(
        self,
        database_url: str,
        tell: Callable[[], Awaitable[None]],
        *,
        clock: Clock,
        poll_s: float = POLL_S,
    ) -> None:
        self.fault = ""
        """Why changes of other machines are not heard of, empty while they are."""
        self._url = database_url
        self._tell = tell
        self._clock = clock
        self._poll_s = poll_s
        self._told: object = None
        self._known_s = clock.monotonic_s()

    @property
    def age_s(self) -> float:
        """Seconds since everything that was told was known to be the newest."""
        return self._clock.monotonic_s() - self._known_s

    async def run(self) -> None:
        """Listen until cancelled, on ever new connections."""
        pause_s = RETRY_MIN_S
        while True:
            known_s = self._known_s
            try:
                await self._follow()
            except SQLAlchemyError as error:
                self._note(str(explained(error)))
            except ChannelError as error:
                self._note(f"the supervisor did not take them: {error}")
            has_worked = self._known_s > known_s
            pause_s = RETRY_MIN_S if has_worked else min(2 * pause_s, RETRY_MAX_S)
            await anyio.sleep(pause_s)

    async def _follow(self) -> None:
        """Tell what changes for as long as one connection lasts.

        Raises:
            SQLAlchemyError: The connection is gone, or the server does not answer.
            ChannelError: What changed was not taken.
        """
        waits = Waits(statement_s=ANSWER_S, lock_s=ANSWER_S, is_read_only=True)
        async with aclosing(await Listener.open(self._url, waits)) as listener:
            await listener.listen(facts.CHANNEL)
            while True:
                began_s = self._clock.monotonic_s()
                revisions = await listener.fetch(_REVISIONS, timeout_s=ANSWER_S)
                if revisions != self._told:
                    await self._tell()
                    self._told = revisions
                self._known_s = began_s
                if self.fault:
                    _log.warning("keys and budgets of other machines are heard of again")
                    self.fault = ""
                with anyio.move_on_after(self._poll_s):
                    await listener.wait()

    def _note(self, fault: str) -> None:
        if not self.fault:
            _log.warning(
                "keys and budgets that other machines change are not heard of until this is over,"
                " also keys that are revoked there: %s",
                fault,
            )
        self.fault = fault
