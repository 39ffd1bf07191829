"""Writing down which machines are configured, from when to when, and what their meters say.

A machine's newest term is extended to the present for as long as the configuration says the same of
it, also over a time in which no gateway ran: a machine is paid for whether or not anybody looks at
it. Other terms begin where the last ones end. A machine that is configured no more ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import msgspec
import sqlalchemy as sa

from gateway.finance.machines.hours import HOUR_US
from gateway.finance.machines.messages import (
    DeclaredMachine,
    EngineSample,
    MachineTerms,
    NoteMachines,
)
from gateway.ledger.dialects import Lock, insert_into, take
from gateway.ledger.machine_tables import machine_sample, machine_term

GAP_MAX_US = 45 * 24 * HOUR_US
"""A machine that nobody wrote down for longer begins anew: a clock that was set wrong for a moment
shall not be paid for by years."""
_FIRST, _LAST = ("first_up_us", "first_busy_us"), ("last_up_us", "last_busy_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A row of `machine_term`."""

    term_id: int
    machine: str
    pool: str
    node: str
    kind: str
    from_us: int
    until_us: int
    is_ended: bool
    terms: MachineTerms


def note_machines(connection: sa.Connection, note: NoteMachines, *, now_us: int) -> None:
    """Write down what is said; the same said again, or in another order, changes nothing more.

    Args:
        connection: In a write transaction.
        note: What a supervisor says.
        now_us: The ledger's own clock.
    """
    take(connection, Lock.MACHINES)
    newest = {term.machine: term for term in newest_terms(connection)}
    for one in note.machines:
        _extend(connection, one, newest.get(one.machine), note.node, now_us)
    declared = {one.machine for one in note.machines}
    ended = [
        term.term_id
        for term in newest.values()
        if not term.is_ended and term.machine not in declared and term.node == note.node
    ]
    table = machine_term
    if ended:
        connection.execute(sa.update(table).where(table.c.id.in_(ended)).values(is_ended=True))
    for sample in note.samples:
        _keep(connection, sample)


def newest_terms(connection: sa.Connection) -> Iterator[Term]:
    """The last term of each machine."""
    newest = sa.select(sa.func.max(machine_term.c.id)).group_by(machine_term.c.machine)
    return _read(connection, machine_term.c.id.in_(newest))


def terms_within(connection: sa.Connection, start_us: int, end_us: int) -> Iterator[Term]:
    """Terms that touch an interval, by machine and beginning."""
    table = machine_term
    return _read(connection, table.c.from_us < end_us, table.c.until_us >= start_us)


def _read(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> Iterator[Term]:
    table = machine_term
    chosen = sa.select(table).where(*conditions).order_by(table.c.machine, table.c.id)
    for row in connection.execute(chosen).mappings():
        yield Term(
            term_id=cast("int", row["id"]),
            machine=cast("str", row["machine"]),
            pool=cast("str", row["pool"]),
            node=cast("str", row["node"]),
            kind=cast("str", row["kind"]),
            from_us=cast("int", row["from_us"]),
            until_us=cast("int", row["until_us"]),
            is_ended=bool(cast("int", row["is_ended"])),
            terms=msgspec.convert(row["terms"], MachineTerms),
        )


def _extend(
    connection: sa.Connection,
    machine: DeclaredMachine,
    last: Term | None,
    node: str,
    now_us: int,
) -> None:
    is_new = last is None or last.is_ended or now_us - last.until_us > GAP_MAX_US
    from_us = now_us if last is None or is_new else last.until_us
    if from_us > now_us:
        return  # the clock went back; what is written down is caught up with
    table = machine_term
    known = None if is_new else last
    for start_us, end_us, terms in _pieces(machine, from_us, now_us):
        if known is not None and known.until_us == start_us and known.terms == terms:
            extended = sa.update(table).where(table.c.id == known.term_id)
            connection.execute(extended.values(until_us=end_us))
            continue
        connection.execute(
            sa.insert(table).values(
                machine=machine.machine,
                pool=machine.pool,
                # A server is the same for all nodes; the one that wrote it down first ends it.
                node=node,
                kind=machine.kind,
                from_us=start_us,
                until_us=end_us,
                is_ended=False,
                terms=msgspec.to_builtins(terms),
            )
        )


def _pieces(
    machine: DeclaredMachine, from_us: int, to_us: int
) -> Iterator[tuple[int, int, MachineTerms]]:
    """An interval cut where other terms begin; without those in which there are none."""
    dated = machine.terms
    for place, one in enumerate(dated):
        until_us = dated[place + 1].from_us if place + 1 < len(dated) else None
        start_us = max(from_us, one.from_us or 0)
        end_us = to_us if until_us is None else min(to_us, until_us)
        is_last_moment = start_us == end_us == to_us and (until_us is None or to_us < until_us)
        if one.terms is not None and (start_us < end_us or is_last_moment):
            yield start_us, end_us, one.terms


def _keep(connection: sa.Connection, sample: EngineSample) -> None:
    """Move the hour's first and last reading apart, as far as this one lies outside of them."""
    at_us = sample.started_us + sample.up_us
    reading = (sample.up_us, min(sample.busy_us, sample.up_us))
    key = {"session": sample.session, "hour_us": at_us - at_us % HOUR_US}
    table = machine_sample
    is_it = sa.and_(*(table.c[name] == value for name, value in key.items()))
    found = connection.execute(sa.select(table).where(is_it)).mappings().one_or_none()
    if found is None:
        values = {
            **key,
            "machine": sample.machine,
            "deployment": sample.deployment,
            "started_us": sample.started_us,
            "is_down": sample.is_down,
            **_named(_FIRST, reading),
            **_named(_LAST, reading),
        }
        connection.execute(insert_into(connection.dialect.name, table).values(values))
        return
    first = min(reading, _reading(found, _FIRST))
    last = max(reading, _reading(found, _LAST))
    moved = {**_named(_FIRST, first), **_named(_LAST, last)}
    connection.execute(sa.update(table).where(is_it).values(moved))


def _reading(row: sa.RowMapping, names: tuple[str, str]) -> tuple[int, int]:
    return cast("int", row[names[0]]), cast("int", row[names[1]])


def _named(names: Iterable[str], reading: tuple[int, int]) -> dict[str, int]:
    return dict(zip(names, reading, strict=True))
