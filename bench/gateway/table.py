"""The tables: what each target reached, how many times that is of Fareway's, and the goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.gateway.figures import CaseFigures, Summary
from bench.gateway.goals import FAREWAY, Summaries, added_ms, case_of, ratio, verdicts
from bench.gateway.run import Results

LOAD_IS_FULL = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        heading: Its heading.
        value: From all summaries and a target's name to a number; None where there is none.
        form: How a number is written.
        compares: Whether Fareway's number stands beside it as a ratio.
    """

    heading: str
    value: Callable[[Summaries, str], float | None]
    form: str = ",.0f"
    compares: bool = False


def _of(case: str, figure: str) -> Callable[[Summaries, str], float | None]:
    def get(summaries: Summaries, target: str) -> float | None:
        found = case_of(summaries, target, case)
        return None if found is None else getattr(found, figure)

    return get


def _added(case: str, figure: str) -> Callable[[Summaries, str], float | None]:
    return lambda summaries, target: added_ms(summaries, target, case, figure)


def _memory(summaries: Summaries, target: str) -> float | None:
    return sum(summaries[target].rss_after_mb.values()) or None


def _start(summaries: Summaries, target: str) -> float | None:
    return summaries[target].startup_s


def _goodput(summaries: Summaries, target: str) -> float | None:
    best, loaded = case_of(summaries, target, "max"), case_of(summaries, target, "overload")
    return None if best is None or loaded is None else ratio(loaded.rps, best.rps)


TABLES: Mapping[str, tuple[Column, ...]] = {
    "Plain chat (one core)": (
        Column(heading="req/s", value=_of("max", "rps"), compares=True),
        Column(
            heading="CPU ms/req",
            value=_of("max", "cpu_ms_per_request"),
            form=".3f",
            compares=True,
        ),
        Column(heading="c1 added p50 ms", value=_added("c1", "p50_ms"), form=".3f", compares=True),
        Column(heading="c1 added p99 ms", value=_added("c1", "p99_ms"), form=".3f", compares=True),
        Column(heading="half p50 ms", value=_of("half", "p50_ms"), form=".2f"),
        Column(heading="half p99 ms", value=_of("half", "p99_ms"), form=".2f"),
        Column(heading="RSS MB", value=_memory),
        Column(heading="start s", value=_start, form=".2f"),
    ),
    "Streams": (
        Column(heading="fast chunks/s", value=_of("stream_fast_64", "chunks_per_s"), compares=True),
        Column(
            heading="CPU µs/chunk",
            value=_of("stream_fast_64", "cpu_us_per_chunk"),
            form=".1f",
            compares=True,
        ),
        Column(
            heading="paced added TTFT p50 ms",
            value=_added("stream_paced_64", "ttft_p50_ms"),
            form=".2f",
            compares=True,
        ),
        Column(heading="p99 ms", value=_added("stream_paced_64", "ttft_p99_ms"), form=".2f"),
        Column(heading="transit p99", value=_of("stream_paced_64", "transit_p99_ms"), form=".2f"),
        Column(heading="longest gap ms", value=_of("stream_paced_64", "gap_max_ms"), form=".0f"),
    ),
    "Large bodies and overload": (
        Column(heading="4 KB req/s", value=_of("chat_4kb", "rps"), compares=True),
        Column(heading="200 KB req/s", value=_of("chat_200kb", "rps"), compares=True),
        Column(heading="3 MiB p50 ms", value=_of("body_3mib", "p50_ms"), form=".1f", compares=True),
        Column(heading="2x: goodput", value=_goodput, form=".0%"),
        Column(heading="2x: refused", value=_of("overload", "refused_share"), form=".0%"),
        Column(heading="2x: p99 ms", value=_of("overload", "p99_ms"), form=",.0f"),
        Column(heading="refusal p99 ms", value=_of("overload", "refused_p99_ms"), form=",.0f"),
    ),
}


def show(results: Results, *, console: Console) -> None:
    """Print every table that has a figure, then the goals and what is to be known about the run."""
    summaries = results.summaries
    if FAREWAY in summaries:
        console.print("(n x): Fareway's figure is n times the target's", highlight=False)
    for title, columns in TABLES.items():
        table = _table(title, columns, summaries)
        if table is not None:
            console.print(table)
    _show_processes(summaries, console)
    _show_goals(summaries, console)
    for note in notes(results):
        console.print(note, highlight=False, markup=False)


