"""A key's successor: the same scope, limits and budgets under another text and another name. Pure.

Whoever rotates makes the successor's budgets first, then the key, then ends the old key when its
grace time is over, so that at no moment a key may spend more than it should.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from gateway.auth.directory import KeyRecord
from gateway.budgets.messages import BudgetDeclaration, BudgetReport
from gateway.ledger.views import StoredKey

HOUR_US = 3_600_000_000
GRACE_HOURS = 72
"""How long a replaced key goes on, unless said."""
GRACE_HOURS_MAX = 14 * 24
_NAME_CHARACTERS_MAX = 128
_NUMBER_CHARACTERS = 7
"""Of the number behind a successor's name, with its space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """What is made in place of a key.

    Attributes:
        record: The new key.
        owner: Whose key it is, as the old one's.
        budgets: Its own, as the old one's.
    """

    record: KeyRecord
    owner: str
    budgets: tuple[BudgetDeclaration, ...]


def is_void(record: KeyRecord, now_us: int) -> bool:
    """Whether a key is revoked or expired, and so has nothing to hand on."""
    expires_us = record.expires_at_us
    return record.disabled or (expires_us is not None and expires_us <= now_us)


def succeed(
    old: StoredKey,
    *,
    key_id: str,
    digest: bytes,
    known: Iterable[KeyRecord],
    budgets: Iterable[BudgetReport],
) -> Successor:
    """A key's successor.

    Args:
        old: The key that is replaced.
        key_id: Of the new key.
        digest: Of the new key's text.
        known: Every key, for names that are taken.
        budgets: Every budget in force.
    """
    record = msgspec.structs.replace(
        old.record,
        key_id=key_id,
        digest=digest,
        name=successor_name(
            old.record.name, {one.name for one in known if one.team == old.record.team}
        ),
    )
    owned = [report for report in budgets if report.rule.key_id == old.record.key_id]
    return Successor(
        record=record,
        owner=old.owner,
        budgets=tuple(
            _budget_for(report, key_id, number) for number, report in enumerate(owned, start=1)
        ),
    )


def successor_name(name: str, taken: Collection[str]) -> str:
    """What a key's successor is called: `ci 2` after `ci`, `ci 3` after `ci 2`."""
    stem, _, last = name.rpartition(" ")
    is_numbered = bool(stem) and last.isascii() and last.isdigit() and len(last) < 6
    base, number = (stem, int(last)) if is_numbered else (name, 1)
    while True:
        number += 1
        wanted = f"{base[: _NAME_CHARACTERS_MAX - _NUMBER_CHARACTERS].rstrip()} {number}"
        if wanted not in taken:
            return wanted


def _budget_for(report: BudgetReport, key_id: str, number: int) -> BudgetDeclaration:
    """A key's budget for its successor; the number tells several of one window apart."""
    rule = report.rule
    return BudgetDeclaration(
        name=f"key {key_id}, {rule.window.value} {number}",
        scope=rule.scope,
        team=rule.team,
        key_id=key_id,
        limit_pico_usd=rule.limit_pico_usd,
        window=rule.window,
        time_zone=rule.time_zone,
        fiscal_month=rule.fiscal_month,
        on_exceed=rule.on_exceed,
        alerts_at=report.alerts_at,
    )
