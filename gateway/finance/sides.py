"""Reading both sides of a month from the database: what we metered, and what vendors say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from fractions import Fraction
from typing import cast

import sqlalchemy as sa

from gateway.clock import from_microseconds
from gateway.finance.bill_lines import bill_lines, billed_of, counting, within
from gateway.finance.cells import Adjusted, Exposed, Metered, Used
from gateway.finance.generation_books import with_generations
from gateway.finance.matching import Sides
from gateway.ledger import schema
from gateway.ledger.finance_tables import (
    import_batch,
    invoice,
    invoice_line,
    provider_usage,
    spend_adjustment,
)
from gateway.ledger.month_digest import month_sum
from gateway.ledger.periods import month_bounds_us
from gateway.ledger.schema import METERS

_BATCH_ROWS = 1_000
_USAGE_KINDS = frozenset({"true_up", "late", "allocation", "reattribution"})
_Place = tuple[str, str, str, str, str, str]
"""Account, day, model, meter, team, project."""


def load_sides(connection: sa.Connection, month: str) -> Sides:
    """Everything of a month that a reconciliation compares.

    Args:
        connection: In a transaction; one state of the database is read.
        month: `YYYY-MM`.
    """
    metered, exposed = _ledger_rows(connection, month)
    billed_days, used_days = _covered_days(connection, month)
    lines = list(map(billed_of, bill_lines(connection, *within(invoice_line.c.day, month))))
    billed, sent = with_generations(connection, month, lines)
    return Sides(
        metered=metered,
        exposed=_unsettled(connection, exposed),
        adjusted=list(_adjusted(connection, month)),
        billed=billed,
        sent=sent,
        used=list(_used(connection, month)),
        billed_days=billed_days,
        used_days=used_days,
    )


def load_exposed(connection: sa.Connection, month: str) -> Sequence[Exposed]:
    """Attempts of a month whose bill is unknown and that no adjustment has settled."""
    if not month_sum(connection, month, "exposure_pico_usd"):
        return ()  # an exposure is never negative, so there is none
    # An entry that replaces a lost one takes its exposure back, so those are read, too.
    event = schema.spend_event
    matters = sa.or_(event.c.exposure_pico_usd.is_not(None), event.c.entry > 0)
    return _unsettled(connection, _ledger_rows(connection, month, matters)[1])


def unreadable_accounts(connection: sa.Connection) -> dict[str, str]:
    """Accounts with a source whose newest file could not be read, and why."""
    table = import_batch
    columns = (table.c.account, table.c.source, table.c.state, table.c.reason)
    rows = connection.execute(sa.select(*columns).order_by(table.c.id)).all()
    newest = {
        (account, source): (state, reason)
        for account, source, state, reason in cast("Sequence[tuple[str, str, str, str]]", rows)
    }
    return {account: reason for (account, _), (state, reason) in newest.items() if state != "ok"}


def _select_events(
    month: str, conditions: Sequence[sa.ColumnElement[bool]]
) -> sa.Select[tuple[object]]:
    event, deployment = schema.spend_event, schema.deployment
    start_us, end_us = month_bounds_us(month)
    columns: list[sa.ColumnElement[object]] = [
        event.c.event_id,
        event.c.at_us,
        deployment.c.provider,
        deployment.c.upstream_model,
        schema.team.c.name,
        schema.project.c.name,
        event.c.lines,
        event.c.exposure_pico_usd,
        *(event.c[f"{meter}_units"] for meter in METERS),
    ]
    joined = (
        event.join(deployment, deployment.c.id == event.c.deployment_id)
        .join(schema.team, schema.team.c.id == event.c.team_id)
        .join(schema.project, schema.project.c.id == event.c.project_id)
    )
    return (
        cast("sa.Select[tuple[object]]", sa.select(*columns))
        .select_from(joined)
        .where(event.c.at_us >= start_us, event.c.at_us < end_us, *conditions)
        .order_by(event.c.event_id, event.c.entry)
        .execution_options(yield_per=_BATCH_ROWS)
    )


def _ledger_rows(
    connection: sa.Connection, month: str, *conditions: sa.ColumnElement[bool]
) -> tuple[list[Metered], list[Exposed]]:
    """The month's attempts as sums per team and meter, and those whose bill is unknown."""
    sums: defaultdict[_Place, list[int]] = defaultdict(lambda: [0, 0])
    rates: defaultdict[_Place, defaultdict[tuple[int, int], int]] = defaultdict(
        lambda: defaultdict(int)
    )
    exposed: dict[bytes, Exposed] = {}
    for row in cast(
        "Iterator[Sequence[object]]", connection.execute(_select_events(month, conditions))
    ):
        event_id, at_us = cast("bytes", row[0]), cast("int", row[1])
        account, model, team, project = cast("Sequence[str]", row[2:6])
        lines = cast("Sequence[Sequence[str | int]]", row[6])
        day = from_microseconds(at_us).date().isoformat()
        # A lost entry has neither units nor cost: the one that replaces it adds all of its own.
        exposed.pop(event_id, None)
        exposure = cast("int | None", row[7])
        if exposure:
            exposed[event_id] = Exposed(
                account=account,
                day=day,
                model=model,
                team=team,
                project=project,
                event_id=event_id.hex(),
                exposure_pico_usd=exposure,
            )
        for meter, units in zip(METERS, cast("Sequence[int]", row[8:]), strict=True):
            if units:
                sums[account, day, model, meter, team, project][0] += units
        for line in lines:  # meter, units, rate, its units, cost; then what public prices say
            place = (account, day, model, cast("str", line[0]), team, project)
            sums[place][1] += cast("int", line[4])
            rates[place][cast("int", line[2]), cast("int", line[3])] += cast("int", line[1])
    metered = [
        Metered(
            account=account,
            day=day,
            model=model,
            meter=meter,
            team=team,
            project=project,
            units=units,
            cost_pico_usd=cost,
            rates=tuple(
                (Fraction(*rate), count)
                for rate, count in sorted(rates[account, day, model, meter, team, project].items())
                if count
            ),
        )
        for (account, day, model, meter, team, project), (units, cost) in sorted(sums.items())
    ]
    return metered, list(exposed.values())


