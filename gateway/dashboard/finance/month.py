"""A month at a glance: what was spent, where it is going, who spent it, how sure the figures are.

Pure: reports in, texts and chart data out. Every figure comes from the same two reports, so what
stands in a tile, a chart and a table cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from urllib.parse import urlencode

from gateway.dashboard.figures import NOTHING, summed
from gateway.dashboard.finance import charts
from gateway.dashboard.finance.amounts import (
    Shown,
    change_text,
    share_text,
    shown,
    shown_together,
    unit_cost_text,
)
from gateway.dashboard.finance.charts import Figure, Series
from gateway.dashboard.finance.periods import Month
from gateway.ledger.views import SpendReport, SpendSums
from pricing.forecast import HISTORY_DAYS_MIN, Forecast, forecast

TEAMS_DRAWN_MAX = 7
TEAMS_LISTED_MAX = 200
OTHERS = "others"
NO_TEAM = "no team"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One figure with what it means.

    Attributes:
        label: What it is.
        figure: The amount or count; its exact value is the title.
        beside: What it is compared with, or what it rests on.
        href: Where more of it is, empty for nowhere.
    """

    label: str
    figure: Shown
    beside: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamLine:
    """A team's row.

    Attributes:
        team: Its name, empty for spend of no team.
        cost: What it spent.
        share: Of everything.
        change: Against the same days of the month before.
        requests: Grouped digits.
        tokens: In and out together.
        per_request: Cost of a thousand requests.
        estimated: Share that rests on estimates.
        href: The team's own statement, empty for none.
    """

    team: str
    cost: Shown
    share: str
    change: str
    requests: str
    tokens: str
    per_request: Shown
    estimated: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLine:
    """A day's row of the table beside a chart.

    Attributes:
        day: ISO date.
        parts: Amount of each drawn series.
        total: Of the day.
        so_far: Of the month until the day's end.
    """

    day: str
    parts: Sequence[Shown]
    total: Shown
    so_far: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthPage:
    """Everything that the page shows.

    Attributes:
        tiles: The figures on top.
        by_day: Bars by day, a series for each team that is drawn.
        so_far: Lines of sums: this month, its forecast, the month before.
        series: Names of the drawn series.
        days: The table of both charts, days until today.
        teams: By falling cost.
        total: Of the teams.
        notes: What has to be known about the figures.
        is_empty: Whether nothing was spent and nothing tried.
    """

    tiles: Sequence[Tile]
    by_day: Figure
    so_far: Figure
    series: Sequence[str]
    days: Sequence[DayLine]
    teams: Sequence[TeamLine]
    total: TeamLine
    notes: Sequence[str]
    is_empty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthFigures:
    """What the page is made of.

    Attributes:
        month: The month.
        before: The month before.
        today: Today in the same zone.
        spend: By day and team, in the month.
        spend_before: The same of the month before.
        history_pico_usd: Every day before today without gaps, for the forecast.
    """

    month: Month
    before: Month
    today: date
    spend: SpendReport
    spend_before: SpendReport
    history_pico_usd: Sequence[int]


def month_page(figures: MonthFigures) -> MonthPage:
    """Make the page."""
    month, total = figures.month, figures.spend.total
    daily = _by_day_and_team(figures.spend)
    seen = [day for day in month.days if day <= figures.today]
    days = [day.isoformat() for day in seen]
    teams = _by_team(figures.spend)
    order = sorted(teams, key=lambda team: (-teams[team].cost_pico_usd, team))
    drawn = order[:TEAMS_DRAWN_MAX]
    names = [team or NO_TEAM for team in drawn]
    if len(order) > len(drawn):
        names.append(OTHERS)
    parts = [charts.parts(daily.get(day, {}), drawn, count=len(names)) for day in days]
    coming = _coming(figures)
    return MonthPage(
        tiles=_tiles(figures, coming),
        by_day=charts.bars(
            [f"{day:%-d %b}" for day in seen],
            [
                Series(name=name, amounts_pico_usd=[part[place] for part in parts])
                for place, name in enumerate(names)
            ],
        ),
        so_far=_so_far(figures, [sum(part) for part in parts], coming),
        series=names,
        days=_day_lines(days, parts),
        teams=_team_lines(figures, order[:TEAMS_LISTED_MAX], teams),
        total=_team_line("", total, _same_days(figures), total.cost_pico_usd, href=""),
        notes=_notes(total),
        is_empty=not total.attempts,
    )


def daily_totals(report: SpendReport) -> dict[str, int]:
    """Cost by ISO day of a report that is grouped by day first."""
    found: dict[str, int] = {}
    for row in report.rows:
        found[row.group[0]] = found.get(row.group[0], 0) + row.sums.cost_pico_usd
    return found


