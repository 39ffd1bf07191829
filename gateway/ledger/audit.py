"""The audit log: a chain of hashes over who changed what, so that an edit shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.access.people import AUDIT_LINES_MAX, AuditLine, AuditQuery, AuditVerification
from gateway.ledger import schema
from gateway.ledger.dialects import Lock, take

_FIRST = bytes(32)
_PAGE_LINES = 5_000


def append_audit(
    connection: sa.Connection,
    *,
    at_us: int,
    actor: str,
    action: str,
    subject: str,
    details: Mapping[str, str | int | None],
) -> None:
    """Write a line in the transaction that does what it tells; from then on no other can."""
    take(connection, Lock.AUDIT)
    table = schema.audit_log
    last = connection.execute(sa.select(table.c.hash).order_by(table.c.seq.desc()).limit(1))
    previous_hash = cast("bytes | None", last.scalar_one_or_none()) or _FIRST
    line = (at_us, actor, action, subject, dict(details))
    connection.execute(
        sa.insert(table).values(
            at_us=at_us,
            actor=actor,
            action=action,
            object=subject,
            details=dict(details),
            previous_hash=previous_hash,
            hash=_chain(previous_hash, line),
        )
    )


class ChainWalk:
    """Follows the chain from its first line, a page at a time; pages may be transactions apart.

    Attributes:
        is_at_end: Whether the last page was the last one.
    """

    def __init__(self) -> None:
        self.is_at_end = False
        self._after = 0
        self._expected = _FIRST

    def page(self, connection: sa.Connection) -> list[str]:
        """Lines of the next page that are not what was written, or do not follow their line."""
        table = schema.audit_log
        wanted = sa.select(table).where(table.c.seq > self._after).order_by(table.c.seq)
        rows = connection.execute(wanted.limit(_PAGE_LINES)).all()
        self.is_at_end = len(rows) < _PAGE_LINES
        faults: list[str] = []
        for row in cast("Sequence[tuple[int, int, str, str, str, object, bytes, bytes]]", rows):
            seq, at_us, actor, action, subject, details, previous_hash, stored = row
            if previous_hash != self._expected:
                faults.append(f"audit line {seq} does not follow the line before it")
            if stored != _chain(previous_hash, (at_us, actor, action, subject, details)):
                faults.append(f"audit line {seq} was changed")
            self._after, self._expected = seq, stored
        return faults


def audit_faults(connection: sa.Connection) -> Iterator[str]:
    """Lines that are not what was written, or do not follow the line before."""
    walk = ChainWalk()
    while not walk.is_at_end:
        yield from walk.page(connection)


def verify_audit(connection: sa.Connection) -> AuditVerification:
    """Follow the whole chain."""
    table = schema.audit_log
    lines = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
    last = connection.execute(sa.select(table.c.hash).order_by(table.c.seq.desc()).limit(1))
    head = cast("bytes | None", last.scalar_one_or_none()) or b""
    return AuditVerification(lines=lines, head=head, faults=tuple(audit_faults(connection)))


def read_audit(connection: sa.Connection, query: AuditQuery) -> tuple[AuditLine, ...]:
    """Lines, newest first."""
    table = schema.audit_log
    statement = sa.select(table).order_by(table.c.seq.desc())
    if query.before is not None:
        statement = statement.where(table.c.seq < query.before)
    if query.areas:
        is_of = (table.c.action.startswith(f"{area}.", autoescape=True) for area in query.areas)
        statement = statement.where(sa.or_(*is_of))
    rows = connection.execute(statement.limit(max(0, min(query.count, AUDIT_LINES_MAX)))).all()
    return tuple(
        AuditLine(
            number=seq,
            at_us=at_us,
            actor=actor,
            action=action,
            subject=subject,
            details=details,
            hash=stored,
        )
        for seq, at_us, actor, action, subject, details, _, stored in cast(
            "Sequence[tuple[int, int, str, str, str, dict[str, object], bytes, bytes]]", rows
        )
    )


def _chain(previous_hash: bytes, line: tuple[object, ...]) -> bytes:
    document = msgspec.json.encode(line, order="deterministic")
    return hashlib.sha256(previous_hash + document).digest()
