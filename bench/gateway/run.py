"""The whole benchmark: targets take turns, repetition by repetition; then medians and ratios."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.gateway import fareway, proc
from bench.gateway.cases import CASE_NAMES, CASES, Case
from bench.gateway.compiled import cache_folder, program
from bench.gateway.faults import BenchFault
from bench.gateway.figures import Summary, TargetRun, plain, summarise
from bench.gateway.measure import Conditions
from bench.gateway.peers.found import find, least
from bench.gateway.provenance import heading
from bench.gateway.session import run_target
from bench.gateway.targets import DIRECT, Target

QUICK_SECONDS = 1.5
SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for.

    Attributes:
        peers: Path by name.
        peer_folder: Where peers are looked for otherwise; the cache folder when None.
        only: Names of targets, empty for all that are there.
        cases: Names of cases, empty for all.
        repetitions: Of every target; medians are shown.
        seconds: Measured time of a case, None for the usual.
        is_quick: One repetition, short, without the cases that need long.
        state: Where targets keep their files; the disk matters.
        json_file: Where the figures go, None for nowhere.
        foreign_max: Cores that programs of others may use before a case is run again.
    """

    peers: Mapping[str, Path] = field(default_factory=dict[str, Path])
    peer_folder: Path | None = None
    only: Sequence[str] = ()
    cases: Sequence[str] = ()
    repetitions: int = 3
    seconds: float | None = None
    is_quick: bool = False
    state: Path | None = None
    json_file: Path | None = None
    foreign_max: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything that was measured.

    Attributes:
        summaries: Medians by target, in the order of the table.
        runs: Every repetition.
        faults: Targets that could not be measured, and why.
        conditions: How it was measured.
    """

    summaries: Mapping[str, Summary]
    runs: Sequence[TargetRun]
    faults: Mapping[str, str]
    conditions: Conditions

    @property
    def ledger_problems(self) -> list[str]:
        """What does not hold in a ledger, over all repetitions."""
        found: list[str] = []
        for run in self.runs:
            problems = () if run.ledger is None else run.ledger.problems
            found += [f"{run.target}: {problem}" for problem in problems]
        return found


def say(text: str) -> None:
    """Tell how it goes, on standard error."""
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def conditions_of(options: Options) -> Conditions:
    """Cores and times: the first usable core for the target, the second for load and upstream."""
    cores = proc.usable_cores()
    has_two = len(cores) > 1
    if not has_two:
        say("one core only: load and gateway share it; compare CPU per request, not rates")
    usual_s = QUICK_SECONDS if options.is_quick else SECONDS
    return Conditions(
        seconds=usual_s if options.seconds is None else options.seconds,
        gateway_core=cores[0] if has_two else None,
        load_core=cores[1] if has_two else None,
        foreign_max=options.foreign_max,
        tries_max=1 if options.is_quick else 3,
    )


def cases_of(options: Options) -> list[Case]:
    """The cases that were asked for.

    Raises:
        BenchFault: A name is none of ours.
    """
    unknown = sorted(set(options.cases) - set(CASE_NAMES))
    if unknown:
        raise BenchFault(f"there is no case {unknown[0]!r}; known are {', '.join(CASE_NAMES)}")
    if options.cases:
        return [case for case in CASES if case.name in options.cases]
    return [case for case in CASES if case.is_quick or not options.is_quick]


def targets_of(options: Options) -> list[Target]:
    """The targets that were asked for and are there.

    Raises:
        BenchFault: A name is none of ours, or is not installed.
    """
    all_of_them = [
        DIRECT,
        fareway.target(),
        fareway.target("strict", name="fareway-strict"),
        fareway.target(name="fareway-limited", is_limited=True),
        least(),
        *find(options.peers, folder=options.peer_folder),
    ]
    by_name = {target.name: target for target in all_of_them}
    absent = sorted(set(options.only) - set(by_name))
    if absent:
        raise BenchFault(f"{absent[0]!r} is not there; there are {', '.join(by_name)}")
    return [target for target in all_of_them if not options.only or target.name in options.only]


def run(options: Options) -> Results:
    """Measure every target in every repetition.

    A peer that does not start is left out and named; Fareway that does not is a fault.

    Raises:
        BenchFault: The options make no sense, there is no compiler, or Fareway does not run.
    """
    for name in ("loadgen", "mock_upstream"):
        program(name)
    targets, cases, conditions = targets_of(options), cases_of(options), conditions_of(options)
    state = options.state or cache_folder() / "runs"
    runs: list[TargetRun] = []
    faults: dict[str, str] = {}
    repetitions = 1 if options.is_quick else options.repetitions
    for repetition in range(repetitions):
        say(f"repetition {repetition + 1} of {repetitions}")
        for target in targets:
            if target.name in faults:
                continue
            try:
                runs.append(run_target(target, cases, conditions, state=state, say=say))
            except BenchFault as fault:
                if target.is_fareway:
                    raise
                faults[target.name] = str(fault)
                say(f"{target.name} is left out: {fault}")
    return Results(
        summaries={
            target.name: summarise(
                [each for each in runs if each.target == target.name],
                foreign_max=conditions.foreign_max,
            )
            for target in targets
            if any(each.target == target.name for each in runs)
        },
        runs=runs,
        faults=faults,
        conditions=conditions,
    )


def record(results: Results, stages: object) -> dict[str, object]:
    """The result file's content."""
    return {
        **heading("gateway"),
        "conditions": asdict(results.conditions),
        "summaries": {name: plain(each) for name, each in results.summaries.items()},
        "left_out": dict(results.faults),
        "ledger_problems": results.ledger_problems,
        "stages_us": stages,
        "runs": [plain(each) for each in results.runs],
    }


def write(path: Path, content: object) -> None:
    """Write a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
