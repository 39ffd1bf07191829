"""Prometheus metrics of a worker: few labels, never a key, a user, a request or content."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from gateway.ledger.records import Settlement
from pricing.money import PICO_PER_USD
from pricing.usage import Meter

LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
OVERHEAD_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)
PROMETHEUS_CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_TOKEN_METERS = {
    Meter.INPUT.value: ("input", "none"),
    Meter.CACHE_READ.value: ("input", "read"),
    Meter.CACHE_WRITE.value: ("input", "write"),
    Meter.OUTPUT.value: ("output", "none"),
    Meter.REASONING.value: ("output", "none"),
}


class Metrics:
    """The worker's registry and every instrument in it."""

    def __init__(self) -> None:
        """Make a registry of its own, so that two workers in one test never share numbers."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "fareway_requests_total",
            "Client requests by route and status.",
            ["route", "status"],
            registry=self.registry,
        )
        self.attempts = Counter(
            "fareway_attempts_total",
            "Attempts by deployment and outcome.",
            ["team", "deployment", "status"],
            registry=self.registry,
        )
        self.tokens = Counter(
            "fareway_tokens_total",
            "Tokens by deployment, direction (input, output) and cache (none, read, write).",
            ["team", "deployment", "direction", "cache"],
            registry=self.registry,
        )
        self.spend = Counter(
            "fareway_spend_usd_total",
            "Booked spend; for alerts and graphs, the ledger has the exact sums.",
            ["team", "deployment"],
            registry=self.registry,
        )
        self.unpriced = Counter(
            "fareway_unpriced_events_total",
            "Attempts whose price is unknown.",
            ["deployment"],
            registry=self.registry,
        )
        self.fallbacks = Counter(
            "fareway_fallbacks_total",
            "Attempts that followed a failed one, by the failure.",
            ["reason"],
            registry=self.registry,
        )
        self.ttft = Histogram(
            "fareway_time_to_first_token_seconds",
            "Request accepted to first content event sent.",
            ["deployment"],
            buckets=LATENCY_BUCKETS_S,
            registry=self.registry,
        )
        self.overhead = Histogram(
            "fareway_gateway_overhead_seconds",
            "Request accepted to first dispatch.",
            buckets=OVERHEAD_BUCKETS_S,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "fareway_requests_in_flight", "Requests being served.", registry=self.registry
        )

    def observe_attempt(self, *, deployment: str, team: str, settlement: Settlement) -> None:
        """Count a settled attempt."""
        self.attempts.labels(team=team, deployment=deployment, status=settlement.status).inc()
        for meter, units in settlement.usage.items():
            labels = _TOKEN_METERS.get(meter)
            if labels is not None:
                direction, cache = labels
                self.tokens.labels(
                    team=team, deployment=deployment, direction=direction, cache=cache
                ).inc(units)
        if settlement.cost_pico_usd is None:
            self.unpriced.labels(deployment=deployment).inc()
        else:
            # A metric is a float by its format; sums that finance sees come from the ledger.
            self.spend.labels(team=team, deployment=deployment).inc(
                settlement.cost_pico_usd / PICO_PER_USD
            )

    def render(self) -> bytes:
        """The text that `/metrics` answers."""
        return generate_latest(self.registry)
