"""The audit log: a chain of hashes over who changed what, so that an edit shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.ledger import schema
from gateway.ledger.dialects import Lock, take

_FIRST = bytes(32)


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


def audit_faults(connection: sa.Connection) -> Iterator[str]:
    """Lines that are not what was written, or do not follow the line before."""
    table = schema.audit_log
    expected = _FIRST
    rows = connection.execute(sa.select(table).order_by(table.c.seq)).all()
    for row in cast("Sequence[tuple[int, int, str, str, str, object, bytes, bytes]]", rows):
        seq, at_us, actor, action, subject, details, previous_hash, stored = row
        if previous_hash != expected:
            yield f"audit line {seq} does not follow the line before it"
        if stored != _chain(previous_hash, (at_us, actor, action, subject, details)):
            yield f"audit line {seq} was changed"
        expected = stored


def _chain(previous_hash: bytes, line: tuple[object, ...]) -> bytes:
    document = msgspec.json.encode(line, order="deterministic")
    return hashlib.sha256(previous_hash + document).digest()
