"""What `fareway bench gateway` does: measure, print, write, and fail when the ledger is wrong."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console

from bench.gateway import soak, stages
from bench.gateway.compiled import cache_folder
from bench.gateway.faults import BenchFault
from bench.gateway.provenance import heading, result_path
from bench.gateway.run import Options, conditions_of, record, run, say, write
from bench.gateway.table import show

WIDTH_MIN = 150
"""A narrower terminal wraps; a table cut in columns cannot be read."""


@contextmanager
def _ending_cleanly() -> Generator[None]:
    """Let a SIGTERM end what was started too, as a Ctrl-C does."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_bench(options: Options) -> None:
    """Measure every target, print the tables, write the file.

    Raises:
        BenchFault: A ledger does not hold what the upstream counted, or nothing can be measured.
    """
    console = _console()
    with _ending_cleanly():
        results = run(options)
    budget = stages.measure(core=results.conditions.gateway_core)
    show(results, console=console)
    stages.show(budget, console=console)
    if options.json_file is not None:
        write(options.json_file, record(results, stages.plain(budget)))
    if results.ledger_problems:
        raise BenchFault("the ledger does not hold what the upstream counted; see above")


def run_stages(options: Options) -> None:
    """Time the parts of a request inside the worker, nothing else."""
    budget = stages.measure(core=conditions_of(options).gateway_core)
    stages.show(budget, console=_console())
    if options.json_file is not None:
        write(options.json_file, {**heading("gateway-stages"), "us": stages.plain(budget)})


def _console() -> Console:
    console = Console()
    return console if console.width >= WIDTH_MIN else Console(width=WIDTH_MIN)


def run_soak(options: Options, *, requests: int, seed: int) -> None:
    """Run the soak and write its result file.

    Raises:
        BenchFault: Memory grew, a request failed, or the ledger is wrong.
    """
    with _ending_cleanly():
        result = soak.soak(
            conditions_of(options),
            state=options.state or cache_folder() / "runs",
            requests=requests,
            seed=seed,
            say=say,
        )
    path = options.json_file or result_path("gateway-soak")
    write(path, {**heading("gateway-soak"), **soak.record(result, seed=seed)})
    grown = ", ".join(f"{name} {share:.2%}" for name, share in result.growth.items())
    Console().print(
        f"{result.requests:,} requests, {result.hung_up:,} left by the client,"
        f" {result.failed:,} failed; growth: {grown}; ledger: {result.proof.booked:,} booked of"
        f" {result.proof.upstream_requests:,}; figures: {path}",
        markup=False,
        highlight=False,
    )
    if result.problems:
        raise BenchFault("; ".join(result.problems))
