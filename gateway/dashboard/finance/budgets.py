"""Budgets on a page: where each stands, where it is going, what it has crossed.

Pure: reports in, texts out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from gateway.access.restriction import Restriction
from gateway.budgets.messages import (
    BudgetReport,
    BudgetRule,
    BudgetScope,
    BudgetSource,
    BudgetState,
    BudgetWindow,
)
from gateway.clock import from_microseconds
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance.amounts import Shown, share_text, shown
from gateway.ledger.report_time import local_day
from gateway.ledger.views import GroupBy
from pricing.forecast import HISTORY_DAYS_MIN, HORIZON_DAYS_MAX, forecast
from pricing.money import format_usd

DIMENSION: Mapping[BudgetScope, str] = {
    BudgetScope.ORGANISATION: "",
    BudgetScope.TEAM: GroupBy.TEAM,
    BudgetScope.PROJECT: GroupBy.PROJECT,
    BudgetScope.KEY: GroupBy.KEY,
}
"""What tells the spend of a budget in a report by day; cost tags are not told apart there."""
ON_EXCEED = {
    "block": "refuses requests",
    "cheapest_only": "cheapest deployments only",
    "alert": "alerts only",
}

Days = Mapping[tuple[str, ...], Sequence[int]]
"""Cost of every day until yesterday, the newest last, by group of a dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """Where a budget will stand at the end of its window.

    Attributes:
        amount: What will be spent by then.
        is_over: Whether that is above the limit.
        reached: Day on which the limit is reached, empty where it is not.
    """

    amount: Shown
    is_over: bool
    reached: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the bar of a budget, in per mille of its width."""

    kind: str
    start: str
    width: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLine:
    """A budget's row.

    Attributes:
        whom: Whose spend it caps.
        window: When it starts again, and in which zone.
        resets: The next instant of that, in the zone; a dash for never.
        going: Its forecast, None where there is none.
        crossed: Thresholds that use has reached, in per cent.
        can_change: Whether whoever looks may set it.
        order: What it is, as fields of the form that changes it.
        spent_pico_usd: To sort by.
        used_permille: Of the limit, to sort by.
    """

    name: str
    whom: str
    window: str
    resets: str
    resets_iso: str
    limit: Shown
    spent: Shown
    reserved: Shown
    exposed: Shown
    left: Shown
    used: str
    parts: Sequence[Part]
    going: Going | None
    on_exceed: str
    crossed: str
    alerts_at: str
    source: str
    is_used_up: bool
    can_change: bool
    order: Mapping[str, str]
    spent_pico_usd: int
    used_permille: int


def budget_line(
    report: BudgetReport,
    *,
    days: Mapping[str, Days],
    today: date,
    zone: str,
    may_change: Restriction,
) -> BudgetLine:
    """A budget as text.

    Args:
        report: Where it stands.
        days: Costs by day, by the dimension that tells a scope apart.
        today: In `zone`.
        zone: Of those days; budgets of another zone have no forecast.
        may_change: The rows that whoever looks may set.
    """
    rule, state = report.rule, report.state
    is_endless = rule.window is BudgetWindow.TOTAL
    resets = from_microseconds(state.window_end_us).astimezone(ZoneInfo(rule.time_zone))
    used = state.spent_pico_usd + state.exposed_pico_usd
    crossed = [one for one in report.alerts_at if used and 100 * used >= one * rule.limit_pico_usd]
    return BudgetLine(
        name=rule.name,
        whom=whom(rule),
        window="total, never again" if is_endless else f"{_WINDOWS[rule.window]}, {rule.time_zone}",
        resets=NOTHING if is_endless else f"{resets:%Y-%m-%d %H:%M}",
        resets_iso="" if is_endless else resets.isoformat(),
        limit=shown(state.limit_pico_usd),
        spent=shown(state.spent_pico_usd),
        reserved=shown(state.reserved_pico_usd),
        exposed=shown(state.exposed_pico_usd),
        left=shown(state.room_pico_usd),
        used=share_text(used, state.limit_pico_usd),
        parts=_parts(state),
        going=_going(rule, state, days=days, today=today, zone=zone),
        on_exceed=ON_EXCEED[rule.on_exceed.value],
        crossed=", ".join(f"{one} %" for one in crossed) or NOTHING,
        alerts_at=", ".join(f"{one} %" for one in report.alerts_at) or "none",
        source=report.source.value,
        is_used_up=state.room_pico_usd == 0,
        can_change=report.source is BudgetSource.DATABASE and _may_set(rule, may_change),
        order=order_of(report),
        spent_pico_usd=state.spent_pico_usd,
        used_permille=used * 1000 // max(state.limit_pico_usd, 1),
    )


def order_of(report: BudgetReport) -> dict[str, str]:
    """What a budget is, as fields of a form."""
    rule = report.rule
    # A key's budget knows its team, and takes no order that names one.
    team = "" if rule.scope is BudgetScope.KEY else rule.team
    return {
        "scope": rule.scope.value,
        "team": team,
        "project": rule.project,
        "key_id": rule.key_id,
        "cost_tag": "" if rule.cost_tag is None else "=".join(rule.cost_tag),
        "usd": format_usd(rule.limit_pico_usd),
        "window": rule.window.value,
        "time_zone": rule.time_zone,
        "on_exceed": rule.on_exceed.value,
        "alerts_at": ", ".join(map(str, report.alerts_at)),
    }


def whom(rule: BudgetRule) -> str:
    """Whose spend a budget caps."""
    of_team = f" of team {rule.team}" if rule.team else ""
    match rule.scope:
        case BudgetScope.ORGANISATION:
            return "everybody"
        case BudgetScope.TEAM:
            return f"team {rule.team}"
        case BudgetScope.PROJECT:
            return f"project {rule.project}{of_team}"
        case BudgetScope.KEY:
            return f"key {rule.key_id}{of_team}"
        case BudgetScope.COST_TAG:
            return f"cost tag {'='.join(rule.cost_tag or ())}{of_team}"


def fullest(reports: Sequence[BudgetReport]) -> BudgetReport | None:
    """The budget of which the largest part is used; the widest one of several."""
    with_limit = [one for one in reports if one.state.limit_pico_usd]
    return max(with_limit, key=_permille_used, default=None)


def _permille_used(report: BudgetReport) -> int:
    state = report.state
    return (state.spent_pico_usd + state.exposed_pico_usd) * 1000 // state.limit_pico_usd


def _may_set(rule: BudgetRule, within: Restriction) -> bool:
    """As the API decides it: a team may cap its parts, never lift what caps the team."""
    if within.teams is None:
        return True
    is_wide = rule.scope in (BudgetScope.ORGANISATION, BudgetScope.TEAM)
    return not is_wide and within.has(rule.team, "")


def _parts(state: BudgetState) -> list[Part]:
    """The bar, one after the other; what is above the limit fills it."""
    whole = max(
        state.limit_pico_usd,
        state.spent_pico_usd + state.exposed_pico_usd + state.reserved_pico_usd,
        1,
    )
    kind = (
        "spent" if state.spent_pico_usd + state.exposed_pico_usd < state.limit_pico_usd else "over"
    )
    found: list[Part] = []
    start = 0
    for name, amount in (
        (kind, state.spent_pico_usd + state.exposed_pico_usd),
        ("held", state.reserved_pico_usd),
    ):
        width = amount * 1000 // whole
        if amount > 0:
            found.append(Part(kind=name, start=_tenths(start), width=_tenths(max(width, 4))))
        start += width
    return found


def _tenths(permille: int) -> str:
    return f"{permille // 10}.{permille % 10}%"


def _going(
    rule: BudgetRule, state: BudgetState, *, days: Mapping[str, Days], today: date, zone: str
) -> Going | None:
    """Spent in the window until yesterday, and the days that are left as they are likely to be."""
    dimension = DIMENSION.get(rule.scope)
    is_daily = rule.window in (BudgetWindow.DAY, BudgetWindow.TOTAL)
    if dimension is None or is_daily or rule.time_zone != zone:
        return None
    history = days[dimension].get(_group(rule), ())
    last = local_day(state.window_end_us, ZoneInfo(zone)) - timedelta(days=1)
    left = (last - today).days + 1
    if len(history) < HISTORY_DAYS_MIN or not 0 < left <= HORIZON_DAYS_MAX:
        return None
    gone = (today - local_day(state.window_start_us, ZoneInfo(zone))).days
    coming = forecast(history, days=left).days_pico_usd
    # The history may begin later than the window; what was booked before it counts all the same.
    known = sum(history[len(history) - min(gone, len(history)) :])
    amount = max(known, 0)
    reached = ""
    for place, one in enumerate(coming):
        amount += one
        if amount >= state.limit_pico_usd and not reached:
            reached = (today + timedelta(days=place)).isoformat()
    amount = max(amount, state.spent_pico_usd)
    is_over = amount > state.limit_pico_usd
    used = state.spent_pico_usd + state.exposed_pico_usd
    return Going(
        amount=shown(amount),
        is_over=is_over,
        reached=reached if is_over and used < state.limit_pico_usd else "",
    )


def _group(rule: BudgetRule) -> tuple[str, ...]:
    match rule.scope:
        case BudgetScope.TEAM:
            return (rule.team,)
        case BudgetScope.PROJECT:
            return (rule.team, rule.project)
        case BudgetScope.KEY:
            return (rule.key_id,)
        case _:
            return ()


_WINDOWS = {
    BudgetWindow.DAY: "each day",
    BudgetWindow.WEEK: "each week",
    BudgetWindow.MONTH: "each month",
    BudgetWindow.FISCAL: "each fiscal year",
    BudgetWindow.TOTAL: "total",
}
