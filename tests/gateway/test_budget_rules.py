"""Which budgets apply to whom."""

from __future__ import annotations

import pytest

from gateway.budgets.messages import BudgetRule, BudgetScope, BudgetWindow
from gateway.budgets.rules import applies, by_width, window_of_rule
from gateway.clock import from_microseconds


def rule(scope: BudgetScope, **named: object) -> BudgetRule:
    document = {
        "budget_id": 1,
        "name": str(scope),
        "scope": scope,
        "limit_pico_usd": 1,
        "window": BudgetWindow.MONTH,
    }
    return BudgetRule(**{**document, **named})  # pyright: ignore[reportArgumentType]


ORGANISATION = rule(BudgetScope.ORGANISATION)
TEAM = rule(BudgetScope.TEAM, team="payments")
PROJECT = rule(BudgetScope.PROJECT, team="payments", project="fraud")
KEY = rule(BudgetScope.KEY, team="payments", key_id="abc")
TAG = rule(BudgetScope.COST_TAG, cost_tag=("feature", "search"))
TEAM_TAG = rule(BudgetScope.COST_TAG, team="payments", cost_tag=("feature", "search"))

# Each line: the budget, team, project, key and cost tags of who spends, and whether it counts.
CASES = {
    "the organisation's counts everybody": (ORGANISATION, "", "", "admin", (), True),
    "a team's counts the team": (TEAM, "payments", "", "abc", (), True),
    "a team's counts its projects": (TEAM, "payments", "fraud", "abc", (), True),
    "a team's counts nobody else": (TEAM, "search", "", "abc", (), False),
    "a project's counts the project": (PROJECT, "payments", "fraud", "abc", (), True),
    "a project's does not count the rest of the team": (PROJECT, "payments", "", "abc", (), False),
    "a project's does not count another team's of the same name": (
        PROJECT,
        "search",
        "fraud",
        "abc",
        (),
        False,
    ),
    "a key's counts the key": (KEY, "payments", "fraud", "abc", (), True),
    "a key's counts no other key": (KEY, "payments", "fraud", "abd", (), False),
    "a cost tag's counts every team": (
        TAG,
        "search",
        "",
        "x",
        (("env", "prod"), ("feature", "search")),
        True,
    ),
    "a cost tag's does not count another value": (
        TAG,
        "search",
        "",
        "x",
        (("feature", "chat"),),
        False,
    ),
    "a team's cost tag counts in the team": (
        TEAM_TAG,
        "payments",
        "",
        "x",
        (("feature", "search"),),
        True,
    ),
    "a team's cost tag does not count elsewhere": (
        TEAM_TAG,
        "search",
        "",
        "x",
        (("feature", "search"),),
        False,
    ),
}


@pytest.mark.parametrize(
    ("budget", "team", "project", "key_id", "tags", "expected"), CASES.values(), ids=CASES.keys()
)
def test_applies(
    budget: BudgetRule,
    team: str,
    project: str,
    key_id: str,
    tags: tuple[tuple[str, str], ...],
    expected: bool,
) -> None:
    found = applies(budget, team=team, project=project, key_id=key_id, cost_tags=tags)
    assert found is expected


def test_budgets_are_told_from_the_widest_to_the_narrowest() -> None:
    rules = [TAG, KEY, PROJECT, TEAM, ORGANISATION]
    assert by_width(rules) == (ORGANISATION, TEAM, PROJECT, KEY, TAG)


def test_budgets_of_one_scope_are_told_by_name() -> None:
    second, first = rule(BudgetScope.KEY, name="b"), rule(BudgetScope.KEY, name="a")
    assert by_width([second, first]) == (first, second)


def test_a_budget_has_windows_in_its_own_zone() -> None:
    monthly = rule(BudgetScope.TEAM, time_zone="Asia/Seoul")
    window = window_of_rule(monthly, 1_780_000_000_000_000)
    assert from_microseconds(window.start_us).isoformat() == "2026-04-30T15:00:00+00:00"
