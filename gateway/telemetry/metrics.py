"""What a worker counts: plain integers behind one look-up, made into metrics at scrape time.

The Prometheus library takes 1 to 3 microseconds for each labelled increment, and an attempt makes
eight. Here a request costs one dictionary look-up and two histogram steps, an attempt one look-up
and a few additions; everything that takes time happens when somebody asks.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gateway.ledger.records import AttemptStatus, Settlement
from gateway.telemetry.exposition import render
from gateway.telemetry.families import (
    DECODE_BUCKETS_TPS,
    DURATION_BUCKETS_S,
    OVERHEAD_BUCKETS_S,
    STALL_BUCKETS_S,
    TTFT_BUCKETS_S,
)
from gateway.telemetry.histogram import new_histogram, observe
from gateway.telemetry.snapshot import Series, Snapshot, Totals
from pricing.money import PICO_PER_USD
from pricing.usage import Meter

if TYPE_CHECKING:  # it would bring all detectors into processes that have none
    from gateway.detect.detection import Detected

SERIES_MAX = 2_000
"""Label sets per table; what comes beyond them is counted under `OTHER`, never dropped."""

OTHER = "other"
SERIES_PER_TURN = 500
"""Made before the event loop has its turn; about a quarter of a millisecond's worth."""

Source = Callable[[], Iterable[Series]]
"""Numbers that are kept elsewhere and read when somebody asks; copies."""

_TOKEN_METERS: Mapping[str, tuple[str, str]] = {
    Meter.INPUT.value: ("input", "none"),
    Meter.CACHE_READ.value: ("input", "read"),
    Meter.CACHE_WRITE.value: ("input", "write"),
    Meter.OUTPUT.value: ("output", "none"),
    Meter.REASONING.value: ("output", "none"),
}
_OUTPUT_METERS = tuple(
    meter for meter, (direction, _) in _TOKEN_METERS.items() if direction == "output"
)


class _AttemptRecord:
    """What is counted per team and deployment; the three histograms are the deployment's."""

    __slots__ = (
        "decode_tps", "durations", "priced", "spend_pico_usd", "statuses", "ttft", "units",
        "unpriced",
    )  # fmt: skip

    def __init__(self, ttft: list[float], durations: list[float], decode_tps: list[float]) -> None:
        # Every key is there from the start, so that to count is one step.
        self.statuses = dict.fromkeys((status.value for status in AttemptStatus), 0)
        self.units = dict.fromkeys((meter.value for meter in Meter), 0)
        self.spend_pico_usd = 0
        self.priced = 0
        self.unpriced = 0
        self.ttft = ttft
        self.durations = durations
        self.decode_tps = decode_tps


