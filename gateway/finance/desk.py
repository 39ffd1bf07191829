"""The one place that answers what is asked of finance: by the ledger process, or by a command.

What reads much runs on a connection of its own in a thread, so that the process goes on answering;
what writes is short, except for the close of a month.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, assert_never

import anyio.to_thread
import msgspec
import sqlalchemy as sa

from gateway.clock import Clock
from gateway.finance import (
    adjustments,
    cell_rows,
    close,
    close_proposals,
    closed_months,
    commitments,
    imports,
    journal_books,
    once,
    previews,
    price_books,
    runs,
    statement_books,
    story,
)
from gateway.finance.approvers import has_other_approver
from gateway.finance.bill_messages import (
    ImportFile,
    ListImports,
    ListRuns,
    Reconcile,
    ShowRun,
)
from gateway.finance.close_messages import (
    CloseMonth,
    CloseStatus,
    ListCloses,
    ProposeClose,
    VerifyCloses,
    WithdrawClose,
)
from gateway.finance.commitment_messages import (
    ListCommitments,
    RecordCommitment,
    WithdrawCommitment,
)
from gateway.finance.errors import ProposalVoid, Refused, UnreadableSource
from gateway.finance.form_messages import (
    FILE_BYTES_MAX,
    FilePreview,
    ImportHeld,
    Once,
    PreviewFile,
    ShowCell,
    ShowForm,
    ShowProposal,
)
from gateway.finance.generation_messages import ListGenerations
from gateway.finance.held_files import HeldFiles
from gateway.finance.journal_messages import IssueJournal, ShowJournal
from gateway.finance.machines.messages import NoteMachines, ProposeMachines, ShowMachines
from gateway.finance.machines.recording import note_machines
from gateway.finance.machines.report import machines_report, propose_machines
from gateway.finance.messages import Decide, ListAdjustments, ListProposals, Proposal, Propose
from gateway.finance.price_messages import DecidePrice, ListPriceProposals
from gateway.finance.requests import FinanceRequest
from gateway.finance.statement_messages import ShowStatement
from gateway.finance.story_messages import ShowAnomalies, ShowBridge
from gateway.ledger.verify import Since, Verification

_Act = (
    ImportFile
    | Reconcile
    | Propose
    | Decide
    | IssueJournal
    | CloseMonth
    | ProposeClose
    | WithdrawClose
    | DecidePrice
)
"""What changes the books and may come by a form."""
T = TypeVar("T")


class Ledger(Protocol):
    """What is needed of the ledger's service."""

    async def flush(self) -> None:
        """Load everything that was written before the call."""
        ...

    async def verify(self) -> Verification:
        """Check the database and the spools."""
        ...

    async def verify_since(self, month: str) -> tuple[Verification, Since | None]:
        """Check what the last daily check does not speak for, as far as it matters to a month."""
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
        held: Uploads that wait for a decision; they outlive the desk.
        new_token: Makes 32 hexadecimal digits that nobody can guess.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Clock,
        held: HeldFiles | None = None,
        new_token: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._held = HeldFiles() if held is None else held
        self._new_token = new_token

    async def answer(self, request: FinanceRequest) -> object:
        """Do what is asked.

        Raises:
            FinanceError: It cannot be done; the sentence is for whoever asked.
            LedgerError: The database did not answer.
        """
        now_us = self._clock.wall_us()
        if isinstance(request, _Act):
            return await self._act(request, now_us, form=None)
        match request:
            case Once():
                return await self._once(request, now_us)
            case PreviewFile():
                return await self._preview(request, now_us)
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
            case ShowBridge():
                return await self._ledger.read_apart(
                    lambda connection: story.load_bridge(connection, request)
                )
            case ShowAnomalies():
                return await self._ledger.read_apart(
                    lambda connection: story.load_anomalies(connection, request)
                )
            case ShowStatement():
                return await self._ledger.read_apart(
                    lambda connection: statement_books.load_statement(
                        connection, request, now_us=now_us
                    )
                )
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
                closed = await self._ledger.read_apart(
                    lambda connection: close.closed_report(connection, request.month)
                )
                if closed is not None:
                    return closed  # there is nothing to be found out about the whole ledger
                books = await self._books_since(request.month)
                return await self._ledger.read_apart(
                    lambda connection: close.close_status(connection, request, books, now_us=now_us)
                )
            case _:
                return await self._ledger.read_apart(lambda connection: _read(connection, request))

    async def _once(self, form: Once, now_us: int) -> object:
        before = await self._ledger.read_apart(lambda connection: once.earlier(connection, form))
        if before is not None:
            return before
        act = form.act
        if not isinstance(act, ImportHeld):
            return await self._act(act, now_us, form=form)
        content = self._held.content(act.held, actor=act.order.actor, now_us=now_us)
        order = msgspec.structs.replace(act.order, content=content)
        done = await self._act(order, now_us, form=form)
        self._held.drop(act.held)
        return done

    async def _act(
        self,
        act: _Act,
        now_us: int,
        *,
        form: Once | None,
    ) -> object:
        """Do it in one write transaction; what takes long is read before."""
        run = await self._prepared(act, now_us)
        if form is not None:
            run = partial(once.once, order=form, act=run, now_us=now_us)
        try:
            return await self._ledger.write_apart(run)
        except ProposalVoid as error:
            # What was refused is rolled back; that the proposal holds no more is kept all the same.
            await self._ledger.write_apart(
                partial(close_proposals.note_void, refused=error, actor=act.actor, now_us=now_us)
            )
            raise

    async def _prepared(
        self,
        act: _Act,
        now_us: int,
    ) -> Callable[[sa.Connection], object]:
        match act:
            case ImportFile():
                return await self._prepared_import(act, now_us)
            case Reconcile():
                return await self._prepared_run(act, now_us)
            case CloseMonth():
                books = await self._books()
                return lambda connection: close.close_month(connection, act, books, now_us=now_us)
            case ProposeClose():
                books = await self._books()
                return partial(close.propose_close, order=act, books=books, now_us=now_us)
            case DecidePrice():
                return partial(price_books.decide_price, decision=act, now_us=now_us)
            case WithdrawClose():
                return partial(close_proposals.withdraw, order=act, now_us=now_us)
            case IssueJournal():
                return lambda connection: journal_books.issue_journal(
                    connection, act, now_us=now_us
                )
            case Propose():
                return lambda connection: adjustments.propose(connection, act, now_us=now_us)
            case Decide():
                return lambda connection: _decide(connection, act, now_us=now_us)

    async def _prepared_import(
        self, order: ImportFile, now_us: int
    ) -> Callable[[sa.Connection], object]:
        try:
            parsed = await anyio.to_thread.run_sync(imports.parse_import, order)
        except UnreadableSource as error:
            reason = str(error)
            await self._ledger.write_apart(
                lambda connection: imports.note_unreadable(connection, order, reason, now_us=now_us)
            )
            raise
        return lambda connection: imports.keep_import(connection, order, parsed, now_us=now_us)

    async def _prepared_run(
        self, order: Reconcile, now_us: int
    ) -> Callable[[sa.Connection], object]:
        await self._ledger.flush()
        prepared = await self._ledger.read_apart(
            lambda connection: runs.prepare(connection, order, now_us=now_us)
        )
        return lambda connection: runs.keep_run(connection, order, prepared, now_us=now_us)

    async def _preview(self, asked: PreviewFile, now_us: int) -> FilePreview:
        order, held = asked.order, asked.held
        if held:
            content = self._held.content(held, actor=order.actor, now_us=now_us)
            order = msgspec.structs.replace(order, content=content)
        elif len(order.content) > FILE_BYTES_MAX:
            raise Refused(f"{order.file_name} is over {FILE_BYTES_MAX // 1024**2} MiB")
        else:
            held = self._new_token()
            self._held.hold(held, order.content, actor=order.actor, now_us=now_us)
        preview, parsed = await anyio.to_thread.run_sync(previews.read_preview, order, held)
        if parsed is None:
            return preview
        return await self._ledger.read_apart(
            lambda connection: previews.with_books(connection, preview, order, parsed)
        )

    async def _books(self) -> close.Books:
        await self._ledger.flush()
        verification = await self._ledger.verify()
        # `flush` has loaded what was written before it; what came since is of this very moment.
        return close.Books(verification=verification, is_loaded=True)

    async def _books_since(self, month: str) -> close.Books:
        """What changed since the last daily check, for whoever only looks."""
        await self._ledger.flush()
        verification, since = await self._ledger.verify_since(month)
        return close.Books(verification=verification, is_loaded=True, since=since)


