"""Spend by anything: what an address asks for, and the page that answers it.

The address carries all of it, so a view can be kept, sent and gone back to. What it says wrongly is
told, never guessed. Pure: an address in, a query out; reports in, texts and chart data out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from gateway.budgets.messages import BudgetWindow
from gateway.budgets.windows import day_start_us, window_of
from gateway.dashboard.figures import summed
from gateway.dashboard.finance import charts
from gateway.dashboard.finance.amounts import Shown, change_text, share_text, shown, shown_together
from gateway.dashboard.finance.charts import Figure, Series
from gateway.dashboard.finance.comparison import PREVIOUS
from gateway.dashboard.finance.explorer_tiles import explorer_tiles
from gateway.dashboard.finance.month import Tile
from gateway.dashboard.finance.periods import Month, month_before, month_named, month_of
from gateway.ledger.report_time import local_day
from gateway.ledger.views import COST_TAG, CostCentre, GroupBy, SpendQuery, SpendReport, SpendSums

PATH = "/ui/spend"
DIMENSIONS: Mapping[str, str] = {
    GroupBy.TEAM: "Team",
    GroupBy.PROJECT: "Project",
    GroupBy.COST_CENTRE: "Cost centre",
    GroupBy.MODEL: "Model",
    GroupBy.PROVIDER: "Provider",
    GroupBy.DEPLOYMENT: "Deployment",
    GroupBy.KEY: "Key",
    GroupBy.PRIVACY_TAGS: "Privacy tags",
    GroupBy.STATUS: "Outcome",
    GroupBy.QUALITY: "Quality of counts",
}
"""What the page groups by, with its name; cost tags of the settings come after."""
STEPS: Mapping[str, str] = {
    GroupBy.HOUR: "Hour",
    GroupBy.DAY: "Day",
    GroupBy.WEEK: "Week",
    GroupBy.MONTH: "Month",
}
FILTERS = (
    GroupBy.TEAM, GroupBy.PROJECT, GroupBy.COST_CENTRE, GroupBy.MODEL, GroupBy.PROVIDER,
    GroupBy.DEPLOYMENT, GroupBy.KEY,
)  # fmt: skip
WAY_DOWN: Mapping[str, str] = {
    GroupBy.TEAM: GroupBy.PROJECT,
    GroupBy.PROJECT: GroupBy.MODEL,
    GroupBy.COST_CENTRE: GroupBy.PROJECT,
    GroupBy.PROVIDER: GroupBy.DEPLOYMENT,
    GroupBy.MODEL: GroupBy.DEPLOYMENT,
    GroupBy.DEPLOYMENT: GroupBy.KEY,
}
"""What a row is taken apart into when it is followed."""
SERIES_DRAWN_MAX = 7
ROWS_LISTED_MAX = 500
STEPS_MAX = 750
"""Hours, days, weeks or months of one page: a month of hours, two years of days."""
VALUE_CHARS_MAX = 200
OTHERS = "others"
EMPTY: Mapping[str, str] = {
    GroupBy.TEAM: "no team",
    GroupBy.PROJECT: "no project",
    GroupBy.COST_CENTRE: "no cost centre",
    GroupBy.KEY: "no key",
    GroupBy.PRIVACY_TAGS: "no tag",
}
_STEP_HOURS = {GroupBy.HOUR: 1, GroupBy.DAY: 24, GroupBy.WEEK: 168, GroupBy.MONTH: 672}


class BadAddress(ValueError):
    """An address asks for something that has no meaning; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an address asks for.

    Attributes:
        by: Dimension of the rows.
        step: Of the bars over time.
        first: First day.
        last: Last day, counted too.
        filters: Value by dimension.
        preset: Name of the period, empty where the days are chosen.
        compare: `previous` where the period before is shown beside, else empty.
    """

    by: str
    step: str
    first: date
    last: date
    filters: Mapping[str, str]
    preset: str
    compare: str = ""

    def address(self, **changes: object) -> str:
        """The page's address with some of it changed."""
        said: dict[str, object] = {"by": self.by, "per": self.step}
        if self.preset:
            said["period"] = self.preset
        else:
            said |= {"from": self.first.isoformat(), "to": self.last.isoformat()}
        said |= self.filters
        said |= {"compare": self.compare or None}
        said |= changes
        return f"{PATH}?{urlencode({k: v for k, v in said.items() if v is not None})}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table.

    Attributes:
        name: Of the group; empty is what `EMPTY` calls it.
        beside: The team of a project, else empty.
        href: Where it is taken apart; empty where there is nothing below.
        attempts_href: The attempts that its figures add up.
        failed_href: Those of them that did not end well.
        estimated_href: Those of them whose counts are not the provider's own.
        before: What it cost in the period before; None where that is not asked for.
        change: Against that, empty where it is not asked for.
    """

    name: str
    beside: str
    href: str
    attempts_href: str
    failed_href: str
    estimated_href: str
    cost: Shown
    list_cost: Shown
    share: str
    requests: str
    attempts: str
    input_tokens: str
    cached_tokens: str
    output_tokens: str
    cache_saved: Shown
    failed: Shown
    estimated: str
    before: Shown | None
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A row of the table beside the chart: amounts, and where the attempts behind each are."""

    name: str
    parts: Sequence[tuple[Shown, str]]
    total: Shown
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerPage:
    """Everything that the page shows."""

    tiles: Sequence[Tile]
    figure: Figure
    series: Sequence[str]
    steps: Sequence[Step]
    rows: Sequence[Row]
    total: Row
    hidden_rows: int
    is_empty: bool


