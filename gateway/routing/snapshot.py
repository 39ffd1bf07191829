"""The fleet at one instant: what can be called, at what price, how fast, and whether it is up.

A snapshot is immutable and holds everything a decision needs, so that deciding does no input or
output and the same snapshot always gives the same decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pricing.price_book import PriceVersion, Unpriced
from pricing.quote import MeasuredSpeed
from providers.contract import Capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLatency:
    """What recent attempts at a deployment showed.

    Attributes:
        ttft_s: Typical seconds to the first content event.
        decode_tps: Typical tokens per second of one stream, above 0.
    """

    ttft_s: float
    decode_tps: float

    def total_us(self, output_tokens: int) -> int:
        """Microseconds until so many tokens have arrived."""
        return round((self.ttft_s + output_tokens / self.decode_tps) * 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """One deployment as routing sees it.

    Attributes:
        name: `provider/model-id`.
        price: The price in force when the snapshot was made, or why there is none.
        capabilities: What it can do.
        speed: Measured speed of a machine of ours, None when not measured; needed to quote a price
            per busy time.
        latency: Observed latency, None before enough attempts.
        is_available: Whether an attempt may be sent there now.
        unavailable_reason: Why not, one phrase; empty when available.
        retry_after_s: Seconds until it may be available, None when unknown or available.
        region: Where it stands, None when unknown; for explanations only.
    """

    name: str
    price: PriceVersion | Unpriced
    capabilities: Capabilities = field(default_factory=Capabilities, hash=False)
    speed: MeasuredSpeed | None = None
    latency: ObservedLatency | None = None
    is_available: bool = True
    unavailable_reason: str = ""
    retry_after_s: float | None = None
    region: str | None = None

    @property
    def provider(self) -> str:
        """The provider's name in the configuration."""
        return self.name.partition("/")[0]

    @property
    def model_id(self) -> str:
        """The model's name at the provider."""
        return self.name.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything that can be called, and under which names.

    Attributes:
        deployments: View per deployment name.
        models: Deployment names per logical model, in the operator's order.
        aliases: What an alias stands for: a logical model or a deployment.
        is_checked: Whether the names are known to fit together; a fleet's are checked once, not
            with the snapshot of every request.
    """

    deployments: Mapping[str, DeploymentView]
    models: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    is_checked: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse names that lead nowhere or mean two things.

        Raises:
            ValueError: With every such name.
        """
        if self.is_checked:
            return
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        for name, view in self.deployments.items():
            if view.name != name:
                yield f"deployment {view.name!r} is kept under {name!r}"
        for model, names in self.models.items():
            for name in names:
                if name not in self.deployments:
                    yield f"model {model!r} lists {name!r}, which is no deployment"
            if not names:
                yield f"model {model!r} lists no deployment"
            if len(set(names)) != len(names):
                yield f"model {model!r} lists a deployment twice"
            if model in self.deployments:
                yield f"{model!r} is a model and a deployment"
        for alias, target in self.aliases.items():
            if target not in self.models and target not in self.deployments:
                yield f"alias {alias!r} stands for {target!r}, which is no model or deployment"
            if alias in self.models or alias in self.deployments:
                yield f"{alias!r} is an alias and a model or deployment"