def _table(title: str, columns: Sequence[Column], summaries: Summaries) -> Table | None:
    used = [
        column
        for column in columns
        if any(column.value(summaries, target) is not None for target in summaries)
    ]
    if not used:
        return None
    table = Table(title=title)
    table.add_column("target")
    for column in used:
        table.add_column(column.heading, justify="right")
    for target in summaries:
        table.add_row(target, *(cell(column, summaries, target) for column in used))
    return table


def cell(column: Column, summaries: Summaries, target: str) -> str:
    """One figure, with Fareway's as a multiple of it where that says something."""
    value = column.value(summaries, target)
    if value is None:
        return "-"
    text = format(value, column.form)
    if not column.compares or target.startswith(FAREWAY) or FAREWAY not in summaries:
        return text
    times = ratio(column.value(summaries, FAREWAY), value)
    return text if times is None or value <= 0 else f"{text} ({times:.3g} x)"


def _show_processes(summaries: Summaries, console: Console) -> None:
    """CPU and memory of each of Fareway's processes."""
    summary = summaries.get(FAREWAY)
    if summary is None or not summary.cases:
        return
    roles = list(summary.rss_after_mb)
    table = Table(title="Fareway by process: CPU µs per request; memory")
    table.add_column("case")
    for role in roles:
        table.add_column(role, justify="right")
    for name, case in summary.cases.items():
        table.add_row(name, *(_micro(case, role) for role in roles))
    table.add_section()
    for label, sizes in (("RSS MB idle", summary.rss_idle_mb), ("after", summary.rss_after_mb)):
        table.add_row(label, *(f"{sizes.get(role, 0):.0f}" for role in roles))
    console.print(table)


def _micro(case: CaseFigures, role: str) -> str:
    used = case.cpu_ms_by_process.get(role)
    return "-" if used is None else f"{used * 1e3:,.1f}"


def _show_goals(summaries: Summaries, console: Console) -> None:
    if FAREWAY not in summaries:
        return
    table = Table(title="Goals (one core, everything on)")
    for heading in ("goal", "measured", ""):
        table.add_column(heading)
    words = {True: "reached", False: "missed", None: "not measured"}
    for verdict in verdicts(summaries):
        table.add_row(verdict.goal, verdict.measured, words[verdict.is_reached])
    console.print(table)


def notes(results: Results) -> list[str]:
    """What a reader has to know about a run, one line each."""
    found: list[str] = []
    for target, summary in results.summaries.items():
        found += [f"{target}, {name}: {what}" for name, what in _oddities(summary)]
    strict = results.summaries.get("fareway-strict")
    if strict is not None and strict.fdatasync_p50_ms is not None:
        found.append(f"a lone fdatasync on this disk: {strict.fdatasync_p50_ms:.3f} ms (p50)")
    found += [f"{name} was left out: {why}" for name, why in results.faults.items()]
    proved = [run for run in results.runs if run.ledger is not None]
    if proved and not results.ledger_problems:
        total = sum(run.ledger.booked for run in proved if run.ledger is not None)
        found.append(
            f"ledger: all {total:,} attempts that the upstream counted in {len(proved)} runs are"
            " booked, none twice"
        )
    found += [f"LEDGER: {problem}" for problem in results.ledger_problems]
    return found


def _oddities(summary: Summary) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, case in summary.cases.items():
        if case.failed:
            found.append((name, f"{case.failed:,.0f} requests failed {case.error_sample[:120]}"))
        if case.foreign_cpu_share > 0.2:
            found.append((name, f"others used {case.foreign_cpu_share:.2f} cores meanwhile"))
        if case.load_core_share > LOAD_IS_FULL:
            found.append((name, "load and upstream filled their core: the target may do more"))
        if case.stalls:
            late = f"the loop was over 5 ms late {case.stalls:g} times"
            found.append((name, f"{late}, {case.stalls_computing:g} of them computing"))
    return found
