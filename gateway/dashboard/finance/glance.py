"""What stands beside the sums of a month: budgets, bills, what nobody owns, and what moved.

Pure: reports in, texts out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from gateway.budgets.messages import BudgetReport
from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance.amounts import Shown, change_text, share_text, shown
from gateway.dashboard.finance.budgets import fullest
from gateway.dashboard.finance.month import Tile
from gateway.dashboard.finance.periods import Month
from gateway.finance.bill_messages import ReconciliationRun
from gateway.finance.shown import coverage_text
from gateway.ledger.views import SpendReport
from pricing.money import format_usd

MOVERS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """What a team spends on a model, against the same days of the month before.

    Attributes:
        difference: More or less, with its sign.
        is_up: Whether it is more.
        change: In per cent; a dash where it began at nothing.
        href: The team's days of the model.
    """

    team: str
    model: str
    cost: Shown
    before: Shown
    difference: Shown
    is_up: bool
    change: str
    href: str


def budget_tile(reports: Sequence[BudgetReport]) -> Tile | None:
    """The budget of which most is used; None where no budget is in force."""
    report = fullest(reports)
    if report is None:
        return None
    state = report.state
    used = state.spent_pico_usd + state.exposed_pico_usd
    return Tile(
        label="Fullest budget",
        figure=Shown(
            text=share_text(used, state.limit_pico_usd), exact=f"{format_usd(used)} USD used"
        ),
        beside=f"{report.rule.name}: {shown(state.room_pico_usd).text} of"
        f" {shown(state.limit_pico_usd).text} left",
        href="/ui/budgets",
    )


def coverage_tile(runs: Sequence[ReconciliationRun], month: Month) -> Tile:
    """How much of what vendors bill was metered, by the newest comparison of a month."""
    href = f"/ui/reconciliation?{urlencode({'month': month.name})}"
    label = "Reconciled with bills"
    if not runs:
        missing = "not compared with a bill yet"
        return Tile(label=label, figure=Shown(text=NOTHING, exact=""), beside=missing, href=href)
    run = runs[0]
    told = coverage_text(run.accounts)
    share, _, rest = told.partition(" % ")
    if not rest:
        return Tile(label=label, figure=Shown(text=NOTHING, exact=""), beside=told, href=href)
    booked = shown(run.ledger_pico_usd + run.adjusted_pico_usd).text
    beside = f"{rest}; {booked} booked, {shown(run.billed_pico_usd).text} billed"
    return Tile(label=label, figure=Shown(text=f"{share} %", exact=""), beside=beside, href=href)


def unattributed_tile(spend: SpendReport, month: Month) -> Tile:
    """What no team is charged for; the team is the second column of the report."""
    nobody = sum(row.sums.cost_pico_usd for row in spend.rows if not row.group[1])
    days = {"from": month.first.isoformat(), "to": month.last.isoformat()}
    return Tile(
        label="Of no team",
        figure=Shown(
            text=share_text(nobody, spend.total.cost_pico_usd), exact=f"{format_usd(nobody)} USD"
        ),
        beside=f"{shown(nobody).text} USD that nobody is charged for",
        href=f"/ui/requests?{urlencode({**days, 'team': ''})}",
    )


def movers(now: SpendReport, before: SpendReport, month: Month) -> list[Mover]:
    """What changed most, up or down, by team and model.

    Args:
        now: By team and model, of the month until today.
        before: The same of the same days of the month before.
        month: The month.
    """
    costs, past = _costs(now), _costs(before)
    changes = {one: costs.get(one, 0) - past.get(one, 0) for one in {*costs, *past}}
    order = sorted(changes, key=lambda one: (-abs(changes[one]), one))[:MOVERS_MAX]
    return [
        _mover(one, costs.get(one, 0), past.get(one, 0), month) for one in order if changes[one]
    ]


def _costs(report: SpendReport) -> Mapping[tuple[str, ...], int]:
    return {row.group: row.sums.cost_pico_usd for row in report.rows}


def _mover(group: tuple[str, ...], cost: int, before: int, month: Month) -> Mover:
    team, model = group
    difference = cost - before
    told = shown(difference)
    sign = "+" if difference > 0 else ""
    address = {"by": "deployment", "per": "day", "period": month.name, "model": model}
    if team:
        address["team"] = team
    return Mover(
        team=team,
        model=model,
        cost=shown(cost),
        before=shown(before),
        difference=Shown(text=f"{sign}{told.text}", exact=f"{sign}{told.exact}"),
        is_up=difference > 0,
        change=change_text(cost, before),
        href=f"/ui/spend?{urlencode(address)}",
    )