PRESETS: Mapping[str, str] = {
    "this-month": "This month",
    "last-month": "Last month",
    "last-7-days": "Last 7 days",
    "last-30-days": "Last 30 days",
    "last-90-days": "Last 90 days",
    "fiscal-year": "Fiscal year to date",
}


def read_address(
    given: Mapping[str, str],
    *,
    now_us: int,
    zone: str,
    fiscal_month: int = 1,
    cost_tags: Sequence[str] = (),
) -> Wanted:
    """Read what an address asks for.

    Args:
        given: Its parameters.
        now_us: Microseconds since the epoch.
        zone: IANA name of the zone of its days.
        fiscal_month: Month in which the fiscal year begins.
        cost_tags: Names that have sums of their own.

    Raises:
        BadAddress: A parameter is unknown or has no meaning.
    """
    tags = tuple(f"{COST_TAG}{name}" for name in cost_tags)
    known = {"by", "per", "period", "from", "to", "compare", *FILTERS, *tags}
    check_parameters(given, known)
    by = given.get("by") or GroupBy.TEAM
    step = given.get("per") or GroupBy.DAY
    if by not in DIMENSIONS and by not in tags:
        raise BadAddress(f"by: {by[:64]!r} is none of {', '.join((*DIMENSIONS, *tags))}")
    compare = given.get("compare", "")
    if compare not in ("", PREVIOUS):
        raise BadAddress(f"compare: {compare[:64]!r} is not {PREVIOUS}")
    if step not in STEPS:
        raise BadAddress(f"per: {step[:64]!r} is none of {', '.join(STEPS)}")
    first, last, preset = read_days(given, now_us=now_us, zone=zone, fiscal_month=fiscal_month)
    count = ((last - first).days + 1) * 24 // _STEP_HOURS[GroupBy(step)]
    if count > STEPS_MAX:
        raise BadAddress(f"per: that is over {STEPS_MAX} steps; take longer ones or fewer days")
    filters = {name: given[name] for name in (*FILTERS, *tags) if given.get(name)}
    return Wanted(
        by=by,
        step=step,
        first=first,
        last=last,
        filters=filters,
        preset=preset,
        compare=compare,
    )


def check_parameters(given: Mapping[str, str], known: Collection[str]) -> None:
    """Refuse parameters of an address that a page does not know, and what is too long for one.

    Raises:
        BadAddress: There is one.
    """
    for name, value in given.items():
        if name not in known:
            raise BadAddress(f"{name[:64]!r} is nothing that this page knows")
        if len(value) > VALUE_CHARS_MAX:
            raise BadAddress(f"{name} is longer than {VALUE_CHARS_MAX} characters")


def query_of(
    wanted: Wanted,
    *,
    zone: str,
    fiscal_month: int,
    teams: tuple[str, ...] | None,
    cost_centres: tuple[CostCentre, ...] = (),
) -> SpendQuery:
    """The report that answers an address: rows by time and dimension."""
    start = day_start_us(wanted.first, zone)
    end = day_start_us(wanted.last + timedelta(days=1), zone)
    return SpendQuery(
        group_by=(wanted.step, wanted.by),
        from_us=start,
        to_us=end,
        filters=dict(wanted.filters),
        teams=teams,
        zone=zone,
        fiscal_month=fiscal_month,
        cost_centres=cost_centres,
    )


