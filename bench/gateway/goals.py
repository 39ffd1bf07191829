"""What the relay must reach on one core with everything on, held against what was measured.

A goal whose peer or case was not measured says so; nothing here ends the benchmark with a fault,
since the machine and its other users decide too. The ledger's proof does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from bench.gateway.figures import CaseFigures, Summary

FAREWAY = "fareway"
STRICT = "fareway-strict"
FIRST_CHUNK_MS = 20.0
"""What the mock waits before the first chunk of a paced stream, and between chunks."""

UNSATURATED = ("c1", "half", "stream_paced_64", "body_3mib")
"""Cases that leave the loop idle between requests. In the others, many callbacks ready at once
make its timer late although none of them takes long."""

Summaries = Mapping[str, Summary]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A goal and what was measured.

    Attributes:
        goal: In words.
        measured: In words, empty when it could not be measured.
        is_reached: None when it could not be measured.
    """

    goal: str
    measured: str
    is_reached: bool | None


def verdicts(summaries: Summaries) -> list[Verdict]:
    """Every goal."""
    return [make(summaries) for make in _GOALS]


def case_of(summaries: Summaries, target: str, case: str) -> CaseFigures | None:
    """The figures of a case, None when it was not measured."""
    summary = summaries.get(target)
    return None if summary is None else summary.cases.get(case)


def added_ms(summaries: Summaries, target: str, case: str, figure: str) -> float | None:
    """A latency less the upstream's own in the same run; None when either is missing."""
    found = case_of(summaries, target, case)
    alone = case_of(summaries, "direct", case)
    if found is None or alone is None:
        return None
    ours, theirs = (cast("float | None", getattr(each, figure)) for each in (found, alone))
    return None if ours is None or theirs is None else ours - theirs


def ratio(value: float | None, other: float | None) -> float | None:
    """How many times as much; None when either is missing or there is nothing to divide by.

    Less than nothing is what noise makes of a small difference: nothing can be said then either.
    """
    return None if value is None or other is None or other <= 0 else value / other


def _rps(summaries: Summaries, target: str) -> float | None:
    found = case_of(summaries, target, "max")
    return None if found is None else found.rps


def _at_most(goal: str, value: float | None, limit: float | None, unit: str) -> Verdict:
    if value is None or limit is None:
        return Verdict(goal=goal, measured="", is_reached=None)
    return Verdict(goal=goal, measured=_words(value, unit), is_reached=value <= limit)


def _at_least(goal: str, value: float | None, limit: float | None, unit: str) -> Verdict:
    if value is None or limit is None:
        return Verdict(goal=goal, measured="", is_reached=None)
    return Verdict(goal=goal, measured=_words(value, unit), is_reached=value >= limit)


