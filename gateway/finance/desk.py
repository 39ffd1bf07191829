"""The one place that answers what is asked of finance: by the ledger process, or by a command.

What reads much runs on a connection of its own in a thread, so that the process goes on answering;
what writes is short, except for the close of a month.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, assert_never

import anyio.to_thread
import msgspec
import sqlalchemy as sa

from gateway.clock import Clock
from gateway.finance import adjustments, close, commitments, imports, journal_books, runs
from gateway.finance.approvers import has_other_approver
from gateway.finance.bill_messages import (
    ImportFile,
    ImportReply,
    ListImports,
    ListRuns,
    Reconcile,
    ReconciliationRun,
    ShowRun,
)
from gateway.finance.close_messages import CloseMonth, CloseStatus, VerifyCloses
from gateway.finance.commitment_messages import (
    ListCommitments,
    RecordCommitment,
    WithdrawCommitment,
)
from gateway.finance.errors import UnreadableSource
from gateway.finance.journal_messages import IssueJournal, ShowJournal
from gateway.finance.machines.messages import NoteMachines, ProposeMachines, ShowMachines
from gateway.finance.machines.recording import note_machines
from gateway.finance.machines.report import machines_report, propose_machines
from gateway.finance.messages import Decide, ListAdjustments, ListProposals, Proposal, Propose
from gateway.finance.requests import FinanceRequest
from gateway.ledger.verify import Verification

T = TypeVar("T")


class Ledger(Protocol):
    """What is needed of the ledger's service."""

    async def flush(self) -> None:
        """Load everything that was written before the call."""
        ...

    async def verify(self) -> Verification:
        """Check the database and the spools."""
        ...

    async def read_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Read on a connection of its own, in a thread."""
        ...

    async def write_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Write in one transaction on a connection of its own, in a thread."""
        ...


class FinanceDesk:
    """Answers requests.

    Args:
        ledger: The database.
        clock: Time.
    """

    def __init__(self, ledger: Ledger, *, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def answer(self, request: FinanceRequest) -> object:
        """Do what is asked.

        Raises:
            FinanceError: It cannot be done; the sentence is for whoever asked.
            LedgerError: The database did not answer.
        """
        now_us = self._clock.wall_us()
        match request:
            case ImportFile():
                return await self._import(request, now_us)
            case Reconcile():
                return await self._reconcile(request, now_us)
            case Propose():
                return await self._ledger.write_apart(
                    lambda connection: adjustments.propose(connection, request, now_us=now_us)
                )
            case Decide():
                return await self._ledger.write_apart(
                    lambda connection: _decide(connection, request, now_us=now_us)
                )
            case IssueJournal():
                return await self._ledger.write_apart(
                    lambda connection: journal_books.issue_journal(
                        connection, request, now_us=now_us
                    )
                )
            case RecordCommitment():
                return await self._ledger.write_apart(
                    lambda connection: commitments.record(connection, request, now_us=now_us)
                )
            case WithdrawCommitment():
                return await self._ledger.write_apart(
                    lambda connection: commitments.withdraw(connection, request, now_us=now_us)
                )
            case ListCommitments():
                return await self._ledger.read_apart(
                    lambda connection: commitments.standings(connection, now_us=now_us)
                )
            case CloseMonth():
                return await self._close(request, now_us)
            case NoteMachines():
                return await self._ledger.write_apart(
                    lambda connection: note_machines(connection, request, now_us=now_us)
                )
            case ShowMachines():
                await self._ledger.flush()
                return await self._ledger.read_apart(
                    lambda connection: machines_report(connection, request, now_us=now_us)
                )
            case ProposeMachines():
                await self._ledger.flush()
                return await self._ledger.write_apart(
                    lambda connection: propose_machines(connection, request, now_us=now_us)
                )
            case CloseStatus():
                books = await self._books()
                return await self._ledger.read_apart(
                    lambda connection: close.close_status(connection, request, books, now_us=now_us)
                )
            case _:
                return await self._ledger.read_apart(lambda connection: _read(connection, request))

    async def _import(self, order: ImportFile, now_us: int) -> ImportReply:
        try:
            parsed = await anyio.to_thread.run_sync(imports.parse_import, order)
        except UnreadableSource as error:
            reason = str(error)
            await self._ledger.write_apart(
                lambda connection: imports.note_unreadable(connection, order, reason, now_us=now_us)
            )
            raise
        return await self._ledger.write_apart(
            lambda connection: imports.keep_import(connection, order, parsed, now_us=now_us)
        )

    async def _reconcile(self, order: Reconcile, now_us: int) -> ReconciliationRun:
        await self._ledger.flush()
        prepared = await self._ledger.read_apart(
            lambda connection: runs.prepare(connection, order, now_us=now_us)
        )
        return await self._ledger.write_apart(
            lambda connection: runs.keep_run(connection, order, prepared, now_us=now_us)
        )

    async def _close(self, order: CloseMonth, now_us: int) -> close.CloseReport:
        books = await self._books()
        return await self._ledger.write_apart(
            lambda connection: close.close_month(connection, order, books, now_us=now_us)
        )

    async def _books(self) -> close.Books:
        await self._ledger.flush()
        verification = await self._ledger.verify()
        # `flush` has loaded what was written before it; what came since is of this very moment.
        return close.Books(verification=verification, is_loaded=True)


def _decide(connection: sa.Connection, request: Decide, *, now_us: int) -> Proposal:
    """Decide with what the books know of people, whatever the request says."""
    is_alone = not has_other_approver(connection, request.actor)
    decision = msgspec.structs.replace(request, is_alone=is_alone)
    return adjustments.decide(connection, decision, now_us=now_us)


def _read(
    connection: sa.Connection,
    query: ListImports
    | ListRuns
    | ShowRun
    | ListProposals
    | ListAdjustments
    | VerifyCloses
    | ShowJournal,
) -> object:
    match query:
        case ListImports():
            return imports.imports(connection, query)
        case ListRuns():
            return runs.runs(connection, query)
        case ShowRun():
            return runs.show_run(connection, query)
        case ListProposals():
            return adjustments.proposals(connection, query)
        case ListAdjustments():
            return adjustments.adjustments(connection, query)
        case VerifyCloses():
            return close.verify_closes(connection, query)
        case ShowJournal():
            return journal_books.show_journal(connection, query)
    assert_never(query)
