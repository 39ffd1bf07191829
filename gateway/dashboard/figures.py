"""The numbers of the first page as text: exact amounts, grouped counts, UTC times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.clock import from_microseconds
from gateway.ledger.views import GroupBy, RecentRequest, SpendQuery, SpendReport, SpendSums
from pricing.money import format_usd

DAY_US = 86_400_000_000
TEAMS_MAX = 200
"""Rows of the table of teams; those that cost less are one row together."""

NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """An amount in dollars.

    Attributes:
        text: Exact.
        pad: Digits that would follow in a column where another amount has more; not shown, they
            keep the decimal points below each other.
    """

    text: str
    pad: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendLine:
    """One row of spend.

    Attributes:
        name: Team, empty for requests without one.
        requests: Grouped digits, as all counts.
        input_tokens: All prompt tokens, cached or not.
        cached_tokens: Those of them read from a cache.
        output_tokens: Generated, reasoning included.
        cost: What was booked, None where no attempt has a price: that is not free.
        estimated: Share of the cost that rests on estimates, or a dash.
        unpriced: Attempts whose price is unknown, or a dash.
    """

    name: str
    requests: str
    input_tokens: str
    cached_tokens: str
    output_tokens: str
    cost: Amount | None
    estimated: str
    unpriced: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLine:
    """One row of the newest requests.

    Attributes:
        instant: ISO 8601, for machines.
        time: For people; the day only where it is not today.
        cost: None while the price is unknown.
        ttft: Milliseconds or seconds with their unit, a dash without a first token.
        outcome: Status, with the error code where there is one.
        is_ok: Whether all went well.
    """

    request_id: str
    instant: str
    time: str
    team: str
    project: str
    model: str
    deployment: str
    reason: str
    attempts: int
    outcome: str
    is_ok: bool
    input_tokens: str
    cached_tokens: str
    output_tokens: str
    cost: Amount | None
    is_estimated: bool
    ttft: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendTable:
    """Spend of a day by team.

    Attributes:
        day: ISO date, UTC.
        lines: By falling cost.
        total: The sum of all.
        has_unpriced: Whether an attempt is not in the cost.
        exposure: What attempts of unknown billing may cost beside the total, empty for nothing.
        nominal: The part of the total at a nominal machine rate, empty for nothing.
    """

    day: str
    lines: Sequence[SpendLine]
    total: SpendLine
    has_unpriced: bool
    exposure: str
    nominal: str


def day_query(now_us: int, teams: tuple[str, ...] | None) -> SpendQuery:
    """Spend of the UTC day so far, by team; only these teams' rows when they are given."""
    day_us = now_us - now_us % DAY_US
    return SpendQuery(
        group_by=(GroupBy.TEAM,),
        from_us=day_us,
        to_us=day_us + DAY_US,
        teams=teams,
    )


def spend_table(report: SpendReport, now_us: int) -> SpendTable:
    """A report of `day_query` as text."""
    named = [(row.group[0], row.sums) for row in report.rows[:TEAMS_MAX]]
    if len(report.rows) > TEAMS_MAX:
        rest = [row.sums for row in report.rows[TEAMS_MAX:]]
        named.append((f"{len(rest):,} more teams", summed(rest)))
    sums = [*named, ("", report.total)]
    costs = aligned([one.cost_pico_usd for _, one in sums])
    lines = [_spend_line(name, one, cost) for (name, one), cost in zip(sums, costs, strict=True)]
    total = report.total
    return SpendTable(
        day=from_microseconds(now_us).date().isoformat(),
        lines=lines[:-1],
        total=lines[-1],
        has_unpriced=total.unpriced_attempts > 0,
        exposure=format_usd(total.exposure_pico_usd) if total.exposure_pico_usd else "",
        nominal=format_usd(total.nominal_cost_pico_usd) if total.nominal_cost_pico_usd else "",
    )


def request_lines(requests: Sequence[RecentRequest], now_us: int) -> list[RequestLine]:
    """The newest requests as text."""
    costs = iter(aligned([one.cost_pico_usd for one in requests if one.cost_pico_usd is not None]))
    return [
        _request_line(one, now_us, None if one.cost_pico_usd is None else next(costs))
        for one in requests
    ]


def stamp_time(at_us: int) -> str:
    """The UTC day and time to the second."""
    return from_microseconds(at_us).strftime("%Y-%m-%d %H:%M:%S")


def clock_time(at_us: int) -> str:
    """The UTC time of day to the second."""
    return from_microseconds(at_us).strftime("%H:%M:%S")


def _spend_line(name: str, sums: SpendSums, cost: Amount) -> SpendLine:
    is_unpriced = 0 < sums.attempts == sums.unpriced_attempts
    prompt = sums.input_tokens + sums.cached_input_tokens + sums.cache_write_tokens
    return SpendLine(
        name=name,
        requests=f"{sums.requests:,}",
        input_tokens=f"{prompt:,}",
        cached_tokens=f"{sums.cached_input_tokens:,}",
        output_tokens=f"{sums.output_tokens + sums.reasoning_tokens:,}",
        cost=None if is_unpriced else cost,
        estimated=_share(sums.estimated_cost_pico_usd, sums.cost_pico_usd),
        unpriced=f"{sums.unpriced_attempts:,}" if sums.unpriced_attempts else NOTHING,
    )


def _request_line(request: RecentRequest, now_us: int, cost: Amount | None) -> RequestLine:
    at = from_microseconds(request.at_us)
    is_today = at.date() == from_microseconds(now_us).date()
    outcome = request.status.replace("_", " ")
    return RequestLine(
        request_id=request.request_id,
        instant=at.isoformat(timespec="milliseconds"),
        time=at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S"),
        team=request.team,
        project=request.project,
        model=request.model,
        deployment=request.deployment,
        reason=request.reason,
        attempts=request.attempts,
        outcome=f"{outcome}: {request.error_code}" if request.error_code else outcome,
        is_ok=request.status == "ok" and not request.error_code,
        input_tokens=f"{request.input_tokens:,}",
        cached_tokens=f"{request.cached_input_tokens:,}",
        output_tokens=f"{request.output_tokens:,}",
        cost=cost,
        is_estimated=request.is_estimated,
        ttft=_duration(request.ttft_us),
    )


def aligned(amounts_pico_usd: Sequence[int]) -> list[Amount]:
    """Amounts of one column, with what keeps their decimal points below each other."""
    texts = [format_usd(amount) for amount in amounts_pico_usd]
    widths = [len(text.partition(".")[2]) for text in texts]
    widest = max(widths, default=0)
    return [
        Amount(text=text, pad=("." if widest and not width else "") + "0" * (widest - width))
        for text, width in zip(texts, widths, strict=True)
    ]


def summed(parts: Sequence[SpendSums]) -> SpendSums:
    """Sums of several rows."""
    names = SpendSums.__struct_fields__
    return SpendSums(**{name: sum(getattr(part, name) for part in parts) for name in names})


def _share(part_pico_usd: int, whole_pico_usd: int) -> str:
    """A share in percent, cut after one digit; a dash for none at all."""
    if part_pico_usd <= 0 or whole_pico_usd <= 0:
        return NOTHING
    per_mille = part_pico_usd * 1000 // whole_pico_usd
    return f"{per_mille // 10}.{per_mille % 10} %" if per_mille else "< 0.1 %"


def _duration(duration_us: int | None) -> str:
    if duration_us is None:
        return NOTHING
    if duration_us < 10_000_000:
        return f"{duration_us // 1000:,} ms"
    return f"{duration_us / 1_000_000:.1f} s"