class Metrics:
    """A worker's numbers. Used on its event loop alone, except where a method says otherwise.

    Args:
        source: Names this process among all that ever were; empty where there is only one.
    """

    def __init__(self, source: str = "") -> None:
        self._source = source
        self._requests: dict[tuple[str, int], list[float]] = {}
        self._overhead = new_histogram("fareway_gateway_overhead_seconds")
        self._attempts: dict[tuple[str, str], _AttemptRecord] = {}
        self._deployments: dict[str, tuple[list[float], list[float], list[float]]] = {}
        self._counts: dict[tuple[str, tuple[str, ...]], int] = {}
        self._stalls = new_histogram("fareway_loop_stall_seconds")
        self._stalls_cpu = new_histogram("fareway_loop_stall_cpu_seconds")
        self._stall_max_s = 0.0
        self._sources: list[Source] = []

    def add_source(self, source: Source) -> None:
        """Have further numbers read with each snapshot."""
        self._sources.append(source)

    def note_request(
        self, route: str, status: int, duration_s: float, overhead_s: float | None
    ) -> None:
        """Count a client's request that is over.

        Args:
            route: One of our routes.
            status: What the client got; 499 when it had left.
            duration_s: Accepted to over.
            overhead_s: As told in `x-fareway-overhead-ms`, None when there was no telling.
        """
        durations = self._requests.get((route, status))
        if durations is None:
            durations = self._new_request(route, status)
        # `observe`, twice: every request comes by here, and a call costs more than the counting.
        durations[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
        durations[-1] += duration_s
        if overhead_s is not None:
            overhead = self._overhead
            overhead[bisect_left(OVERHEAD_BUCKETS_S, overhead_s)] += 1
            overhead[-1] += overhead_s

    def note_attempt(
        self, deployment: str, team: str, settlement: Settlement, decode_s: float | None
    ) -> None:
        """Count a settled attempt.

        Args:
            deployment: `provider/model-id`.
            team: Team name, empty for the administrator.
            settlement: As written to the spool.
            decode_s: First content event sent to settled; None where nothing was streamed, for the
                first token and the speed of a whole answer cannot be seen from here.
        """
        record = self._attempts.get((team, deployment))
        if record is None:
            record = self._new_attempt(team, deployment)
        record.statuses[settlement.status] += 1
        units, usage = record.units, settlement.usage
        for meter in usage:
            units[meter] += usage[meter]
        cost_pico_usd = settlement.cost_pico_usd
        if cost_pico_usd is None:
            record.unpriced += 1
        else:
            record.priced += 1
            record.spend_pico_usd += cost_pico_usd
        duration_s = settlement.duration_us / 1_000_000
        durations = record.durations  # `observe`, as above
        durations[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
        durations[-1] += duration_s
        if decode_s is not None and settlement.ttft_us is not None:
            observe(record.ttft, TTFT_BUCKETS_S, settlement.ttft_us / 1_000_000)
            _note_speed(record.decode_tps, usage, decode_s)

    def note_retry(self, reason: str, is_fallback: bool) -> None:
        """Count a further attempt.

        Args:
            reason: Class of the failure before it.
            is_fallback: Whether it goes to another deployment.
        """
        self._count("fareway_fallbacks_total" if is_fallback else "fareway_retries_total", reason)

    def note_retry_refused(self, provider: str) -> None:
        """Count a retry that the provider's budget had no room for."""
        self._count("fareway_retries_refused_total", provider)

    def note_denial(self, rule: str) -> None:
        """Count a request that the privacy policy refused; `rule` is the error's code."""
        self._count("fareway_policy_denials_total", rule)

    def note_detected(self, detected: Detected, *, enforces: bool) -> None:
        """Count what detectors found in a request, whether it counts or not."""
        mode = "enforce" if enforces else "observe"
        for detector, count in detected.counts.items():
            self._count("fareway_detector_findings_total", detector, mode, by=count)
            self._count("fareway_detector_requests_total", detector, mode)
        for kind in detected.opaque:
            self._count("fareway_detector_requests_total", f"opaque_{kind}", mode)
        if detected.fault:
            self._count("fareway_detector_faults_total", detected.fault, mode)

    def note_egress_refusal(self, layer: str) -> None:
        """Count what was to be sent where it must not: `permit`, or `process` for its guard."""
        self._count("fareway_egress_refusals_total", layer)

    def note_stall(self, late_s: float, cpu_s: float) -> None:
        """Count one look of the loop's watchdog.

        Args:
            late_s: How late its timer fired.
            cpu_s: The part of it in which the loop's thread was computing, at most.
        """
        observe(self._stalls, STALL_BUCKETS_S, late_s)
        observe(self._stalls_cpu, STALL_BUCKETS_S, cpu_s)
        if late_s > self._stall_max_s:
            self._stall_max_s = late_s

    def snapshot(self) -> Snapshot:
        """Everything counted so far, a copy; a metric and its labels may come in several parts."""
        return Snapshot(source=self._source, series=list(self._series()))

    async def tell(self) -> Snapshot:
        """The same, letting the event loop go on meanwhile: thousands of series take milliseconds.

        Counts of requests that end meanwhile may be in some of it and not in the rest.
        """
        series: list[Series] = []
        for one in self._series():
            series.append(one)
            if len(series) % SERIES_PER_TURN == 0:
                await asyncio.sleep(0)
        return Snapshot(source=self._source, series=series)

    def render(self) -> bytes:
        """This worker's numbers alone as Prometheus' text."""
        totals = Totals()
        totals.add(self._series())
        return render(totals.series())

    def _series(self) -> Iterator[Series]:
        """Copies; requests may be counted between one and the next."""
        for (route, status), durations in list(self._requests.items()):
            labels = (route, str(status) if status else OTHER)
            yield Series("fareway_requests_total", labels, [sum(durations[:-1])])
            yield Series("fareway_request_duration_seconds", labels, durations.copy())
        yield Series("fareway_gateway_overhead_seconds", (), self._overhead.copy())
        for (team, deployment), record in list(self._attempts.items()):
            yield from _attempt_series(team, deployment, record)
        for deployment, (ttft, durations, decode_tps) in list(self._deployments.items()):
            labels = (deployment,)
            yield Series("fareway_attempt_duration_seconds", labels, durations.copy())
            if any(ttft):
                yield Series("fareway_time_to_first_token_seconds", labels, ttft.copy())
            if any(decode_tps):
                yield Series("fareway_decode_tokens_per_second", labels, decode_tps.copy())
        for (family, labels), count in list(self._counts.items()):
            yield Series(family, labels, [count])
        yield Series("fareway_loop_stall_seconds", (), self._stalls.copy())
        yield Series("fareway_loop_stall_cpu_seconds", (), self._stalls_cpu.copy())
        yield Series("fareway_loop_stall_max_seconds", (), [self._stall_max_s])
        for source in self._sources:
            yield from source()

    def _new_request(self, route: str, status: int) -> list[float]:
        if len(self._requests) >= SERIES_MAX:
            route, status = OTHER, 0
        return self._requests.setdefault(
            (route, status), new_histogram("fareway_request_duration_seconds")
        )

    def _new_attempt(self, team: str, deployment: str) -> _AttemptRecord:
        if len(self._attempts) >= SERIES_MAX:
            team, deployment = OTHER, OTHER
            known = self._attempts.get((team, deployment))
            if known is not None:
                return known
        histograms = self._deployments.get(deployment)
        if histograms is None:
            histograms = self._deployments[deployment] = (
                new_histogram("fareway_time_to_first_token_seconds"),
                new_histogram("fareway_attempt_duration_seconds"),
                new_histogram("fareway_decode_tokens_per_second"),
            )
        record = self._attempts[team, deployment] = _AttemptRecord(*histograms)
        return record

    def _count(self, family: str, *labels: str, by: int = 1) -> None:
        key = (family, labels)
        if key not in self._counts and len(self._counts) >= SERIES_MAX:
            key = (family, (OTHER,) * len(labels))
        self._counts[key] = self._counts.get(key, 0) + by


def _note_speed(decode_tps: list[float], usage: Mapping[str, int], decode_s: float) -> None:
    """Observe tokens per second after the first token; nothing where there is no second one."""
    output_tokens = 0
    for meter in _OUTPUT_METERS:
        output_tokens += usage.get(meter, 0)
    if output_tokens > 1 and decode_s > 0:
        observe(decode_tps, DECODE_BUCKETS_TPS, (output_tokens - 1) / decode_s)


def _attempt_series(team: str, deployment: str, record: _AttemptRecord) -> Iterator[Series]:
    labels = (team, deployment)
    for status, count in record.statuses.items():
        if count:
            yield Series("fareway_attempts_total", (*labels, status), [count])
    for meter, token_labels in _TOKEN_METERS.items():
        if units := record.units[meter]:
            yield Series("fareway_tokens_total", (*labels, *token_labels), [units])
    if record.priced:
        # A metric is a float by its format; sums that finance sees come from the ledger.
        usd = record.spend_pico_usd / PICO_PER_USD
        yield Series("fareway_spend_usd_total", labels, [usd])
    if record.unpriced:
        yield Series("fareway_unpriced_events_total", (deployment,), [record.unpriced])
