"""Sessions and one-time codes: rows of digests; what has ended or was used has no row."""

from __future__ import annotations

from typing import cast

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gateway.access.people import CodeState, SessionQuery, WebSession
from gateway.ledger.errors import BadPerson
from gateway.ledger.people import PASSWORD, SET_UP, USED, find_person, has_people
from gateway.ledger.people_tables import login_code, web_session

SEEN_EVERY_US = 60_000_000
"""How exactly it is kept when a session was used last; idle time counts from there."""
USED_S = 3600
"""How long an answer of the identity provider is remembered; longer than one is good for."""
SESSIONS_MAX = 50
"""Of one person or key; the oldest end when there are more."""
_VOID = "this link was used or is too old: ask a platform administrator for another one"

_SessionColumns = tuple[str | None, str, bytes, int, int]


def open_session(
    connection: sa.Connection,
    digest: bytes,
    *,
    person_id: str | None,
    key_id: str,
    mark: bytes,
    lifetime_s: int,
    now_us: int,
) -> None:
    """Keep a new session; those that have ended are swept, and the oldest of very many end."""
    table = web_session
    connection.execute(sa.delete(table).where(table.c.expires_at_us <= now_us))
    is_same = _is_of(person_id, key_id)
    kept = sa.select(table.c.digest).where(is_same).order_by(table.c.created_at_us.desc())
    kept = kept.limit(SESSIONS_MAX - 1)
    connection.execute(
        sa.delete(table).where(is_same, table.c.digest.not_in(sa.select(kept.subquery().c.digest)))
    )
    connection.execute(
        sa.insert(table).values(
            digest=digest,
            principal_id=person_id,
            key_id=key_id,
            key_mark=mark,
            created_at_us=now_us,
            seen_at_us=now_us,
            expires_at_us=now_us + lifetime_s * 1_000_000,
        )
    )


def find_session(
    connection: sa.Connection, query: SessionQuery, *, now_us: int
) -> tuple[WebSession, bool] | None:
    """Whose session it is, and whether `touch` is due; None when there is none any more."""
    table = web_session
    row = connection.execute(
        sa.select(
            table.c.principal_id,
            table.c.key_id,
            table.c.key_mark,
            table.c.seen_at_us,
            table.c.expires_at_us,
        ).where(table.c.digest == query.session)
    ).one_or_none()
    if row is None:
        return None
    person_id, key_id, mark, seen_at_us, expires_at_us = cast("_SessionColumns", row)
    if now_us >= expires_at_us or now_us - seen_at_us >= query.idle_s * 1_000_000:
        return None
    is_due = now_us - seen_at_us >= min(SEEN_EVERY_US, query.idle_s * 500_000)
    if person_id is None:
        return WebSession(person=None, key_id=key_id, mark=mark), is_due
    stored = find_person(connection, person_id)
    if stored is None or stored.person.disabled_at_us is not None or not stored.person.grants:
        return None
    return WebSession(person=stored.person), is_due


def touch(connection: sa.Connection, digest: bytes, *, now_us: int) -> None:
    """Keep that a session was used."""
    table = web_session
    connection.execute(sa.update(table).where(table.c.digest == digest).values(seen_at_us=now_us))


def end_session(
    connection: sa.Connection, digest: bytes, *, is_everywhere: bool
) -> tuple[str | None, str] | None:
    """End a session, or all of the same person or key; whose it was, None when there was none."""
    table = web_session
    row = connection.execute(
        sa.select(table.c.principal_id, table.c.key_id).where(table.c.digest == digest)
    ).one_or_none()
    if row is None:
        return None
    person_id, key_id = cast("tuple[str | None, str]", row)
    condition = _is_of(person_id, key_id) if is_everywhere else table.c.digest == digest
    connection.execute(sa.delete(table).where(condition))
    return person_id, key_id


def end_others(connection: sa.Connection, digest: bytes, person_id: str) -> None:
    """End every session of a person but one."""
    table = web_session
    connection.execute(
        sa.delete(table).where(table.c.principal_id == person_id, table.c.digest != digest)
    )


def code_state(connection: sa.Connection, digest: bytes, *, now_us: int) -> CodeState:
    """What a one-time code is good for now."""
    found = _code(connection, digest, now_us=now_us)
    if found is None:
        return CodeState(is_valid=False)
    purpose, person_id = found
    if purpose == SET_UP:
        return CodeState(is_valid=not has_people(connection))
    stored = find_person(connection, person_id)
    if stored is None or stored.person.disabled_at_us is not None:
        return CodeState(is_valid=False)
    return CodeState(is_valid=True, login=stored.person.login)


def take_code(connection: sa.Connection, digest: bytes, *, now_us: int) -> str:
    """Use a one-time code up; whose password it sets, empty for the first administrator's.

    Raises:
        BadPerson: It is void.
    """
    found = _code(connection, digest, now_us=now_us)
    if found is None or not code_state(connection, digest, now_us=now_us).is_valid:
        raise BadPerson(_VOID)
    table = login_code
    taken = connection.execute(
        sa.delete(table).where(table.c.digest == digest).returning(table.c.digest)
    )
    if taken.one_or_none() is None:  # another machine was faster
        raise BadPerson(_VOID)
    return found[1]


def take_once(connection: sa.Connection, digest: bytes, *, now_us: int) -> bool:
    """Whether this answer of the identity provider comes for the first time."""
    table = login_code
    connection.execute(sa.delete(table).where(table.c.expires_at_us <= now_us))
    try:
        with connection.begin_nested():
            connection.execute(
                sa.insert(table).values(
                    digest=digest,
                    purpose=USED,
                    principal_id="",
                    expires_at_us=now_us + USED_S * 1_000_000,
                )
            )
    except IntegrityError:
        return False
    return True


def _code(connection: sa.Connection, digest: bytes, *, now_us: int) -> tuple[str, str] | None:
    """Purpose and person of a code that is not too old."""
    table = login_code
    row = connection.execute(
        sa.select(table.c.purpose, table.c.principal_id).where(
            table.c.digest == digest,
            table.c.expires_at_us > now_us,
            table.c.purpose.in_((SET_UP, PASSWORD)),
        )
    ).one_or_none()
    return None if row is None else cast("tuple[str, str]", tuple(row))


def _is_of(person_id: str | None, key_id: str) -> sa.ColumnElement[bool]:
    table = web_session
    if person_id is None:
        return sa.and_(table.c.principal_id.is_(None), table.c.key_id == key_id)
    return table.c.principal_id == person_id
