"""Measure one case on a target that runs: load, CPU by process, stalls, and who else was busy."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from bench.gateway import proc, stalls
from bench.gateway.cases import Case
from bench.gateway.figures import CaseFigures
from bench.gateway.load import LoadPlan, LoadReport, Spread, run_load
from bench.gateway.mock import MockStats
from bench.gateway.targets import Subject

SETTLED_SHARE = 0.05
SETTLE_STEP_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How cases are run.

    Attributes:
        seconds: Measured time of a case.
        gateway_core: Where targets run; None without pinning.
        load_core: Where load and upstream run; None without pinning.
        foreign_max: A case during which others used more cores than this is run again.
        tries_max: How often at most.
        settle_within_s: Longest wait until a target has done what a case left behind.
    """

    seconds: float
    gateway_core: int | None
    load_core: int | None
    foreign_max: float = 0.2
    tries_max: int = 3
    settle_within_s: float = 60.0

    @property
    def cores(self) -> list[int]:
        """The cores whose time is looked at."""
        pinned = [core for core in (self.gateway_core, self.load_core) if core is not None]
        return sorted(set(pinned)) or list(proc.usable_cores())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Everything that is read before and after a load."""

    at_s: float
    cpu_s: Mapping[int, float]
    mock_cpu_s: float
    own_cpu_s: float
    busy_s: float
    load_core_busy_s: float
    mock: MockStats


def measure(
    case: Case, subject: Subject, conditions: Conditions, *, rate: float | None
) -> CaseFigures:
    """Run a case, again when others were busy meanwhile, and keep the quietest try.

    Args:
        case: What to run.
        subject: On what.
        conditions: How.
        rate: Requests per second, of a case with a constant rate.
    """
    best: CaseFigures | None = None
    tries = 0
    while tries < conditions.tries_max:
        tries += 1
        found = _measure_once(case, subject, conditions, rate)
        if best is None or found.foreign_cpu_share < best.foreign_cpu_share:
            best = found
        if best.foreign_cpu_share <= conditions.foreign_max:
            break
    assert best is not None
    return replace(best, tries=tries)


def plan_for(
    case: Case, subject: Subject, *, seconds: float, rate: float | None, folder: Path
) -> LoadPlan:
    """What the load generator does in a case; the body's file is written into a folder."""
    body = folder / f"{case.name}.json"
    body.write_bytes(case.body(subject.model(case.model)))
    return LoadPlan(
        url=subject.url,
        body=body,
        headers=subject.launch.headers,
        connections=case.connections,
        duration_s=seconds,
        warmup_s=case.warmup_s,
        is_stream=case.is_stream,
        rate=rate,
        stagger_s=case.stagger_s,
    )


def _measure_once(
    case: Case, subject: Subject, conditions: Conditions, rate: float | None
) -> CaseFigures:
    plan = plan_for(case, subject, seconds=conditions.seconds, rate=rate, folder=subject.folder)
    settle(subject.root_pid, within_s=conditions.settle_within_s)
    stalls_before = stalls.read(subject)
    before = _read(subject, conditions)
    report, load_cpu_s = run_load(plan, core=conditions.load_core)
    after = _read(subject, conditions)
    settle(subject.root_pid, within_s=conditions.settle_within_s)
    done_cpu_s = _cpu_by_pid(subject.root_pid)
    stalled = stalls.between(stalls_before, stalls.read(subject))
    wall_s = after.at_s - before.at_s
    ours_s = (
        sum(after.cpu_s.values())
        - sum(before.cpu_s.values())
        + (after.mock_cpu_s - before.mock_cpu_s if subject.running is not None else 0.0)
        + (after.own_cpu_s - before.own_cpu_s)
        + load_cpu_s
    )
    by_process: dict[str, float] = {}
    for pid, used_s in done_cpu_s.items():
        name = proc.role(pid)
        spent_s = used_s - before.cpu_s.get(pid, 0.0)
        by_process[name] = by_process.get(name, 0.0) + spent_s
    return _figures(
        report,
        case=case,
        rate=rate,
        requests=after.mock.chats - before.mock.chats,
        chunks=after.mock.chunks - before.mock.chunks,
        cpu_s=by_process,
        stalled=stalled,
        foreign_share=max(0.0, after.busy_s - before.busy_s - ours_s) / wall_s,
        load_core_share=min(1.0, (after.load_core_busy_s - before.load_core_busy_s) / wall_s),
    )