def explorer_page(
    wanted: Wanted, report: SpendReport, before: SpendReport | None = None
) -> ExplorerPage:
    """Make the page from the reports of `query_of` and `query_before`."""
    width = len(report.columns)
    sums: dict[tuple[str, ...], list[SpendSums]] = {}
    costs: dict[str, dict[tuple[str, ...], int]] = {}
    for row in report.rows:
        step, group = row.group[0], row.group[1:width]
        sums.setdefault(group, []).append(row.sums)
        cell = costs.setdefault(step, {})
        cell[group] = cell.get(group, 0) + row.sums.cost_pico_usd
    whole = {group: summed(parts) for group, parts in sums.items()}
    order = sorted(whole, key=lambda group: (-whole[group].cost_pico_usd, group))
    drawn = order[:SERIES_DRAWN_MAX]
    names = [_label(wanted, group) for group in drawn]
    if len(order) > len(drawn):
        names.append(OTHERS)
    steps = sorted(costs)
    parts = [charts.parts(costs[step], drawn, count=len(names)) for step in steps]
    listed = order[:ROWS_LISTED_MAX]
    shown_costs = shown_together([whole[group].cost_pico_usd for group in listed])
    total = report.total
    costs_before: dict[tuple[str, ...], int] | None = None
    if before is not None:
        width_before = len(before.columns)
        costs_before = {row.group[:width_before]: row.sums.cost_pico_usd for row in before.rows}
    return ExplorerPage(
        tiles=explorer_tiles(total, before),
        figure=charts.bars(
            steps,
            [
                Series(name=name, amounts_pico_usd=[part[place] for part in parts])
                for place, name in enumerate(names)
            ],
        ),
        series=names,
        steps=[_step(wanted, step, part, drawn) for step, part in zip(steps, parts, strict=True)],
        rows=[
            _row(
                wanted,
                group,
                whole[group],
                cost,
                total.cost_pico_usd,
                before=None if costs_before is None else costs_before.get(group, 0),
            )
            for group, cost in zip(listed, shown_costs, strict=True)
        ],
        total=_row(
            wanted,
            None,
            total,
            shown(total.cost_pico_usd),
            total.cost_pico_usd,
            before=None if before is None else before.total.cost_pico_usd,
        ),
        hidden_rows=len(order) - len(listed),
        is_empty=not total.attempts,
    )


def read_days(
    given: Mapping[str, str], *, now_us: int, zone: str, fiscal_month: int
) -> tuple[date, date, str]:
    """The first and the last day that an address names, and the name of its period, if any.

    Raises:
        BadAddress: It names none.
    """
    today = local_day(now_us, ZoneInfo(zone))
    if given.get("from") or given.get("to"):
        first, last = _day(given, "from"), _day(given, "to")
        if last < first:
            raise BadAddress("from is after to, the last day that is counted")
        return first, last, ""
    preset = given.get("period") or "this-month"
    month: Month | None = None
    match preset:
        case "this-month":
            month = month_of(today, time_zone=zone)
        case "last-month":
            month = month_before(month_of(today, time_zone=zone), time_zone=zone)
        case "last-7-days" | "last-30-days" | "last-90-days":
            days = int(preset.split("-")[1])
            return today - timedelta(days=days - 1), today, preset
        case "fiscal-year":
            window = window_of(
                now_us, BudgetWindow.FISCAL, time_zone=zone, fiscal_month=fiscal_month
            )
            return local_day(window.start_us, ZoneInfo(zone)), today, preset
        case _:
            month = month_named(preset, now_us=now_us, time_zone=zone)
    if month is None:
        raise BadAddress(
            f"period: {preset[:64]!r} is no month such as 2026-11 and none of {', '.join(PRESETS)}"
        )
    return month.first, month.last, preset


def _day(given: Mapping[str, str], name: str) -> date:
    text = given.get(name, "")
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise BadAddress(f"{name}: {text[:64]!r} is no day such as 2026-11-01") from error
    if not date(1970, 1, 2) <= day <= date(9998, 12, 30):
        raise BadAddress(f"{name}: {text[:64]!r} is out of range")
    return day


