"""Section `models`: the names that app teams ask for, and the deployments behind them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.settings.limits import LimitSettings
from gateway.settings.prices import Prices
from gateway.settings.routing import Strategy
from gateway.settings.scalars import (
    Many,
    Milliseconds,
    Name,
    Percentile,
    Section,
    TextOrSection,
    TokensPerSecond,
)
from gateway.settings.trust import TrustClaim


def check_deployment(value: str) -> str:
    """Take the name of a deployment.

    Raises:
        ValueError: It is not in the form `provider/model-id`.
    """
    provider, slash, model_id = value.partition("/")
    if not slash or not provider or not model_id:
        raise ValueError("must be provider/model-id")
    if len(value) > 512 or not value.isprintable() or any(c.isspace() for c in value):
        raise ValueError("must be provider/model-id without spaces")
    return value


class DeploymentSettings(TextOrSection):
    """One deployment of a model; plain text stands for one without settings of its own."""

    deployment: Annotated[str, AfterValidator(check_deployment)]
    """`provider/model-id`, split at the first slash."""
    price: Prices = ()
    """Its price; unset: the provider's, else the price book's."""
    trust: Many[TrustClaim] | None = None
    """Trust attributes in place of the provider's."""
    context_window_tokens: int | None = Field(default=None, ge=1, le=100_000_000)
    """Longest prompt plus output; unset: what the catalogue or the provider says."""

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self.deployment.partition("/")[0]

    @property
    def model_id(self) -> str:
        """The model's name at the provider."""
        return self.deployment.partition("/")[2]


class SlaSettings(Section):
    """What an answer should achieve."""

    ttft_ms: Milliseconds | None = None
    """Longest time to the first content event, in milliseconds."""
    tps: TokensPerSecond | None = None
    """Lowest decode rate of the stream, in tokens per second."""
    percentile: Percentile = 95.0
    """Share of requests that must meet it."""
    on_miss: Literal["best_effort", "reject"] = "best_effort"
    """What to do when no deployment is expected to meet it."""

    @model_validator(mode="after")
    def _some_target(self) -> Self:
        if self.ttft_ms is None and self.tps is None:
            raise ValueError("needs ttft_ms or tps")
        return self


class ModelRoutingSettings(Section):
    """How one model chooses among its deployments."""

    strategy: Strategy | None = None
    """Strategy of this model; unset: `routing.strategy`."""
    sla: SlaSettings | None = None
    """Targets of every request to this model."""


class ModelSettings(Section):
    """A logical model: deployments that the operator declares interchangeable."""

    aliases: Many[Name] = ()
    """Other names for it."""
    deployments: Many[DeploymentSettings] = Field(min_length=1, max_length=256)
    """Where it can be served; price decides among them."""
    limits: LimitSettings | None = None
    """How much everybody together may ask of it."""
    routing: ModelRoutingSettings = Field(default_factory=ModelRoutingSettings)
    """How this model is routed."""
