"""Statements as notices: what is sent of them, and to which schedule's recipients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
import sqlalchemy as sa
from jinja2 import Environment

from gateway.clock import from_microseconds
from gateway.dashboard.finance.amounts import shown
from gateway.dashboard.finance.statement import state_text
from gateway.dashboard.finance.statement_document import statement_html
from gateway.finance.errors import Refused
from gateway.finance.statement_books import load_statement, teams_of
from gateway.finance.statement_csv import statement_csv
from gateway.finance.statement_messages import ShowStatement, TeamStatement
from gateway.ledger.facts import load_fact, set_fact
from gateway.ledger.finance_tables import period_close
from gateway.ledger.periods import CLOSED
from gateway.ledger.report_document import period_document
from gateway.notices import outbox
from gateway.notices.messages import NoticeDeclarations, Schedule, SendStatement
from gateway.notices.outbox import Attachment, Notice
from gateway.notices.schedules import due_periods, end_of

KIND = "statement"
_SEEN = "notice_schedule:"
_OPEN = "open"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A notice to be made, and for whom."""

    notice: Notice
    recipients: tuple[str, ...]


def notice_name(schedule: str, period: str, team: str, edition: int = 1) -> str:
    """What a statement's notice is known by: one per schedule, period and team."""
    parts: list[str | int] = [schedule, period, team]
    if edition > 1:
        parts.append(edition)
    return msgspec.json.encode(parts).decode()


def note_schedules(
    connection: sa.Connection, schedules: Sequence[Schedule], *, now_us: int
) -> None:
    """Remember when each schedule was first seen; it begins with what ends or closes after that."""
    for schedule in schedules:
        if load_fact(connection, _SEEN + schedule.name) is None:
            set_fact(connection, _SEEN + schedule.name, str(now_us))


def find_due(
    connection: sa.Connection, schedules: Sequence[Schedule], *, now_us: int
) -> list[tuple[Schedule, str]]:
    """Schedules and the periods that are due for them."""
    table = period_close
    rows = connection.execute(
        sa.select(table.c.month, table.c.closed_at_us).where(table.c.state == CLOSED)
    ).all()
    closed = dict(cast("Sequence[tuple[str, int]]", rows))
    found: list[tuple[Schedule, str]] = []
    for schedule in schedules:
        seen = load_fact(connection, _SEEN + schedule.name)
        if seen is not None:
            periods = due_periods(schedule, closed, seen_at_us=int(seen), now_us=now_us)
            found += [(schedule, period) for period in periods]
    return found


def statements_due(
    connection: sa.Connection,
    schedule: Schedule,
    period: str,
    declared: NoticeDeclarations,
    templates: Environment,
    *,
    now_us: int,
) -> list[Wanted]:
    """The statements of a due period that were not made yet."""
    return [
        _wanted(connection, schedule, period, team, 1, declared, templates, now_us=now_us)
        for team in schedule.teams or teams_of(connection, period)
        if not outbox.has(connection, KIND, notice_name(schedule.name, period, team))
    ]


def statements_asked(
    connection: sa.Connection,
    order: SendStatement,
    declared: NoticeDeclarations,
    templates: Environment,
    *,
    now_us: int,
) -> list[Wanted]:
    """What sending a statement by hand makes.

    Raises:
        Refused: No schedule sends the team's statements, it was sent before, or the period is not
            over.
    """
    every = "week" if "W" in order.period else "month"
    schedules = [
        one
        for one in declared.schedules
        if one.every == every and (not one.teams or order.team in one.teams)
    ]
    if not schedules:
        raise Refused(
            f"nothing of finance.statements sends team {order.team!r} a statement each {every}"
        )
    if now_us < end_of(order.period):
        raise Refused(f"{order.period} is not over; its statement can be shown, not sent")
    found: list[Wanted] = []
    for schedule in schedules:
        edition = 1
        while outbox.has(
            connection, KIND, notice_name(schedule.name, order.period, order.team, edition)
        ):
            edition += 1
        if edition == 1 or order.is_again:
            found.append(
                _wanted(
                    connection,
                    schedule,
                    order.period,
                    order.team,
                    edition,
                    declared,
                    templates,
                    now_us=now_us,
                )
            )
    if not found:
        raise Refused(f"the statement of {order.period} was sent already; --again sends it again")
    return found


def _wanted(
    connection: sa.Connection,
    schedule: Schedule,
    period: str,
    team: str,
    edition: int,
    declared: NoticeDeclarations,
    templates: Environment,
    *,
    now_us: int,
) -> Wanted:
    query = ShowStatement(
        team=team,
        period=period,
        organisation=declared.organisation,
        cost_centres=declared.cost_centres,
    )
    found = load_statement(connection, query, now_us=now_us)
    made = Notice(
        kind=KIND,
        name=notice_name(schedule.name, period, team, edition),
        at_us=now_us,
        subject=f"{declared.organisation}: statement of {team or 'no team'}, {period}",
        body="\n".join(_lines(found)),
        document=_document(found, schedule.name),
        attachments=(
            Attachment(
                name=f"statement-{period}.csv", media_type="text/csv", text=statement_csv(found)
            ),
            Attachment(
                name=f"statement-{period}.html",
                media_type="text/html",
                text=statement_html(found, templates),
            ),
        ),
    )
    return Wanted(notice=made, recipients=schedule.recipients)


def _lines(found: TeamStatement) -> Iterator[str]:
    corrections = found.sums.total_pico_usd - found.report.total.cost_pico_usd
    charged = shown(found.sums.total_pico_usd)
    yield f"Statement of {found.team or 'no team'} for {found.period}"
    yield f"({found.first_day} to {found.last_day}, UTC; {state_text(found)})."
    yield ""
    yield f"Charged: {charged.text} USD"
    if corrections:
        yield f"Of it corrections: {shown(corrections).text} USD"
    yield ""
    yield "Attached: the figures by project and model as CSV, and as a page to read and print."
    yield ""
    yield found.organisation
    yield ""


def _document(found: TeamStatement, schedule: str) -> Mapping[str, object]:
    return {
        "type": "statement.ready",
        "schedule": schedule,
        "team": found.team,
        "period": found.period,
        "first_day": found.first_day,
        "last_day": found.last_day,
        "state": found.state,
        **period_document(found.sums),
        "at": from_microseconds(found.as_of_us).isoformat(timespec="seconds"),
    }
