"""Acts of forms, done once: the number of a form is kept in the transaction that does the act."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.finance.adjustments import PROPOSED
from gateway.finance.bill_messages import ImportReply, ReconciliationRun
from gateway.finance.close import OPEN, SOFT
from gateway.finance.close_messages import CloseProposal, CloseReport
from gateway.finance.errors import Refused
from gateway.finance.form_messages import Done, Once, actor_of
from gateway.finance.journal_messages import JournalDocument
from gateway.finance.messages import Proposal
from gateway.finance.price_messages import PriceProposal
from gateway.finance.shown import counted
from gateway.ledger.dialects import insert_into
from gateway.ledger.finance_tables import finance_form


def earlier(connection: sa.Connection, order: Once) -> Done | None:
    """What became of the form when it was sent before; None when it never was.

    Raises:
        Refused: It was sent before with something else in it.
    """
    table = finance_form
    row = connection.execute(
        sa.select(table.c.digest, table.c.subject, table.c.sentence).where(
            table.c.form == order.form
        )
    ).one_or_none()
    if row is None:
        return None
    digest, subject, sentence = cast("tuple[bytes, str, str]", row)
    if digest != _digest(order):
        raise Refused(
            "this form was sent before with other values, and that was done; open the page again"
        )
    return Done(subject=subject, sentence=sentence, is_repeated=True)


def once(
    connection: sa.Connection,
    order: Once,
    act: Callable[[sa.Connection], object],
    *,
    now_us: int,
) -> Done:
    """Do what a form asks for, unless it was sent before.

    Args:
        connection: In a write transaction.
        order: The form.
        act: Does it in the same transaction.
        now_us: Microseconds since the epoch.

    Raises:
        FinanceError: It cannot be done; then the form may be sent again.
    """
    table = finance_form
    # On PostgreSQL this waits for a transaction with the same form, and then finds its row.
    added = connection.execute(
        insert_into(connection.dialect.name, table)
        .values(
            form=order.form,
            at_us=now_us,
            actor=actor_of(order),
            digest=_digest(order),
            subject="",
            sentence="",
        )
        .on_conflict_do_nothing()
    )
    if not added.rowcount:
        before = earlier(connection, order)
        assert before is not None, "the row is there"
        return before
    done = _described(act(connection))
    connection.execute(
        sa.update(table)
        .where(table.c.form == order.form)
        .values(subject=done.subject, sentence=done.sentence)
    )
    return done


def _described(reply: object) -> Done:
    """What an act's own answer comes to."""
    match reply:
        case ImportReply():
            return Done(subject=str(reply.batch.batch_id), sentence=reply.sentence)
        case ReconciliationRun():
            return Done(
                subject=str(reply.run_id),
                sentence=f"run {reply.run_id} compared {reply.month} and found"
                f" {counted(len(reply.differences), 'difference', 'differences')}",
            )
        case Proposal():
            state = "waits for approval" if reply.state == PROPOSED else f"is {reply.state}"
            sentence = f"proposal {reply.proposal_id} {state}"
            return Done(subject=str(reply.proposal_id), sentence=sentence)
        case CloseReport():
            how = "softly" if reply.state == SOFT else "for good"
            return Done(subject=reply.month, sentence=f"{reply.month} is closed {how}")
        case CloseProposal():
            is_open = reply.state == OPEN
            became = "waits for somebody else to confirm it" if is_open else f"is {reply.state}"
            return Done(subject=reply.month, sentence=f"the close of {reply.month} {became}")
        case PriceProposal():
            sentence = f"price proposal {reply.proposal_id} is {reply.state.value}"
            return Done(subject=str(reply.proposal_id), sentence=sentence)
        case JournalDocument():
            return Done(subject=reply.number, sentence=f"journal {reply.number} is issued")
        case _:
            raise TypeError(f"no act answers with {type(reply).__name__}")


def _digest(order: Once) -> bytes:
    return hashlib.sha256(msgspec.json.encode(order.act, order="deterministic")).digest()
