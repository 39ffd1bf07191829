"""Section `teams`: who uses the gateway, with which keys, models, budgets and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from gateway.settings.budgets import Budgets, CostTagBudgets
from gateway.settings.credentials import SecretReference, reference
from gateway.settings.journal import CostCentre
from gateway.settings.limits import LimitSettings
from gateway.settings.scalars import (
    EnvName,
    FilePath,
    Many,
    Name,
    Section,
    StoreReference,
    Word,
)


class FixedKeySettings(Section):
    """A key brought along from elsewhere: any 20 characters or more."""

    name: Name
    """What the key is for; unique in its team."""
    value_env: EnvName | None = None
    """Environment variable that holds the key."""
    value_file: FilePath | None = None
    """File that holds the key."""
    value_ref: StoreReference | None = None
    """Secret store reference of the key."""
    project: Name | None = None
    """Project to which its requests belong."""
    tags: Many[Word] = ()
    """Privacy tags that each of its requests carries, beside those of its team and project."""
    models: Many[Name] | None = None
    """Models that it may use, of those of its team; unset: all of them."""
    budget: Budgets = ()
    """What it may spend: one budget, or a list."""
    limits: LimitSettings | None = None
    """Limits of this key inside its team's and project's."""

    @property
    def value(self) -> SecretReference:
        """Where the key is kept."""
        given = reference(self.value_env, self.value_file, self.value_ref, name="value")
        if given is None:
            raise ValueError("needs value_env, value_file or value_ref")
        return given

    @model_validator(mode="after")
    def _one_value(self) -> Self:
        _ = self.value
        return self


class ProjectSettings(Section):
    """A part of a team's work that is accounted apart."""

    cost_centre: CostCentre | None = None
    """Cost centre that it is charged to; unset: its team's."""
    tags: Many[Word] = ()
    """Privacy tags that every request of the project carries, beside its team's."""
    budget: Budgets = ()
    """Budgets inside the team's: one, or a list."""
    limits: LimitSettings | None = None
    """Limits inside the team's."""


class TeamSettings(Section):
    """A tenant: no cache and no limit crosses from one team to another."""

    cost_centre: CostCentre | None = None
    """Cost centre that it is charged to, in reports, statements and the journal."""
    tags: Many[Word] = ()
    """Privacy tags that every request of the team carries."""
    keys: Many[FixedKeySettings] = ()
    """Fixed keys; others are made with `fareway keys create`."""
    models: Many[Name] | None = None
    """Models that the team may use; unset: all."""
    budget: Budgets = ()
    """What the team may spend: one budget, or a list."""
    cost_tag_budgets: CostTagBudgets = Field(default_factory=dict[str, Budgets])
    """Budgets by cost tag (`name=value`), of what the team spends under it."""
    limits: LimitSettings | None = None
    """How much the team may ask at once."""
    model_limits: Mapping[Name, LimitSettings] = Field(default_factory=dict[str, LimitSettings])
    """How much of that may be for one model, by its name."""
    projects: Mapping[Name, ProjectSettings] = Field(default_factory=dict[str, ProjectSettings])
    """Projects of the team."""
