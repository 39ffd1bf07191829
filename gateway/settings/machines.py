"""Section `finance.machines`: how the cost of machines of one's own is shared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gateway.settings.baseline import BaselineDeployment
from gateway.settings.scalars import Name, Section, Usd

_FRACTION = r"[0-9]{1,9}/[1-9][0-9]{0,8}|[0-9](\.[0-9]{1,18})?"


def _to_fraction(value: object) -> str:
    """The fraction in lowest terms, so that 0.25 and 1/4 are the same."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        value = f"{value:f}"
    if not isinstance(value, str) or re.fullmatch(_FRACTION, value) is None:
        raise ValueError("must be a part of the machine such as 0.25 (at most 18 decimals) or 1/3")
    fraction = Fraction(value)
    if not 0 < fraction <= 1:
        raise ValueError("must be above 0 and at most 1")
    return str(fraction)


SliceFraction = Annotated[
    str,
    BeforeValidator(_to_fraction),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                {"type": "string", "pattern": f"^({_FRACTION})$"},
            ]
        }
    ),
]
"""A part of a machine: text in lowest terms, such as `1/4`."""

WorkWeight = Annotated[Usd, Field(le=1_000_000)]
"""A weight is written like an amount: a decimal of at least 0."""


class WorkUnitSettings(Section):
    """Work of a token, where a server does not tell how long it computed for whom."""

    input: WorkWeight = Decimal(1)
    """Work of a fresh input token."""
    cached_input: WorkWeight = Decimal(0)
    """Work of an input token that was read from a cache."""
    output: WorkWeight = Decimal(8)
    """Work of a generated token."""


class PoolSettings(Section):
    """What is said of one pool: a provider, or a deployment with an hourly price of its own."""

    idle: Literal["overhead", "by_use", "reserved"] | None = None
    """Who bears its idle time; unset: as `finance.machines.idle`. `reserved`: each team that owns a
    slice, for what is idle of it."""
    slices: Mapping[Name, SliceFraction] = Field(default_factory=dict[str, str])
    """Teams that own a part of each of its machines, such as 0.25 or 1/3; at most 1 together."""

    watch: bool | None = None
    """Whether its server is watched; unset: as `finance.machines.watch`."""
    compare_with: BaselineDeployment | None = None
    """A vendor's deployment that would serve the same, for the break-even; unset: none."""

    @model_validator(mode="after")
    def _check_slices(self) -> Self:
        if self.slices and self.idle != "reserved":
            raise ValueError("slices belong to `idle: reserved`")
        if self.idle == "reserved" and not self.slices:
            raise ValueError("`idle: reserved` needs slices, such as {research: 0.25}")
        total = sum(map(Fraction, self.slices.values()), Fraction(0))
        if total > 1:
            raise ValueError(f"slices are {total} of the machine together; they may be 1 at most")
        return self


class MachineSettings(Section):
    """How the cost of machines of one's own is shared, and at which rate reports show it."""

    rate: Literal["marginal", "standard", "actual"] = "actual"
    """Rate of reports and statements: `marginal` is what one more busy second costs, `standard` a
    rate card at the target utilisation, `actual` what the machine cost, shared by use."""
    idle: Literal["overhead", "by_use"] = "overhead"
    """Who bears idle time at the actual rate: nobody, in a row of its own, or those who used the
    machine in the month, by how long they did."""
    target_utilisation_percent: int = Field(default=60, ge=1, le=100)
    """Utilisation that the standard rate is made for."""
    work_units: WorkUnitSettings = Field(default_factory=WorkUnitSettings)
    """Work of a token, where a server does not tell how long it computed for whom."""
    watch: bool = False
    """Whether servers that are priced by the hour are asked for their metrics every 15 seconds: it
    tells when they were down, and how busy they are."""
    pools: Mapping[Name, PoolSettings] = Field(default_factory=dict[str, PoolSettings])
    """What is said of one pool alone, by the name of its provider or deployment."""
