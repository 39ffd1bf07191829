"""`/ui/month` and `/ui/spend`: the pages that finance looks at, and the CSV of what they show.

The figures come from the same reports as `fareway spend report` and `/admin/v1/spend`; a page
rounds to cents what it shows and keeps every digit in the title. Rows are filtered by the query,
never by the template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec
from fastapi import Request, Response

from gateway.access.asking import Within, viewer_of
from gateway.access.permissions import Action, restriction_for
from gateway.access.roles import Viewer
from gateway.budgets.windows import day_start_us
from gateway.clock import Clock, from_microseconds
from gateway.dashboard.desk import Desk
from gateway.dashboard.figures import stamp_time
from gateway.dashboard.finance import comparison, explorer, glance, periods
from gateway.dashboard.finance.explorer import BadAddress
from gateway.dashboard.finance.glance import Mover
from gateway.dashboard.finance.month import MonthFigures, Tile, daily_totals, month_page
from gateway.dashboard.finance.periods import Month
from gateway.dashboard.finance.statement import state_text, statement
from gateway.dashboard.shell import Shell
from gateway.errors import LedgerUnavailable
from gateway.finance.bill_messages import ListRuns, ReconciliationRun
from gateway.finance.requests import FinanceRequest
from gateway.finance.statement_csv import statement_csv
from gateway.finance.statement_messages import ShowStatement, TeamStatement
from gateway.ledger.report_csv import as_csv
from gateway.ledger.report_time import local_day
from gateway.ledger.views import COST_TAG, CostCentre, GroupBy, SpendQuery, SpendReport

MONTH_PATH = "/ui/month"
HISTORY_DAYS = 70
_BOOKS_ZONE = "UTC"
"""Zone of the months that are closed."""


class SpendReader(Protocol):
    """What the pages ask of the ledger; each raises `LedgerUnavailable` when it is away."""

    async def catch_up(self) -> bool:
        """Load what was written up to now; False when that takes too long."""
        ...

    async def spend_report(self, query: SpendQuery) -> SpendReport:
        """Sums of what is loaded."""
        ...

    async def finance(self, request: FinanceRequest) -> object:
        """Have finance answer; a refusal is a `CallerFault`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """How finance counts days.

    Attributes:
        zone: IANA name of the zone of days and months.
        fiscal_month: Month in which the fiscal year begins.
        cost_tags: Names that have sums of their own.
        organisation: Who bills the teams.
        cost_centres: Who is charged to which.
    """

    zone: str
    fiscal_month: int
    cost_tags: tuple[str, ...]
    organisation: str
    cost_centres: tuple[CostCentre, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinancePages:
    """The pages.

    Attributes:
        ledger: Where the figures come from.
        clock: Time.
        calendar: How days are counted.
        shell: What pages share.
        desk: Where budgets stand.
    """

    ledger: SpendReader
    clock: Clock
    calendar: Calendar
    shell: Shell
    desk: Desk

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/month", self.month
        yield "GET", "/spend", self.spend
        yield "GET", "/spend.csv", self.spend_csv
        yield "GET", "/statement", self.statement
        yield "GET", "/statement.csv", self.statement_csv

    async def month(self, request: Request, within: Within) -> Response:
        """A month at a glance."""
        calendar, now_us = self.calendar, self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, calendar)
        named = request.query_params.get("month")
        month = periods.month_named(named, now_us=now_us, time_zone=calendar.zone)
        if month is None:
            return self.shell.bad_address(shown, periods.no_month(named))
        before = periods.month_before(month, time_zone=calendar.zone)
        today = local_day(now_us, ZoneInfo(calendar.zone))
        try:
            is_complete = await self.ledger.catch_up()
            figures = MonthFigures(
                month=month,
                before=before,
                today=today,
                spend=await self._by_day_and_team(month, calendar, within.sums),
                spend_before=await self._by_day_and_team(before, calendar, within.sums),
                history_pico_usd=await self._history(now_us, calendar, within.sums),
            )
            tiles = await self._tiles_beside(viewer_of(request), figures)
            moved = await self._movers(figures, calendar, within.sums)
        except LedgerUnavailable:
            return self.shell.away(shown)
        following = periods.month_after(month, time_zone=calendar.zone)
        shown |= {
            "month": month,
            "tiles": tiles,
            "movers": moved,
            "against": before.title if today > month.last else f"the same days of {before.title}",
            "previous": before.name,
            "following": following.name if following.first <= today else "",
            "is_complete": is_complete,
            "restricted": within.teams is not None,
            "page": month_page(figures),
        }
        return self.shell.page("month.html", shown)

    async def _tiles_beside(self, viewer: Viewer, figures: MonthFigures) -> list[Tile]:
        """Budgets, bills and what nobody owns, each for those who may see it."""
        tiles: list[Tile] = []
        budgets = restriction_for(viewer, Action.READ_BUDGETS)
        is_current = figures.month.first <= figures.today <= figures.month.last
        if is_current and not budgets.is_nothing:
            one = glance.budget_tile(await self.desk.budgets(budgets))
            tiles += [] if one is None else [one]
        if not restriction_for(viewer, Action.READ_FINANCE).is_nothing:
            query = ListRuns(month=figures.month.name)
            found = await self.ledger.finance(query)
            runs = msgspec.convert(found, tuple[ReconciliationRun, ...])
            tiles.append(glance.coverage_tile(runs, figures.month))
        if restriction_for(viewer, Action.READ_SPEND).teams is None:
            tiles.append(glance.unattributed_tile(figures.spend, figures.month))
        return tiles

    async def _movers(
        self, figures: MonthFigures, calendar: Calendar, teams: tuple[str, ...] | None
    ) -> list[Mover]:
        """What changed most against the same days of the month before."""
        reports: list[SpendReport] = []
        is_over = figures.today > figures.month.last
        for month in (figures.month, figures.before):
            last = month.last
            if not is_over and figures.today.day < last.day:
                last = month.first.replace(day=figures.today.day)
            reports.append(
                await self.ledger.spend_report(
                    SpendQuery(
                        group_by=(GroupBy.TEAM, GroupBy.MODEL),
                        from_us=month.window.start_us,
                        to_us=day_start_us(last + timedelta(days=1), calendar.zone),
                        teams=teams,
                        zone=calendar.zone,
                    )
                )
            )
        return glance.movers(reports[0], reports[1], figures.month)

    async def spend(self, request: Request, within: Within) -> Response:
        """Spend by anything."""
        calendar, now_us = self.calendar, self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, calendar)
        try:
            wanted, query, report, is_complete = await self._ask(request, within, now_us)
            today = local_day(now_us, ZoneInfo(calendar.zone))
            days = comparison.days_before(wanted.first, wanted.last, today)
            before: SpendReport | None = None
            if wanted.compare:
                asked = comparison.query_before(query, wanted.by, days)
                before = await self.ledger.spend_report(asked)
        except BadAddress as error:
            return self.shell.bad_address(shown, str(error))
        except LedgerUnavailable:
            return self.shell.away(shown)
        tags = [(f"{COST_TAG}{name}", f"Cost tag {name}") for name in calendar.cost_tags]
        dimensions = [*explorer.DIMENSIONS.items(), *tags]
        names = dict(dimensions)
        shown |= {
            "wanted": wanted,
            "days": explorer.days_text(wanted.first, wanted.last),
            "dimensions": dimensions,
            "dimension": names[wanted.by],
            "without": explorer.EMPTY.get(wanted.by, "none"),
            "steps": list(explorer.STEPS.items()),
            "presets": list(explorer.PRESETS.items()),
            "preset_names": explorer.PRESETS,
            "active": [
                {"text": f"{names[key]}: {value}", "href": wanted.address(**{key: None})}
                for key, value in wanted.filters.items()
            ],
            "csv": wanted.address().replace("/ui/spend?", "/ui/spend.csv?", 1),
            "is_complete": is_complete,
            "restricted": within.teams is not None,
            "days_before": explorer.days_text(*days),
            "page": explorer.explorer_page(wanted, report, before),
        }
        return self.shell.page("spend.html", shown)

    async def spend_csv(self, request: Request, within: Within) -> Response:
        """The rows of the page as `fareway spend report --format csv` prints them."""
        calendar, now_us = self.calendar, self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, calendar)
        try:
            wanted, _, report, _ = await self._ask(request, within, now_us)
        except BadAddress as error:
            return self.shell.bad_address(shown, str(error))
        except LedgerUnavailable:
            return self.shell.away(shown)
        name = f"spend-{wanted.first}-{wanted.last}.csv"
        return Response(
            as_csv(report),
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def statement(self, request: Request, within: Within) -> Response:
        """A team's statement of a month, as the month's close tells it: in UTC."""
        now_us = self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, self.calendar)
        try:
            found, month, is_complete = await self._statement(request, within, now_us)
        except BadAddress as error:
            return self.shell.bad_address(shown, str(error))
        except LedgerUnavailable:
            return self.shell.away(shown)
        before = periods.month_before(month, time_zone=_BOOKS_ZONE)
        following = periods.month_after(month, time_zone=_BOOKS_ZONE)
        is_open = local_day(now_us, ZoneInfo(_BOOKS_ZONE)) <= month.last
        team = found.team
        address = urlencode({"team": team, "month": month.name})
        shown |= {
            "team": team,
            "organisation": found.organisation,
            "month": month,
            "state": state_text(found),
            "is_open": is_open,
            "is_complete": is_complete,
            "address_before": urlencode({"team": team, "month": before.name}),
            "address_after": "" if is_open else urlencode({"team": team, "month": following.name}),
            "csv": f"/ui/statement.csv?{address}",
            "page": statement(found),
        }
        return self.shell.page("statement.html", shown)

    async def statement_csv(self, request: Request, within: Within) -> Response:
        """A team's statement as `fareway spend statement --csv` prints it."""
        now_us = self.clock.wall_us()
        shown = finance_frame(self.shell, request, now_us, self.calendar)
        try:
            found, _, _ = await self._statement(request, within, now_us)
        except BadAddress as error:
            return self.shell.bad_address(shown, str(error))
        except LedgerUnavailable:
            return self.shell.away(shown)
        name = f"statement-{found.period}.csv"
        return Response(
            statement_csv(found),
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def _statement(
        self, request: Request, within: Within, now_us: int
    ) -> tuple[TeamStatement, Month, bool]:
        """What an address asks for, its month, and whether everything is in it.

        Raises:
            BadAddress: It names no month.
            LedgerUnavailable: Nobody answers.
        """
        named = request.query_params.get("month")
        month = periods.month_named(named, now_us=now_us, time_zone=_BOOKS_ZONE)
        if month is None:
            raise BadAddress(periods.no_month(named))
        is_complete = await self.ledger.catch_up()
        # A team that may not be seen is as one that spent nothing.
        query = ShowStatement(
            team=request.query_params.get("team", "")[: explorer.VALUE_CHARS_MAX],
            period=month.name,
            organisation=self.calendar.organisation,
            cost_centres=self.calendar.cost_centres,
            teams=within.sums,
        )
        found = msgspec.convert(await self.ledger.finance(query), TeamStatement)
        return found, month, is_complete

    async def _ask(
        self, request: Request, within: Within, now_us: int
    ) -> tuple[explorer.Wanted, SpendQuery, SpendReport, bool]:
        """What an address asks for, the question, its report, and whether everything is in it.

        Raises:
            BadAddress: It asks for something that has no meaning.
            LedgerUnavailable: Nobody answers.
        """
        calendar = self.calendar
        wanted = explorer.read_address(
            request.query_params,
            now_us=now_us,
            zone=calendar.zone,
            fiscal_month=calendar.fiscal_month,
            cost_tags=calendar.cost_tags,
        )
        query = explorer.query_of(
            wanted,
            zone=calendar.zone,
            fiscal_month=calendar.fiscal_month,
            teams=within.sums,
            cost_centres=calendar.cost_centres,
        )
        is_complete = await self.ledger.catch_up()
        return wanted, query, await self.ledger.spend_report(query), is_complete

    async def _by_day_and_team(
        self, month: Month, calendar: Calendar, teams: tuple[str, ...] | None
    ) -> SpendReport:
        return await self.ledger.spend_report(
            SpendQuery(
                group_by=(GroupBy.DAY, GroupBy.TEAM),
                from_us=month.window.start_us,
                to_us=month.window.end_us,
                teams=teams,
                zone=calendar.zone,
            )
        )

    async def _history(
        self, now_us: int, calendar: Calendar, teams: tuple[str, ...] | None
    ) -> list[int]:
        """Cost of each day before today, from the first one with any on."""
        today = local_day(now_us, ZoneInfo(calendar.zone))
        first = today - timedelta(days=HISTORY_DAYS)
        report = await self.ledger.spend_report(
            SpendQuery(
                group_by=(GroupBy.DAY,),
                from_us=day_start_us(first, calendar.zone),
                to_us=day_start_us(today, calendar.zone),
                teams=teams,
                zone=calendar.zone,
            )
        )
        costs = daily_totals(report)
        days = [(first + timedelta(days=place)).isoformat() for place in range(HISTORY_DAYS)]
        begun = next((place for place, day in enumerate(days) if costs.get(day)), len(days))
        return [costs.get(day, 0) for day in days[begun:]]


def finance_frame(
    shell: Shell, request: Request, now_us: int, calendar: Calendar
) -> dict[str, object]:
    """What every page for finance shows: the shell, the instant and the zone."""
    return {
        **shell.frame(request),
        "now": stamp_time(now_us),
        "now_iso": from_microseconds(now_us).isoformat(timespec="seconds"),
        "zone": calendar.zone,
    }
