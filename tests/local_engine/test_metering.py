"""Time is divided without a remainder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_engine.metering import Meter, StepCostModel, Work, split_exactly


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


WORK = st.builds(Work.of_chunk, start=st.integers(0, 8000), count=st.integers(1, 512))


@given(st.integers(0, 10**12), st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=50))
def test_the_parts_of_a_split_add_up_and_none_is_negative(total: int, weights) -> None:
    parts = split_exactly(total, weights)
    assert sum(parts) == total
    assert min(parts) >= 0
    assert len(parts) == len(weights)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_a_split_is_proportional(weights) -> None:
    parts = split_exactly(10**12, weights)
    for part, weight in zip(parts, weights, strict=True):
        assert part == pytest.approx(10**12 * weight / sum(weights), abs=1000)


@pytest.mark.parametrize("weights", [[], [1.0, 0.0], [-1.0]])
def test_a_split_without_positive_weights_is_refused(weights) -> None:
    with pytest.raises(ValueError, match="positive"):
        split_exactly(10, weights)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.lists(WORK, max_size=8)),
        max_size=20,
    )
)
def test_shares_and_idle_time_add_up_to_wall_time_to_the_nanosecond(steps) -> None:
    clock = Clock()
    meter = Meter(clock)
    began_ns = clock.now_ns
    shared_ns = 0
    for gap_ns, length_ns, works in steps:
        clock.now_ns += gap_ns
        meter.begin_step()
        clock.now_ns += length_ns
        shared_ns += sum(meter.end_step(works))
        meter.check_integrity()
    clock.now_ns += 5
    meter.settle()
    meter.check_integrity()
    wall_ns = clock.now_ns - began_ns
    assert meter.wall_s == pytest.approx(wall_ns / 1e9)
    assert meter.busy_s == pytest.approx(shared_ns / 1e9)
    assert round((meter.busy_s + meter.idle_s) * 1e9) == wall_ns


def test_a_prefill_is_charged_more_than_the_decodes_beside_it() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.begin_step()
    clock.now_ns += 40_000_000
    prefill, *decodes = meter.end_step(
        [
            Work.of_chunk(start=0, count=512),
            Work.of_chunk(start=4096, count=1),
            Work.of_chunk(start=4096, count=1),
        ]
    )
    assert prefill > 5 * max(decodes)
    assert min(decodes) > 0


def test_work_counts_every_position_that_is_attended_to() -> None:
    work = Work.of_chunk(start=10, count=3)
    assert work == Work(new_tokens=3, context_tokens=11 + 12 + 13)


def test_the_model_learns_what_a_token_costs() -> None:
    model = StepCostModel()
    for step in range(400):
        works = [Work.of_chunk(start=0, count=1 + 37 * step % 300) for _ in range(1 + step % 4)]
        tokens = sum(work.new_tokens for work in works)
        model.observe(works, duration_s=0.002 + 0.0005 * tokens + 0.001 * len(works))
    few, many = Work.of_chunk(start=0, count=10), Work.of_chunk(start=0, count=210)
    assert model.step_s([many]) - model.step_s([few]) == pytest.approx(0.1, rel=0.1)
    assert model.tokens_within(1.0) == pytest.approx(2000, rel=0.1)


@given(st.lists(st.tuples(st.lists(WORK, min_size=1, max_size=8), st.floats(0, 100)), max_size=30))
def test_whatever_was_measured_every_sequence_costs_something(measured) -> None:
    model = StepCostModel()
    for works, duration_s in measured:
        model.observe(works, duration_s=duration_s)
        assert all(0 < model.cost_s(work) < float("inf") for work in works)
