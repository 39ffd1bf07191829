"""Whether somebody else could approve: four eyes, where two people exist."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.access.roles import Role

_PRINCIPAL = sa.table(
    "principal", sa.column("id", sa.Text), sa.column("disabled_at_us", sa.BigInteger)
)
_MEMBERSHIP = sa.table("membership", sa.column("principal_id", sa.Text), sa.column("role", sa.Text))


def has_other_approver(connection: sa.Connection, actor: str) -> bool:
    """Whether a person who may change finance exists beside whoever acts.

    Args:
        connection: In a transaction.
        actor: As the audit log names it: `person:<id>` for people; keys and commands are nobody's.
    """
    if not sa.inspect(connection).has_table(_PRINCIPAL.name):
        return False
    people = sa.select(_PRINCIPAL.c.id).join(
        _MEMBERSHIP, _MEMBERSHIP.c.principal_id == _PRINCIPAL.c.id
    )
    others = people.where(
        _MEMBERSHIP.c.role == Role.FINANCE_ADMIN.value,
        _PRINCIPAL.c.disabled_at_us.is_(None),
        _PRINCIPAL.c.id != actor.removeprefix("person:"),
    )
    return connection.execute(others.limit(1)).first() is not None
