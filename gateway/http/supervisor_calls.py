"""What pages ask of the supervisor and, through it, of the ledger process.

A refusal of the other side becomes one of our errors here, and only here: it travels as code and
sentence, and the code decides.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TypeVar

import anyio

from gateway import errors
from gateway.budgets.messages import (
    BudgetChange,
    BudgetReport,
    BudgetRules,
    ExpiredLeases,
    LeaseWriteOff,
)
from gateway.channel import CallTimeout, Channel, ChannelError, RemoteError
from gateway.finance.focus.order import ExportRequest
from gateway.finance.requests import FinanceRequest
from gateway.ledger.attempt_views import Attempt, AttemptPage, AttemptQuery, RequestQuery
from gateway.ledger.views import (
    KeyCreation,
    KeyRevocation,
    RecentQuery,
    RecentRequest,
    SpendQuery,
    SpendReport,
    StoredKey,
)

T = TypeVar("T")

READ_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 40.0
"""Longer than the supervisor waits for the ledger and for every worker."""
EXPORT_TIMEOUT_S = 120.0
"""For one piece: the sums of a charge period."""
EXPORT_CLOSE_S = 5.0
FINANCE_TIMEOUT_S = 605.0
"""Longer than the supervisor waits for a comparison of a month."""
FLUSH_TIMEOUT_S = 2.0
RETRY_AFTER_S = 2.0

_REFUSALS: Mapping[str, type[errors.GatewayError]] = {
    "bad_person": errors.InvalidField,
    "bad_query": errors.InvalidField,
    "budget_conflict": errors.BudgetConflict,
    "budget_too_large": errors.InvalidField,
    "finance_conflict": errors.FinanceConflict,
    "finance_not_found": errors.FinanceNotFound,
    "finance_unreadable": errors.InvalidField,
    "key_conflict": errors.KeyConflict,
    "unknown_budget": errors.BudgetNotFound,
    "person_conflict": errors.PersonConflict,
    "unknown_key": errors.KeyNotFound,
    "unknown_lease": errors.ReservationNotFound,
    "unknown_person": errors.PersonNotFound,
}
"""Codes that are the caller's matter; with any other one the ledger process is not there."""