def _figures(
    report: LoadReport,
    *,
    case: Case,
    rate: float | None,
    requests: int,
    chunks: int,
    cpu_s: Mapping[str, float],
    stalled: stalls.Stalls | None,
    foreign_share: float,
    load_core_share: float,
) -> CaseFigures:
    total_s = sum(cpu_s.values())
    answers = report.ok + report.refused + report.non2xx
    return CaseFigures(
        requests=requests,
        rps=report.rps,
        rate=rate,
        p50_ms=_ms(report.latency_us, "p50"),
        p99_ms=_ms(report.latency_us, "p99"),
        max_ms=_ms(report.latency_us, "max"),
        cpu_ms_per_request=total_s * 1e3 / requests if requests else None,
        cpu_ms_by_process={name: used * 1e3 / requests for name, used in cpu_s.items()}
        if requests
        else {},
        chunks_per_s=report.chunks_per_s if case.is_stream else None,
        cpu_us_per_chunk=total_s * 1e6 / chunks if chunks else None,
        ttft_p50_ms=_ms(report.ttft_us, "p50"),
        ttft_p99_ms=_ms(report.ttft_us, "p99"),
        gap_p99_ms=_ms(report.gap_us, "p99"),
        gap_max_ms=_ms(report.gap_us, "max"),
        transit_p50_ms=_ms(report.transit_us, "p50"),
        transit_p99_ms=_ms(report.transit_us, "p99"),
        mb_per_s=report.mb_per_s,
        refused_share=report.refused / answers if answers else None,
        refused_p99_ms=_ms(report.refused_us, "p99"),
        failed=report.failed,
        unissued=report.unissued,
        stalls=None if stalled is None else stalled.late,
        stalls_computing=None if stalled is None else stalled.computing,
        foreign_cpu_share=foreign_share,
        load_core_share=load_core_share,
        error_sample=report.error_sample,
    )


def _ms(spread: Spread | None, name: str) -> float | None:
    if spread is None or not spread.n:
        return None
    return cast("float", getattr(spread, name)) / 1e3


def settle(root: int, *, within_s: float) -> None:
    """Wait until a process tree has done what it still had to do; its CPU time tells."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        before_s, at_s = sum(_cpu_by_pid(root).values()), time.monotonic()
        time.sleep(SETTLE_STEP_S)
        used_s = sum(_cpu_by_pid(root).values()) - before_s
        if used_s / (time.monotonic() - at_s) < SETTLED_SHARE:
            return


def _cpu_by_pid(root: int) -> dict[int, float]:
    return {pid: proc.cpu_s(pid) for pid in proc.tree(root)}


def memory_mb(root: int) -> dict[str, float]:
    """Resident memory by role, of the biggest process of each."""
    found: dict[str, float] = {}
    for pid in proc.tree(root):
        name = proc.role(pid)
        found[name] = max(found.get(name, 0.0), proc.rss_bytes(pid) / 1e6)
    return found


def _read(subject: Subject, conditions: Conditions) -> _Reading:
    load_cores = [] if conditions.load_core is None else [conditions.load_core]
    return _Reading(
        at_s=time.monotonic(),
        cpu_s=_cpu_by_pid(subject.root_pid),
        mock_cpu_s=proc.cpu_s(subject.mock.process.pid),
        own_cpu_s=proc.cpu_s(os.getpid()),
        busy_s=proc.cores_busy_s(conditions.cores),
        load_core_busy_s=proc.cores_busy_s(load_cores),
        mock=subject.mock.stats(),
    )