def _by_day_and_team(report: SpendReport) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in report.rows:
        day, team = row.group
        found.setdefault(day, {})[team] = row.sums.cost_pico_usd
    return found


def _by_team(report: SpendReport) -> dict[str, SpendSums]:
    rows: dict[str, list[SpendSums]] = {}
    for row in report.rows:
        rows.setdefault(row.group[1], []).append(row.sums)
    return {team: summed(sums) for team, sums in rows.items()}


def _coming(figures: MonthFigures) -> Forecast | None:
    """The rest of a month that is not over, today included; None where it cannot be told."""
    left = (figures.month.last - figures.today).days + 1
    is_current = figures.month.first <= figures.today <= figures.month.last
    if not is_current or len(figures.history_pico_usd) < HISTORY_DAYS_MIN:
        return None
    found = forecast(figures.history_pico_usd, days=left)
    # Today will cost at least what it has cost by now.
    beyond = max(_spent_today(figures) - found.days_pico_usd[0], 0)
    return replace(
        found,
        days_pico_usd=(found.days_pico_usd[0] + beyond, *found.days_pico_usd[1:]),
        total_pico_usd=found.total_pico_usd + beyond,
        bands=tuple(
            replace(
                band,
                low_pico_usd=max(band.low_pico_usd + beyond, _spent_today(figures)),
                high_pico_usd=band.high_pico_usd + beyond,
            )
            for band in found.bands
        ),
    )


def _spent_today(figures: MonthFigures) -> int:
    return daily_totals(figures.spend).get(figures.today.isoformat(), 0)


def _spent_before_today(figures: MonthFigures) -> int:
    today = figures.today.isoformat()
    return sum(cost for day, cost in daily_totals(figures.spend).items() if day < today)


def _same_days(figures: MonthFigures) -> SpendSums:
    """The month before, until the same day of the month."""
    is_over = figures.today > figures.month.last
    last = 31 if is_over else figures.today.day
    rows = figures.spend_before.rows
    return summed([row.sums for row in rows if int(row.group[0][-2:]) <= last])


def _tiles(figures: MonthFigures, coming: Forecast | None) -> list[Tile]:
    total, before = figures.spend.total, _same_days(figures)
    is_over = figures.today > figures.month.last
    against = figures.before.title if is_over else f"the same days of {figures.before.title}"
    tiles = [
        Tile(
            label="Spent" if is_over else "Spent so far",
            figure=shown(total.cost_pico_usd),
            beside=f"{change_text(total.cost_pico_usd, before.cost_pico_usd)} against {against}",
        )
    ]
    if not is_over:
        tiles.append(_forecast_tile(figures, coming))
    tokens, tokens_before = _tokens(total), _tokens(before)
    per_request = unit_cost_text(total.cost_pico_usd, total.requests, 1000)
    per_token = unit_cost_text(total.cost_pico_usd, tokens, 1_000_000)
    tiles += [
        Tile(
            label="Per 1,000 requests",
            figure=per_request,
            beside=f"{total.requests:,} requests; before {_unit(before, before.requests, 1000)}",
        ),
        Tile(
            label="Per million tokens",
            figure=per_token,
            beside=f"{tokens:,} tokens; before {_unit(before, tokens_before, 1_000_000)}",
        ),
        Tile(
            label="Read from caches",
            figure=Shown(text=_cache_share(total), exact=f"{total.cached_input_tokens:,} tokens"),
            beside=f"of prompt tokens; before {_cache_share(before)}",
        ),
        Tile(
            label="Rests on estimates",
            figure=Shown(
                text=share_text(total.estimated_cost_pico_usd, total.cost_pico_usd),
                exact=shown(total.estimated_cost_pico_usd).exact,
            ),
            beside="of the cost: counts that are not the provider's own",
        ),
    ]
    if total.compared_attempts or total.uncompared_attempts:
        tiles.append(_saved_tile(figures))
    return tiles


def _saved_tile(figures: MonthFigures) -> Tile:
    """What routing saved against the baseline; there only where one is named."""
    total = figures.spend.total
    share = share_text(total.saved_pico_usd, total.baseline_cost_pico_usd)
    return Tile(
        label="Saved by routing",
        figure=shown(total.saved_pico_usd),
        beside=f"{share} of the baseline; avoided, no credit",
        href=f"/ui/savings?{urlencode({'month': figures.month.name})}",
    )


def _forecast_tile(figures: MonthFigures, coming: Forecast | None) -> Tile:
    label = "Forecast for the month"
    if coming is None:
        missing = f"needs {HISTORY_DAYS_MIN} days of history"
        return Tile(label=label, figure=Shown(text=NOTHING, exact=""), beside=missing)
    spent = _spent_before_today(figures)
    beside = "no band yet: the history is too short"
    if coming.bands:
        band = coming.bands[0]
        low, high = shown(spent + band.low_pico_usd), shown(spent + band.high_pico_usd)
        beside = f"{band.percent} %: {low.text} to {high.text}"
    return Tile(label=label, figure=shown(spent + coming.total_pico_usd), beside=beside)


