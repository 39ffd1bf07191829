"""What the database knows of machines in a month: stretches of time, and who used them.

Of a closed month only what was booked when it closed is read, so that its figures stay. Events are
read for servers alone: one is busy while a request that it was sent is under way, and, where it is
watched, when its metrics say so. Only events of the month count, so that a month does not depend on
the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance.machines.allocation import Stretch, Used, User, Uses
from gateway.finance.machines.hours import (
    HOUR_US,
    Interval,
    Session,
    hours_of,
    merged,
    overlap_us,
    without,
)
from gateway.finance.machines.messages import ENGINE, Hours
from gateway.finance.machines.recording import (
    GAP_MAX_US,
    Term,
    newest_terms,
    terms_within,
)
from gateway.ledger import schema
from gateway.ledger.columns import STATUS_CODES
from gateway.ledger.finance_tables import late_entry
from gateway.ledger.machine_tables import machine_sample
from gateway.ledger.periods import closed_through, late_of, late_roll_ups, month_bounds_us
from gateway.ledger.records import AttemptStatus
from gateway.ledger.roll_ups import SUM_COLUMNS

AWAY_US = HOUR_US
"""A server that answered nothing for longer is taken to have been off meanwhile (`seen`)."""
_BATCH_ROWS = 1_000
_USED = ("request_count", "attempt_count", "cost_pico_usd", *(f"{meter}_units" for meter in (
    "input", "cache_read", "cache_write", "output", "reasoning", "gpu_us",
)))  # fmt: skip
_AT = {name: place for place, name in enumerate(SUM_COLUMNS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthOfMachines:
    """Facts of a month.

    Attributes:
        month: Which.
        start_us: First instant.
        end_us: First instant after it.
        is_closed: Whether it is closed.
        terms: Those that touch it.
        stretches: Time of machines, by machine and start.
        uses: Who used them.
        gaps: Why the month is not complete, as sentences.
    """

    month: str
    start_us: int
    end_us: int
    is_closed: bool
    terms: tuple[Term, ...]
    stretches: tuple[Stretch, ...]
    uses: Uses
    gaps: tuple[str, ...]


def read_month(connection: sa.Connection, month: str, *, now_us: int) -> MonthOfMachines:
    """Read what is known.

    Args:
        connection: In a transaction.
        month: `YYYY-MM`.
        now_us: No time after it is counted.
    """
    start_us, end_us = month_bounds_us(month)
    through = closed_through(connection)
    is_closed = through is not None and month <= through
    terms = tuple(terms_within(connection, start_us, end_us))
    until_us = min(end_us, max(now_us, start_us))
    return MonthOfMachines(
        month=month,
        start_us=start_us,
        end_us=end_us,
        is_closed=is_closed,
        terms=terms,
        stretches=tuple(_stretches(connection, terms, month, (start_us, until_us))),
        uses=_uses(connection, terms, month),
        gaps=tuple(machine_gaps(connection, end_us, now_us=now_us)),
    )


def machine_gaps(connection: sa.Connection, end_us: int, *, now_us: int) -> Iterator[str]:
    """Machines that are not written down up to an instant although they have not ended.

    One that nobody wrote down for too long will begin anew: there is nothing more to wait for.
    """
    for term in newest_terms(connection):
        is_gone = term.is_ended or now_us - term.until_us > GAP_MAX_US
        if not is_gone and term.until_us < end_us:
            until = from_microseconds(term.until_us)
            yield f"{term.machine} is written down until {until:%Y-%m-%d %H:%M} UTC only"


def _stretches(
    connection: sa.Connection, terms: Sequence[Term], month: str, within: Interval
) -> Iterator[Stretch]:
    start_us, end_us = within
    sessions = _sessions(connection, {term.machine for term in terms}, start_us, end_us)
    under_way: dict[tuple[str, ...], list[Interval]] = {}
    for term in terms:
        pieces = hours_of(max(start_us, term.from_us), min(end_us, term.until_us))
        if term.kind == ENGINE:
            yield from _of_engine(term, pieces, sessions.get(term.machine, []))
            continue
        served = term.terms.deployments  # a deployment may be moved to another machine
        if served not in under_way:
            under_way[served] = _intervals(connection, set(served), month)
        yield from _of_server(term, pieces, under_way[served], sessions.get(term.machine, []))


def _of_engine(
    term: Term, pieces: Iterable[Interval], sessions: Sequence[Session]
) -> Iterator[Stretch]:
    """Several engines on one machine are up together; their busy time adds up, up to all of it."""
    up = merged(session.interval for session in sessions)
    for start_us, end_us in pieces:
        up_us = _paid_us(term, up, start_us, end_us)
        busy_us = sum(session.busy_us(start_us, end_us) for session in sessions)
        yield _stretch(term, start_us, end_us, up_us, busy_us)


def _of_server(
    term: Term,
    pieces: Iterable[Interval],
    under_way: Sequence[Interval],
    sessions: Sequence[Session],
) -> Iterator[Stretch]:
    """A server is busy while a request of ours is under way, and when it said so itself.

    It is up when it was found so, while a request is under way, and where nobody looked for up to
    an hour between two of them. Several gateways may have looked at the same time.
    """
    own = merged(under_way)
    found_up = [session for session in sessions if not session.is_down]
    seen = merged([*own, *(session.interval for session in found_up)])
    found_down = merged(session.interval for session in sessions if session.is_down)
    down = without(found_down, seen)
    up = merged([*seen, *without(merged(under_way, gap_us=AWAY_US), down)])
    for start_us, end_us in pieces:
        up_us = _paid_us(term, up, start_us, end_us)
        own_us = overlap_us(own, start_us, end_us)
        stretch = _stretch(
            term, start_us, end_us, up_us, max(own_us, _metered_us(found_up, start_us, end_us))
        )
        yield replace(
            stretch,
            own_us=min(own_us, stretch.up_us),
            down_us=overlap_us(down, start_us, end_us) if sessions else None,
        )


def _metered_us(sessions: Sequence[Session], start_us: int, end_us: int) -> int:
    """Busy time by a server's own metrics; the mean of several that looked at the same time."""
    inside = [
        (max(start_us, began), min(end_us, ended), session)
        for session in sessions
        for began, ended in (session.interval,)
        if began < end_us and ended > start_us
    ]
    looked_us = sum(ended - began for began, ended, _ in inside)
    if not looked_us:
        return 0
    busy_us = sum(session.busy_us(start_us, end_us) for _, _, session in inside)
    covered = merged((began, ended) for began, ended, _ in inside)
    return busy_us * sum(ended - began for began, ended in covered) // looked_us


