"""Keys made with `keys create`: rows of digests, never of keys; each change is audited.

Every change raises the revision of the key directory in the same transaction, so that a cache can
tell whether it is old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gateway.auth.directory import KeyRecord, KeySource
from gateway.ledger import schema
from gateway.ledger.audit import append_audit
from gateway.ledger.errors import KeyConflict, UnknownKey
from gateway.ledger.facts import KEYS_REVISION, load_revision, raise_revision
from gateway.ledger.views import StoredKey
from gateway.limits.amounts import LimitAmounts


def create_key(
    connection: sa.Connection, record: KeyRecord, *, actor: str, owner: str = "", now_us: int
) -> None:
    """Add a key; the owner is the person who made it for themselves, empty for nobody.

    Raises:
        KeyConflict: The id exists, or the team has a key of that name in use.
    """
    try:
        with connection.begin_nested():
            connection.execute(
                sa.insert(schema.api_key).values(
                    key_id=record.key_id,
                    hash=record.digest,
                    team=record.team,
                    project=record.project,
                    name=record.name,
                    models=None if record.models is None else list(record.models),
                    tags=list(record.tags) or sa.null(),
                    created_at_us=now_us,
                    expires_at_us=record.expires_at_us,
                    disabled_at_us=None,
                    limits=_limits(record),
                    owner=owner or None,
                )
            )
    except IntegrityError as error:
        raise KeyConflict(
            f"team {record.team!r} has a key named {record.name!r} in use, or the id "
            f"{record.key_id!r} exists; choose another name or revoke that key"
        ) from error
    details = {"team": record.team, "project": record.project, "name": record.name}
    append_audit(
        connection,
        at_us=now_us,
        actor=actor,
        action="key.create",
        subject=record.key_id,
        details={
            **details,
            "expires_at_us": record.expires_at_us,
            **(_limits(record) or {}),
            **({"tags": ",".join(record.tags)} if record.tags else {}),
        },
    )
    raise_revision(connection, KEYS_REVISION)


def revoke_key(connection: sa.Connection, key_id: str, *, actor: str, now_us: int) -> StoredKey:
    """Make a key void from now on; a key that is void already stays as it was.

    Raises:
        UnknownKey: No key of that id was made here.
    """
    table = schema.api_key
    is_in_use = sa.and_(table.c.key_id == key_id, table.c.disabled_at_us.is_(None))
    done = connection.execute(sa.update(table).where(is_in_use).values(disabled_at_us=now_us))
    stored = _read(connection, table.c.key_id == key_id)
    if not stored:
        raise UnknownKey(f"no key with the id {key_id!r}; `fareway keys list` shows them")
    if done.rowcount:
        append_audit(
            connection, at_us=now_us, actor=actor, action="key.revoke", subject=key_id, details={}
        )
        raise_revision(connection, KEYS_REVISION)
    return stored[0]


def expire_key(
    connection: sa.Connection, key_id: str, at_us: int, *, actor: str, now_us: int
) -> StoredKey:
    """Make a key void from an instant on; one that is void by then already stays as it was.

    Args:
        connection: In a write transaction.
        key_id: Its id.
        at_us: Microseconds since the epoch.
        actor: Who does it, for the audit log.
        now_us: Of the audit log.

    Raises:
        UnknownKey: No key of that id was made here.
    """
    table = schema.api_key
    is_later = sa.or_(table.c.expires_at_us.is_(None), table.c.expires_at_us > at_us)
    is_in_use = sa.and_(table.c.key_id == key_id, table.c.disabled_at_us.is_(None), is_later)
    done = connection.execute(sa.update(table).where(is_in_use).values(expires_at_us=at_us))
    stored = _read(connection, table.c.key_id == key_id)
    if not stored:
        raise UnknownKey(f"no key with the id {key_id!r}; `fareway keys list` shows them")
    if done.rowcount:
        append_audit(
            connection,
            at_us=now_us,
            actor=actor,
            action="key.expire",
            subject=key_id,
            details={"expires_at_us": at_us},
        )
        raise_revision(connection, KEYS_REVISION)
    return stored[0]


def list_keys(connection: sa.Connection) -> tuple[StoredKey, ...]:
    """Every key, revoked ones included, by team and name, newest first within a name."""
    return _read(connection, sa.true())


def load_all_keys(connection: sa.Connection) -> tuple[int, tuple[KeyRecord, ...]]:
    """The revision and every record, of one moment; `connection` is in a transaction."""
    revision = load_revision(connection, KEYS_REVISION)
    return revision, tuple(key.record for key in list_keys(connection))


def _read(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> tuple[StoredKey, ...]:
    table = schema.api_key
    rows = connection.execute(
        sa.select(
            table.c.key_id,
            table.c.hash,
            table.c.team,
            table.c.project,
            table.c.name,
            table.c.models,
            table.c.created_at_us,
            table.c.expires_at_us,
            table.c.disabled_at_us,
            table.c.limits,
            table.c.owner,
            table.c.tags,
        )
        .where(condition)
        .order_by(table.c.team, table.c.name, table.c.created_at_us.desc(), table.c.key_id)
    ).all()
    return tuple(
        StoredKey(
            record=KeyRecord(
                key_id=key_id,
                digest=digest,
                team=team,
                project=project,
                name=name,
                models=None if models is None else tuple(models),
                tags=tuple(tags or ()),
                expires_at_us=expires_at_us,
                disabled=disabled_at_us is not None,
                source=KeySource.DATABASE,
                limits=None if limits is None else msgspec.convert(limits, LimitAmounts),
            ),
            created_at_us=created_at_us,
            disabled_at_us=disabled_at_us,
            owner=owner or "",
        )
        for (
            key_id,
            digest,
            team,
            project,
            name,
            models,
            created_at_us,
            expires_at_us,
            disabled_at_us,
            limits,
            owner,
            tags,
        ) in cast("Sequence[_KeyColumns]", rows)
    )


def _limits(record: KeyRecord) -> dict[str, int] | None:
    """A key's limits as they are kept; None where it has none."""
    if record.limits is None:
        return None
    return cast("dict[str, int]", msgspec.to_builtins(record.limits))


_KeyColumns = tuple[
    str, bytes, str, str, str, Sequence[str] | None, int, int | None, int | None, object,
    str | None, Sequence[str] | None,
]  # fmt: skip
