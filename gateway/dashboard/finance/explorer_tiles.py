"""The figures on top of the explorer. Pure."""

from __future__ import annotations

from gateway.dashboard.finance.amounts import change_text, shown
from gateway.dashboard.finance.month import Tile
from gateway.ledger.views import SpendReport, SpendSums


def explorer_tiles(total: SpendSums, before: SpendReport | None) -> list[Tile]:
    """What everything that fits cost, saved and lost; against the period before, if any."""
    discount = total.list_cost_pico_usd - total.cost_pico_usd
    against = ""
    if before is not None:
        spent = before.total.cost_pico_usd
        change = change_text(total.cost_pico_usd, spent)
        against = f"{change} against {shown(spent).text} before; "
    return [
        Tile(
            label="Cost",
            figure=shown(total.cost_pico_usd),
            beside=f"{against}{total.requests:,} requests, {total.attempts:,} attempts",
        ),
        Tile(
            label="At list prices",
            figure=shown(total.list_cost_pico_usd),
            beside=f"{shown(discount).text} less by contract",
        ),
        Tile(
            label="Saved by caches",
            figure=shown(total.cache_saved_pico_usd),
            beside="avoided, not credited: fresh rate less the rate of cache reads",
        ),
        Tile(
            label="Failed attempts",
            figure=shown(total.failed_cost_pico_usd),
            beside="of the cost: broken off, or left by the client",
        ),
        Tile(
            label="Told by providers",
            figure=shown(total.provider_cost_pico_usd),
            beside=f"for {total.provider_cost_attempts:,} of {total.attempts:,} attempts",
        ),
    ]
