"""Series as Prometheus' text. The library is loaded with the first scrape: it takes 40 ms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gateway.telemetry.families import FAMILIES, Family, Kind
from gateway.telemetry.snapshot import Series

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PROMETHEUS_CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def render(series: Iterable[Series]) -> bytes:
    """The text that `/metrics` answers, families in the order of the table.

    Takes milliseconds for thousands of series; call it off the event loop.

    Args:
        series: At most one per name and labels; each as its family in `FAMILIES` says.
    """
    from prometheus_client.exposition import generate_latest

    by_family: dict[str, list[Series]] = {}
    for one in series:
        by_family.setdefault(one.family, []).append(one)
    return generate_latest(_Collected(by_family))


class _Collected:
    """What the library's exposition takes in place of a registry."""

    def __init__(self, by_family: dict[str, list[Series]]) -> None:
        self._by_family = by_family

    def collect(self) -> Iterator[Metric]:
        for name, family in FAMILIES.items():
            found = self._by_family.get(name)
            if found:
                yield _metric(name, family, sorted(found, key=_labels))


def _labels(series: Series) -> tuple[str, ...]:
    return series.labels


def _metric(name: str, family: Family, found: list[Series]) -> Metric:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for one in found:
            histogram.add_metric(one.labels, _cumulative(family, one.values), one.values[-1])
        return histogram
    if family.kind is Kind.COUNTER:
        counter = CounterMetricFamily(name, family.help, labels=family.labels)
        for one in found:
            counter.add_metric(one.labels, one.values[0])
        return counter
    gauge = GaugeMetricFamily(name, family.help, labels=family.labels)
    for one in found:
        gauge.add_metric(one.labels, one.values[0])
    return gauge


def _cumulative(family: Family, values: list[float]) -> list[tuple[str, float]]:
    bounds = [*(repr(bound) for bound in family.buckets), "+Inf"]
    total = 0.0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip(bounds, values[:-1], strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