def _paid_us(term: Term, up: Sequence[Interval], start_us: int, end_us: int) -> int:
    if term.terms.hours is Hours.ALWAYS_ON:
        return end_us - start_us
    return overlap_us(up, start_us, end_us)


def _stretch(term: Term, start_us: int, end_us: int, up_us: int, busy_us: int) -> Stretch:
    return Stretch(
        machine=term.machine,
        pool=term.pool,
        kind=term.kind,
        start_us=start_us,
        end_us=end_us,
        up_us=up_us,
        busy_us=min(up_us, busy_us),
        terms=term.terms,
    )


def _sessions(
    connection: sa.Connection, machines: set[str], start_us: int, end_us: int
) -> Mapping[str, list[Session]]:
    """What meters said, by machine; an hour more on both sides, for what lies between readings."""
    table = machine_sample
    near = sa.select(table.c.session).where(
        table.c.machine.in_(sorted(machines)),
        table.c.hour_us >= start_us - HOUR_US,
        table.c.hour_us < end_us + HOUR_US,
    )
    # A session that began long before is known whole: its first reading of the month stands upon
    # the last one before.
    chosen = sa.select(table).where(table.c.session.in_(near))
    readings: dict[tuple[str, bytes, int, bool], list[tuple[int, int]]] = {}
    for row in connection.execute(chosen).mappings():
        key = (
            cast("str", row["machine"]),
            cast("bytes", row["session"]),
            cast("int", row["started_us"]),
            bool(cast("int", row["is_down"])),
        )
        for which in ("first", "last"):
            reading = (
                cast("int", row[f"{which}_up_us"]),
                cast("int", row[f"{which}_busy_us"]),
            )
            readings.setdefault(key, []).append(reading)
    found: dict[str, list[Session]] = {}
    for (machine, _, started_us, is_down), listed in sorted(readings.items()):
        session = Session.of(started_us, listed, is_down=is_down)
        found.setdefault(machine, []).append(session)
    return found


