"""Budgets as commands and the API tell them."""

from __future__ import annotations

from gateway.budgets.messages import (
    BudgetReport,
    BudgetRule,
    BudgetState,
    BudgetWindow,
    ExpiredLeases,
)
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


def expired_document(one: ExpiredLeases) -> dict[str, object]:
    """What is reserved for a worker that was not heard of for long."""
    return {
        "budget": one.budget,
        "window_start": from_microseconds(one.window_start_us).isoformat(),
        "worker": one.directory,
        "session": one.session.hex(),
        "leases": one.leases,
        "amount_usd": format_usd(one.amount_pico_usd),
        "amount_pico_usd": one.amount_pico_usd,
        "heard_of_at": from_microseconds(one.renewed_at_us).isoformat(),
    }


def alert_document(
    rule: BudgetRule, state: BudgetState, *, percent: int, at_us: int
) -> dict[str, object]:
    """What a webhook is told of a threshold that was crossed; no content, no key."""
    return {
        "type": "budget.threshold",
        "budget": rule.name,
        "scope": rule.scope.value,
        "team": rule.team or None,
        "project": rule.project or None,
        "key_id": rule.key_id or None,
        "cost_tag": None if rule.cost_tag is None else "=".join(rule.cost_tag),
        "percent": percent,
        "limit_usd": format_usd(state.limit_pico_usd),
        "spent_usd": format_usd(state.spent_pico_usd),
        "exposed_usd": format_usd(state.exposed_pico_usd),
        "on_exceed": rule.on_exceed.value,
        "window": rule.window.value,
        "window_start": from_microseconds(state.window_start_us).isoformat(),
        "window_end": from_microseconds(state.window_end_us).isoformat(),
        "at": from_microseconds(at_us).isoformat(),
    }
