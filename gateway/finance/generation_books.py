"""Our attempts by the vendor's id of a generation, and lines of bills brought to their days."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import cast

import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance.bill_lines import GENERATIONS, bill_lines, billed_of, counting
from gateway.finance.cells import Billed, Sent
from gateway.finance.generation_messages import Generation, GenerationState, ListGenerations
from gateway.finance.generations import Match, match
from gateway.finance.sources.rows import TOKEN_METERS
from gateway.ledger import schema
from gateway.ledger.finance_tables import import_batch, invoice, invoice_line
from gateway.ledger.periods import month_bounds_us, next_month

LISTED_MAX = 10_000
_DAY_US = 24 * 3_600 * 10**6
_METERS = tuple(meter for meter in schema.METERS if meter in TOKEN_METERS)


def with_generations(
    connection: sa.Connection, month: str, billed: Sequence[Billed]
) -> tuple[list[Billed], list[Sent]]:
    """Lines of a month with each generation on the day and model of our attempt, and the attempts.

    The clock of a vendor and ours may be on both sides of midnight: a line is of the day of our
    attempt, so that neither day has one too many; it stays where it is when no bill covers that.

    Args:
        connection: In a transaction; one state of the database is read.
        month: `YYYY-MM`.
        billed: Every line of the month as the bills have it.
    """
    lines = [*billed, *_edges(connection, month)]
    accounts = {line.account for line in lines if line.generation}
    if not accounts:
        return list(billed), []
    sent = load_sent(connection, month, accounts)
    by_id = {(one.account, one.generation): one for one in sent if one.generation}
    ranges = _covered_ranges(connection)
    found: list[Billed] = []
    for line in lines:
        one = by_id.get((line.account, line.generation)) if line.generation else None
        if one is not None and _is_covered(ranges[line.account], one.day):
            line = replace(line, day=one.day, model=one.model)
        if line.day[:7] == month:
            found.append(line)
    return found, [one for one in sent if one.day[:7] == month]


def load_sent(connection: sa.Connection, month: str, accounts: set[str]) -> list[Sent]:
    """Attempts of some accounts in a month and on the days beside it, by id."""
    event, deployment = schema.spend_event, schema.deployment
    start_us, end_us = month_bounds_us(month)
    columns: list[sa.ColumnElement[object]] = [
        event.c.event_id,
        event.c.at_us,
        deployment.c.provider,
        deployment.c.upstream_model,
        event.c.upstream_request_id,
        event.c.cost_pico_usd,
        event.c.provider_cost_pico_usd,
        event.c.exposure_pico_usd,
        *(event.c[f"{meter}_units"] for meter in _METERS),
    ]
    rows = connection.execute(
        cast("sa.Select[tuple[object]]", sa.select(*columns))
        .select_from(event.join(deployment, deployment.c.id == event.c.deployment_id))
        .where(
            event.c.at_us >= start_us - _DAY_US,
            event.c.at_us < end_us + _DAY_US,
            deployment.c.provider.in_(sorted(accounts)),
        )
        .order_by(event.c.event_id, event.c.entry)
    )
    found: dict[bytes, Sent] = {}
    for row in cast("Iterator[Sequence[object]]", rows):
        event_id, at_us = cast("bytes", row[0]), cast("int", row[1])
        account, model, generation = cast("Sequence[str]", row[2:5])
        cost, told, exposure = cast("Sequence[int | None]", row[5:8])
        # The highest entry counts, alone: a settlement takes the place of a lost one.
        found[event_id] = Sent(
            account=account,
            day=from_microseconds(at_us).date().isoformat(),
            model=model,
            generation=generation,
            event_id=event_id.hex(),
            units=sum(cast("Sequence[int]", row[8:])),
            cost_pico_usd=cost or 0,
            provider_cost_pico_usd=told,
            is_unknown=bool(exposure) and not cost,
        )
    return list(found.values())


def generations_of(
    billed: Sequence[Billed], sent: Sequence[Sent], query: ListGenerations
) -> Iterator[Generation]:
    """What is asked of a month's generations, by account, day and id."""
    accounts = {line.account for line in billed if line.generation}
    matches = [
        one
        for account in sorted(accounts)
        if query.account in (None, account)
        for one in match(
            [line for line in billed if line.account == account and line.generation],
            [one for one in sent if one.account == account],
        )
    ]
    told = [_told(one) for one in matches if _is_asked(one, query)]
    yield from sorted(told, key=lambda one: (one.account, one.day, one.generation))


def _is_asked(one: Match, query: ListGenerations) -> bool:
    if query.state is None:
        return one.state is not GenerationState.SAME
    return one.state is query.state


def _told(one: Match) -> Generation:
    line, sent = one.line, one.sent
    place = line or sent
    assert place is not None, "a match has one side at least"
    return Generation(
        state=one.state,
        generation=place.generation,
        event_id="" if sent is None else sent.event_id,
        account=place.account,
        day=place.day,
        model=place.model,
        metered_units=None if sent is None else sent.units,
        billed_units=None if line is None else line.units,
        booked_pico_usd=None if sent is None else sent.cost_pico_usd,
        told_pico_usd=None if sent is None else sent.provider_cost_pico_usd,
        billed_pico_usd=None if line is None else line.amount_pico_usd,
    )


def _edges(connection: sa.Connection, month: str) -> Iterator[Billed]:
    """Generations on the days just before and just after a month."""
    first = date.fromisoformat(f"{month}-01")
    days = ((first - timedelta(days=1)).isoformat(), f"{next_month(month)}-01")
    where = (invoice_line.c.day.in_(days), import_batch.c.source == GENERATIONS)
    yield from map(billed_of, bill_lines(connection, *where))


def _covered_ranges(connection: sa.Connection) -> Mapping[str, Sequence[tuple[str, str]]]:
    """First and last day of every bill that counts, by account."""
    table = import_batch
    has_bill = sa.exists().where(invoice.c.batch_id == table.c.id)
    columns = (table.c.account, table.c.first_day, table.c.last_day)
    rows = connection.execute(sa.select(*columns).where(*counting(), has_bill)).all()
    found: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for account, first_day, last_day in cast("Sequence[tuple[str, str, str]]", rows):
        found[account].append((first_day, last_day))
    return found


def _is_covered(ranges: Sequence[tuple[str, str]], day: str) -> bool:
    return any(first <= day <= last for first, last in ranges)
