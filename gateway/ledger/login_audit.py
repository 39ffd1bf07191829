"""What logins leave in the audit log: each that worked, and of failed ones as many as fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from gateway.access.people import Caller
from gateway.ledger.audit import append_audit

FAILURES_NOTED_MAX = 120
"""Failed logins that the audit log takes at once; then one a second, and how many it left out."""


@dataclass(slots=True)
class FailureLog:
    """Bounds what failed logins write."""

    monotonic_s: Callable[[], float]
    room: float = FAILURES_NOTED_MAX
    last_s: float = 0.0
    left_out: int = 0

    def take(self) -> int | None:
        """How many lines were left out before this one; None when it is left out too."""
        now_s = self.monotonic_s()
        self.room = min(float(FAILURES_NOTED_MAX), self.room + max(0.0, now_s - self.last_s))
        self.last_s = now_s
        if self.room < 1.0:
            self.left_out += 1
            return None
        self.room -= 1.0
        left_out, self.left_out = self.left_out, 0
        return left_out


def audit_login(
    connection: sa.Connection, who: str, way: str, caller: Caller, *, now_us: int
) -> None:
    """Keep that somebody logged in."""
    append_audit(
        connection,
        at_us=now_us,
        actor=who,
        action="login",
        subject=who,
        details={"way": way, "address": caller.address},
    )


def audit_password(
    connection: sa.Connection, person_id: str, caller: Caller, *, now_us: int
) -> None:
    """Keep that somebody set a password."""
    append_audit(
        connection,
        at_us=now_us,
        actor=f"person:{person_id}",
        action="person.set_password",
        subject=f"person:{person_id}",
        details={"address": caller.address},
    )


def audit_failure(
    connection: sa.Connection,
    way: str,
    reason: str,
    caller: Caller,
    *,
    subject: str,
    left_out: int,
    now_us: int,
) -> None:
    """Keep that a login failed; not what was typed, which may be a password in a wrong field."""
    details: dict[str, str | int | None] = {
        "way": way,
        "reason": reason,
        "address": caller.address,
    }
    if left_out:
        details["left_out_before"] = left_out
    append_audit(
        connection,
        at_us=now_us,
        actor="nobody",
        action="login.fail",
        subject=subject,
        details=details,
    )
