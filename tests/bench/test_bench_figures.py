"""From measurements to medians, goals and table cells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gateway import stalls
from bench.gateway.cases import CASES
from bench.gateway.figures import CaseFigures, Summary, TargetRun, median_case, plain, summarise
from bench.gateway.goals import Verdict, added_ms, verdicts
from bench.gateway.soak import growth
from bench.gateway.table import TABLES, cell

EXPOSITION = """\
# TYPE fareway_loop_stall_seconds histogram
fareway_loop_stall_seconds_bucket{le="0.002"} 90
fareway_loop_stall_seconds_bucket{le="0.005"} 95
fareway_loop_stall_seconds_bucket{le="0.01"} 99
fareway_loop_stall_seconds_bucket{le="+Inf"} 100
fareway_loop_stall_seconds_sum 0.5
fareway_loop_stall_seconds_count 100
fareway_loop_stall_cpu_seconds_bucket{le="0.005"} 98
fareway_loop_stall_cpu_seconds_bucket{le="+Inf"} 100
fareway_loop_stall_cpu_seconds_count 100
"""
QUIET = CaseFigures(requests=100, rps=1000.0, p50_ms=1.0, cpu_ms_by_process={"worker": 0.1})


def summary(**cases: CaseFigures) -> Summary:
    return Summary(
        startup_s=0.9,
        rss_idle_mb={"worker": 60.0},
        rss_after_mb={"worker": 119.0, "ledger_process": 70.0},
        fdatasync_p50_ms=None,
        cases=cases,
    )


def verdict_of(words: str, summaries: dict[str, Summary]) -> Verdict:
    return next(each for each in verdicts(summaries) if words in each.goal)


def test_the_median_leaves_out_repetitions_that_others_disturbed() -> None:
    noisy = replace(QUIET, rps=100.0, foreign_cpu_share=0.9)
    better = replace(QUIET, rps=1200.0)
    assert median_case([QUIET, noisy, better], foreign_max=0.2).rps == 1100.0


def test_without_a_quiet_repetition_the_quietest_counts() -> None:
    noisy = replace(QUIET, rps=100.0, foreign_cpu_share=0.9)
    loud = replace(QUIET, rps=50.0, foreign_cpu_share=1.5)
    assert median_case([loud, noisy], foreign_max=0.2).rps == 100.0


def test_failures_are_not_averaged_away() -> None:
    bad = replace(QUIET, failed=7, stalls_computing=2, error_sample="502")
    found = median_case([QUIET, bad, QUIET], foreign_max=0.2)
    assert (found.failed, found.stalls_computing, found.error_sample) == (7, 2, "502")


def test_medians_are_per_process_and_per_case() -> None:
    runs = [
        TargetRun(
            target="fareway",
            startup_s=startup_s,
            rss_idle_mb={"worker": 60.0},
            rss_after_mb={"worker": rss_mb},
            cases={"max": replace(QUIET, cpu_ms_by_process={"worker": cpu_ms})},
        )
        for startup_s, rss_mb, cpu_ms in ((1.0, 70.0, 0.1), (3.0, 80.0, 0.2), (2.0, 90.0, 0.3))
    ]
    found = summarise(runs, foreign_max=0.2)
    assert found.startup_s == 2.0
    assert found.rss_after_mb == {"worker": 80.0}
    assert found.cases["max"].cpu_ms_by_process == {"worker": 0.2}


def test_what_was_not_measured_is_not_in_the_file() -> None:
    found = plain(QUIET)
    assert isinstance(found, dict)
    assert found["rps"] == 1000.0
    assert "ttft_p50_ms" not in found
    assert found["failed"] == 0


def test_added_latency_is_less_the_upstreams_own() -> None:
    summaries = {
        "direct": summary(c1=replace(QUIET, p50_ms=0.06)),
        "fareway": summary(c1=replace(QUIET, p50_ms=0.36)),
    }
    assert added_ms(summaries, "fareway", "c1", "p50_ms") == pytest.approx(0.30)
    assert added_ms(summaries, "fareway", "half", "p50_ms") is None
    assert verdict_of("added p50 at most 0.35", summaries).is_reached is True


GOALS = {
    "a rate above the peer's reaches": ("1 x tensorzero", {"rps": 5001.0}, True),
    "a rate below the peer's misses": ("1 x tensorzero", {"rps": 4999.0}, False),
    "little CPU reaches": ("0.20 ms CPU", {"cpu_ms_per_request": 0.19}, True),
    "more CPU misses": ("0.20 ms CPU", {"cpu_ms_per_request": 0.21}, False),
}


@pytest.mark.parametrize(("words", "figures", "is_reached"), GOALS.values(), ids=GOALS.keys())
def test_goals(words: str, figures: dict[str, float], is_reached: bool) -> None:
    summaries = {
        "fareway": summary(max=replace(QUIET, **figures)),
        "tensorzero": summary(max=replace(QUIET, rps=5000.0)),
    }
    assert verdict_of(words, summaries).is_reached is is_reached


OVERLOADS = {
    "quick refusals and no loss": ({"refused_p99_ms": 49.0}, True),
    "late refusals": ({"refused_p99_ms": 51.0}, False),
    "a failure": ({"refused_p99_ms": 10.0, "failed": 1}, False),
    "requests that could not be sent": ({"refused_p99_ms": 10.0, "unissued": 1}, False),
    "no refusal at twice the load": ({}, False),
}


@pytest.mark.parametrize(("figures", "is_reached"), OVERLOADS.values(), ids=OVERLOADS.keys())
def test_refusals_under_overload(figures: dict[str, float], is_reached: bool) -> None:
    summaries = {"fareway": summary(overload=replace(QUIET, **figures))}
    assert verdict_of("429 or 503", summaries).is_reached is is_reached


@pytest.mark.parametrize(("computing", "is_reached"), [(0, True), (1, False)])
def test_a_late_loop_counts_where_it_had_time(computing: int, is_reached: bool) -> None:
    late = replace(QUIET, stalls=9, stalls_computing=computing)
    full = replace(QUIET, stalls=50, stalls_computing=50)
    summaries = {"fareway": summary(half=late, max=full)}
    assert verdict_of("never over 5 ms late", summaries).is_reached is is_reached


def test_a_difference_below_nothing_is_no_ratio() -> None:
    summaries = {
        "direct": summary(c1=replace(QUIET, p99_ms=2.0)),
        "fareway": summary(c1=replace(QUIET, p99_ms=3.0)),
        "tensorzero": summary(c1=replace(QUIET, p99_ms=1.5)),
    }
    assert verdict_of("1.5 x tensorzero's", summaries).is_reached is None


def test_a_goal_without_its_peer_is_not_measured() -> None:
    found = verdict_of("50 x litellm", {"fareway": summary(max=QUIET)})
    assert found.is_reached is None


def test_memory_is_the_workers_and_not_the_trees() -> None:
    assert verdict_of("120 MB per worker", {"fareway": summary(max=QUIET)}).is_reached is True


def test_a_cell_says_how_many_times_the_targets_figure_ours_is() -> None:
    column = TABLES["Plain chat (one core)"][0]
    summaries = {
        "fareway": summary(max=replace(QUIET, rps=5000.0)),
        "litellm": summary(max=replace(QUIET, rps=100.0)),
        "nginx": summary(),
    }
    assert cell(column, summaries, "fareway") == "5,000"
    assert cell(column, summaries, "litellm") == "100 (50 x)"
    assert cell(column, summaries, "nginx") == "-"


def test_lateness_over_five_milliseconds_is_read_from_the_histogram() -> None:
    found = stalls.parse(EXPOSITION)
    assert found == stalls.Stalls(late=5, computing=2)
    earlier = stalls.Stalls(late=2, computing=2)
    assert stalls.between(earlier, found) == stalls.Stalls(late=3, computing=0)


def test_a_gateway_without_the_watchdog_has_no_stalls_to_tell() -> None:
    assert stalls.parse("fareway_requests_total 3\n") is None
    assert stalls.between(None, stalls.Stalls(late=1, computing=1)) is None


def test_growth_is_per_process_and_never_negative() -> None:
    before = {"worker": 100.0, "ledger_process": 80.0, "gone": 5.0}
    found = growth(before, {"worker": 103.0, "ledger_process": 70.0})
    assert found == {"worker": pytest.approx(0.03), "ledger_process": 0.0}


SIZES = {
    "chat_4kb": (3_500, 5_500),
    "chat_200kb": (180_000, 260_000),
    "body_3mib": (3 * 1024 * 1024, 3 * 1024 * 1024 + 1_000),
    "max": (100, 400),
}


@pytest.mark.parametrize("name", SIZES)
def test_bodies_have_the_size_that_their_case_promises(name: str) -> None:
    least, most = SIZES[name]
    body = next(case for case in CASES if case.name == name).body("mock")
    assert least <= len(body) <= most
    assert body == next(case for case in CASES if case.name == name).body("mock")
