"""Every budget of the settings with whom it counts, and what it is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from gateway.budgets.messages import BudgetDeclaration, BudgetScope, BudgetWindow, OnExceed
from gateway.settings.budgets import Budgets, BudgetSettings
from gateway.settings.document import Settings
from gateway.settings.validation import Path

_PICO_USD_PER_USD = 10**12
KeyNames = Mapping[tuple[str, str], str]
"""Ids of the fixed keys, by team and name."""


def budgets_of(settings: Settings, key_ids: KeyNames) -> Iterator[tuple[Path, BudgetDeclaration]]:
    """Every budget of the settings, with where it stands; names are not checked.

    Args:
        settings: The settings.
        key_ids: Of the fixed keys; a key that is not there has an empty id.
    """
    organisation = settings.organisation
    for path, scope, budgets in (
        (("organisation", "budget"), _Scope(BudgetScope.ORGANISATION), organisation.budget),
        *_of_tags(("organisation",), "", organisation.cost_tag_budgets),
        *_of_teams(settings, key_ids),
    ):
        for index, budget in enumerate(budgets):
            yield (*path, index), scope.declare(budget, settings)


def _of_teams(settings: Settings, key_ids: KeyNames) -> Iterator[tuple[Path, _Scope, Budgets]]:
    for name, team in settings.teams.items():
        path: Path = ("teams", name)
        yield (*path, "budget"), _Scope(BudgetScope.TEAM, team=name), team.budget
        for project_name, project in team.projects.items():
            scope = _Scope(BudgetScope.PROJECT, team=name, project=project_name)
            yield (*path, "projects", project_name, "budget"), scope, project.budget
        for index, key in enumerate(team.keys):
            key_id = key_ids.get((name, key.name), "")
            scope = _Scope(BudgetScope.KEY, team=name, key_id=key_id, key_name=key.name)
            yield (*path, "keys", index, "budget"), scope, key.budget
        yield from _of_tags(path, name, team.cost_tag_budgets)


def _of_tags(
    path: Path, team: str, tags: Mapping[str, Budgets]
) -> Iterator[tuple[Path, _Scope, Budgets]]:
    for tag, budgets in tags.items():
        name, _, value = tag.partition("=")
        scope = _Scope(BudgetScope.COST_TAG, team=team, cost_tag=(name, value))
        yield (*path, "cost_tag_budgets", tag), scope, budgets


class _Scope:
    """Whom a budget counts."""

    def __init__(
        self,
        scope: BudgetScope,
        *,
        team: str = "",
        project: str = "",
        key_id: str = "",
        key_name: str = "",
        cost_tag: tuple[str, str] | None = None,
    ) -> None:
        self._scope = scope
        self._team = team
        self._project = project
        self._key_id = key_id
        self._key_name = key_name
        self._cost_tag = cost_tag

    @property
    def label(self) -> str:
        """What a budget without a name of its own is called by."""
        match self._scope:
            case BudgetScope.ORGANISATION:
                return "organisation"
            case BudgetScope.TEAM:
                return f"team {self._team}"
            case BudgetScope.PROJECT:
                return f"project {self._team}/{self._project}"
            case BudgetScope.KEY:
                return f"key {self._team}/{self._key_name}"
            case BudgetScope.COST_TAG:
                tag = "=".join(self._cost_tag or ())
                return f"cost tag {tag}" + (f" of team {self._team}" if self._team else "")

    def declare(self, budget: BudgetSettings, settings: Settings) -> BudgetDeclaration:
        """A budget of this scope."""
        return BudgetDeclaration(
            name=budget.name or f"{self.label}, {budget.window}",
            scope=self._scope,
            team=self._team,
            project=self._project,
            key_id=self._key_id,
            cost_tag=self._cost_tag,
            limit_pico_usd=limit_of(budget.usd),
            window=BudgetWindow(budget.window),
            time_zone=budget.time_zone or settings.finance.time_zone,
            fiscal_month=settings.finance.fiscal_year_start_month,
            on_exceed=OnExceed(budget.on_exceed),
            alerts_at=budget.alerts_at,
        )


def limit_of(usd: Decimal) -> int:
    """A limit in picodollars, rounded down: less than one of them buys nothing."""
    return int(usd * _PICO_USD_PER_USD)
