"""A team's statement of a period: what it is charged, by project and model. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.dashboard.figures import summed
from gateway.dashboard.finance.amounts import Shown, shown, shown_together
from gateway.finance.statement_messages import TeamStatement
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
    """

    lines: Sequence[StatementLine]
    projects: Sequence[StatementLine]
    total: StatementLine
    corrections: Sequence[CorrectionLine]
    charged: Shown
    estimated: str
    unpriced: str
    exposure: str


_STATES = {
    "open": "open: figures may still change",
    "soft": "closed softly: preliminary, late usage still lands in it",
    "closed": "closed: final",
    "week": "a week: preliminary until its month is closed",
}
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
    )


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
