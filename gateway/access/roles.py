"""Roles, and who looks at pages or asks the administration API.

A role is granted for the whole organisation or, where it is a team's, for one team. Two roles are
never granted to anybody: they are what the holder of the administrator's key and the holder of a
team's key are (`finance_policy.md` 5.4; `break_glass` is the administrator's key).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What somebody is."""

    ADMINISTRATOR = "administrator"
    """Holds the administrator's key."""
    PLATFORM_ADMIN = "platform_admin"
    """Configuration, providers, keys, people."""
    POLICY_APPROVER = "policy_approver"
    """Approves what a platform admin proposes; another person."""
    FINANCE_VIEWER = "finance_viewer"
    """All spend and exports; no keys."""
    FINANCE_ADMIN = "finance_admin"
    """Prices, reconciliation, adjustments, month close."""
    TEAM_OWNER = "team_owner"
    """Keys, budgets and spend of a team."""
    TEAM_MEMBER = "team_member"
    """Own keys, and the spend of a team."""
    AUDITOR = "auditor"
    """Reads the audit log and who decided what."""
    KEY_HOLDER = "key_holder"
    """Holds a team's key."""


GRANTABLE = frozenset(Role) - {Role.ADMINISTRATOR, Role.KEY_HOLDER}
"""Roles that a person can be given."""
TEAM_ROLES = frozenset({Role.TEAM_OWNER, Role.TEAM_MEMBER, Role.KEY_HOLDER})
"""Roles that name a team; all others are the organisation's."""


class Grant(msgspec.Struct, frozen=True, order=True):
    """A role, and for whom.

    Attributes:
        role: The role.
        team: The team of a team's role, else empty.
    """

    role: Role
    team: str = ""

    def fault(self) -> str:
        """What is wrong with it, empty when nothing is."""
        if self.role not in GRANTABLE:
            return f"{self.role.value} is not a role that a person can be given"
        if self.role in TEAM_ROLES and not self.team:
            return f"{self.role.value} needs a team, as {self.role.value}@TEAM"
        if self.role not in TEAM_ROLES and self.team:
            return f"{self.role.value} is the organisation's and takes no team"
        return ""

    @property
    def text(self) -> str:
        """`role`, or `role@team`."""
        return f"{self.role.value}@{self.team}" if self.team else self.role.value


def parse_grant(text: str) -> Grant:
    """Read `role` or `role@team`.

    Raises:
        ValueError: It is none; the message lists the roles.
    """
    name, _, team = text.partition("@")
    known = sorted(role.value for role in GRANTABLE)
    if name not in known:
        raise ValueError(f"{name[:64]!r} is no role; there are: {', '.join(known)}")
    grant = Grant(role=Role(name), team=team)
    if fault := grant.fault():
        raise ValueError(fault)
    return grant


def grants_fault(grants: Sequence[Grant]) -> str:
    """What is wrong with the roles of one person, empty when nothing is."""
    if not grants:
        return "a person needs at least one role"
    for grant in grants:
        if fault := grant.fault():
            return fault
    if {Role.PLATFORM_ADMIN, Role.POLICY_APPROVER} <= {grant.role for grant in grants}:
        return "platform_admin and policy_approver are two people: one proposes, the other approves"
    return ""


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks at pages or asks the administration API.

    Attributes:
        actor: For the audit log: `admin-key`, `key:<key id>` or `person:<person id>`.
        name: For people.
        grants: Roles; never empty of a viewer that gets anywhere.
        person_id: Empty for the holder of a key.
    """

    actor: str
    name: str
    grants: tuple[Grant, ...]
    person_id: str = ""

    @property
    def is_key_holder(self) -> bool:
        """Whether this is nobody but the holder of a team's key."""
        return all(grant.role is Role.KEY_HOLDER for grant in self.grants)


ADMINISTRATOR = Viewer(
    actor="admin-key", name="Administrator", grants=(Grant(role=Role.ADMINISTRATOR),)
)
"""The holder of the administrator's key."""


def key_holder(key_id: str, name: str, team: str) -> Viewer:
    """The holder of a team's key."""
    return Viewer(
        actor=f"key:{key_id}", name=name, grants=(Grant(role=Role.KEY_HOLDER, team=team),)
    )
