"""Journals of months as the database knows them: made of its charges, issued once, kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.finance.adjustments import adjustments
from gateway.finance.errors import Refused
from gateway.finance.journal import JournalCharge, make_journal
from gateway.finance.journal_messages import (
    IssueJournal,
    JournalDocument,
    JournalPosting,
    ShowJournal,
)
from gateway.finance.messages import UNATTRIBUTED, AdjustmentKind, ListAdjustments
from gateway.ledger.audit import append_audit
from gateway.ledger.dialects import Lock, take
from gateway.ledger.finance_tables import journal_document, period_close
from gateway.ledger.period_charges import load_charges
from gateway.ledger.periods import CLOSED, late_in, next_month

_NOT_SIGNED = ("digest", "issued_at_us", "issued_by", "is_current")


def show_journal(connection: sa.Connection, query: ShowJournal) -> JournalDocument:
    """The journal of a month: the one that was issued last, or a draft.

    Raises:
        Refused: The month is not closed, or nothing was issued; or a draft cannot be made, see
            `make_journal`.
    """
    if query.is_draft:
        return _draft(connection, query.month, query.posting)
    issued = _issued(connection, query.month)
    if issued is None:
        raise Refused(
            f"no journal was issued for {query.month}: it has to be closed and then issued, or ask"
            " for a draft"
        )
    return _compared(connection, issued, query.posting)


def issue_journal(
    connection: sa.Connection, order: IssueJournal, *, now_us: int
) -> JournalDocument:
    """Issue the journal of a closed month; what was issued before comes again, unchanged.

    Raises:
        Refused: The month is not closed, or its lines cannot be made; or the books do not hold what
            was closed.
    """
    take(connection, Lock.AUDIT)  # of two who issue at once, the second gets what the first did
    figures = _closed_figures(connection, order.month)
    issued = _issued(connection, order.month)
    if issued is not None:
        compared = _compared(connection, issued, order.posting)
        if compared.is_current or not order.is_revision:
            return compared
    draft = _draft(connection, order.month, order.posting)
    # The other two parts of the total are of rows that the digest of the close covers, too.
    closed = figures["cost_pico_usd"], figures["adjusted_pico_usd"]
    if (draft.booked_pico_usd, draft.adjusted_pico_usd) != closed:
        raise Refused(
            f"the books of {order.month} do not hold what was closed; `fareway spend close"
            " --verify` tells more"
        )
    revision = 1 if issued is None else issued.revision + 1
    number = f"{order.posting.document_prefix}-{order.month}"
    document = msgspec.structs.replace(
        draft,
        number=number if revision == 1 else f"{number}-{revision}",
        revision=revision,
        issued_at_us=now_us,
        issued_by=order.actor,
    )
    document = msgspec.structs.replace(document, digest=_digest(document))
    _keep(connection, document, now_us=now_us)
    return document


def _closed_figures(connection: sa.Connection, month: str) -> Mapping[str, int]:
    table = period_close
    found = connection.execute(
        sa.select(table.c.figures).where(table.c.month == month, table.c.state == CLOSED)
    ).scalar_one_or_none()
    if found is None:
        raise Refused(
            f"{month} is not closed, so its figures may still change; ask for a draft, or close it"
            " with `fareway spend close --hard`"
        )
    return cast("Mapping[str, int]", found)


def _draft(connection: sa.Connection, month: str, posting: JournalPosting) -> JournalDocument:
    charges = load_charges(connection, month).values()
    booked = sum(one.booked_pico_usd for one in charges)
    adjusted = sum(one.adjusted_pico_usd for one in charges)
    late = sum(
        part.sign * (cast("int | None", part.row["cost_pico_usd"]) or 0)
        for part in late_in(connection, month)
    )
    made = make_journal(_charges(connection, month), posting)
    assert made.total_pico_usd == booked + late + adjusted
    last = date.fromisoformat(f"{next_month(month)}-01") - timedelta(days=1)
    document = JournalDocument(
        number=f"DRAFT-{posting.document_prefix}-{month}",
        revision=0,
        period=month,
        posting_date=last.isoformat(),
        entity=posting.entity,
        currency=posting.currency,
        rate=str(posting.rate()),
        rate_day=posting.rate_day,
        rate_source=posting.rate_source,
        lines=made.lines,
        total=f"{made.total:f}",
        booked_pico_usd=booked,
        late_pico_usd=late,
        adjusted_pico_usd=adjusted,
        total_pico_usd=made.total_pico_usd,
    )
    return msgspec.structs.replace(document, digest=_digest(document))


def _charges(connection: sa.Connection, month: str) -> Iterator[JournalCharge]:
    for place, sums in load_charges(connection, month).items():
        yield JournalCharge(
            team=place.team,
            project=place.project,
            provider=place.provider,
            amount_pico_usd=sums.booked_pico_usd + sums.late_pico_usd,
        )
    query = ListAdjustments(from_period=month, to_period=next_month(month))
    for one in adjustments(connection, query):
        yield JournalCharge(
            team="" if one.team == UNATTRIBUTED else one.team,
            project=one.project,
            provider=one.account,
            amount_pico_usd=one.amount_pico_usd,
            is_tax=one.kind is AdjustmentKind.TAX,
        )


def _issued(connection: sa.Connection, month: str) -> JournalDocument | None:
    table = journal_document
    newest = sa.select(table.c.document).where(table.c.period == month)
    found = connection.execute(newest.order_by(table.c.revision.desc()).limit(1)).scalar()
    return None if found is None else msgspec.convert(found, JournalDocument)


def _compared(
    connection: sa.Connection, issued: JournalDocument, posting: JournalPosting
) -> JournalDocument:
    """What was issued, and whether the configuration of now gives the same lines."""
    try:
        now = _draft(connection, issued.period, posting)
    except Refused:  # a team's cost centre was taken out since
        return msgspec.structs.replace(issued, is_current=False)
    if now.total_pico_usd != issued.total_pico_usd:
        return issued  # its single entries were dropped since, so there is nothing to compare
    same = (now.entity, now.currency, now.lines) == (issued.entity, issued.currency, issued.lines)
    return msgspec.structs.replace(issued, is_current=same)


def _digest(document: JournalDocument) -> str:
    said = cast("dict[str, object]", msgspec.to_builtins(document))
    for name in _NOT_SIGNED:
        del said[name]
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()


def _keep(connection: sa.Connection, document: JournalDocument, *, now_us: int) -> None:
    connection.execute(
        sa.insert(journal_document).values(
            period=document.period,
            revision=document.revision,
            number=document.number,
            at_us=now_us,
            actor=document.issued_by,
            digest=bytes.fromhex(document.digest),
            document=msgspec.to_builtins(document),
        )
    )
    append_audit(
        connection,
        at_us=now_us,
        actor=document.issued_by,
        action="journal.issue",
        subject=document.number,
        details={
            "period": document.period,
            "digest": document.digest,
            "total_pico_usd": document.total_pico_usd,
            "lines": len(document.lines),
        },
    )
