"""Budgets wherever the file may set one: what may be spent in a window of time, and then."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.budgets.messages import DEFAULT_ALERTS_AT
from gateway.settings.finance import TimeZone
from gateway.settings.scalars import Many, Name, OneOrList, Section, Usd, one_or_list

PERCENT_MAX = 1_000
_THRESHOLDS_MAX = 10
_COST_TAG = r"[a-z0-9_.:-]{1,64}=[A-Za-z0-9_.:/-]([A-Za-z0-9_.:/ -]{0,62}[A-Za-z0-9_.:/-])?"


def _check_thresholds(value: tuple[int, ...]) -> tuple[int, ...]:
    if any(not 1 <= percent <= PERCENT_MAX for percent in value):
        raise ValueError(f"must be whole numbers of percent, 1 to {PERCENT_MAX}")
    if list(value) != sorted(set(value)) or len(value) > _THRESHOLDS_MAX:
        raise ValueError(f"must rise, each at most once, at most {_THRESHOLDS_MAX} of them")
    return value


WindowName = Literal["day", "week", "month", "fiscal", "total"]
OnExceedName = Literal["block", "cheapest_only", "alert"]
AlertsAt = Annotated[Many[int], AfterValidator(_check_thresholds)]


class BudgetSettings(Section):
    """An amount that may be spent in a window of time."""

    usd: Usd
    """The amount in US dollars."""
    window: WindowName = "month"
    """When it starts again: day, week (on Monday), month, fiscal (year) or total (never)."""
    time_zone: TimeZone | None = None
    """Zone of its days; unset: `finance.time_zone`."""
    on_exceed: OnExceedName = "block"
    """What happens when it is used up: block, cheapest_only or alert."""
    alerts_at: AlertsAt = DEFAULT_ALERTS_AT
    """Percent of the amount at which an alert goes out."""
    name: Name | None = None
    """What it is called; unset: by whom it counts and its window."""


Budgets = Annotated[
    tuple[BudgetSettings, ...],
    Field(max_length=16),
    BeforeValidator(one_or_list),
    OneOrList(),
]
"""Budgets of one scope; the file may give one without a list."""


def _check_cost_tag(value: str) -> str:
    if not re.fullmatch(_COST_TAG, value):
        raise ValueError("must be a cost tag with its value, such as feature=search")
    return value


CostTag = Annotated[str, AfterValidator(_check_cost_tag)]
"""`name=value`, as in the header `x-fareway-cost-tags`."""
CostTagBudgets = Mapping[CostTag, Budgets]


class OrganisationSettings(Section):
    """What everybody together may spend."""

    budget: Budgets = ()
    """What the whole organisation may spend: one budget, or a list."""
    cost_tag_budgets: CostTagBudgets = Field(default_factory=dict[str, Budgets])
    """Budgets by cost tag (`name=value`), of what all teams spend under it."""
