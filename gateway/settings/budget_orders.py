"""A budget as somebody sets it by hand, over the API or on the command line."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gateway.budgets.messages import (
    BudgetDeclaration,
    BudgetScope,
    BudgetWindow,
    OnExceed,
)
from gateway.settings.budget_scopes import limit_of
from gateway.settings.budgets import AlertsAt, CostTag, OnExceedName, WindowName
from gateway.settings.finance import TimeZone
from gateway.settings.scalars import Name, Usd


def _no_float(value: object) -> object:
    if isinstance(value, float):
        # Pydantic tells only a ValueError to whoever asked.
        raise ValueError('write the amount as text, such as "0.05"')  # noqa: TRY004
    return value


_MEMBERS = {
    BudgetScope.ORGANISATION: (),
    BudgetScope.TEAM: ("team",),
    BudgetScope.PROJECT: ("team", "project"),
    BudgetScope.KEY: ("key_id",),
    BudgetScope.COST_TAG: ("cost_tag",),
}
_OPTIONAL = {BudgetScope.COST_TAG: ("team",)}


class KeyBudgetOrder(BaseModel):
    """What a key that is being made may spend."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    usd: Annotated[Usd, BeforeValidator(_no_float)] = Field(
        description="The amount, as decimal text in US dollars."
    )
    window: WindowName = Field(default="month", description="When it starts again.")
    time_zone: TimeZone | None = Field(
        default=None, description="IANA name; unset: the configuration's finance.time_zone."
    )
    on_exceed: OnExceedName = Field(default="block", description="What happens at the limit.")
    alerts_at: AlertsAt = Field(
        default=(50, 80, 100), description="Percent of the amount at which an alert goes out."
    )

    def of_key(self, key_id: str) -> tuple[str, BudgetOrder]:
        """The budget of a key, and what it is called."""
        order = BudgetOrder.model_validate(
            {**self.model_dump(), "scope": BudgetScope.KEY, "key_id": key_id}
        )
        return f"key {key_id}, {self.window}", order


class BudgetOrder(KeyBudgetOrder):
    """What a budget shall be; all of it, so that a second order with the same says the same."""

    scope: BudgetScope = Field(description="Whose spend it caps.")
    team: Name | None = Field(
        default=None, description="Of a team or project; of a cost tag where one team counts."
    )
    project: Name | None = Field(default=None, description="A project of the team.")
    key_id: Name | None = Field(default=None, description="Public id of a key.")
    cost_tag: CostTag | None = Field(default=None, description="A cost tag, as name=value.")

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        """Name what the scope needs, and nothing that would have no effect."""
        needed = _MEMBERS[self.scope]
        allowed = (*needed, *_OPTIONAL.get(self.scope, ()))
        for name in ("team", "project", "key_id", "cost_tag"):
            is_given = getattr(self, name) is not None
            if name in needed and not is_given:
                raise ValueError(f"a budget of scope {self.scope} needs `{name}`")
            if is_given and name not in allowed:
                raise ValueError(f"a budget of scope {self.scope} takes no `{name}`")
        return self

    def declaration(
        self, name: str, *, time_zone: str, fiscal_month: int, key_team: str = ""
    ) -> BudgetDeclaration:
        """What the ledger is told.

        Args:
            name: What the budget is called.
            time_zone: Of budgets that name none.
            fiscal_month: Month in which the fiscal year begins.
            key_team: The team of the key that it counts.
        """
        tag_name, _, tag_value = (self.cost_tag or "").partition("=")
        return BudgetDeclaration(
            name=name,
            scope=self.scope,
            team=self.team or key_team,
            project=self.project or "",
            key_id=self.key_id or "",
            cost_tag=(tag_name, tag_value) if self.cost_tag is not None else None,
            limit_pico_usd=limit_of(self.usd),
            window=BudgetWindow(self.window),
            time_zone=self.time_zone or time_zone,
            fiscal_month=fiscal_month,
            on_exceed=OnExceed(self.on_exceed),
            alerts_at=self.alerts_at,
        )
