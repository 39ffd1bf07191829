"""One repetition of one target: start, first 200, cases, ledger proof, stop."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.gateway.cases import CASES, PLAIN, Case
from bench.gateway.disk import DiskSync, lone_fdatasync
from bench.gateway.faults import BenchFault
from bench.gateway.figures import CaseFigures, TargetRun
from bench.gateway.ledger_proof import prove
from bench.gateway.load import LoadPlan, run_load
from bench.gateway.measure import Conditions, measure, memory_mb, plan_for
from bench.gateway.mock import Mock
from bench.gateway.processes import Running, start, wait_for_200
from bench.gateway.targets import Launch, Place, Subject, Target, first_question

Say = Callable[[str], None]

MAX_CASE = "max"
MAX_ESTIMATE_S = 1.0
PORT_FILE_WITHIN_S = 60.0
WARMUP_CONNECTIONS = 16


def run_target(
    target: Target,
    cases: Sequence[Case],
    conditions: Conditions,
    *,
    state: Path,
    say: Say,
) -> TargetRun:
    """Measure a target once, from a cold start.

    Raises:
        BenchFault: It does not start or does not answer.
    """
    with started(target, conditions, state=state) as (subject, startup_s):
        _warm_up(subject, conditions)
        idle_mb = memory_mb(subject.root_pid)
        disk = lone_fdatasync(subject.folder) if target.durability == "strict" else None
        figures = _run_cases(subject, cases, conditions, say)
        after_mb = memory_mb(subject.root_pid)
        proof = prove(subject.folder, subject.mock.stats()) if target.is_fareway else None
    return TargetRun(
        target=target.name,
        startup_s=startup_s,
        rss_idle_mb=idle_mb,
        rss_after_mb=after_mb,
        cases=figures,
        fdatasync_p50_ms=_p50(disk),
        fdatasync_p99_ms=None if disk is None else disk.p99_ms,
        ledger=proof,
    )


def _p50(disk: DiskSync | None) -> float | None:
    return None if disk is None else disk.p50_ms


@contextmanager
def started(
    target: Target, conditions: Conditions, *, state: Path
) -> Generator[tuple[Subject, float | None]]:
    """A target that answers, with an upstream of its own; both end with the block.

    The files are removed too, except after a fault: then its message names them.
    """
    state.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=state))
    try:
        with _processes(target, conditions, folder) as found:
            yield found
    except BenchFault as fault:
        raise BenchFault(f"{fault} (files: {folder})") from fault
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _processes(
    target: Target, conditions: Conditions, folder: Path
) -> Generator[tuple[Subject, float | None]]:
    mock_core = conditions.gateway_core if target.prepare is None else conditions.load_core
    with ExitStack() as stack:
        mock = Mock.start(core=mock_core, folder=folder)
        stack.callback(mock.stop)
        if target.prepare is None:
            launch = Launch(command=())
            yield _subject(target, None, mock, launch, mock.port, folder), None
            return
        place = Place.make(folder, mock)
        launch = target.prepare(place)
        running = start(
            launch.command,
            name=target.name,
            core=conditions.gateway_core,
            folder=folder,
            environment=launch.environment,
        )
        stack.callback(running.stop)
        port = place.port if launch.port_file is None else _port_from(launch.port_file, running)
        startup_s = _first_200(running, launch, port)
        yield _subject(target, running, mock, launch, port, folder), startup_s


def _subject(
    target: Target,
    running: Running | None,
    mock: Mock,
    launch: Launch,
    port: int,
    folder: Path,
) -> Subject:
    return Subject(
        target=target, running=running, mock=mock, launch=launch, port=port, folder=folder
    )


def _first_200(running: Running, launch: Launch, port: int) -> float:
    took_s, _ = wait_for_200(
        running,
        port,
        launch.path,
        first_question(f"{launch.model_prefix}{PLAIN}"),
        headers=launch.headers,
        within_s=launch.ready_within_s,
    )
    return took_s


def _port_from(file: Path, running: Running) -> int:
    """The port in a base URL that a program wrote into a file once it listened."""
    deadline_s = time.monotonic() + PORT_FILE_WITHIN_S
    while time.monotonic() < deadline_s:
        running.check()
        text = file.read_text().strip() if file.exists() else ""
        if text:
            return int(text.split("://", 1)[-1].split("/", 1)[0].rpartition(":")[2])
        time.sleep(0.01)
    raise BenchFault(f"{running.name} did not say where it listens: {running.tail()}")


def _warm_up(subject: Subject, conditions: Conditions) -> None:
    """Let code be imported, connections be opened, and just-in-time compilers do their work."""
    case = next(case for case in CASES if case.name == MAX_CASE)
    plan = plan_for(case, subject, seconds=MAX_ESTIMATE_S, rate=None, folder=subject.folder)
    run_load(
        LoadPlan(
            url=plan.url,
            body=plan.body,
            headers=plan.headers,
            connections=WARMUP_CONNECTIONS,
            duration_s=MAX_ESTIMATE_S,
        ),
        core=conditions.load_core,
    )


def _run_cases(
    subject: Subject, cases: Sequence[Case], conditions: Conditions, say: Say
) -> dict[str, CaseFigures]:
    figures: dict[str, CaseFigures] = {}
    taken = subject.target.cases
    for case in cases:
        if taken is not None and case.name not in taken:
            continue
        if subject.target.is_limit and not case.is_for_limits:
            continue
        rate = None
        if case.rate_share is not None:
            rate = case.rate_share * _own_maximum(subject, conditions, figures)
            if rate <= 0:
                continue
        figures[case.name] = found = measure(case, subject, conditions, rate=rate)
        say(f"{subject.target.name}: {case.name} {found.rps:,.0f} req/s, {found.failed} failed")
    return figures


def _own_maximum(
    subject: Subject, conditions: Conditions, figures: dict[str, CaseFigures]
) -> float:
    """Requests per second that the target reaches; measured now when no case has."""
    if MAX_CASE not in figures:
        case = next(case for case in CASES if case.name == MAX_CASE)
        figures[MAX_CASE] = measure(case, subject, conditions, rate=None)
    return figures[MAX_CASE].rps
