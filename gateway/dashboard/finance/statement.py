"""A team's statement of a month: what it is charged, by project and model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.dashboard.figures import summed
from gateway.dashboard.finance.amounts import Shown, shown, shown_together
from gateway.ledger.views import SpendReport, SpendSums


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """What a project used of a model.

    Attributes:
        project: Empty for none.
        model: The name that was asked for.
        requests: Grouped digits, as all counts.
        input_tokens: Prompt tokens at the full rate, cache writes included.
        cached_tokens: Prompt tokens read from caches.
        output_tokens: Generated, reasoning included.
        list_cost: At public prices.
        cost: What is charged.
    """

    project: str
    model: str
    requests: str
    input_tokens: str
    cached_tokens: str
    output_tokens: str
    list_cost: Shown
    cost: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Everything on the statement.

    Attributes:
        lines: By project and falling cost.
        projects: Total of each project, in the order of the lines.
        total: Of everything.
        estimated: The part that rests on estimates, empty for none.
        unpriced: Attempts without a price, empty for none.
        exposure: What may still be billed, empty for nothing.
    """

    lines: Sequence[StatementLine]
    projects: Sequence[StatementLine]
    total: StatementLine
    estimated: str
    unpriced: str
    exposure: str


def statement(report: SpendReport) -> Statement:
    """Make a statement from a team's report by project and model."""
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
            _line(project, model, sums, cost)
            for (project, model, sums), cost in zip(rows, costs, strict=True)
        ],
        projects=[
            _line(name, "", sums, cost)
            for name, sums, cost in zip(names, projects, totals, strict=True)
        ],
        total=_line("", "", total, shown(total.cost_pico_usd)),
        estimated=_said(total.estimated_cost_pico_usd),
        unpriced=f"{total.unpriced_attempts:,}" if total.unpriced_attempts else "",
        exposure=_said(total.exposure_pico_usd),
    )


def _line(project: str, model: str, sums: SpendSums, cost: Shown) -> StatementLine:
    return StatementLine(
        project=project,
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
