"""Acts of forms, done once: the number of a form is kept in the transaction that does the act.

`gateway.finance.once` does the same for the acts of the books, which answer in sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import sqlalchemy as sa

from gateway.forms import FormSent
from gateway.ledger.dialects import insert_into
from gateway.ledger.errors import BadQuery
from gateway.ledger.finance_tables import finance_form


def once(
    connection: sa.Connection,
    form: FormSent | None,
    act: Callable[[], str],
    *,
    actor: str,
    now_us: int,
) -> str:
    """Do what a form asks for, unless it was sent before.

    Args:
        connection: In a write transaction.
        form: The form; None for what comes from no page, which is done each time.
        act: Does it in the same transaction and says what it was done to.
        actor: Who sends it.
        now_us: Microseconds since the epoch.

    Returns:
        What `act` said, now or the first time.

    Raises:
        BadQuery: It was sent before with something else in it.
    """
    if form is None:
        return act()
    table = finance_form
    # On PostgreSQL this waits for a transaction with the same form, and then finds its row.
    added = connection.execute(
        insert_into(connection.dialect.name, table)
        .values(
            form=form.number.hex(),
            at_us=now_us,
            actor=actor,
            digest=form.content,
            subject="",
            sentence="",
        )
        .on_conflict_do_nothing()
    )
    if not added.rowcount:
        before = earlier(connection, form)
        assert before is not None, "the row is there"
        return before
    subject = act()
    connection.execute(
        sa.update(table).where(table.c.form == form.number.hex()).values(subject=subject)
    )
    return subject


def earlier(connection: sa.Connection, form: FormSent | None) -> str | None:
    """What a form was acted on before, None when it never was.

    Raises:
        BadQuery: It was sent before with something else in it.
    """
    if form is None:
        return None
    table = finance_form
    row = connection.execute(
        sa.select(table.c.digest, table.c.subject).where(table.c.form == form.number.hex())
    ).one_or_none()
    if row is None:
        return None
    content, subject = cast("tuple[bytes, str]", tuple(row))
    if content != form.content:
        raise BadQuery(
            "this form was sent before with other values, and that was done; open the page again"
        )
    return subject
