"""The journal of a closed month on its page: whether it was issued, and what may be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import anyio.to_thread

from gateway.dashboard.books.frame import Books, FieldFaults, instant, spoken
from gateway.dashboard.finance.amounts import Shown, shown
from gateway.errors import CallerFault
from gateway.finance.errors import FinanceError
from gateway.finance.journal_messages import (
    IssueJournal,
    JournalDocument,
    JournalPosting,
    ShowJournal,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalShown:
    """A month's journal on a page.

    Attributes:
        reason: Why there is none and none can be issued; empty where one can, or was.
        number: Of the document, or of the draft of what would be issued.
        is_issued: Whether it was.
        is_current: Whether the configuration of now gives the same lines.
        lines: How many, digits grouped.
        total: Of either side, with its currency.
        booked: What it is of, before rounding and conversion, in dollars.
        issued_at: UTC, empty of a draft.
        issued_by: By name, empty of a draft.
        digest: Of the document.
        csv: Where it is downloaded, empty of a draft.
    """

    reason: str = ""
    number: str = ""
    is_issued: bool = False
    is_current: bool = True
    lines: str = ""
    total: str = ""
    booked: Shown | None = None
    issued_at: str = ""
    issued_by: str = ""
    digest: str = ""
    csv: str = ""


async def journal_shown(books: Books, month: str, names: Mapping[str, str]) -> JournalShown:
    """What the page of a closed month says of its journal.

    Args:
        books: What the pages share.
        month: `YYYY-MM`.
        names: Names of people by how the audit log names them.

    Raises:
        LedgerUnavailable: Nobody answers.
    """
    try:
        posting = await _posting(books, month)
    except FinanceError as error:
        return JournalShown(reason=str(error))
    try:
        found = await _ask(books, ShowJournal(month=month, posting=posting))
    except CallerFault:  # none was issued
        try:
            found = await _ask(books, ShowJournal(month=month, posting=posting, is_draft=True))
        except CallerFault as error:
            return JournalShown(reason=error.message)
    path = f"/admin/v1/finance/months/{month}/journal?{urlencode({'format': 'csv'})}"
    return JournalShown(
        number=found.number,
        is_issued=not found.is_draft,
        is_current=found.is_current,
        lines=f"{len(found.lines):,}",
        total=f"{found.total} {found.currency}",
        booked=shown(found.total_pico_usd),
        issued_at=instant(found.issued_at_us),
        issued_by=spoken(found.issued_by, names),
        digest=found.digest,
        csv="" if found.is_draft else path,
    )


async def issue_order(
    books: Books, month: str, form: Mapping[str, str], *, actor: str, is_revision: bool
) -> IssueJournal:
    """What a form asks for.

    Args:
        books: What the pages share.
        month: `YYYY-MM`.
        form: As it was sent.
        actor: Who sent it.
        is_revision: Whether another document is wanted than the one that was issued.

    Raises:
        FieldFaults: It is not confirmed, or no journal is configured.
    """
    if form.get("confirm", "").strip() != month:
        raise FieldFaults({"confirm": f"type {month} to confirm"})
    try:
        posting = await _posting(books, month)
    except FinanceError as error:
        raise FieldFaults({"": str(error)}) from error
    return IssueJournal(actor=actor, month=month, posting=posting, is_revision=is_revision)


async def _posting(books: Books, month: str) -> JournalPosting:
    """How the configuration wants a journal; a file may be read, so that in a thread."""
    return await anyio.to_thread.run_sync(books.posting, month)


async def _ask(books: Books, query: ShowJournal) -> JournalDocument:
    return await books.ask(query, JournalDocument)
