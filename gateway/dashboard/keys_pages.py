"""`/ui/keys`: keys and what they spend, never their text; making, replacing and revoking them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from fastapi import Request, Response

from gateway.access.asking import Asking, Within
from gateway.access.permissions import Action, restriction_for
from gateway.access.restriction import Restriction
from gateway.budgets.messages import BudgetWindow, OnExceed
from gateway.clock import Clock, from_microseconds
from gateway.dashboard.desk import Desk, KeyShown, NewKeyShown
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance import periods
from gateway.dashboard.finance.amounts import Shown, shown
from gateway.dashboard.finance.budgets import ON_EXCEED
from gateway.dashboard.finance_pages import Calendar, SpendReader, finance_frame
from gateway.dashboard.listing import Order, read_listing
from gateway.dashboard.shell import PATH, Shell, form_of, to
from gateway.errors import GatewayError, InvalidField, LedgerUnavailable
from gateway.ledger.report_time import local_day
from gateway.ledger.views import GroupBy, SpendQuery

_TEXTS = ("team", "name", "project")
_LIMITS = ("rpm", "tpm", "concurrency")
_FIELDS = (*_TEXTS, "models", "expires_days", *_LIMITS, "budget_usd", "budget_window", "on_exceed")
_EXPIRES_DAYS_MAX = 3_650


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLine:
    """A key's row.

    Attributes:
        models: What it may use.
        limits: Its own rate limits.
        spent: This month; a dash where whoever looks may not see spend of its team.
        spent_pico_usd: The same to sort by; 0 where it may not be seen.
        href: Its attempts of the month, empty where nothing may be seen.
        last_used: Day on which it last spent anything, within this and the last month.
        can_change: Whether whoever looks may revoke it here.
    """

    key_id: str
    team: str
    project: str
    name: str
    models: str
    limits: str
    state: str
    is_active: bool
    source: str
    created: str
    expires: str
    spent: Shown
    spent_pico_usd: int
    href: str
    last_used: str
    can_change: bool


_ORDERS: Mapping[str, Order[KeyLine]] = {
    "name": Order(label="Name", key=lambda one: (0, f"{one.name.casefold()}\0{one.team}")),
    "team": Order(label="Team", key=lambda one: (0, f"{one.team.casefold()}\0{one.name}")),
    "spent": Order(
        label="This month, USD", key=lambda one: (one.spent_pico_usd, one.name), is_falling=True
    ),
    "used": Order(label="Last used", key=lambda one: (0, one.last_used), is_falling=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysPages:
    """The page.

    Attributes:
        ledger: Where spend comes from.
        desk: Where keys are read and made.
        clock: Time.
        calendar: How days are counted.
        shell: What pages share.
        teams: Names of the configured teams at this moment.
    """

    ledger: SpendReader
    desk: Desk
    clock: Clock
    calendar: Calendar
    shell: Shell
    teams: Callable[[], Collection[str]]

    def routes(self) -> Iterator[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui`, and what answers."""
        yield "GET", "/keys", self.keys
        yield "POST", "/keys", self.create
        yield "POST", "/keys/{key_id}", self.change

    async def keys(self, request: Request, within: Within) -> Response:
        """Every key that may be seen."""
        done = request.query_params.get("done") == "revoked"
        told = "The key is revoked; no worker takes it any more." if done else ""
        frame = finance_frame(self.shell, request, self.clock.wall_us(), self.calendar)
        try:
            return await self._page(request, within, done=told)
        except InvalidField as error:
            return self.shell.bad_address(frame, error.message)
        except LedgerUnavailable:
            return self.shell.away(frame)

    async def create(self, request: Request, within: Within, asking: Asking) -> Response:
        """Make a key, and show it this once."""
        form = await form_of(request)
        reads = restriction_for(asking, Action.READ_KEYS)
        try:
            sent = self.shell.sent(request, form)
            made = await self.desk.make_key(self._order(form), within, asking, sent)
        except LedgerUnavailable:
            raise
        except GatewayError as error:
            return await self._page(request, reads, message=error.message, form=form, status=422)
        return await self._page(request, reads, made=made)

    async def change(
        self, request: Request, key_id: str, within: Within, asking: Asking
    ) -> Response:
        """Revoke a key at once, or make its successor."""
        form = await form_of(request)
        reads = restriction_for(asking, Action.READ_KEYS)
        try:
            sent = self.shell.sent(request, form)
            match form.get("do"):
                case "revoke":
                    await self.desk.revoke_key(key_id, within, asking)
                    return to(f"{PATH}/keys?done=revoked")
                case "rotate":
                    order = {"grace_hours": form.get("grace_hours", "")}
                    made = await self.desk.rotate_key(key_id, order, within, asking, sent)
                    return await self._page(request, reads, made=made)
                case _:
                    raise InvalidField("the form does not say what to do")
        except LedgerUnavailable:
            raise
        except GatewayError as error:
            return await self._page(request, reads, message=error.message, status=422)

    def _order(self, form: Mapping[str, str]) -> dict[str, object]:
        """What a form asks for, as the body of the API; fields that say nothing are left out.

        Raises:
            InvalidField: A number is none.
        """
        given = {name: form.get(name, "").strip() for name in _FIELDS}
        order: dict[str, object] = {name: given[name] for name in _TEXTS if given[name]}
        models = [one.strip() for one in given["models"].split(",") if one.strip()]
        if models:
            order["models"] = models
        limits = {name: _number(name, given[name]) for name in _LIMITS if given[name]}
        if limits:
            order["limits"] = limits
        if given["expires_days"]:
            days = _number("expires_days", given["expires_days"])
            if not 0 < days <= _EXPIRES_DAYS_MAX:
                raise InvalidField(f"expires_days must be 1 to {_EXPIRES_DAYS_MAX}")
            now = from_microseconds(self.clock.wall_us())
            order["expires_at"] = (now + timedelta(days=days)).isoformat()
        if given["budget_usd"]:
            order["budget"] = {
                "usd": given["budget_usd"],
                "window": given["budget_window"] or BudgetWindow.MONTH.value,
                "on_exceed": given["on_exceed"] or OnExceed.BLOCK.value,
            }
        return order

    async def _page(
        self,
        request: Request,
        within: Restriction,
        *,
        made: NewKeyShown | None = None,
        done: str = "",
        message: str = "",
        form: Mapping[str, str] | None = None,
        status: int = 200,
    ) -> Response:
        now_us = self.clock.wall_us()
        listing = read_listing(request.query_params, f"{PATH}/keys", _ORDERS, keeping=("void",))
        viewer = self.shell.seen(request).viewer
        may_change = restriction_for(viewer, Action.CHANGE_KEYS)
        found = await self.desk.keys(within)
        may_see_spend = restriction_for(viewer, Action.READ_SPEND)
        sees_spend = not may_see_spend.is_nothing
        spent: Mapping[str, int] = {}
        used: Mapping[str, str] = {}
        if sees_spend:
            spent, used = await self._spend(may_see_spend, now_us)
        with_void = request.query_params.get("void") == "1"
        lines = [
            self._line(
                one,
                spent=spent,
                used=used,
                sees_spend=may_see_spend.has(one.team, ""),
                may_change=may_change,
            )
            for one in found
        ]
        given = form or {}
        shown_here = {
            **finance_frame(self.shell, request, now_us, self.calendar),
            "lines": listing.lines(
                (one for one in lines if one.is_active or with_void),
                lambda one: (one.name, one.key_id, one.team, one.project),
            ),
            "q": listing.q,
            "kept": {"sort": listing.sort, **listing.kept},
            "columns": listing.columns(),
            "with_void_href": listing.address(void="1"),
            "without_void_href": listing.address(void=""),
            "void": sum(not one.is_active for one in lines),
            "with_void": with_void,
            "sees_spend": sees_spend,
            "restricted": within.teams is not None,
            "can_change": not may_change.is_nothing,
            "teams": [one for one in sorted(self.teams()) if may_change.has_team(one)],
            "windows": [one.value for one in BudgetWindow],
            "on_exceeds": [(one.value, ON_EXCEED[one.value]) for one in OnExceed],
            "made": made,
            "done": done,
            "message": message,
            "form": {name: given.get(name, "")[:512] for name in _FIELDS},
        }
        return self.shell.page("keys.html", shown_here, status=status)

    async def _spend(
        self, within: Restriction, now_us: int
    ) -> tuple[Mapping[str, int], Mapping[str, str]]:
        """What each key spent this month, and the day on which it last did, since the last one."""
        zone = self.calendar.zone
        month = periods.month_of(local_day(now_us, ZoneInfo(zone)), time_zone=zone)
        before = periods.month_before(month, time_zone=zone)
        await self.ledger.catch_up()
        report = await self.ledger.spend_report(
            SpendQuery(
                group_by=(GroupBy.DAY, GroupBy.KEY),
                from_us=before.window.start_us,
                to_us=month.window.end_us,
                teams=within.sums,
                zone=zone,
            )
        )
        spent: dict[str, int] = {}
        used: dict[str, str] = {}
        for row in report.rows:
            day, key_id = row.group
            used[key_id] = max(day, used.get(key_id, ""))
            if day >= month.first.isoformat():
                spent[key_id] = spent.get(key_id, 0) + row.sums.cost_pico_usd
        return spent, used

    def _line(
        self,
        key: KeyShown,
        *,
        spent: Mapping[str, int],
        used: Mapping[str, str],
        sees_spend: bool,
        may_change: Restriction,
    ) -> KeyLine:
        is_ours = key.source == "database"
        # An own key is in the list because it may be seen; whether it is one's own the API decides.
        is_reached = may_change.has_team(key.team)
        return KeyLine(
            key_id=key.key_id,
            team=key.team,
            project=key.project,
            name=key.name,
            models=", ".join(key.models) if key.models is not None else "all of the team's",
            limits=_limits(key),
            state=key.state,
            is_active=key.state == "active",
            source=key.source,
            created=self._day(key.created_at),
            expires="never" if key.expires_at is None else self._day(key.expires_at),
            spent=shown(spent.get(key.key_id, 0)) if sees_spend else Shown(text=NOTHING, exact=""),
            spent_pico_usd=spent.get(key.key_id, 0) if sees_spend else 0,
            href=f"{PATH}/requests?period=this-month&key={key.key_id}" if sees_spend else "",
            last_used=used.get(key.key_id, NOTHING),
            can_change=is_ours and is_reached and key.state == "active",
        )

    def _day(self, at: datetime | None) -> str:
        if at is None:
            return NOTHING
        return at.astimezone(ZoneInfo(self.calendar.zone)).strftime("%Y-%m-%d %H:%M")


def _limits(key: KeyShown) -> str:
    if key.limits is None:
        return NOTHING
    told = (
        (key.limits.rpm, "requests a minute"),
        (key.limits.tpm, "tokens a minute"),
        (key.limits.concurrency, "at once"),
    )
    return ", ".join(f"{amount:,} {unit}" for amount, unit in told if amount is not None)


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise InvalidField(f"{name}: {text[:32]!r} is no whole number", param=name)
    return int(text)
