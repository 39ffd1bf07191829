"""Which budgets a request counts against, and in what order they are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gateway.budgets.messages import BudgetRule, BudgetScope
from gateway.budgets.windows import Window, window_of

_WIDTHS = {scope: width for width, scope in enumerate(BudgetScope)}


class Spender(Protocol):
    """Whom an attempt is booked on, as far as budgets tell it."""

    @property
    def team(self) -> str:
        """Team name, empty for the administrator."""
        ...

    @property
    def project(self) -> str:
        """Project name, empty for none."""
        ...

    @property
    def key_id(self) -> str:
        """Public id of the key."""
        ...

    @property
    def cost_tags(self) -> tuple[tuple[str, str], ...]:
        """Names and values, sorted."""
        ...


def applies(
    rule: BudgetRule,
    *,
    team: str,
    project: str,
    key_id: str,
    cost_tags: Sequence[tuple[str, str]],
) -> bool:
    """Whether what somebody spends counts against a budget.

    Args:
        rule: The budget.
        team: Team name, empty for the administrator.
        project: Project name, empty for none.
        key_id: Public id of the key.
        cost_tags: Names and values.
    """
    if rule.scope is BudgetScope.ORGANISATION:
        return True
    if rule.scope is BudgetScope.TEAM:
        return rule.team == team
    if rule.scope is BudgetScope.PROJECT:
        return (rule.team, rule.project) == (team, project)
    if rule.scope is BudgetScope.KEY:
        return rule.key_id == key_id
    return rule.cost_tag in cost_tags and rule.team in ("", team)


def counts(rule: BudgetRule, spender: Spender) -> bool:
    """Whether what is booked on somebody counts against a budget."""
    return applies(
        rule,
        team=spender.team,
        project=spender.project,
        key_id=spender.key_id,
        cost_tags=spender.cost_tags,
    )


def by_width(rules: Iterable[BudgetRule]) -> tuple[BudgetRule, ...]:
    """Rules from the widest scope to the narrowest; within one by name."""
    return tuple(sorted(rules, key=lambda rule: (_WIDTHS[rule.scope], rule.name, rule.budget_id)))


def window_of_rule(rule: BudgetRule, at_us: int) -> Window:
    """A budget's window at an instant.

    Raises:
        ZoneInfoNotFoundError: This machine does not know the budget's time zone.
    """
    return window_of(at_us, rule.window, time_zone=rule.time_zone, fiscal_month=rule.fiscal_month)
