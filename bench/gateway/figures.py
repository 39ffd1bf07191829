"""What is measured, as plain values: one case, one target, one repetition, their medians."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import cast

from bench.gateway.ledger_proof import LedgerProof


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFigures:
    """One case against one target. None is "does not apply" or "could not be measured".

    Attributes:
        requests: Requests that reached the upstream in the case, warm-up included.
        rps: Answers per second.
        rate: Requests per second that were due, of a case with a constant rate.
        p50_ms: Latency of buffered answers, from the instant at which the request was due.
        p99_ms: The same.
        max_ms: The same.
        cpu_ms_per_request: CPU of the target's whole process tree per request that reached the
            upstream, what it did after the load included.
        cpu_ms_by_process: The same by role.
        chunks_per_s: Content events that reached the client.
        cpu_us_per_chunk: CPU of the tree per content event that the upstream sent.
        ttft_p50_ms: Of streams, from due to the first content event.
        ttft_p99_ms: The same.
        gap_p99_ms: Between the content events of a stream.
        gap_max_ms: The same.
        transit_p50_ms: From the upstream's write of an event to its arrival.
        transit_p99_ms: The same.
        mb_per_s: Body bytes that the client received.
        refused_share: Share of the answers that were 429 or 503.
        refused_p99_ms: Latency of those, from the instant at which the request was due.
        failed: Requests that should have been answered and were not.
        unissued: Requests that were due and could not be sent.
        stalls: Times that the event loop was more than 5 ms late, by the gateway's own metric.
        stalls_computing: Those of them in which the loop's own thread computed for over 5 ms.
        foreign_cpu_share: Cores' worth of time that programs of others took meanwhile.
        load_core_share: How busy the core of load and upstream was; near 1 it is the limit.
        tries: How often the case was run for a quiet one.
        error_sample: The first refusal's or error's body.
    """

    requests: int
    rps: float
    rate: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None
    cpu_ms_per_request: float | None = None
    cpu_ms_by_process: Mapping[str, float] = field(default_factory=dict[str, float])
    chunks_per_s: float | None = None
    cpu_us_per_chunk: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    gap_p99_ms: float | None = None
    gap_max_ms: float | None = None
    transit_p50_ms: float | None = None
    transit_p99_ms: float | None = None
    mb_per_s: float | None = None
    refused_share: float | None = None
    refused_p99_ms: float | None = None
    failed: int = 0
    unissued: int = 0
    stalls: int | None = None
    stalls_computing: int | None = None
    foreign_cpu_share: float = 0.0
    load_core_share: float = 0.0
    tries: int = 1
    error_sample: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRun:
    """One repetition of one target.

    Attributes:
        target: Its name.
        startup_s: From its start to the first 200 on chat; None for the upstream itself.
        rss_idle_mb: Resident memory by process before the load.
        rss_after_mb: The same after all cases.
        cases: By name.
        fdatasync_p50_ms: One lone fdatasync of a journal's record on the same disk, measured right
            before the cases.
        fdatasync_p99_ms: The same.
        ledger: What the ledger's proof found; None for others than Fareway.
    """

    target: str
    startup_s: float | None
    rss_idle_mb: Mapping[str, float]
    rss_after_mb: Mapping[str, float]
    cases: Mapping[str, CaseFigures]
    fdatasync_p50_ms: float | None = None
    fdatasync_p99_ms: float | None = None
    ledger: LedgerProof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The medians of a target's repetitions.

    Attributes:
        startup_s: Median.
        rss_idle_mb: Median by process.
        rss_after_mb: Median by process.
        fdatasync_p50_ms: Median.
        cases: Medians by case.
    """

    startup_s: float | None
    rss_idle_mb: Mapping[str, float]
    rss_after_mb: Mapping[str, float]
    fdatasync_p50_ms: float | None
    cases: Mapping[str, CaseFigures]


def summarise(runs: Sequence[TargetRun], *, foreign_max: float) -> Summary:
    """The medians of the repetitions of one target.

    Args:
        runs: At least one.
        foreign_max: A case with more foreign CPU counts only where no quieter one exists.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.cases))
    return Summary(
        startup_s=_median([run.startup_s for run in runs]),
        rss_idle_mb=_medians([run.rss_idle_mb for run in runs]),
        rss_after_mb=_medians([run.rss_after_mb for run in runs]),
        fdatasync_p50_ms=_median([run.fdatasync_p50_ms for run in runs]),
        cases={
            name: median_case(
                [run.cases[name] for run in runs if name in run.cases], foreign_max=foreign_max
            )
            for name in names
        },
    )


def median_case(cases: Sequence[CaseFigures], *, foreign_max: float) -> CaseFigures:
    """The median of each figure over the quiet repetitions of a case, else over the quietest."""
    quiet = [case for case in cases if case.foreign_cpu_share <= foreign_max]
    used = quiet or [min(cases, key=lambda case: case.foreign_cpu_share)]
    values: dict[str, object] = {}
    for each in fields(CaseFigures):
        found = [cast("object", getattr(case, each.name)) for case in used]
        if each.name == "cpu_ms_by_process":
            values[each.name] = _medians(cast("list[Mapping[str, float]]", found))
        elif each.name == "error_sample":
            values[each.name] = next((text for text in found if text), "")
        elif each.name in ("failed", "unissued", "stalls", "stalls_computing"):
            # One bad repetition is not averaged away.
            counts = [count for count in cast("list[int | None]", found) if count is not None]
            values[each.name] = max(counts) if counts else None
        else:
            values[each.name] = _median(cast("list[float | None]", found))
    return CaseFigures(**values)  # pyright: ignore[reportArgumentType] - by name, from the same class


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _medians(maps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for each in maps for name in each)
    return {
        name: statistics.median([each[name] for each in maps if name in each]) for name in names
    }


def plain(value: object) -> object:
    """A figure as JSON takes it, empty ones left out."""
    if isinstance(value, CaseFigures | TargetRun | Summary | LedgerProof):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, object]", value).items()
        return {key: plain(each) for key, each in pairs if each not in (None, "", {})}
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list | tuple):
        return [plain(each) for each in cast("Sequence[object]", value)]
    return value
