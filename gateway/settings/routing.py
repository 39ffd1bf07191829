"""Section `routing`: how a deployment is chosen and how often it is tried."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.settings.scalars import Percent, Percentile, Seconds, Section

Strategy = Literal["cheapest", "fastest", "balanced"]


class HedgeSettings(Section):
    """A second attempt at the same time when the first is late."""

    enabled: bool = False
    """Whether late requests are hedged."""
    after_percentile: Percentile = 95.0
    """Percentile of the time to first token after which an attempt counts as late."""


class RetrySettings(Section):
    """How often and how long a request is tried again."""

    attempts: int = Field(default=3, ge=1, le=20)
    """Attempts of one request, the first included."""
    within_s: Seconds = 30.0
    """Seconds after which no new attempt begins."""
    budget_percent: Percent = 20.0
    """Attempts that repeat a deployment, in percent of its requests; beside one a second."""


class RoutingSettings(Section):
    """How a deployment is chosen and how often it is tried."""

    strategy: Strategy = "cheapest"
    """What decides among allowed and able deployments."""
    hedge: HedgeSettings = Field(default_factory=HedgeSettings)
    """Second attempts at the same time."""
    retries: RetrySettings = Field(default_factory=RetrySettings)
    """Further attempts after a failure."""
