"""Which days the daily check is about, who does it, and what it found: facts in `meta`.

Every day that had a new entry since the last check began is due: the days around now by rule, an
older one because whoever wrote into it noted it, in the same transaction. Of several machines one
does the check: it keeps a claim that it renews as it goes, and that ends by itself when it dies.
What is known when it dies is in the claim, so nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import sqlalchemy as sa

from gateway.ledger import facts, partitions, schema
from gateway.ledger.day_checks import first_day_us
from gateway.ledger.dialects import Lock, insert_into, take
from gateway.ledger.grains import DAY_US

CLAIM_US = 15 * 60 * 1_000_000
"""A check that has said nothing for so long is taken for dead."""
TOLD_MAX = 20
"""Findings that are kept as sentences; the rest is counted."""
_STATE = "check"
_TOUCHED = "check_days"


class CheckState(msgspec.Struct, frozen=True, kw_only=True):
    """How the last check went, and the one that is under way.

    Attributes:
        began_at_us: When the last finished check began; 0 for none.
        finished_at_us: When it ended.
        days: How many days it was about.
        findings: How many it had.
        told: The first of them, a sentence each.
        faulty_days: Days whose sums were not those of their events, by their first instants.
        faulty_months: Closed months that did not hold what was closed.
        claimed_by: Who is doing a check now; empty for nobody.
        claimed_until_us: Until when, if nothing more is heard.
        claim_began_us: When that check began.
        claimed_days: Older days that it is about.
    """

    began_at_us: int = 0
    finished_at_us: int = 0
    days: int = 0
    findings: int = 0
    told: tuple[str, ...] = ()
    faulty_days: tuple[int, ...] = ()
    faulty_months: tuple[str, ...] = ()
    claimed_by: str = ""
    claimed_until_us: int = 0
    claim_began_us: int = 0
    claimed_days: tuple[int, ...] = ()


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found.

    Attributes:
        days: How many days it was about.
        count: How many findings.
        told: The first of them, a sentence each.
        faulty_days: Days whose sums were not those of their events.
        faulty_months: Closed months that did not hold what was closed.
    """

    days: int
    count: int
    told: tuple[str, ...]
    faulty_days: tuple[int, ...]
    faulty_months: tuple[str, ...] = ()


def load_state(connection: sa.Connection) -> CheckState:
    """What is known of the last check."""
    value = facts.load_fact(connection, _STATE)
    return CheckState() if value is None else msgspec.json.decode(value, type=CheckState)


def note_touched(connection: sa.Connection, instants_us: Iterable[int], *, now_us: int) -> None:
    """Note the days of new entries that no check would look at by itself.

    Args:
        connection: In the transaction that writes the entries, and has changed sums.
        instants_us: Of the entries.
        now_us: Now.
    """
    today_us = now_us // DAY_US * DAY_US
    old = {at_us // DAY_US * DAY_US for at_us in instants_us}
    old = {day_us for day_us in old if not today_us - DAY_US <= day_us <= today_us + DAY_US}
    if old:
        known = _load_touched(connection)
        if not old <= known:
            _set(connection, _TOUCHED, sorted(old | known))


def claim(
    connection: sa.Connection, *, now_us: int, due_from_us: int, holder: str
) -> tuple[int, ...] | None:
    """Begin a check, unless one was made since it was due or somebody is making one.

    Args:
        connection: In a transaction that may write.
        now_us: Now.
        due_from_us: A check that began before is not this one.
        holder: Who makes it.

    Returns:
        The first instants of the days that it is about; None when it is not to be made.
    """
    take(connection, Lock.SUMS)  # nobody notes a day between here and there
    state = _locked_state(connection)
    is_taken = state.claimed_by not in ("", holder) and now_us < state.claimed_until_us
    if is_taken or state.began_at_us >= due_from_us:
        return None
    noted = _noted(connection, state)
    _set(connection, _TOUCHED, [])
    changed = msgspec.structs.replace(
        state,
        claimed_by=holder,
        claimed_until_us=now_us + CLAIM_US,
        claim_began_us=now_us,
        claimed_days=tuple(sorted(noted)),
    )
    _set(connection, _STATE, changed)
    return _days(connection, state, noted, now_us=now_us)


def changed_days(connection: sa.Connection, *, now_us: int) -> tuple[int, ...]:
    """First instants of the days that the last check that ended does not speak for.

    Those are what a check that begins now would be about: days with new entries since, those of a
    check that is under way, and days that did not hold.
    """
    state = load_state(connection)
    return _days(connection, state, _noted(connection, state), now_us=now_us)


def renew(connection: sa.Connection, *, now_us: int, holder: str) -> bool:
    """Say that a check goes on; whether it is still this holder's."""
    state = _locked_state(connection)
    if state.claimed_by != holder:
        return False
    _set(connection, _STATE, msgspec.structs.replace(state, claimed_until_us=now_us + CLAIM_US))
    return True


def finish(connection: sa.Connection, found: Findings, *, now_us: int, holder: str) -> bool:
    """Keep what a check found; False, and nothing kept, when somebody else has taken it over."""
    state = _locked_state(connection)
    if state.claimed_by != holder:
        return False
    done = CheckState(
        began_at_us=state.claim_began_us,
        finished_at_us=now_us,
        days=found.days,
        findings=found.count,
        told=found.told,
        faulty_days=found.faulty_days,
        faulty_months=found.faulty_months,
    )
    _set(connection, _STATE, done)
    return True


def _days(
    connection: sa.Connection, state: CheckState, noted: set[int], *, now_us: int
) -> tuple[int, ...]:
    """Days around the time since the last check began, and noted ones; no dropped month's."""
    first_us = first_day_us(connection)
    if first_us is None:
        return ()
    from_us = state.began_at_us // DAY_US * DAY_US - DAY_US if state.began_at_us else first_us
    to_us = now_us // DAY_US * DAY_US + 2 * DAY_US
    days = noted | set(range(max(from_us, first_us), to_us, DAY_US))
    kept_from_us = partitions.kept_from_us(connection)
    return tuple(sorted(day_us for day_us in days if day_us >= kept_from_us))


def _noted(connection: sa.Connection, state: CheckState) -> set[int]:
    return _load_touched(connection) | set(state.claimed_days) | set(state.faulty_days)


def _load_touched(connection: sa.Connection) -> set[int]:
    value = facts.load_fact(connection, _TOUCHED)
    return set() if value is None else set(msgspec.json.decode(value, type=list[int]))


def _locked_state(connection: sa.Connection) -> CheckState:
    """The state, which nobody else changes until the transaction ends."""
    added = insert_into(connection.dialect.name, schema.meta).values(
        name=_STATE, value=msgspec.json.encode(CheckState()).decode()
    )
    connection.execute(added.on_conflict_do_nothing())
    row = sa.select(schema.meta.c.name).where(schema.meta.c.name == _STATE).with_for_update()
    connection.execute(row)
    return load_state(connection)


def _set(connection: sa.Connection, name: str, value: object) -> None:
    facts.set_fact(connection, name, msgspec.json.encode(value).decode())
