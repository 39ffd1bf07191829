"""The soak: memory over very many requests of which a tenth is left by the client.

A first part warms the gateway up; what counts is the growth after it. Rounds alternate between
streams that clients leave at every point and plain answers that they leave at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.gateway import fareway
from bench.gateway.cases import CASES, PLAIN, STREAM_SOAK, Case
from bench.gateway.ledger_proof import LedgerProof, prove
from bench.gateway.load import LoadReport, run_load
from bench.gateway.measure import Conditions, memory_mb, plan_for, settle
from bench.gateway.session import Say, started
from bench.gateway.targets import Subject

REQUESTS = 200_000
ROUNDS = 10
HANGUP_PERCENT = 10
HANGUP_EVENTS = 8
GROWTH_MAX = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakResult:
    """What a soak found.

    Attributes:
        requests: Requests sent after the warm-up.
        hung_up: Those that the client left.
        failed: Those that should have been answered and were not.
        rss_mb: Resident memory by process: after the warm-up, then after each round.
        growth: Of each process, as a share, from after the warm-up to the end.
        proof: The ledger's.
    """

    requests: int
    hung_up: int
    failed: int
    rss_mb: Sequence[Mapping[str, float]]
    growth: Mapping[str, float]
    proof: LedgerProof

    @property
    def problems(self) -> list[str]:
        """What does not hold."""
        grown = [
            f"{name} grew by {share:.1%}, allowed are {GROWTH_MAX:.0%}"
            for name, share in self.growth.items()
            if share > GROWTH_MAX
        ]
        failed = [f"{self.failed} requests failed"] if self.failed else []
        return [*grown, *failed, *self.proof.problems]


def soak(conditions: Conditions, *, state: Path, requests: int, seed: int, say: Say) -> SoakResult:
    """Run Fareway through the requests and hold its ledger against the mock.

    Args:
        conditions: Where it runs.
        state: Where it keeps its files.
        requests: After the warm-up, which is one round more.
        seed: Of the choice who leaves, and when.
        say: Told about each round.

    Raises:
        BenchFault: It does not start.
    """
    each = max(1, requests // ROUNDS)
    reports: list[LoadReport] = []
    with started(fareway.target(), conditions, state=state) as (subject, _):
        _round(subject, conditions, requests=each, seed=seed, is_stream=True)
        _round(subject, conditions, requests=each, seed=seed, is_stream=False)
        sizes = [_memory(subject, conditions)]
        say(f"after the warm-up: {_words(sizes[-1])}")
        for index in range(ROUNDS):
            reports.append(
                _round(
                    subject,
                    conditions,
                    requests=each,
                    seed=seed + index + 1,
                    is_stream=index % 2 == 0,
                )
            )
            sizes.append(_memory(subject, conditions))
            say(f"after {each * (index + 1):,} requests: {_words(sizes[-1])}")
        proof = prove(subject.folder, subject.mock.stats())
    return SoakResult(
        requests=each * ROUNDS,
        hung_up=sum(report.hung_up for report in reports),
        failed=sum(report.failed + report.refused for report in reports),
        rss_mb=sizes,
        growth=growth(sizes[0], sizes[-1]),
        proof=proof,
    )


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """By how much each process that was there before grew, as a share; never below zero."""
    return {
        name: max(0.0, after[name] / size - 1)
        for name, size in before.items()
        if size > 0 and name in after
    }


def record(result: SoakResult, *, seed: int) -> dict[str, object]:
    """The members of the result file beside its heading."""
    return {**asdict(result), "seed": seed, "problems": result.problems}


def _memory(subject: Subject, conditions: Conditions) -> dict[str, float]:
    settle(subject.root_pid, within_s=conditions.settle_within_s)
    return memory_mb(subject.root_pid)


def _words(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {size:.1f} MB" for name, size in sizes.items())


def _round(
    subject: Subject, conditions: Conditions, *, requests: int, seed: int, is_stream: bool
) -> LoadReport:
    plan = plan_for(_case(is_stream), subject, seconds=1.0, rate=None, folder=subject.folder)
    report, _ = run_load(
        replace(
            plan,
            requests=requests,
            hangup_percent=HANGUP_PERCENT,
            hangup_events=HANGUP_EVENTS if is_stream else 0,
            seed=seed,
        ),
        core=conditions.load_core,
    )
    return report


def _case(is_stream: bool) -> Case:
    short = next(case for case in CASES if case.name == "max")
    return replace(
        short,
        name="soak_stream" if is_stream else "soak_plain",
        model=STREAM_SOAK if is_stream else PLAIN,
        is_stream=is_stream,
    )