def _label(wanted: Wanted, group: tuple[str, ...]) -> str:
    name = group[-1] or EMPTY.get(wanted.by, "none")
    return f"{group[0]} / {name}" if len(group) > 1 and group[0] else name


def _step(
    wanted: Wanted, name: str, parts: Sequence[int], drawn: Sequence[tuple[str, ...]]
) -> Step:
    time = _time_of(wanted, name)
    links = [attempts_address(wanted, {**time, **_filters_of(wanted, one)}) for one in drawn]
    links += [""] * (len(parts) - len(links))  # of several groups together
    return Step(
        name=name,
        parts=[(shown(part), href) for part, href in zip(parts, links, strict=True)],
        total=shown(sum(parts)),
        href=attempts_address(wanted, time),
    )


def _time_of(wanted: Wanted, step: str) -> dict[str, str]:
    """One step of time as the page of attempts knows it, within the days of the address."""
    if wanted.step == GroupBy.HOUR:
        return {"hour": step}
    if wanted.step == GroupBy.DAY:
        first = last = date.fromisoformat(step)
    elif wanted.step == GroupBy.WEEK:
        first = date.fromisoformat(f"{step}-1")
        last = first + timedelta(days=6)
    else:
        first = date.fromisoformat(f"{step}-01")
        last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    first, last = max(first, wanted.first), min(last, wanted.last)
    return {"from": first.isoformat(), "to": last.isoformat()}


def _filters_of(wanted: Wanted, group: tuple[str, ...]) -> dict[str, str]:
    """What tells one group from all others; a project belongs to a team."""
    *above, name = group
    found = {wanted.by: name}
    for team in above:
        found[GroupBy.TEAM.value] = team
    return found


def attempts_address(wanted: Wanted, changes: Mapping[str, str]) -> str:
    """Where the attempts behind a figure of the page are.

    Args:
        wanted: What the page shows.
        changes: What the figure is of, beside that; a time among them replaces the page's days.
    """
    said: dict[str, str] = {}
    if not changes.keys() & {"hour", "from"}:
        if wanted.preset:
            said["period"] = wanted.preset
        else:
            said |= {"from": wanted.first.isoformat(), "to": wanted.last.isoformat()}
    return f"/ui/requests?{urlencode({**said, **wanted.filters, **changes})}"


def _row(
    wanted: Wanted,
    group: tuple[str, ...] | None,
    sums: SpendSums,
    cost: Shown,
    whole_pico_usd: int,
    *,
    before: int | None,
) -> Row:
    name = "" if group is None else group[-1]
    beside = group[0] if group is not None and len(group) > 1 else ""
    of_group = {} if group is None else _filters_of(wanted, group)
    down = WAY_DOWN.get(wanted.by)
    href = ""
    if down is not None and name:
        above = {GroupBy.TEAM.value: beside} if beside else {}
        href = wanted.address(**{**above, wanted.by: name, "by": down})
    return Row(
        name=name,
        beside=beside,
        href=href,
        attempts_href=attempts_address(wanted, of_group),
        failed_href=attempts_address(wanted, {**of_group, GroupBy.STATUS.value: "failed"}),
        estimated_href=attempts_address(wanted, {**of_group, GroupBy.QUALITY.value: "not-exact"}),
        cost=cost,
        list_cost=shown(sums.list_cost_pico_usd),
        share=share_text(sums.cost_pico_usd, whole_pico_usd),
        requests=f"{sums.requests:,}",
        attempts=f"{sums.attempts:,}",
        input_tokens=f"{sums.input_tokens + sums.cache_write_tokens:,}",
        cached_tokens=f"{sums.cached_input_tokens:,}",
        output_tokens=f"{sums.output_tokens + sums.reasoning_tokens:,}",
        cache_saved=shown(sums.cache_saved_pico_usd),
        failed=shown(sums.failed_cost_pico_usd),
        estimated=share_text(sums.estimated_cost_pico_usd, sums.cost_pico_usd),
        before=None if before is None else shown(before),
        change="" if before is None else change_text(sums.cost_pico_usd, before),
    )


def days_text(first: date, last: date) -> str:
    """The days of an address, for a title."""
    return f"{first:%-d %B %Y}" if first == last else f"{first:%-d %B %Y} to {last:%-d %B %Y}"
