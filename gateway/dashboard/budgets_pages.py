"""`/ui/budgets`: where each budget stands and is going, and setting one, as `budgets set` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from fastapi import Request, Response

from gateway.access.asking import Asking, Within
from gateway.access.permissions import Action, restriction_for
from gateway.access.restriction import Restriction
from gateway.budgets.messages import BudgetReport, BudgetScope, BudgetWindow, OnExceed
from gateway.budgets.windows import day_start_us
from gateway.clock import Clock
from gateway.dashboard.desk import Desk
from gateway.dashboard.finance.budgets import DIMENSION, ON_EXCEED, BudgetLine, Days, budget_line
from gateway.dashboard.finance_pages import Calendar, SpendReader, finance_frame
from gateway.dashboard.listing import Order, read_listing
from gateway.dashboard.shell import PATH, Shell, form_of, to
from gateway.errors import GatewayError, InvalidField, LedgerUnavailable
from gateway.ledger.report_time import local_day
from gateway.ledger.views import GroupBy, SpendQuery

HISTORY_DAYS = 400
"""A fiscal year of days, for what was spent in the window of a budget."""
_FIELDS = (
    "scope",
    "team",
    "project",
    "key_id",
    "cost_tag",
    "usd",
    "window",
    "time_zone",
    "on_exceed",
    "alerts_at",
)
_ORDERS: Mapping[str, Order[BudgetLine]] = {
    "name": Order(label="Budget", key=lambda one: (0, one.name.casefold())),
    "used": Order(label="Used", key=lambda one: (one.used_permille, one.name), is_falling=True),
    "spent": Order(label="Spent", key=lambda one: (one.spent_pico_usd, one.name), is_falling=True),
}
_DONE = {
    "set": "The budget is set; every worker goes by it.",
    "removed": "The budget is removed; no worker goes by it any more.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetsPages:
    """The page.

    Attributes:
        ledger: Where history comes from.
        desk: Where budgets are read and set.
        clock: Time.
        calendar: How days are counted.
        shell: What pages share.
    """

    ledger: SpendReader
    desk: Desk
    clock: Clock
    calendar: Calendar
    shell: Shell

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/budgets", self.budgets
        yield "POST", "/budgets", self.change

    async def budgets(self, request: Request, within: Within) -> Response:
        """Every budget in force."""
        done = _DONE.get(request.query_params.get("done", ""), "")
        frame = finance_frame(self.shell, request, self.clock.wall_us(), self.calendar)
        try:
            return await self._page(request, within, done=done)
        except InvalidField as error:
            return self.shell.bad_address(frame, error.message)
        except LedgerUnavailable:
            return self.shell.away(frame)

    async def change(self, request: Request, within: Within, asking: Asking) -> Response:
        """Set a budget, or take it away."""
        form = await form_of(request)
        name, what = form.get("name", "").strip(), form.get("do", "")
        try:
            sent = self.shell.sent(request, form)
            if what == "remove":
                await self.desk.remove_budget(name, within, asking, sent)
                return to(f"{PATH}/budgets?done=removed")
            if what not in ("set", "add"):
                raise InvalidField("the form does not say what to do")
            await self.desk.set_budget(
                name, _order(form), within, asking, sent, is_new=what == "add"
            )
        except LedgerUnavailable:
            raise
        except GatewayError as error:
            reads = restriction_for(asking, Action.READ_BUDGETS)
            return await self._page(request, reads, message=error.message, form=form, status=422)
        return to(f"{PATH}/budgets?done=set")

    async def _page(
        self,
        request: Request,
        within: Restriction,
        *,
        done: str = "",
        message: str = "",
        form: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        now_us = self.clock.wall_us()
        listing = read_listing(request.query_params, f"{PATH}/budgets", _ORDERS)
        viewer = self.shell.seen(request).viewer
        may_change = restriction_for(viewer, Action.CHANGE_BUDGETS)
        is_complete = await self.ledger.catch_up()
        reports = await self.desk.budgets(within)
        today = local_day(now_us, ZoneInfo(self.calendar.zone))
        days = await self._days(reports, within, today)
        lines = [
            budget_line(one, days=days, today=today, zone=self.calendar.zone, may_change=may_change)
            for one in reports
        ]
        given = form or {}
        shown = {
            **finance_frame(self.shell, request, now_us, self.calendar),
            "lines": listing.lines(lines, lambda one: (one.name, one.whom)),
            "q": listing.q,
            "kept": {"sort": listing.sort},
            "columns": listing.columns(),
            "has_any": bool(lines),
            "restricted": within.teams is not None,
            "is_complete": is_complete,
            "can_change": not may_change.is_nothing,
            "message": message,
            "done": done,
            "form": {name: given.get(name, "")[:512] for name in ("name", *_FIELDS)},
            "scopes": [
                (one.value, one.value.replace("_", " "))
                for one in BudgetScope
                if may_change.teams is None
                or one not in (BudgetScope.ORGANISATION, BudgetScope.TEAM)
            ],
            "windows": [(one.value, one.value) for one in BudgetWindow],
            "on_exceeds": [(one.value, ON_EXCEED[one.value]) for one in OnExceed],
        }
        return self.shell.page("budgets.html", shown, status=status)

    async def _days(
        self, reports: Sequence[BudgetReport], within: Restriction, today: date
    ) -> dict[str, Days]:
        """Costs of every day until yesterday, for the scopes that there are."""
        zone = self.calendar.zone
        first = today - timedelta(days=HISTORY_DAYS)
        found: dict[str, Days] = {}
        for dimension in {
            DIMENSION[one.rule.scope] for one in reports if one.rule.scope in DIMENSION
        }:
            report = await self.ledger.spend_report(
                SpendQuery(
                    group_by=(GroupBy.DAY, dimension) if dimension else (GroupBy.DAY,),
                    from_us=day_start_us(first, zone),
                    to_us=day_start_us(today, zone),
                    filters=_only(reports, dimension),
                    teams=within.sums,
                    zone=zone,
                )
            )
            width = len(report.columns)
            costs: dict[tuple[str, ...], dict[str, int]] = {}
            for row in report.rows:
                costs.setdefault(row.group[1:width], {})[row.group[0]] = row.sums.cost_pico_usd
            found[dimension] = {
                group: _without_gaps(by_day, first) for group, by_day in costs.items()
            }
        return found


def _only(reports: Sequence[BudgetReport], dimension: str) -> dict[str, str | tuple[str, ...]]:
    """The keys that have a budget, of which there are few among many; all of other dimensions."""
    if dimension != GroupBy.KEY:
        return {}
    return {dimension: tuple(sorted({one.rule.key_id for one in reports if one.rule.key_id}))}


def _without_gaps(by_day: Mapping[str, int], first: date) -> list[int]:
    """Every day until yesterday, from the first one on which anything was spent."""
    days = [(first + timedelta(days=place)).isoformat() for place in range(HISTORY_DAYS)]
    begun = next((place for place, day in enumerate(days) if by_day.get(day)), len(days))
    return [by_day.get(day, 0) for day in days[begun:]]


def _order(form: Mapping[str, str]) -> dict[str, object]:
    """What a form asks for; fields that say nothing are left out.

    Raises:
        InvalidField: A threshold is no number.
    """
    order: dict[str, object] = {
        name: value for name in _FIELDS if (value := form.get(name, "").strip())
    }
    alerts = [one.strip() for one in form.get("alerts_at", "").split(",") if one.strip()]
    if not all(one.isascii() and one.isdigit() and len(one) < 6 for one in alerts):
        raise InvalidField("alerts_at: write whole per cents separated by commas: 50, 80, 100")
    if "alerts_at" in form:
        order["alerts_at"] = [int(one) for one in alerts]
    return order
