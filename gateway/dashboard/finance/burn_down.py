"""Commitments and prepaid credits as a table, and how each goes down as a chart.

Pure: standings in, texts out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.dashboard.finance import charts
from gateway.dashboard.finance.amounts import Shown, share_text, shown
from gateway.dashboard.finance.charts import Figure, Series
from gateway.dashboard.finance.month import Tile
from gateway.finance.commitment_messages import CommitmentDay, CommitmentStanding
from pricing.commitments import CommitmentKind

PATH = "/ui/commitments"
DAYS_DRAWN_MAX = 92
DRAWN_MAX = 6

KINDS = {
    CommitmentKind.CREDIT: "prepaid credit",
    CommitmentKind.SPEND: "spend commitment",
    CommitmentKind.THROUGHPUT: "throughput",
}
STATES = {
    "coming": "not begun",
    "open": "in use",
    "used_up": "used up",
    "over": "over",
    "withdrawn": "withdrawn",
}
UNUSED = {
    CommitmentKind.CREDIT: "lapsed",
    CommitmentKind.SPEND: "owed",
    CommitmentKind.THROUGHPUT: "not used",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentLine:
    """A commitment's row.

    Attributes:
        name: What it is called.
        kind: In words.
        state: In words.
        where: What it covers.
        term: First and last day.
        amount: In dollars.
        paid: In the currency that it is in, where that is another one.
        drawn: In all.
        used: Share of the amount.
        left: What can still be drawn.
        unused: What is gone unused.
        ending: When it will be used up, and the band.
    """

    name: str
    kind: str
    state: str
    where: str
    term: str
    amount: Shown
    paid: str
    drawn: Shown
    used: str
    left: Shown
    unused: Shown
    ending: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLine:
    """A day's row of the table beside a chart."""

    day: str
    drawn: Shown
    left: Shown
    unused: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDownFigure:
    """How one commitment goes down.

    Attributes:
        name: Of the commitment.
        id: Of the chart on the page.
        chart: What is left, and what was drawn.
        use: Of throughput, what each day used of its share and what it did not; else None.
        days: The table, newest first.
        is_cut: Whether earlier days are left out.
    """

    name: str
    id: str
    chart: Figure
    use: Figure | None
    days: Sequence[DayLine]
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentsPage:
    """Everything that the page shows.

    Attributes:
        lines: Each commitment, those in use first.
        figures: Those in use, at most `DRAWN_MAX`.
        tiles: How much of what is gone by was used, and what was wasted.
    """

    tiles: Sequence[Tile]
    lines: Sequence[CommitmentLine]
    figures: Sequence[BurnDownFigure]


def commitments_page(standings: Sequence[CommitmentStanding]) -> CommitmentsPage:
    """Make the page."""
    order = list(STATES)
    places = {"open": 0, "used_up": 1}
    found = sorted(
        standings,
        key=lambda one: (places.get(one.state, 2), order.index(one.state), one.last_day, one.name),
    )
    drawn = [one for one in found if one.state in places and one.days][:DRAWN_MAX]
    return CommitmentsPage(
        tiles=_tiles(standings),
        lines=[_line(one) for one in found],
        figures=[_figure(one, place) for place, one in enumerate(drawn, start=1)],
    )


def _tiles(standings: Sequence[CommitmentStanding]) -> list[Tile]:
    """Of all that was not withdrawn; what is left can still be used, and counts as neither."""
    held = [one for one in standings if one.state in ("open", "used_up", "over")]
    drawn = sum(one.drawn_pico_usd for one in held)
    unused = sum(one.unused_pico_usd for one in held)
    return [
        Tile(
            label="Drawn, USD", figure=shown(drawn), beside="from all commitments, until yesterday"
        ),
        Tile(
            label="Utilisation",
            figure=Shown(text=share_text(drawn, drawn + unused), exact=""),
            beside="drawn, of what was drawn or is gone unused",
        ),
        Tile(
            label="Gone unused, USD", figure=shown(unused), beside="paid for or owed, and not used"
        ),
        Tile(
            label="Left, USD",
            figure=shown(sum(one.left_pico_usd for one in held if one.state == "open")),
            beside="of those in use",
        ),
    ]


def _line(one: CommitmentStanding) -> CommitmentLine:
    return CommitmentLine(
        name=one.name,
        kind=KINDS[one.kind],
        state=STATES[one.state],
        where=", ".join(one.deployments) or f"all of {one.provider}",
        term=f"{one.first_day} to {one.last_day}",
        amount=shown(one.amount_pico_usd),
        paid="" if one.currency == "USD" else f"{one.amount} {one.currency}",
        drawn=shown(one.drawn_pico_usd),
        used=share_text(one.drawn_pico_usd, one.amount_pico_usd),
        left=shown(one.left_pico_usd),
        unused=shown(one.unused_pico_usd),
        ending=_ending(one),
    )


def _ending(one: CommitmentStanding) -> str:
    if one.unused_pico_usd and one.state == "over":
        return f"{shown(one.unused_pico_usd).text} USD {UNUSED[one.kind]}"
    if one.state != "open" or one.kind is CommitmentKind.THROUGHPUT:
        return ""
    if one.runs_out_on is None:
        early = one.runs_out_early
        return "lasts" if early is None else f"may be used up from {early} on"
    if one.band_percent is None:
        return f"used up on {one.runs_out_on}"
    late = one.runs_out_late or "after its end"
    return f"used up on {one.runs_out_on} ({one.band_percent} %: {one.runs_out_early} to {late})"


def _figure(one: CommitmentStanding, place: int) -> BurnDownFigure:
    days = one.days[-DAYS_DRAWN_MAX:]
    return BurnDownFigure(
        name=one.name,
        id=f"burn-down-{place}",
        chart=charts.lines(
            [day.day for day in days],
            [
                Series(name="Left", amounts_pico_usd=[day.left_pico_usd for day in days]),
                Series(
                    name="Drawn on the day", amounts_pico_usd=[day.drawn_pico_usd for day in days]
                ),
            ],
            label="Day",
        ),
        use=_use(days) if one.kind is CommitmentKind.THROUGHPUT else None,
        days=[_day(day) for day in reversed(days)],
        is_cut=len(days) < len(one.days),
    )


def _use(days: Sequence[CommitmentDay]) -> Figure:
    return charts.areas(
        [day.day for day in days],
        [
            Series(name="Used", amounts_pico_usd=[day.drawn_pico_usd for day in days]),
            Series(name="Not used", amounts_pico_usd=[day.unused_pico_usd for day in days]),
        ],
    )


def _day(day: CommitmentDay) -> DayLine:
    return DayLine(
        day=day.day,
        drawn=shown(day.drawn_pico_usd),
        left=shown(day.left_pico_usd),
        unused=shown(day.unused_pico_usd),
    )
