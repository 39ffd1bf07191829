"""A team's statement of a period: what it is charged, by project and model. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from gateway.dashboard.figures import NOTHING, summed
from gateway.dashboard.finance.amounts import Shown, share_text, shown, shown_together
from gateway.finance.machines.shown import SLICE_NAME, hours_text
from gateway.finance.statement_messages import MachinePart, TeamStatement
from gateway.ledger.views import SpendSums


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """What a project used of a model.

    Attributes:
        project: Empty for none.
        cost_centre: Where it is charged to, empty where nobody has said.
        model: The name that was asked for.
        requests: Grouped digits, as all counts.
        input_tokens: Prompt tokens at the full rate, cache writes included.
        cached_tokens: Prompt tokens read from caches.
        output_tokens: Generated, reasoning included.
        list_cost: At public prices.
        cost: What is charged.
    """

    project: str
    cost_centre: str
    model: str
    requests: str
    input_tokens: str
    cached_tokens: str
    output_tokens: str
    list_cost: Shown
    cost: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionLine:
    """What is charged beside the usage of the period's days, or taken off it.

    Attributes:
        kind: What it is, in words.
        project: Empty for none.
        cost_centre: Empty for none.
        about: Day or month that it is about, empty for the whole period.
        text: Why.
        cost: What is charged.
    """

    kind: str
    project: str
    cost_centre: str
    about: str
    text: str
    cost: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLine:
    """What a use of machines really cost.

    Attributes:
        pool: Which.
        project: Empty for none.
        cost_centre: Empty for none.
        what: The deployment, or that it is idle time of the team's slice.
        is_nominal: Whether the rate is a stand-in.
        used: Busy time.
        share: Of the machines' cost, in per cent.
        booked: What is booked for it.
        actual: Its share in what they cost.
    """

    pool: str
    project: str
    cost_centre: str
    what: str
    is_nominal: bool
    used: str
    share: str
    booked: Shown
    actual: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLines:
    """The team's use of machines.

    Attributes:
        lines: By pool, the largest first.
        booked: Of all.
        actual: Of all.
        approved: Adjustments for it that were approved.
        open: What is not charged.
        standing: How far it is charged, as a sentence.
    """

    lines: Sequence[MachineLine]
    booked: Shown
    actual: Shown
    approved: Shown
    open: Shown
    standing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Everything on the statement.

    Attributes:
        lines: By project and falling cost.
        projects: Total of each project, in the order of the lines.
        total: Of all usage on days of the period.
        corrections: Usage counted in other months, late usage, adjustments.
        charged: Usage and corrections together.
        estimated: The part of the usage that rests on estimates, empty for none.
        unpriced: Attempts without a price, empty for none.
        exposure: What may still be billed, empty for nothing.
        machines: What its use of machines really cost, None where there is none; for information.
    """

    lines: Sequence[StatementLine]
    projects: Sequence[StatementLine]
    total: StatementLine
    corrections: Sequence[CorrectionLine]
    charged: Shown
    estimated: str
    unpriced: str
    exposure: str
    machines: MachineLines | None


_STATES = {
    "open": "open: figures may still change",
    "soft": "closed softly: preliminary, late usage still lands in it",
    "closed": "closed: final",
    "week": "a week: preliminary until its month is closed",
}
_RATIO_PARTS = 10**12
_LATER = "Counted when it came"
_LATE = "Late usage"


def state_text(given: TeamStatement) -> str:
    """How final the figures are, in words."""
    return _STATES[given.state]


def statement(given: TeamStatement) -> Statement:
    """Make what is shown of a team's statement."""
    report = given.report
    columns = list(report.columns)
    project_at, model_at = columns.index("project"), columns.index("model")
    rows = sorted(
        ((row.group[project_at], row.group[model_at], row.sums) for row in report.rows),
        key=lambda row: (row[0], -row[2].cost_pico_usd, row[1]),
    )
    costs = shown_together([sums.cost_pico_usd for _, _, sums in rows])
    names = sorted({project for project, _, _ in rows})
    projects = [summed([sums for name, _, sums in rows if name == project]) for project in names]
    totals = shown_together([sums.cost_pico_usd for sums in projects])
    total = report.total
    return Statement(
        lines=[
            _line(project, given.cost_centre(project), model, sums, cost)
            for (project, model, sums), cost in zip(rows, costs, strict=True)
        ],
        projects=[
            _line(name, given.cost_centre(name), "", sums, cost)
            for name, sums, cost in zip(names, projects, totals, strict=True)
        ],
        total=_line("", "", "", total, shown(total.cost_pico_usd)),
        corrections=list(_corrections(given)),
        charged=shown(given.sums.total_pico_usd),
        estimated=_said(total.estimated_cost_pico_usd),
        unpriced=f"{total.unpriced_attempts:,}" if total.unpriced_attempts else "",
        exposure=_said(total.exposure_pico_usd),
        machines=None if given.machines is None else _machines(given, given.machines),
    )


def _machines(given: TeamStatement, part: MachinePart) -> MachineLines:
    costs = shown_together([use.actual_pico_usd for use in part.uses])
    return MachineLines(
        lines=[
            MachineLine(
                pool=use.pool,
                project=use.project,
                cost_centre=given.cost_centre(use.project),
                what=SLICE_NAME if use.is_slice else use.deployment,
                is_nominal=use.is_nominal,
                used=NOTHING if use.is_slice else hours_text(use.used_us),
                share=_per_cent(use.ratio),
                booked=shown(use.booked_pico_usd),
                actual=cost,
            )
            for use, cost in zip(part.uses, costs, strict=True)
        ],
        booked=shown(part.booked_pico_usd),
        actual=shown(part.actual_pico_usd),
        approved=shown(part.approved_pico_usd),
        open=shown(part.open_pico_usd),
        standing=f"{part.standing[:1].upper()}{part.standing[1:]}.",
    )


def _per_cent(ratio: str) -> str:
    """A ratio of up to twelve decimals as a share."""
    return share_text(int(Decimal(ratio) * _RATIO_PARTS), _RATIO_PARTS)


def _corrections(given: TeamStatement) -> Iterator[CorrectionLine]:
    if given.counted_later_pico_usd:
        yield CorrectionLine(
            kind=_LATER,
            project="",
            cost_centre="",
            about="",
            text="came after the month was closed",
            cost=shown(-given.counted_later_pico_usd),
        )
    for late in given.late:
        yield CorrectionLine(
            kind=_LATE,
            project=late.project,
            cost_centre=given.cost_centre(late.project),
            about=late.month,
            text=f"at {late.provider}, came after its month was closed",
            cost=shown(late.amount_pico_usd),
        )
    for one in given.adjustments:
        yield CorrectionLine(
            kind=one.kind.value.replace("_", "-").capitalize(),
            project=one.project,
            cost_centre=given.cost_centre(one.project),
            about=one.day or one.original_period,
            text=one.reason,
            cost=shown(one.amount_pico_usd),
        )


def _line(
    project: str, cost_centre: str, model: str, sums: SpendSums, cost: Shown
) -> StatementLine:
    return StatementLine(
        project=project,
        cost_centre=cost_centre,
        model=model,
        requests=f"{sums.requests:,}",
        input_tokens=f"{sums.input_tokens + sums.cache_write_tokens:,}",
        cached_tokens=f"{sums.cached_input_tokens:,}",
        output_tokens=f"{sums.output_tokens + sums.reasoning_tokens:,}",
        list_cost=shown(sums.list_cost_pico_usd),
        cost=cost,
    )


def _said(amount_pico_usd: int) -> str:
    return shown(amount_pico_usd).text if amount_pico_usd else ""
