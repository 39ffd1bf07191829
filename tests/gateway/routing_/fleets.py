"""A small fleet at round prices, and a question with defaults, for the tests of routing."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.routing.decision import Decision, decide
from gateway.routing.needs import RequestNeeds
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import DeploymentView, FleetSnapshot
from pricing.money import rate_per_hour_us, rate_per_mtok
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.quote import MeasuredSpeed
from pricing.usage import Meter

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NEEDS = RequestNeeds(prompt_tokens_estimate=1000, max_output_tokens=100)


def price(input_usd: str, output_usd: str, **changes) -> PriceVersion:
    rates = {Meter.INPUT: rate_per_mtok(input_usd), Meter.OUTPUT: rate_per_mtok(output_usd)}
    return PriceVersion(rates=rates, source="test", **changes)


GPU_PRICE = PriceVersion(
    rates={Meter.GPU_US: rate_per_hour_us("3.6")}, basis=Basis.GPU_TIME, source="test"
)
DEAR = DeploymentView(name="dear/m", price=price("5", "15"))
CHEAP = DeploymentView(name="cheap/m", price=price("0.05", "0.08"))
OWN = DeploymentView(
    name="own/m", price=GPU_PRICE, speed=MeasuredSpeed(prefill_tps=1000, decode_tps=100)
)
UNKNOWN = DeploymentView(name="unknown/m", price=Unpriced(reason="no price configured"))


def fleet(*views: DeploymentView) -> FleetSnapshot:
    return FleetSnapshot(
        deployments={view.name: view for view in views},
        models={"chat": tuple(view.name for view in views)},
        aliases={"small": "chat"},
    )


def ask(*views: DeploymentView, **changes) -> Decision:
    snapshot = changes.pop("snapshot", None) or fleet(*views)
    base = {
        "model": "chat",
        "allowed": frozenset(snapshot.deployments),
        "scope": KeyScope(),
        "needs": NEEDS,
        "now": NOW,
    }
    return decide(snapshot, **{**base, **changes})


def order(decision: Decision) -> list[str]:
    return [one.deployment for one in decision.candidates]
