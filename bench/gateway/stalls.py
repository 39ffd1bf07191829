"""How often a gateway's event loop was late, by its own watchdog's histogram on `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.gateway.processes import get
from bench.gateway.targets import Subject

LATE = "fareway_loop_stall_seconds"
COMPUTING = "fareway_loop_stall_cpu_seconds"
"""The part of the lateness in which the loop's own thread computed: what is the gateway's fault;
the rest is time in which the kernel ran something else on the core."""

LIMIT_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Counts of lateness over the limit.

    Attributes:
        late: However it came about.
        computing: In which the loop's thread computed for longer than the limit.
    """

    late: int
    computing: int


def read(subject: Subject) -> Stalls | None:
    """Counts since the start of the workers; None for what has no such metric."""
    if not subject.target.is_fareway:
        return None
    try:
        return parse(get(f"http://127.0.0.1:{subject.port}/metrics").decode())
    except OSError:
        return None


def between(before: Stalls | None, after: Stalls | None) -> Stalls | None:
    """What came in between."""
    if before is None or after is None:
        return None
    return Stalls(late=after.late - before.late, computing=after.computing - before.computing)


def parse(text: str) -> Stalls | None:
    """Counts from an exposition in Prometheus' text format; None without the metric."""
    late, computing = over_limit(text.splitlines(), LATE), over_limit(text.splitlines(), COMPUTING)
    if late is None or computing is None:
        return None
    return Stalls(late=late, computing=computing)


def over_limit(lines: Iterable[str], metric: str) -> int | None:
    """Observations of a histogram above the limit; None without the metric.

    A limit between two bounds is rounded down, so that nothing late is missed.
    """
    total: float | None = None
    within = 0.0
    bound_of_within = 0.0
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.partition("{")[0] == f"{metric}_count":
            total = (total or 0.0) + float(value)
        elif name.startswith(f"{metric}_bucket{{"):
            bound = float(name.partition('le="')[2].partition('"')[0])
            if bound_of_within < bound <= LIMIT_S:
                within, bound_of_within = 0.0, bound
            if bound == bound_of_within:
                within += float(value)
    return None if total is None else round(total - within)
