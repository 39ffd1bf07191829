"""Webhooks hear when a commitment will soon be used up, is used up, or will lapse unused.

Each is told once per recording of a commitment, in the transaction that notes that it was told, so
several machines and restarts tell nothing twice. A correction is a new recording and may be told
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from typing import Protocol, TypeVar

import anyio
import msgspec
import sqlalchemy as sa

from gateway.clock import Clock, from_microseconds
from gateway.finance import commitments
from gateway.finance.commitment_messages import CommitmentStanding
from gateway.ledger.budget_alerts import tell
from gateway.ledger.dialects import Lock, take
from gateway.ledger.errors import LedgerError
from gateway.ledger.facts import load_fact, set_fact
from pricing.commitments import CommitmentKind
from pricing.money import format_usd

_log = logging.getLogger(__name__)

T = TypeVar("T")

RUNS_OUT_DAYS = (30, 7)
"""So many days before it will be used up an alert goes out."""
LAPSES_DAYS = 30
"""So many days before its end, where something will be left."""
LOOK_S = 3_600.0
_TOLD = "commitment_alerts"
_RUN_OUT, _USED_UP, _LAPSE = "commitment.run_out", "commitment.used_up", "commitment.lapse"


class Ledger(Protocol):
    """What is needed of the ledger's service."""

    async def read_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Read on a connection of its own, in a thread."""
        ...

    async def write_apart(self, run: Callable[[sa.Connection], T]) -> T:
        """Write in one transaction on a connection of its own, in a thread."""
        ...


async def watch(ledger: Ledger, *, clock: Clock, look_s: float = LOOK_S) -> None:
    """Look every hour until cancelled."""
    while True:
        try:
            await look(ledger, now_us=clock.wall_us())
        except LedgerError as error:
            _log.warning("alerts about commitments wait: %s", error)
        await anyio.sleep(look_s)


async def look(ledger: Ledger, *, now_us: int) -> int:
    """Write down what has to be told and was not yet; how many alerts that are.

    The usage of a year is read first: nobody else writes while an alert is written down.
    """
    due = await ledger.read_apart(lambda connection: find_due(connection, now_us=now_us))
    if not due:
        return 0
    return await ledger.write_apart(lambda connection: note_alerts(connection, due, now_us=now_us))


def find_due(connection: sa.Connection, *, now_us: int) -> tuple[CommitmentStanding, ...]:
    """The commitments of which something has to be told and was not yet."""
    if not commitments.load(connection):
        return ()
    told, today = _load_told(connection), from_microseconds(now_us).date()
    found = commitments.standings(connection, now_us=now_us)
    return tuple(one for one in found if _untold(one, told, today))


def note_alerts(
    connection: sa.Connection, due: Sequence[CommitmentStanding], *, now_us: int
) -> int:
    """Write down what has to be told and was not yet; how many alerts that are.

    Args:
        connection: In a transaction that may write.
        due: As `find_due` found them.
        now_us: Microseconds since the epoch.
    """
    take(connection, Lock.AUDIT)  # two machines look one after the other
    told, today = _load_told(connection), from_microseconds(now_us).date()
    count = 0
    for one in due:
        left = _untold(one, told, today)
        if not left:
            continue
        told |= {_name(one, key) for key in left}
        # Of several days that have passed at once, the nearest is told alone.
        tell(connection, document(one, left[-1].partition("/")[0], now_us=now_us), now_us=now_us)
        _log.warning("commitment %s: %s", one.name, left[-1])
        count += 1
    if count:
        set_fact(connection, _TOLD, msgspec.json.encode(sorted(told)).decode())
    return count


def _load_told(connection: sa.Connection) -> set[str]:
    value = load_fact(connection, _TOLD)
    return set() if value is None else set(msgspec.json.decode(value, type=list[str]))


def _untold(one: CommitmentStanding, told: AbstractSet[str], today: date) -> list[str]:
    return [key for key in _due(one, today) if _name(one, key) not in told]


def _name(one: CommitmentStanding, key: str) -> str:
    return f"{one.name}/{one.revision}/{key}"


def _due(one: CommitmentStanding, today: date) -> Iterator[str]:
    """What holds of a commitment, the most urgent last."""
    if one.kind is CommitmentKind.THROUGHPUT or one.state not in ("open", "used_up"):
        return
    if one.runs_out_on is None:
        ends_in = (date.fromisoformat(one.last_day) - today).days
        if one.state == "open" and ends_in <= LAPSES_DAYS:
            yield _LAPSE
    else:
        left_days = (date.fromisoformat(one.runs_out_on) - today).days
        for days in RUNS_OUT_DAYS:
            if left_days <= days:
                yield f"{_RUN_OUT}/{days}"
    if one.state == "used_up":
        yield _USED_UP


def document(one: CommitmentStanding, kind: str, *, now_us: int) -> dict[str, object]:
    """What a webhook is told; no content, no key."""
    return {
        "type": kind,
        "commitment": one.name,
        "kind": one.kind.value,
        "provider": one.provider,
        "amount_usd": format_usd(one.amount_pico_usd),
        "drawn_usd": format_usd(one.drawn_pico_usd),
        "left_usd": format_usd(one.left_pico_usd),
        "runs_out_on": one.runs_out_on,
        "runs_out_early": one.runs_out_early,
        "runs_out_late": one.runs_out_late,
        "last_day": one.last_day,
        "at": from_microseconds(now_us).isoformat(),
    }