def _unsettled(connection: sa.Connection, exposed: Sequence[Exposed]) -> Sequence[Exposed]:
    table = spend_adjustment
    found = connection.execute(sa.select(table.c.event_id).where(table.c.event_id.is_not(None)))
    settled = {event_id.hex() for event_id in cast("Sequence[bytes]", found.scalars().all())}
    return [row for row in exposed if row.event_id not in settled]


def _covered_days(
    connection: sa.Connection, month: str
) -> tuple[Mapping[str, frozenset[str]], Mapping[str, frozenset[str]]]:
    """Per account the days of the month that bills cover, and those that reports cover."""
    table = import_batch
    billed: defaultdict[str, set[str]] = defaultdict(set)
    used: defaultdict[str, set[str]] = defaultdict(set)
    has_bill = sa.exists().where(invoice.c.batch_id == table.c.id)
    has_usage = sa.exists().where(provider_usage.c.batch_id == table.c.id)
    for is_there, days in ((has_bill, billed), (has_usage, used)):
        rows = connection.execute(
            sa.select(table.c.account, table.c.first_day, table.c.last_day).where(
                *counting(), is_there
            )
        ).all()
        for account, first_day, last_day in cast("Sequence[tuple[str, str, str]]", rows):
            days[account].update(day for day in _days(first_day, last_day) if day[:7] == month)
    return (
        {account: frozenset(days) for account, days in billed.items() if days},
        {account: frozenset(days) for account, days in used.items() if days},
    )


def _days(first_day: str, last_day: str) -> Iterator[str]:
    day, last = date.fromisoformat(first_day), date.fromisoformat(last_day)
    while day <= last:
        yield day.isoformat()
        day += timedelta(days=1)


def _adjusted(connection: sa.Connection, month: str) -> Iterator[Adjusted]:
    """Posted adjustments about the month: by their day, else by the month that they are about."""
    table = spend_adjustment
    about = sa.case((table.c.original_period != "", table.c.original_period), else_=table.c.period)
    is_of_month = sa.or_(
        sa.and_(*within(table.c.day, month)), sa.and_(table.c.day == "", about == month)
    )
    columns = ("account", "day", "model", "meter", "kind", "amount_pico_usd")
    statement = cast(
        "sa.Select[tuple[object]]", sa.select(*(table.c[name] for name in columns))
    ).where(table.c.account != "", is_of_month)
    for row in connection.execute(statement).all():
        account, day, model, meter, kind, amount = cast("tuple[str, str, str, str, str, int]", row)
        is_usage = kind in _USAGE_KINDS or bool(model or meter)
        yield Adjusted(
            account=account,
            day=day,
            model=model,
            meter=meter,
            kind="usage" if is_usage else kind,
            amount_pico_usd=amount,
        )


def _used(connection: sa.Connection, month: str) -> Iterator[Used]:
    table = provider_usage
    columns = (table.c.account, table.c.day, table.c.model, table.c.meter, table.c.units)
    joined = table.join(import_batch, import_batch.c.id == table.c.batch_id)
    rows = connection.execute(
        sa.select(*columns).select_from(joined).where(*counting(), *within(table.c.day, month))
    ).all()
    for account, day, model, meter, units in cast("Sequence[tuple[str, str, str, str, int]]", rows):
        yield Used(account=account, day=day, model=model, meter=meter, units=units)
