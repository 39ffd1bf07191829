"""Notices as rows that outlive a restart: made once, tried until each recipient has taken them.

A notice is made under a name of its own, so two machines that look at the same moment make one.
Whoever sends it takes the delivery for a while first; a machine that dies meanwhile loses nothing,
and what it may have sent already is sent again under the same id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger.dialects import insert_into
from gateway.ledger.notice_tables import notice, notice_delivery
from gateway.notices.messages import SentNotice

CLAIM_US = 10 * 60 * 1_000_000
"""Longer than any try takes."""
FIRST_RETRY_US = 60 * 1_000_000
RETRY_US_MAX = 6 * 3_600 * 1_000_000
GIVE_UP_US = 7 * 24 * 3_600 * 1_000_000
"""So long after it was made a notice is tried no more."""
_DOUBLINGS_MAX = 20
_LISTED_MAX = 500


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a notice.

    Attributes:
        name: With its ending.
        media_type: `text/csv` or `text/html`.
        text: What is in it.
    """

    name: str
    media_type: str
    text: str


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What goes out.

    Attributes:
        kind: `statement` or `anomaly`.
        name: What it is about; unique for its kind.
        at_us: When it was made, microseconds since the epoch.
        subject: One line.
        body: Short text.
        document: What a webhook is posted.
        attachments: Files.
        notice_id: Its number; 0 before it has one.
    """

    kind: str
    name: str
    at_us: int
    subject: str
    body: str
    document: Mapping[str, object]
    attachments: tuple[Attachment, ...] = ()
    notice_id: int = 0


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that is due at a recipient.

    Attributes:
        notice: What goes out.
        recipient: `mail:address` or `webhook:name`.
        tries: How often it was tried before.
    """

    notice: Notice
    recipient: str
    tries: int


def has(connection: sa.Connection, kind: str, name: str) -> bool:
    """Whether a notice was made."""
    found = sa.select(notice.c.id).where(notice.c.kind == kind, notice.c.name == name)
    return connection.execute(found).first() is not None


def make(connection: sa.Connection, made: Notice, recipients: Sequence[str]) -> bool:
    """Keep a notice and have it sent; False where it was made before, and nothing is done."""
    added = (
        insert_into(connection.dialect.name, notice)
        .values(
            kind=made.kind,
            name=made.name,
            at_us=made.at_us,
            subject=made.subject,
            body=made.body,
            document=made.document,
            attachments=msgspec.to_builtins(made.attachments),
        )
        .on_conflict_do_nothing(index_elements=["kind", "name"])
        .returning(notice.c.id)
    )
    notice_id = cast("int | None", connection.execute(added).scalar_one_or_none())
    if notice_id is None:
        return False
    connection.execute(
        sa.insert(notice_delivery),
        [
            {
                "notice_id": notice_id,
                "recipient": recipient,
                "tries": 0,
                "next_try_at_us": made.at_us,
                "delivered_at_us": None,
                "failure": "",
            }
            for recipient in recipients
        ],
    )
    return True


def are_due(connection: sa.Connection, *, now_us: int) -> bool:
    """Whether anything is due."""
    table = notice_delivery
    due = sa.select(table.c.notice_id).where(table.c.next_try_at_us <= now_us).limit(1)
    return connection.execute(due).first() is not None


def claim(connection: sa.Connection, *, now_us: int, count: int) -> tuple[Parcel, ...]:
    """Take some that are due, so that nobody else sends them meanwhile."""
    table = notice_delivery
    rows = connection.execute(
        sa.select(table.c.recipient, table.c.tries, notice)
        .join(notice, notice.c.id == table.c.notice_id)
        .where(table.c.next_try_at_us <= now_us)
        .order_by(table.c.next_try_at_us)
        .limit(count)
        .with_for_update(of=table, skip_locked=True)
    ).mappings()
    parcels = tuple(_parcel(cast("Mapping[str, object]", row)) for row in rows)
    for parcel in parcels:
        _set(connection, parcel, next_try_at_us=now_us + CLAIM_US)
    return parcels


def note(connection: sa.Connection, parcel: Parcel, failure: str, *, now_us: int) -> None:
    """Write down how a try went; an empty failure means that it was taken."""
    tries = parcel.tries + 1
    if not failure:
        _set(
            connection, parcel, tries=tries, next_try_at_us=None, delivered_at_us=now_us, failure=""
        )
        return
    wait_us = min(FIRST_RETRY_US << min(parcel.tries, _DOUBLINGS_MAX), RETRY_US_MAX)
    is_hopeless = now_us + wait_us > parcel.notice.at_us + GIVE_UP_US
    next_try_at_us = None if is_hopeless else now_us + wait_us
    _set(connection, parcel, tries=tries, next_try_at_us=next_try_at_us, failure=failure)


def sent(connection: sa.Connection) -> tuple[SentNotice, ...]:
    """The newest notices and how far they got with each recipient, newest first."""
    table = notice_delivery
    columns = (
        notice.c.id.label("notice_id"),
        notice.c.kind,
        notice.c.subject,
        notice.c.at_us,
        table.c.recipient,
        table.c.tries,
        table.c.delivered_at_us,
        table.c.next_try_at_us,
        table.c.failure,
    )
    rows = connection.execute(
        sa.select(*columns)
        .join(table, table.c.notice_id == notice.c.id)
        .order_by(notice.c.id.desc(), table.c.recipient)
        .limit(_LISTED_MAX)
    ).mappings()
    return tuple(
        msgspec.convert(_named(cast("Mapping[str, object]", row)), SentNotice) for row in rows
    )


def _named(row: Mapping[str, object]) -> dict[str, object]:
    """A row with plain names, which a driver's are not."""
    return {str(name): value for name, value in row.items()}


def _parcel(row: Mapping[str, object]) -> Parcel:
    found = msgspec.convert(
        {
            **{name: row[name] for name in ("kind", "name", "at_us", "subject", "body")},
            "document": row["document"],
            "attachments": row["attachments"],
            "notice_id": row["id"],
        },
        Notice,
    )
    return Parcel(
        notice=found,
        recipient=cast("str", row["recipient"]),
        tries=cast("int", row["tries"]),
    )


def _set(connection: sa.Connection, parcel: Parcel, **values: int | str | None) -> None:
    table = notice_delivery
    is_it = sa.and_(
        table.c.notice_id == parcel.notice.notice_id,
        table.c.recipient == parcel.recipient,
        table.c.next_try_at_us.is_not(None),
    )
    connection.execute(sa.update(table).where(is_it).values(**values))