def _tokens(sums: SpendSums) -> int:
    return (
        sums.input_tokens
        + sums.cached_input_tokens
        + sums.cache_write_tokens
        + sums.output_tokens
        + sums.reasoning_tokens
    )


def _unit(sums: SpendSums, units: int, per: int) -> str:
    return unit_cost_text(sums.cost_pico_usd, units, per).text


def _cache_share(sums: SpendSums) -> str:
    prompt = sums.input_tokens + sums.cached_input_tokens + sums.cache_write_tokens
    return share_text(sums.cached_input_tokens, prompt)


def _so_far(figures: MonthFigures, totals: Sequence[int], coming: Forecast | None) -> Figure:
    """Sums over the days of the month, beside the month before and what is to come."""
    days = figures.month.days
    empty: list[int | None] = [None] * (len(days) - len(totals))
    series = [Series(name=figures.month.title, amounts_pico_usd=[*_running(totals), *empty])]
    if coming is not None:
        known = _spent_before_today(figures)
        ahead = _running([known, *coming.days_pico_usd])
        before: list[int | None] = [None] * (len(days) - len(ahead))
        series.append(
            Series(
                name="forecast",
                amounts_pico_usd=[*before, *ahead] if len(ahead) <= len(days) else ahead[1:],
                is_dashed=True,
            )
        )
    costs = daily_totals(figures.spend_before)
    past: list[int | None] = [
        *_running([costs.get(day.isoformat(), 0) for day in figures.before.days])
    ]
    past = past[: len(days)] + [None] * (len(days) - len(past))
    series.append(Series(name=figures.before.title, amounts_pico_usd=past, is_dashed=True))
    return charts.lines([str(day.day) for day in days], series, label="Day")


def _running(amounts: Sequence[int]) -> list[int]:
    found: list[int] = []
    for amount in amounts:
        found.append((found[-1] if found else 0) + amount)
    return found


def _day_lines(days: Sequence[str], parts: Sequence[Sequence[int]]) -> list[DayLine]:
    running = _running([sum(part) for part in parts])
    return [
        DayLine(
            day=day,
            parts=[shown(one) for one in part],
            total=shown(sum(part)),
            so_far=shown(so_far),
        )
        for day, part, so_far in zip(days, parts, running, strict=True)
    ]


def _team_lines(
    figures: MonthFigures, order: Sequence[str], teams: Mapping[str, SpendSums]
) -> list[TeamLine]:
    is_over = figures.today > figures.month.last
    last = 31 if is_over else figures.today.day
    before: dict[str, list[SpendSums]] = {}
    for row in figures.spend_before.rows:
        if int(row.group[0][-2:]) <= last:
            before.setdefault(row.group[1], []).append(row.sums)
    costs = shown_together([teams[team].cost_pico_usd for team in order])
    whole = figures.spend.total.cost_pico_usd
    lines = [
        _team_line(
            team,
            teams[team],
            summed(before.get(team, [])),
            whole,
            href=f"/ui/statement?{urlencode({'team': team, 'month': figures.month.name})}",
        )
        for team in order
    ]
    return [replace(line, cost=cost) for line, cost in zip(lines, costs, strict=True)]


def _team_line(
    team: str, sums: SpendSums, before: SpendSums, whole_pico_usd: int, *, href: str
) -> TeamLine:
    return TeamLine(
        team=team,
        cost=shown(sums.cost_pico_usd),
        share=share_text(sums.cost_pico_usd, whole_pico_usd),
        change=change_text(sums.cost_pico_usd, before.cost_pico_usd),
        requests=f"{sums.requests:,}",
        tokens=f"{_tokens(sums):,}",
        per_request=unit_cost_text(sums.cost_pico_usd, sums.requests, 1000),
        estimated=share_text(sums.estimated_cost_pico_usd, sums.cost_pico_usd),
        href=href,
    )


def _notes(total: SpendSums) -> list[str]:
    notes: list[str] = []
    if total.unpriced_attempts:
        notes.append(
            f"{total.unpriced_attempts:,} attempts have no known price and are not in any amount."
        )
    if total.exposure_pico_usd:
        notes.append(
            f"Up to {shown(total.exposure_pico_usd).text} USD more may be billed by providers for"
            " attempts that broke off."
        )
    if total.nominal_cost_pico_usd:
        notes.append(
            f"{shown(total.nominal_cost_pico_usd).text} USD of it is at a nominal machine rate that"
            " nobody has set."
        )
    return notes
