"""Posts alerts to webhooks until they are taken, one after the other, beside everything else."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import aiohttp
import anyio
import sqlalchemy as sa

from gateway.budgets.messages import AlertWebhook
from gateway.clock import Clock
from gateway.ledger import budget_alerts
from gateway.ledger.budget_alerts import Delivery
from gateway.ledger.errors import LedgerError
from gateway.ledger.signed_post import POST_S, post_signed

_log = logging.getLogger(__name__)

T = TypeVar("T")
POLL_S = 1.0
_LOOK_MAX = 16
"""So many are posted before the next look."""

Transaction = Callable[[Callable[[sa.Connection], object]], Awaitable[object]]


class AlertSender:
    """Looks for alerts that are due while there is a webhook.

    Args:
        read: Runs a query.
        write: Runs a transaction that writes.
        clock: Time.
        poll_s: Time between two looks.
    """

    def __init__(
        self, read: Transaction, write: Transaction, *, clock: Clock, poll_s: float = POLL_S
    ) -> None:
        self._read = read
        self._write = write
        self._clock = clock
        self._poll_s = poll_s
        self._webhooks: dict[str, AlertWebhook] = {}
        self._has_webhooks = anyio.Event()

    def set_webhooks(self, webhooks: Sequence[AlertWebhook]) -> None:
        """Post to these from now on."""
        self._webhooks = {webhook.name: webhook for webhook in webhooks}
        if self._webhooks:
            self._has_webhooks.set()
        elif self._has_webhooks.is_set():
            self._has_webhooks = anyio.Event()

    async def run(self) -> None:
        """Post what is due until cancelled."""
        while True:
            await self._has_webhooks.wait()
            try:
                await self.send_due()
            except LedgerError as error:  # also what only an administrator can mend
                _log.warning("alerts wait: %s", error)
            await anyio.sleep(self._poll_s)

    async def send_due(self) -> int:
        """Post what is due now, one after the other; how many alerts that were.

        Each is taken when its turn comes: a slow webhook would let the time run out for which those
        behind it are taken, and another machine would post them, too.
        """
        # A transaction that has begun is finished: a driver that is cancelled in the middle of one
        # may keep its connection.
        is_any_due: object = False
        with anyio.CancelScope(shield=True):
            is_any_due = await self._read(self._are_due)
        if not is_any_due:
            return 0
        claimed: list[Delivery] = []

        def claim(connection: sa.Connection) -> None:
            now_us = self._clock.wall_us()
            claimed.extend(budget_alerts.claim_due(connection, now_us=now_us, count=1))

        timeout = aiohttp.ClientTimeout(total=POST_S)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            for count in range(_LOOK_MAX):
                await self._write(claim)
                if len(claimed) == count:
                    return count
                await self._send(session, claimed[-1])
        return len(claimed)

    def _are_due(self, connection: sa.Connection) -> bool:
        return budget_alerts.are_due(connection, now_us=self._clock.wall_us())

    async def _send(self, session: aiohttp.ClientSession, delivery: Delivery) -> None:
        webhook = self._webhooks.get(delivery.webhook)
        failure = "the webhook is not configured on this machine"
        if webhook is not None:
            failure = await self._post(session, webhook, delivery)
        if failure:
            _log.warning(
                "alert %d was not taken by webhook %s: %s",
                delivery.alert_id,
                delivery.webhook,
                failure,
            )

        def note(connection: sa.Connection) -> None:
            now_us = self._clock.wall_us()
            budget_alerts.note_posted(connection, delivery, failure, now_us=now_us)

        await self._write(note)

    async def _post(
        self, session: aiohttp.ClientSession, webhook: AlertWebhook, delivery: Delivery
    ) -> str:
        """Post one alert; why it was not taken, empty when it was."""
        return await post_signed(
            session,
            webhook,
            message_id=f"alert-{delivery.alert_id}",
            document=delivery.document,
            timestamp_s=self._clock.wall_us() // 1_000_000,
        )