def _words(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{number} {unit}".strip()


def _figure(
    case: str, figure: str, *, target: str = FAREWAY
) -> Callable[[Summaries], float | None]:
    def get(summaries: Summaries) -> float | None:
        found = case_of(summaries, target, case)
        return None if found is None else cast("float | None", getattr(found, figure))

    return get


def _of_peer(peer: str, times: float) -> Callable[[Summaries], Verdict]:
    goal = f"plain chat: at least {times:g} x {peer}'s requests per second"

    def make(summaries: Summaries) -> Verdict:
        times_theirs = ratio(_rps(summaries, FAREWAY), _rps(summaries, peer))
        return _at_least(goal, times_theirs, times, "x")

    return make


def _cpu(summaries: Summaries) -> Verdict:
    value = _figure("max", "cpu_ms_per_request")(summaries)
    return _at_most("plain chat: at most 0.20 ms CPU per request, whole tree", value, 0.20, "ms")


def _added_p50(summaries: Summaries) -> Verdict:
    value = added_ms(summaries, FAREWAY, "c1", "p50_ms")
    return _at_most("1 connection: added p50 at most 0.35 ms", value, 0.35, "ms")


def _added_p99(summaries: Summaries) -> Verdict:
    value = added_ms(summaries, FAREWAY, "c1", "p99_ms")
    theirs = added_ms(summaries, "tensorzero", "c1", "p99_ms")
    times = ratio(value, theirs)
    return _at_most("1 connection: added p99 at most 1.5 x tensorzero's", times, 1.5, "x")


def _strict(summaries: Summaries) -> Verdict:
    value = added_ms(summaries, STRICT, "c1", "p50_ms")
    summary = summaries.get(STRICT)
    times = ratio(value, None if summary is None else summary.fdatasync_p50_ms)
    return _at_most("strict: added p50 at most 1.3 x a lone fdatasync", times, 1.3, "x")


def _goodput(summaries: Summaries) -> Verdict:
    share = ratio(_figure("overload", "rps")(summaries), _rps(summaries, FAREWAY))
    return _at_least("2 x the load: goodput at least 0.9 of the peak", share, 0.9, "of the peak")


def _refusals(summaries: Summaries) -> Verdict:
    goal = "2 x the load: the rest is 429 or 503 within 50 ms (p99), nothing fails"
    found = case_of(summaries, FAREWAY, "overload")
    if found is None:
        return Verdict(goal=goal, measured="", is_reached=None)
    late_ms = found.refused_p99_ms
    lost = found.failed + found.unissued
    words = "none refused" if late_ms is None else f"p99 {late_ms:,.3g} ms"
    return Verdict(
        goal=goal,
        measured=f"{words}, {lost:,} failed or never sent",
        is_reached=late_ms is not None and late_ms <= 50 and lost == 0,
    )


def _chunks(summaries: Summaries) -> Verdict:
    value = _figure("stream_fast_64", "chunks_per_s")(summaries)
    return _at_least("64 fast streams: at least 100,000 chunks per second", value, 100_000, "/s")


def _chunk_cpu(summaries: Summaries) -> Verdict:
    value = _figure("stream_fast_64", "cpu_us_per_chunk")(summaries)
    return _at_most("64 fast streams: at most 9 µs CPU per chunk, whole tree", value, 9, "µs")


def _ttft_p50(summaries: Summaries) -> Verdict:
    value = added_ms(summaries, FAREWAY, "stream_paced_64", "ttft_p50_ms")
    return _at_most("64 paced streams: added TTFT p50 at most 0.5 ms", value, 0.5, "ms")


def _ttft_p99(summaries: Summaries) -> Verdict:
    value = added_ms(summaries, FAREWAY, "stream_paced_64", "ttft_p99_ms")
    return _at_most("64 paced streams: added TTFT p99 at most 5 ms", value, 5, "ms")


def _held(summaries: Summaries) -> Verdict:
    value = _figure("stream_paced_64", "gap_max_ms")(summaries)
    goal = "64 paced streams: no held chunks (no gap over twice the upstream's 20 ms)"
    return _at_most(goal, value, 2 * FIRST_CHUNK_MS, "ms at most")


def _large(summaries: Summaries) -> Verdict:
    ours = _figure("body_3mib", "p50_ms")(summaries)
    theirs = _figure("body_3mib", "p50_ms", target="nginx")(summaries)
    return _at_most("3 MiB body: at most 1.5 x nginx's time", ratio(ours, theirs), 1.5, "x")


def _memory(summaries: Summaries) -> Verdict:
    summary = summaries.get(FAREWAY)
    value = None if summary is None else summary.rss_after_mb.get("worker")
    return _at_most("memory: at most 120 MB per worker after the load", value, 120, "MB")


def _start(summaries: Summaries) -> Verdict:
    summary = summaries.get(FAREWAY)
    value = None if summary is None else summary.startup_s
    return _at_most("start: first 200 within 1.0 s", value, 1.0, "s")


def _stalls(summaries: Summaries) -> Verdict:
    goal = "below saturation the loop is never over 5 ms late through its own computing"
    found = [case_of(summaries, FAREWAY, name) for name in UNSATURATED]
    counts = [None if case is None else case.stalls_computing for case in found]
    known = [count for count in counts if count is not None]
    if not known:
        return Verdict(goal=goal, measured="", is_reached=None)
    return Verdict(goal=goal, measured=f"{sum(known):g} times", is_reached=not sum(known))


_GOALS: tuple[Callable[[Summaries], Verdict], ...] = (
    _of_peer("tensorzero", 1),
    _of_peer("litellm", 50),
    _cpu,
    _added_p50,
    _added_p99,
    _strict,
    _goodput,
    _refusals,
    _chunks,
    _chunk_cpu,
    _ttft_p50,
    _ttft_p99,
    _held,
    _large,
    _memory,
    _start,
    _stalls,
)