def _decide(connection: sa.Connection, request: Decide, *, now_us: int) -> Proposal:
    """Decide with what the books know of people, whatever the request says."""
    is_alone = not has_other_approver(connection, request.actor)
    decision = msgspec.structs.replace(request, is_alone=is_alone)
    return adjustments.decide(connection, decision, now_us=now_us)


def _read(
    connection: sa.Connection,
    query: ListImports
    | ListGenerations
    | ListPriceProposals
    | ListRuns
    | ShowRun
    | ListProposals
    | ListAdjustments
    | VerifyCloses
    | ListCloses
    | ShowJournal
    | ShowProposal
    | ShowCell
    | ShowForm,
) -> object:
    match query:
        case ListImports():
            return imports.imports(connection, query)
        case ListPriceProposals():
            return price_books.price_proposals(connection, query)
        case ListGenerations():
            return runs.list_generations(connection, query)
        case ListRuns():
            return runs.runs(connection, query)
        case ShowRun():
            return runs.show_run(connection, query)
        case ShowForm():
            return once.earlier(connection, query.sent)
        case ShowCell():
            return cell_rows.cell_rows(connection, query)
        case ListProposals():
            return adjustments.proposals(connection, query)
        case ShowProposal():
            return adjustments.proposal(connection, query.proposal_id)
        case ListAdjustments():
            return adjustments.adjustments(connection, query)
        case VerifyCloses():
            return closed_months.verify_closes(connection, query)
        case ListCloses():
            return closed_months.list_closes(connection, query)
        case ShowJournal():
            return journal_books.show_journal(connection, query)
    assert_never(query)