def _intervals(connection: sa.Connection, names: set[str], month: str) -> list[Interval]:
    """When requests to a server were under way, merged while they are read."""
    event, place, late = schema.spend_event, schema.deployment, late_entry
    start_us, end_us = month_bounds_us(month)
    is_late = sa.exists().where(late.c.event_id == event.c.event_id, late.c.entry == event.c.entry)
    ids = sa.select(place.c.id).where(place.c.name.in_(sorted(names)))
    chosen = (
        sa.select(event.c.at_us, event.c.duration_us)
        .where(
            event.c.at_us >= start_us,
            event.c.at_us < end_us,
            event.c.deployment_id.in_(ids),
            event.c.status != STATUS_CODES[AttemptStatus.NOT_SENT],
            event.c.is_lost.is_(sa.false()),
            ~is_late,
        )
        .order_by(event.c.at_us)
    )
    found: list[Interval] = []
    rows = connection.execute(chosen.execution_options(yield_per=_BATCH_ROWS))
    for at_us, duration_us in cast("Iterable[tuple[int, int]]", rows):
        if found and at_us <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], at_us + duration_us))
        else:
            found.append((at_us, at_us + duration_us))
    return found


def _uses(connection: sa.Connection, terms: Sequence[Term], month: str) -> Uses:
    """Sums of the month by pool, hour and user; late entries of a closed month taken out."""
    hosts: dict[str, list[Term]] = {}
    for term in terms:
        for name in term.terms.deployments:
            hosts.setdefault(name, []).append(term)
    names = _names(connection, hosts)
    table = schema.rollup_qh
    start_us, end_us = month_bounds_us(month)
    by = (table.c.bucket_us, table.c.team_id, table.c.project_id, table.c.deployment_id)
    sums = [sa.func.sum(table.c[name]).label(name) for name in _USED]
    chosen = cast("sa.Select[tuple[int]]", sa.select(*by, *sums))
    in_month = chosen.where(
        table.c.bucket_us >= start_us,
        table.c.bucket_us < end_us,
        table.c.deployment_id.in_(sorted(names.deployments)),
    )
    cells: dict[tuple[int, int, int, int], list[int]] = {}
    for row in connection.execute(in_month.group_by(*by)).all():
        values = [int(value) for value in cast("Sequence[int]", row)]
        bucket_us, team, project, deployment = values[: len(by)]
        cells[bucket_us, team, project, deployment] = values[len(by) :]
    late = late_roll_ups(late_of(connection, month)).cells[table.name]
    for key, taken in late.items():
        bucket_us, team, project, _, deployment = key[:5]
        cell = cells.get((bucket_us, team, project, deployment))
        if cell is not None:
            less = [taken[_AT[name]] for name in _USED]
            cell[:] = [holds - gone for holds, gone in zip(cell, less, strict=True)]
    uses: dict[tuple[str, int], dict[User, Used]] = {}
    for (bucket_us, team, project, deployment), cell in sorted(cells.items()):
        if not any(cell):
            continue
        user = User(
            team=names.teams[team],
            project=names.projects[project],
            deployment=names.deployments[deployment],
        )
        requests, attempts, cost, fresh, read, written, output, reasoning, gpu_us = cell
        used = Used(
            gpu_us=gpu_us,
            input_tokens=fresh + written,
            cached_input_tokens=read,
            output_tokens=output + reasoning,
            attempts=attempts,
            requests=requests,
            booked_pico_usd=cost,
            cache_write_tokens=written,
            reasoning_tokens=reasoning,
        )
        pool = _pool_at(hosts[user.deployment], bucket_us)
        hour = uses.setdefault((pool, bucket_us - bucket_us % HOUR_US), {})
        hour[user] = hour.get(user, Used()) + used
    return uses


def _pool_at(hosts: Sequence[Term], bucket_us: int) -> str:
    """The pool that a deployment belonged to in a quarter of an hour, the first one if it moved."""
    by_start = sorted(hosts, key=lambda term: (term.from_us, term.term_id))
    return next((one for one in by_start if bucket_us < one.until_us), by_start[-1]).pool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Names of interned ids."""

    teams: Mapping[int, str]
    projects: Mapping[int, str]
    deployments: Mapping[int, str]


def _names(connection: sa.Connection, deployments: Iterable[str]) -> _Names:
    place = schema.deployment
    wanted = sa.select(place.c.id, place.c.name).where(place.c.name.in_(sorted(set(deployments))))
    return _Names(
        teams=_pairs(connection, sa.select(schema.team.c.id, schema.team.c.name)),
        projects=_pairs(connection, sa.select(schema.project.c.id, schema.project.c.name)),
        deployments=_pairs(connection, wanted),
    )


def _pairs(connection: sa.Connection, chosen: sa.Select[Any, Any]) -> Mapping[int, str]:
    rows = connection.execute(chosen).all()
    return {int(key): str(name) for key, name in cast("Sequence[tuple[int, str]]", rows)}
