"""What routing saved against a baseline named in advance, as tiles, chart and table.

Pure: a report by model in, texts out. Amounts are the report's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.dashboard.figures import NOTHING
from gateway.dashboard.finance import charts
from gateway.dashboard.finance.amounts import Shown, share_text, shown, shown_together
from gateway.dashboard.finance.charts import Figure, Series
from gateway.dashboard.finance.month import Tile
from gateway.ledger.views import SpendReport, SpendSums

MODELS_DRAWN_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsLine:
    """A model's row.

    Attributes:
        model: Its name.
        baseline: What the compared attempts would have cost.
        cost: What they cost.
        saved: The difference.
        share: Of the baseline cost.
        failed: What of the cost went to attempts that did not end well.
        estimated: Share of the baseline cost that rests on estimates.
        compared: Attempts that are compared.
        uncompared: Attempts whose model has a baseline and that cannot be.
    """

    model: str
    baseline: Shown
    cost: Shown
    saved: Shown
    share: str
    failed: Shown
    estimated: str
    compared: str
    uncompared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsPage:
    """Everything that the page shows.

    Attributes:
        tiles: The figures on top.
        by_model: Bars: baseline and cost of each model.
        lines: By falling saving.
        total: Of everything that is compared.
        is_empty: Whether nothing is compared and nothing could have been.
    """

    tiles: Sequence[Tile]
    by_model: Figure
    lines: Sequence[SavingsLine]
    total: SavingsLine
    is_empty: bool


def savings_page(report: SpendReport) -> SavingsPage:
    """Make the page of a report that is grouped by model."""
    found = [
        (row.group[0], row.sums)
        for row in report.rows
        if row.sums.compared_attempts or row.sums.uncompared_attempts
    ]
    found.sort(key=lambda one: (-one[1].saved_pico_usd, one[0]))
    baselines = shown_together([sums.baseline_cost_pico_usd for _, sums in found])
    costs = shown_together([sums.compared_cost_pico_usd for _, sums in found])
    saved = shown_together([sums.saved_pico_usd for _, sums in found])
    drawn = found[:MODELS_DRAWN_MAX]
    return SavingsPage(
        tiles=_tiles(report.total),
        by_model=charts.bars(
            [name for name, _ in drawn],
            [
                Series(
                    name="Baseline",
                    amounts_pico_usd=[sums.baseline_cost_pico_usd for _, sums in drawn],
                ),
                Series(
                    name="Cost", amounts_pico_usd=[sums.compared_cost_pico_usd for _, sums in drawn]
                ),
            ],
            is_stacked=False,
        ),
        lines=[
            _line(name, sums, *amounts)
            for (name, sums), *amounts in zip(found, baselines, costs, saved, strict=True)
        ],
        total=_total(report.total),
        is_empty=not found,
    )


def _tiles(total: SpendSums) -> list[Tile]:
    known = total.compared_attempts + total.uncompared_attempts
    return [
        Tile(
            label="Saved",
            figure=shown(total.saved_pico_usd),
            beside=f"{share_text(total.saved_pico_usd, total.baseline_cost_pico_usd)} of the"
            " baseline; avoided, no credit",
        ),
        Tile(
            label="At the baseline",
            figure=shown(total.baseline_cost_pico_usd),
            beside=f"cost {shown(total.compared_cost_pico_usd).text}",
        ),
        Tile(
            label="Failed attempts",
            figure=shown(total.compared_failed_pico_usd),
            beside="of that cost; it counts against the saving",
        ),
        Tile(
            label="Compared",
            figure=Shown(
                text=share_text(total.compared_attempts, known),
                exact=f"{total.compared_attempts:,} of {known:,} attempts",
            ),
            beside=f"{total.uncompared_attempts:,} attempts are not: a cost is unknown",
        ),
        Tile(
            label="Read from caches",
            figure=shown(total.cache_saved_pico_usd),
            beside="less than fresh input, by the providers' caches; apart from the above",
        ),
    ]


def _total(total: SpendSums) -> SavingsLine:
    return _line(
        "",
        total,
        shown(total.baseline_cost_pico_usd),
        shown(total.compared_cost_pico_usd),
        shown(total.saved_pico_usd),
    )


def _line(model: str, sums: SpendSums, baseline: Shown, cost: Shown, saved: Shown) -> SavingsLine:
    is_known = sums.compared_attempts > 0
    unknown = Shown(text=NOTHING, exact="")
    return SavingsLine(
        model=model,
        baseline=baseline if is_known else unknown,
        cost=cost if is_known else unknown,
        saved=saved if is_known else unknown,
        share=share_text(sums.saved_pico_usd, sums.baseline_cost_pico_usd),
        failed=shown(sums.compared_failed_pico_usd),
        estimated=share_text(sums.baseline_estimated_pico_usd, sums.baseline_cost_pico_usd),
        compared=f"{sums.compared_attempts:,}",
        uncompared=f"{sums.uncompared_attempts:,}",
    )
