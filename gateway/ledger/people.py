"""People and their roles: rows of who they are; each change is audited and ends their sessions.

A session's role is read at every page, so a changed role counts at once; that the sessions end too
has the person see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gateway.access.people import (
    CODE_S,
    GRANTS_MAX,
    NewPerson,
    OidcLogin,
    Person,
    PersonChange,
    PersonKind,
    login_fault,
    name_fault,
)
from gateway.access.roles import Grant, Role, grants_fault
from gateway.ledger.audit import append_audit
from gateway.ledger.errors import BadPerson, PersonConflict, UnknownPerson
from gateway.ledger.forms import once
from gateway.ledger.people_tables import login_code, membership, principal, web_session

SET_UP = "set_up"
"""Purpose of the code that makes the first administrator."""
PASSWORD = "password"  # noqa: S105 - the purpose of a code
USED = "used"
"""Purpose of a row that keeps an answer of the identity provider from counting twice."""


class StoredPerson(msgspec.Struct, frozen=True, kw_only=True):
    """A person and what is kept of the password."""

    person: Person
    password_hash: str | None


def list_people(connection: sa.Connection) -> tuple[Person, ...]:
    """Everybody, disabled people included, by name."""
    return tuple(stored.person for stored in _read(connection, sa.true()))


def find_person(connection: sa.Connection, person: str) -> StoredPerson | None:
    """Somebody by id or login name; None when there is nobody."""
    if login_fault(person):  # neither; PostgreSQL takes no NUL even in a question
        return None
    table = principal
    return next(
        iter(_read(connection, sa.or_(table.c.id == person, table.c.login == person))), None
    )


def create_person(
    connection: sa.Connection, order: NewPerson, *, person_id: str, now_us: int
) -> Person:
    """Make a local person, who sets a password with the code.

    Raises:
        BadPerson: The login name, the name or a role cannot be taken.
        PersonConflict: Somebody has the login name.
        BadQuery: The form asked for somebody else when it was sent before.
    """

    def act() -> str:
        _insert_local(connection, order, person_id=person_id, now_us=now_us, password_hash=None)
        put_code(connection, order.code, purpose=PASSWORD, person_id=person_id, now_us=now_us)
        return person_id

    return load_person(
        connection, once(connection, order.form, act, actor=order.actor, now_us=now_us)
    )


def create_first(
    connection: sa.Connection,
    *,
    login: str,
    name: str,
    password_hash: str,
    person_id: str,
    now_us: int,
) -> Person:
    """Make the first administrator, with a password.

    Raises:
        BadPerson: The login name or the name cannot be taken.
    """
    grants = (Grant(role=Role.PLATFORM_ADMIN),)
    order = NewPerson(login=login, name=name, grants=grants, code=b"", actor="set-up-link")
    _insert_local(
        connection, order, person_id=person_id, now_us=now_us, password_hash=password_hash
    )
    return load_person(connection, person_id)


def change_person(connection: sa.Connection, change: PersonChange, *, now_us: int) -> Person:
    """Change a person; all their sessions end.

    Raises:
        BadPerson: A role cannot be taken, or it is the identity provider's to say.
        UnknownPerson: There is nobody of that id or login name.
        BadQuery: The form asked for something else when it was sent before.
    """

    def act() -> str:
        return _change(connection, change, now_us=now_us)

    return load_person(
        connection, once(connection, change.form, act, actor=change.actor, now_us=now_us)
    )


def _change(connection: sa.Connection, change: PersonChange, *, now_us: int) -> str:
    stored = find_person(connection, change.person)
    if stored is None:
        raise UnknownPerson(
            f"no person with the id or login name {change.person[:128]!r};"
            " `fareway users list` shows them"
        )
    person = stored.person
    if change.grants is not None and set(change.grants) != set(person.grants):
        if person.kind is PersonKind.OIDC:
            raise BadPerson(
                f"the roles of {person.name!r} come from the groups of the identity provider:"
                " change login.oidc.groups, or the groups there"
            )
        _check_grants(change.grants)
        _put_grants(connection, person, change.grants, actor=change.actor, now_us=now_us)
    if change.is_disabled is not None and change.is_disabled != (person.disabled_at_us is not None):
        _set_disabled(connection, person, change, now_us=now_us)
    if change.code is not None:
        if person.kind is PersonKind.OIDC:
            raise BadPerson(f"{person.name!r} logs in at the identity provider, with no password")
        _set(connection, person.person_id, password_hash=None)
        put_code(
            connection, change.code, purpose=PASSWORD, person_id=person.person_id, now_us=now_us
        )
        _audit(connection, person, "person.reset_password", actor=change.actor, now_us=now_us)
    end_sessions(connection, person.person_id)
    return person.person_id


def take_oidc_person(
    connection: sa.Connection, login: OidcLogin, *, person_id: str, now_us: int
) -> Person:
    """The person whom an identity provider vouches for, made or brought up to date.

    Raises:
        BadPerson: A role cannot be taken.
    """
    _check_grants(login.grants)
    is_theirs = sa.and_(principal.c.issuer == login.issuer, principal.c.subject == login.subject)
    found = next(iter(_read(connection, is_theirs)), None)
    name = _fitting(login.name) or login.subject[:64]
    if found is None:
        connection.execute(
            sa.insert(principal).values(
                id=person_id,
                kind=PersonKind.OIDC.value,
                issuer=login.issuer,
                subject=login.subject,
                name=name,
                created_at_us=now_us,
            )
        )
        person = load_person(connection, person_id)
        _audit(connection, person, "person.create", actor="identity-provider", now_us=now_us)
    else:
        person = found.person
        if name != person.name:
            _set(connection, person.person_id, name=name)
    if set(login.grants) != set(person.grants):
        _put_grants(connection, person, login.grants, actor="identity-provider", now_us=now_us)
        end_sessions(connection, person.person_id)
    return load_person(connection, person.person_id)


def note_login(connection: sa.Connection, person_id: str, *, now_us: int) -> None:
    """Keep when somebody logged in last."""
    _set(connection, person_id, last_login_at_us=now_us)


def set_password(connection: sa.Connection, person_id: str, password_hash: str) -> None:
    """Keep the hash of a new password."""
    _set(connection, person_id, password_hash=password_hash)


def replace_password(
    connection: sa.Connection, person_id: str, *, before: str, password_hash: str
) -> bool:
    """Keep another hash unless the one that was checked has been replaced since; whether it was."""
    table = principal
    changed = connection.execute(
        sa.update(table)
        .where(table.c.id == person_id, table.c.password_hash == before)
        .values(password_hash=password_hash)
        .returning(table.c.id)
    )
    return changed.one_or_none() is not None


def has_people(connection: sa.Connection) -> bool:
    """Whether anybody was ever made here."""
    return connection.execute(sa.select(sa.exists().select_from(principal))).scalar_one()


def has_oidc_admin(connection: sa.Connection) -> bool:
    """Whether a platform admin has logged in through the identity provider and still can."""
    is_admin = sa.exists().where(
        membership.c.principal_id == principal.c.id,
        membership.c.role == Role.PLATFORM_ADMIN.value,
    )
    found = sa.select(
        sa.exists().where(
            principal.c.kind == PersonKind.OIDC.value,
            principal.c.last_login_at_us.is_not(None),
            principal.c.disabled_at_us.is_(None),
            is_admin,
        )
    )
    return connection.execute(found).scalar_one()


def put_code(
    connection: sa.Connection, digest: bytes, *, purpose: str, person_id: str, now_us: int
) -> None:
    """Keep a one-time code; earlier ones for the same are void."""
    table = login_code
    connection.execute(
        sa.delete(table).where(table.c.purpose == purpose, table.c.principal_id == person_id)
    )
    connection.execute(sa.delete(table).where(table.c.expires_at_us <= now_us))
    connection.execute(
        sa.insert(table).values(
            digest=digest,
            purpose=purpose,
            principal_id=person_id,
            expires_at_us=now_us + CODE_S * 1_000_000,
        )
    )


def end_sessions(connection: sa.Connection, person_id: str) -> None:
    """End every session of a person."""
    connection.execute(sa.delete(web_session).where(web_session.c.principal_id == person_id))


def _insert_local(
    connection: sa.Connection,
    order: NewPerson,
    *,
    person_id: str,
    now_us: int,
    password_hash: str | None,
) -> None:
    fault = login_fault(order.login) or name_fault(order.name)
    if fault:
        raise BadPerson(fault)
    _check_grants(order.grants)
    try:
        with connection.begin_nested():
            connection.execute(
                sa.insert(principal).values(
                    id=person_id,
                    kind=PersonKind.LOCAL.value,
                    login=order.login,
                    name=order.name,
                    password_hash=password_hash,
                    created_at_us=now_us,
                )
            )
    except IntegrityError as error:
        raise PersonConflict(f"somebody has the login name {order.login!r} already") from error
    person = load_person(connection, person_id)
    _audit(connection, person, "person.create", actor=order.actor, now_us=now_us)
    _put_grants(connection, person, order.grants, actor=order.actor, now_us=now_us)


def _check_grants(grants: Sequence[Grant]) -> None:
    fault = grants_fault(grants)
    if len(grants) > GRANTS_MAX:
        fault = f"a person has at most {GRANTS_MAX} roles"
    if fault:
        raise BadPerson(fault)


def _put_grants(
    connection: sa.Connection, person: Person, grants: Sequence[Grant], *, actor: str, now_us: int
) -> None:
    table = membership
    connection.execute(sa.delete(table).where(table.c.principal_id == person.person_id))
    rows = [
        {"principal_id": person.person_id, "role": grant.role.value, "team": grant.team}
        for grant in sorted(set(grants))
    ]
    connection.execute(sa.insert(table), rows)
    append_audit(
        connection,
        at_us=now_us,
        actor=actor,
        action="person.set_role",
        subject=f"person:{person.person_id}",
        details={
            "before": " ".join(grant.text for grant in person.grants),
            "after": " ".join(grant.text for grant in sorted(set(grants))),
        },
    )


def _set_disabled(
    connection: sa.Connection, person: Person, change: PersonChange, *, now_us: int
) -> None:
    _set(connection, person.person_id, disabled_at_us=now_us if change.is_disabled else None)
    action = "person.disable" if change.is_disabled else "person.enable"
    _audit(connection, person, action, actor=change.actor, now_us=now_us)


def _audit(
    connection: sa.Connection, person: Person, action: str, *, actor: str, now_us: int
) -> None:
    append_audit(
        connection,
        at_us=now_us,
        actor=actor,
        action=action,
        subject=f"person:{person.person_id}",
        details={"kind": person.kind.value, "login": person.login or None},
    )


def _set(connection: sa.Connection, person_id: str, **values: str | int | None) -> None:
    connection.execute(sa.update(principal).where(principal.c.id == person_id).values(**values))


def _fitting(name: str) -> str:
    """A name from outside, cut and cleaned to what a name may be."""
    return "".join(c for c in name if c.isprintable())[:128].strip()


def load_person(connection: sa.Connection, person_id: str) -> Person:
    """Somebody who is there, by id: people are never deleted."""
    (stored,) = _read(connection, principal.c.id == person_id)
    return stored.person


def _read(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[StoredPerson]:
    table = principal
    rows = connection.execute(
        sa.select(
            table.c.id,
            table.c.kind,
            table.c.login,
            table.c.name,
            table.c.password_hash,
            table.c.created_at_us,
            table.c.disabled_at_us,
            table.c.last_login_at_us,
        )
        .where(condition)
        .order_by(table.c.name, table.c.id)
    ).all()
    found = cast("Sequence[_Columns]", rows)
    grants = _grants(connection, [row[0] for row in found])
    return [
        StoredPerson(
            person=Person(
                person_id=person_id,
                kind=PersonKind(kind),
                login=login or "",
                name=name,
                grants=grants.get(person_id, ()),
                has_password=password_hash is not None,
                created_at_us=created_at_us,
                disabled_at_us=disabled_at_us,
                last_login_at_us=last_login_at_us,
            ),
            password_hash=password_hash,
        )
        for (
            person_id,
            kind,
            login,
            name,
            password_hash,
            created_at_us,
            disabled_at_us,
            last_login_at_us,
        ) in found
    ]


def _grants(connection: sa.Connection, ids: Sequence[str]) -> dict[str, tuple[Grant, ...]]:
    table = membership
    statement = sa.select(table.c.principal_id, table.c.role, table.c.team)
    if len(ids) == 1:  # else everybody was asked for
        statement = statement.where(table.c.principal_id == ids[0])
    found: dict[str, list[Grant]] = {}
    for person_id, role, team in cast(
        "Sequence[tuple[str, str, str]]", connection.execute(statement).all()
    ):
        found.setdefault(person_id, []).append(Grant(role=Role(role), team=team))
    return {person_id: tuple(sorted(grants)) for person_id, grants in found.items()}


_Columns = tuple[str, str, str | None, str, str | None, int, int | None, int | None]