class SupervisorCalls:
    """Typed calls on the supervisor.

    Every method raises `LedgerUnavailable` when there is no answer.

    Args:
        channel: To the supervisor, None outside a worker.
    """

    def __init__(self, channel: Channel | None) -> None:
        self._channel = channel

    async def ask(
        self, name: str, params: object, result_type: type[T], *, timeout_s: float = READ_TIMEOUT_S
    ) -> T:
        """Call a method that has no method of its own here.

        Raises:
            GatewayError: The other side refused.
        """
        return await self._call(name, params, result_type, timeout_s=timeout_s)

    async def status(self) -> Mapping[str, object]:
        """The running gateway's address, processes and engines."""
        return await self._call("status", None, dict[str, object])

    async def loader(self) -> Mapping[str, object]:
        """What the ledger loaded since it started, and what waits."""
        return await self._call("stats", None, dict[str, object])

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded.

        Raises:
            InvalidField: The query has no meaning.
        """
        return await self._call("spend_report", query, SpendReport)

    async def export_pieces(self, request: ExportRequest) -> AsyncGenerator[bytes]:
        """An export as pieces of CSV, each asked for when the one before it is taken.

        Closing the generator ends the export.

        Raises:
            InvalidField: The order has no meaning.
        """
        number = await self._call("export_open", request, int)
        try:
            while piece := await self._call(
                "export_next", number, bytes, timeout_s=EXPORT_TIMEOUT_S
            ):
                yield piece
        finally:
            with anyio.move_on_after(EXPORT_CLOSE_S, shield=True):
                await self._call("export_close", number, type(None))

    async def recent_requests(self, query: RecentQuery) -> list[RecentRequest]:
        """The newest requests, newest first."""
        return await self._call("recent_requests", query, list[RecentRequest])

    async def load_attempts(self, query: AttemptQuery) -> AttemptPage:
        """A page of single attempts, newest first.

        Raises:
            InvalidField: A filter has no meaning.
        """
        return await self._call("load_attempts", query, AttemptPage)

    async def load_request(self, query: RequestQuery) -> list[Attempt]:
        """Every booked attempt of a request; none where it may not be seen."""
        return await self._call("load_request", query, list[Attempt])

    async def list_keys(self) -> list[StoredKey]:
        """Every key of the database, revoked ones included."""
        return await self._call("list_keys", None, list[StoredKey])

    async def budget_reports(self) -> list[BudgetReport]:
        """Every budget in force, and where its present window stands."""
        return await self._call("budget_reports", None, list[BudgetReport])

    async def change_budget(self, change: BudgetChange) -> None:
        """Set a budget or take it away; when this returns every worker goes by it.

        Raises:
            BudgetConflict: The configuration file declares one of that name.
            BudgetNotFound: There is none to take away.
            InvalidField: The database cannot hold such a limit.
        """
        await self._call("change_budget", change, BudgetRules, timeout_s=WRITE_TIMEOUT_S)

    async def expired_leases(self) -> list[ExpiredLeases]:
        """What is reserved for workers that were not heard of for long."""
        return await self._call("expired_leases", None, list[ExpiredLeases])

    async def write_off_leases(self, order: LeaseWriteOff) -> list[ExpiredLeases]:
        """Let go of what is reserved for one of them; what that was.

        Raises:
            ReservationNotFound: Nothing of it has expired.
        """
        return await self._call(
            "write_off_leases", order, list[ExpiredLeases], timeout_s=WRITE_TIMEOUT_S
        )

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer; plain values, as they travel.

        Raises:
            FinanceConflict: The books do not allow it now.
            FinanceNotFound: It names what does not exist.
            InvalidField: A file cannot be read.
        """
        return await self._call("finance", request, object, timeout_s=FINANCE_TIMEOUT_S)

    async def create_key(self, creation: KeyCreation) -> None:
        """Add a key; when this returns every worker takes it.

        Raises:
            KeyConflict: The team has a key of that name in use.
        """
        await self._call("create_key", creation, type(None), timeout_s=WRITE_TIMEOUT_S)

    async def revoke_key(self, revocation: KeyRevocation) -> None:
        """Make a key void; when this returns no worker takes it.

        Raises:
            KeyNotFound: No key of that id was made here.
        """
        await self._call("revoke_key", revocation, type(None), timeout_s=WRITE_TIMEOUT_S)

    async def catch_up(self) -> bool:
        """Have the ledger load what was written up to now; False when it is behind."""
        if self._channel is None:
            return False
        try:
            await self._channel.call(
                "flush", None, result_type=type(None), timeout_s=FLUSH_TIMEOUT_S
            )
        except (CallTimeout, RemoteError):
            return False  # what is loaded can still be told, with the remark that it is not all
        except ChannelError as error:
            raise _away(str(error)) from error
        return True

    async def _call(
        self, name: str, params: object, result_type: type[T], *, timeout_s: float = READ_TIMEOUT_S
    ) -> T:
        if self._channel is None:
            raise _away("this process has no supervisor")
        try:
            return await self._channel.call(
                name, params, result_type=result_type, timeout_s=timeout_s
            )
        except RemoteError as error:
            refusal = _REFUSALS.get(error.code)
            if refusal is None:
                raise _away(error.message) from error
            raise refusal(error.message) from error
        except ChannelError as error:
            raise _away(str(error)) from error


def _away(reason: str) -> errors.LedgerUnavailable:
    return errors.LedgerUnavailable(
        f"the ledger process does not answer ({reason}); no recorded request is lost, try again",
        retry_after_s=RETRY_AFTER_S,
    )
