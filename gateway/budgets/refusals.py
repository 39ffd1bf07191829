"""What a client is told when a budget stands in its way."""

from __future__ import annotations

from gateway.budgets.messages import BudgetRule, BudgetState, BudgetWindow
from gateway.clock import from_microseconds
from gateway.errors import BudgetExceeded, BudgetUnavailable
from pricing.money import PicoUsd, format_usd

RETRY_S = 2.0


def exceeded(rule: BudgetRule, state: BudgetState, amount_pico_usd: int) -> BudgetExceeded:
    """A budget has no room for what an attempt may cost.

    Args:
        rule: The budget.
        state: Where it stands.
        amount_pico_usd: The most that the attempt may cost.
    """
    taken = [f"{_usd(state.spent_pico_usd)} spent", f"{_usd(state.reserved_pico_usd)} reserved"]
    if state.exposed_pico_usd:
        taken.append(f"{_usd(state.exposed_pico_usd)} exposed by attempts whose bill is unknown")
    if rule.window is BudgetWindow.TOTAL:
        again = "it never starts again"
    else:
        again = f"it starts again at {from_microseconds(state.window_end_us):%Y-%m-%dT%H:%M:%SZ}"
    return BudgetExceeded(
        f"budget {rule.name!r} has no room: this request may cost up to {_usd(amount_pico_usd)}"
        f" USD, and of {_usd(state.limit_pico_usd)} USD there are {', '.join(taken)}; {again}"
    )


def unbounded(rule: BudgetRule) -> BudgetExceeded:
    """Nothing can be held for a deployment whose price is not known."""
    return BudgetExceeded(
        f"budget {rule.name!r} blocks what it has no room for, and no deployment that may serve"
        " this request has a known price, so that nothing can be reserved; the operator can give"
        " one a price"
    )


def unavailable(reason: str) -> BudgetUnavailable:
    """Whether a budget has room is not known now.

    Args:
        reason: Why, one phrase.
    """
    return BudgetUnavailable(
        f"whether a budget has room cannot be told now ({reason}), so nothing was sent; try again",
        retry_after_s=RETRY_S,
    )


def _usd(pico_usd: int) -> str:
    return format_usd(PicoUsd(pico_usd))
