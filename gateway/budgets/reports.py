"""Budgets as commands and the API tell them."""

from __future__ import annotations

from gateway.budgets.messages import BudgetReport, BudgetWindow
from gateway.clock import from_microseconds
from pricing.money import format_usd


def budget_document(report: BudgetReport) -> dict[str, object]:
    """A budget and its present window: amounts as decimal text and as whole picodollars."""
    rule, state = report.rule, report.state
    is_endless = rule.window is BudgetWindow.TOTAL
    amounts = {
        "limit": state.limit_pico_usd,
        "spent": state.spent_pico_usd,
        "reserved": state.reserved_pico_usd,
        "exposed": state.exposed_pico_usd,
        "room": state.room_pico_usd,
        "expired": report.expired_pico_usd,
    }
    return {
        "name": rule.name,
        "scope": rule.scope.value,
        "team": rule.team or None,
        "project": rule.project or None,
        "key_id": rule.key_id or None,
        "cost_tag": None if rule.cost_tag is None else "=".join(rule.cost_tag),
        "window": rule.window.value,
        "time_zone": rule.time_zone,
        "on_exceed": rule.on_exceed.value,
        "alerts_at": list(report.alerts_at),
        "source": report.source.value,
        "window_start": from_microseconds(state.window_start_us).isoformat(),
        "resets_at": None if is_endless else from_microseconds(state.window_end_us).isoformat(),
        **{
            name: value
            for what, amount in amounts.items()
            for name, value in (
                (f"{what}_usd", format_usd(amount)),
                (f"{what}_pico_usd", amount),
            )
        },
    }
