"""A month of machines for a page: what they cost by day, how busy they were, who bears it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from urllib.parse import urlencode

from gateway.clock import from_microseconds
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance import charts
from gateway.dashboard.finance.amounts import Shown, share_text, shown, shown_together
from gateway.dashboard.finance.charts import Figure, Series
from gateway.dashboard.finance.month import Tile
from gateway.finance.machines.messages import (
    BreakEvenCard,
    MachineHour,
    MachineShare,
    MachinesReport,
    RateKind,
    ShowMachines,
    UnitCost,
)
from gateway.finance.machines.shown import (
    REST_NAMES,
    SLICE_NAME,
    break_even_text,
    down_text,
    hours_text,
    idle_text,
    rate_text,
    unit_text,
)

PATH = "/ui/machines"
_FULL = 100
RATE_NAMES = {
    RateKind.ACTUAL: "Actual: what the machines cost",
    RateKind.STANDARD: "Standard: the rate card",
    RateKind.MARGINAL: "Marginal: one more busy second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """A machine's row, of a month, a day or an hour.

    Attributes:
        when: Day or hour, empty for the month.
        href: Where its hours are, empty for nowhere.
        machine: Its name.
        note: That its rate is nominal, and how many GPUs are paid for.
        paid: Time that is paid for.
        busy: Time in which it computed.
        use: Busy of paid time in per cent.
        busy_cost: What busy time cost.
        idle_cost: What idle time cost.
        cost: Both.
    """

    when: str
    href: str
    machine: str
    note: str
    paid: str
    busy: str
    use: str
    busy_cost: Shown
    idle_cost: Shown
    cost: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLine:
    """Who bears what.

    Attributes:
        pool: Whose cost.
        team: Empty for none.
        project: Empty for none.
        deployment: What was used.
        rest: What the row is called that no team bears, or that is idle time of a team's slice;
            empty in the others.
        used: Busy time.
        share: Of the pool's cost, in per cent.
        tokens: In and out.
        cost: At the rate that is shown.
        booked: What the ledger has booked.
        is_nominal: Whether the rate is a stand-in.
    """

    pool: str
    team: str
    project: str
    deployment: str
    rest: str
    used: str
    share: str
    tokens: str
    cost: Shown
    booked: Shown
    is_nominal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A bar, in per cent of its width.

    Attributes:
        used: How long the bar of what was used is.
        mark: Where the break-even is.
    """

    used: int
    mark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    """A pool beside a vendor's price for the same use.

    Attributes:
        pool: Which.
        deployment: What it is compared with.
        is_nominal: Whether its rate is a stand-in.
        fault: Why there is nothing to compare, empty when there is.
        hourly: What a paid hour of a machine cost.
        hosted: What the use of the month would have cost there.
        saved: That less what the machines cost.
        needed: Tokens an hour at which both cost the same.
        used: Tokens an hour that there were.
        reached: That of the break-even, in per cent.
        use: How busy the machine would be at the break-even, in per cent.
        gauge: Use beside the break-even, None without one.
        sentence: All of it.
    """

    pool: str
    deployment: str
    is_nominal: bool
    fault: str
    hourly: Shown
    hosted: Shown | None
    saved: Shown | None
    needed: str
    used: str
    reached: str
    use: str
    gauge: Gauge | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinesPage:
    """Everything on the page.

    Attributes:
        tiles: The figures that matter most.
        by_day: Busy and idle cost by day, all machines together.
        use: Busy and idle hours by day, all machines together.
        by_hour: The same by hour of the chosen day, None without one.
        machines: By name.
        days: By day and machine.
        hours: By hour and machine, of the chosen day.
        shares: By pool, the rest last.
        total: Of the shares.
        booked: Of the shares.
        units: Sentences about what a million tokens cost.
        cards: Pools beside vendors' prices.
        gaps: Why the month is not complete.
        is_empty: Whether there is no machine and no share.
        has_nominal: Whether any rate is a stand-in.
    """

    tiles: Sequence[Tile]
    by_day: Figure
    use: Figure
    by_hour: Figure | None
    machines: Sequence[TimeLine]
    days: Sequence[TimeLine]
    hours: Sequence[TimeLine]
    shares: Sequence[ShareLine]
    total: Shown
    booked: Shown
    units: Sequence[str]
    cards: Sequence[CardLine]
    gaps: Sequence[str]
    is_empty: bool
    has_nominal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What the page shows, as its address says it.

    Attributes:
        month: Which.
        rate: Of the shares.
        day: Whose hours are shown, empty for none.
        against: What every pool is compared with, empty for what is configured.
    """

    month: str
    rate: RateKind
    day: str = ""
    against: str = ""

    @classmethod
    def of(cls, query: ShowMachines) -> Place:
        """Where a question is asked."""
        named = [one.deployment for one in query.hosted if not one.pool]
        return cls(
            month=query.month,
            rate=query.rate,
            day=query.day or "",
            against=named[0] if named else "",
        )

    def address(
        self,
        *,
        month: str | None = None,
        rate: RateKind | None = None,
        day: str | None = None,
        suffix: str = "",
    ) -> str:
        """The address of this page, or of one that differs; another month has another day.

        Args:
            month: Another one.
            rate: Another one.
            day: Another one, empty for none.
            suffix: `.csv` for the shares as a file.
        """
        if day is None:
            day = self.day if month is None else ""
        query = {
            "month": month or self.month,
            "rate": (rate or self.rate).value,
            "day": day,
            "against": self.against,
        }
        return f"{PATH}{suffix}?{urlencode({name: one for name, one in query.items() if one})}"


def machines_page(report: MachinesReport, here: Place) -> MachinesPage:
    """Make the page of a report."""
    shares = list(_shares(report))
    return MachinesPage(
        tiles=_tiles(report),
        by_day=_figure(report.days, "%Y-%m-%d"),
        use=_use(report.days),
        by_hour=_figure(report.hours, "%H:%M") if report.hours else None,
        machines=list(_machines(report)),
        days=list(_times(report.days, "%Y-%m-%d", here)),
        hours=list(_times(report.hours, "%Y-%m-%d %H:%M")),
        shares=shares,
        total=shown(sum(share.cost_pico_usd for share in report.shares)),
        booked=shown(sum(share.booked_pico_usd for share in report.shares)),
        units=[_sentence(unit) for unit in report.units],
        cards=[_card(one) for one in report.break_even],
        gaps=report.gaps,
        is_empty=not report.machines and not report.shares,
        has_nominal=any(share.is_nominal for share in report.shares),
    )


def _tiles(report: MachinesReport) -> list[Tile]:
    if report.is_restricted:
        return [Tile(label="Your teams' shares", figure=shown(report.cost_pico_usd))]
    up_us = sum(one.up_us for one in report.machines)
    busy_us = sum(one.busy_us for one in report.machines)
    idle = sum(one.idle_pico_usd for one in report.machines)
    return [
        Tile(label="Cost of machines, USD", figure=shown(report.cost_pico_usd)),
        Tile(
            label="Of it idle, USD",
            figure=shown(idle),
            beside=share_text(idle, report.cost_pico_usd),
        ),
        Tile(
            label="In use",
            figure=Shown(text=share_text(busy_us, up_us), exact=""),
            beside=f"{hours_text(busy_us)} of {hours_text(up_us)} paid hours",
        ),
    ]


def _figure(cells: Iterable[MachineHour], form: str) -> Figure:
    """Busy and idle cost, all machines together."""
    busy: dict[int, int] = {}
    idle: dict[int, int] = {}
    for one in cells:
        busy[one.start_us] = busy.get(one.start_us, 0) + one.busy_pico_usd
        idle[one.start_us] = idle.get(one.start_us, 0) + one.idle_pico_usd
    starts = sorted(busy)
    return charts.bars(
        [f"{from_microseconds(start):{form}}" for start in starts],
        [
            Series(name="busy", amounts_pico_usd=[busy[start] for start in starts]),
            Series(name="idle", amounts_pico_usd=[idle[start] for start in starts]),
        ],
    )


def _use(cells: Iterable[MachineHour]) -> Figure:
    """Busy and idle hours by day, all machines together."""
    busy: dict[int, int] = {}
    idle: dict[int, int] = {}
    for one in cells:
        busy[one.start_us] = busy.get(one.start_us, 0) + one.busy_us
        idle[one.start_us] = idle.get(one.start_us, 0) + max(one.up_us - one.busy_us, 0)
    starts = sorted(busy)
    return charts.hours(
        [f"{from_microseconds(start):%Y-%m-%d}" for start in starts],
        ("busy", "idle"),
        ([busy[start] for start in starts], [idle[start] for start in starts]),
    )


def _machines(report: MachinesReport) -> Iterable[TimeLine]:
    costs = shown_together([one.cost_pico_usd for one in report.machines])
    for one, cost in zip(report.machines, costs, strict=True):
        nominal = ", nominal rate" if one.is_nominal else ""
        down = f"; {down_text(one)}" if one.down_us else ""
        idle = f"; {idle_text(one)}" if idle_text(one) else ""
        yield TimeLine(
            when="",
            href="",
            machine=one.machine,
            note=f"{rate_text(one)}{nominal}{idle}{down}",
            paid=hours_text(one.up_us),
            busy=hours_text(one.busy_us),
            use=share_text(one.busy_us, one.up_us),
            busy_cost=shown(one.busy_pico_usd),
            idle_cost=shown(one.idle_pico_usd),
            cost=cost,
        )


def _times(
    cells: Sequence[MachineHour], form: str, here: Place | None = None
) -> Iterable[TimeLine]:
    costs = shown_together([one.cost_pico_usd for one in cells])
    for one, cost in zip(cells, costs, strict=True):
        when = f"{from_microseconds(one.start_us):{form}}"
        yield TimeLine(
            when=when,
            href="" if here is None else here.address(day=when),
            machine=one.machine,
            note="",
            paid=hours_text(one.up_us),
            busy=hours_text(one.busy_us),
            use=share_text(one.busy_us, one.up_us),
            busy_cost=shown(one.busy_pico_usd),
            idle_cost=shown(one.idle_pico_usd),
            cost=cost,
        )


def _shares(report: MachinesReport) -> Iterable[ShareLine]:
    wholes: dict[str, int] = {}
    for one in report.shares:
        wholes[one.pool] = wholes.get(one.pool, 0) + one.cost_pico_usd
    costs = shown_together([one.cost_pico_usd for one in report.shares])
    for one, cost in zip(report.shares, costs, strict=True):
        # Of some teams only, the whole is not known.
        whole = 0 if report.is_restricted else wholes[one.pool]
        yield ShareLine(
            pool=one.pool,
            team="" if one.is_rest else one.team,
            project=one.project,
            deployment=one.deployment,
            rest=_rest(one, report.rate),
            used=NOTHING if one.is_rest or one.is_slice else hours_text(one.used_us),
            share=share_text(one.cost_pico_usd, whole),
            tokens=_tokens(one),
            cost=cost,
            booked=shown(one.booked_pico_usd),
            is_nominal=one.is_nominal,
        )


def _card(card: BreakEvenCard) -> CardLine:
    needed, percent, use = (
        card.break_even_tokens_per_hour,
        card.break_even_percent,
        card.break_even_use_percent,
    )
    return CardLine(
        pool=card.pool,
        deployment=card.deployment,
        is_nominal=card.is_nominal,
        fault=card.fault,
        hourly=shown(card.machine_pico_usd_per_hour),
        hosted=None if card.hosted_pico_usd is None else shown(card.hosted_pico_usd),
        saved=None if card.saved_pico_usd is None else shown(card.saved_pico_usd),
        needed=NOTHING if needed is None else f"{needed:,}",
        used=f"{card.tokens_per_hour:,}",
        reached=NOTHING if percent is None else f"{percent} %",
        use=NOTHING if use is None else f"{use} %",
        gauge=None if percent is None else _gauge(Decimal(percent)),
        sentence=f"{break_even_text(card)}.",
    )


def _gauge(percent: Decimal) -> Gauge:
    """A bar as wide as the larger of the two; a mark at its very end would not be seen."""
    whole = max(percent, Decimal(_FULL))
    return Gauge(used=int(percent * _FULL / whole), mark=min(_FULL - 1, int(_FULL * _FULL / whole)))


def _rest(share: MachineShare, rate: RateKind) -> str:
    if share.is_rest:
        return REST_NAMES[rate]
    return SLICE_NAME if share.is_slice else ""


def _tokens(share: MachineShare) -> str:
    tokens = share.input_tokens + share.cached_input_tokens + share.output_tokens
    return NOTHING if share.is_rest or share.is_slice else f"{tokens:,}"


def _sentence(unit: UnitCost) -> str:
    return f"{unit_text(unit)}."
