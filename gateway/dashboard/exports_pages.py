"""`/ui/exports`: files of a month to take away, and whether its figures are final."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec
from fastapi import Request, Response

from gateway.access.asking import Asking, Within
from gateway.access.permissions import Action, restriction_for
from gateway.clock import Clock, from_microseconds
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance import explorer, periods
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.finance_pages import Calendar, finance_frame
from gateway.dashboard.shell import PATH, Shell
from gateway.errors import LedgerUnavailable
from gateway.finance.close_messages import ListCloses, ListedClose
from gateway.finance.focus.order import FileFormat, FocusVersion, Grain, Profile
from gateway.finance.requests import FinanceRequest
from gateway.ledger.report_time import local_day
from gateway.ledger.views import GroupBy, SpendQuery, SpendReport

MONTHS_SHOWN = 13
_TEAMS_MAX = 200
_STATES = {
    "closed": "final: the month is closed",
    "soft": "preliminary: late usage still lands in the month",
}
_OPEN = "not final: the month is open"


class ExportsReader(Protocol):
    """What the page asks of the ledger; each raises `LedgerUnavailable` when it is away."""

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded."""
        ...

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer; a refusal is a `CallerFault`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthLine:
    """A month's row.

    Attributes:
        state: Whether its figures are final.
        is_final: Whether it is closed for good.
        closed: When it was closed so far, a dash while it is open.
        href: The page with its files.
    """

    name: str
    title: str
    state: str
    is_final: bool
    closed: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportsPages:
    """The page.

    Attributes:
        ledger: Where states and teams come from.
        clock: Time.
        calendar: How days are counted.
        shell: What pages share.
    """

    ledger: ExportsReader
    clock: Clock
    calendar: Calendar
    shell: Shell

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/exports", self.exports

    async def exports(self, request: Request, within: Within, asking: Asking) -> Response:
        """The files of a month."""
        calendar, now_us = self.calendar, self.clock.wall_us()
        frame = finance_frame(self.shell, request, now_us, calendar)
        named = request.query_params.get("month")
        month = periods.month_named(named, now_us=now_us, time_zone=calendar.zone)
        if month is None:
            return self.shell.bad_address(frame, periods.no_month(named))
        sees_finance = not restriction_for(asking, Action.READ_FINANCE).is_nothing
        today = local_day(now_us, ZoneInfo(calendar.zone))
        try:
            found = await self.ledger.finance(ListCloses())
            closes = msgspec.convert(found, tuple[ListedClose, ...])
            teams = await self._teams(month, within.sums)
        except LedgerUnavailable:
            return self.shell.away(frame)
        months = [periods.month_of(today, time_zone=calendar.zone)]
        while len(months) < MONTHS_SHOWN:
            months.append(periods.month_before(months[-1], time_zone=calendar.zone))
        shown = {
            **frame,
            "month": month,
            "line": self._line(month, closes),
            "months": [self._line(one, closes) for one in months],
            "sees_finance": sees_finance,
            "restricted": within.teams is not None,
            "reports": [
                (explorer.DIMENSIONS[by], self._report(month, by))
                for by in (GroupBy.TEAM, GroupBy.PROJECT, GroupBy.MODEL, GroupBy.KEY)
            ],
            "statements": [
                (team, f"{PATH}/statement?{urlencode({'team': team, 'month': month.name})}")
                for team in teams
            ],
            "profiles": [(one.value, one.value) for one in Profile],
            "versions": [(one.value, one.value) for one in FocusVersion][::-1],
            "grains": [(one.value, one.value) for one in Grain][::-1],
            "formats": [(FileFormat.CSV.value, "CSV"), (FileFormat.PARQUET.value, "Parquet")],
        }
        return self.shell.page("exports.html", shown)

    async def _teams(self, month: Month, within: tuple[str, ...] | None) -> list[str]:
        """Teams that spent anything in a month, by falling cost."""
        report = await self.ledger.spend_report(
            SpendQuery(
                group_by=(GroupBy.TEAM,),
                from_us=month.window.start_us,
                to_us=month.window.end_us,
                teams=within,
                zone=self.calendar.zone,
            )
        )
        return [row.group[0] for row in report.rows[:_TEAMS_MAX]]

    def _line(self, month: Month, closes: Sequence[ListedClose]) -> MonthLine:
        close = next((one for one in closes if one.month == month.name), None)
        closed = NOTHING
        if close is not None:
            at = from_microseconds(close.at_us).astimezone(ZoneInfo(self.calendar.zone))
            closed = f"{at:%Y-%m-%d %H:%M}"
        return MonthLine(
            name=month.name,
            title=month.title,
            state=_OPEN if close is None else _STATES[close.state],
            is_final=close is not None and close.state == "closed",
            closed=closed,
            href=f"{PATH}/exports?{urlencode({'month': month.name})}",
        )

    def _report(self, month: Month, by: GroupBy) -> str:
        query = {"by": by.value, "per": GroupBy.DAY.value, "period": month.name}
        return f"{explorer.PATH}.csv?{urlencode(query)}"
