"""The algorithm against a slow one that keeps every request, in exact fractions."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.gcra import MINUTE_US, Bucket

RATES = st.one_of(st.integers(1, 20), st.integers(1, 10**12), st.sampled_from([7, 600, 10**9]))
STEPS = st.lists(
    st.tuples(st.integers(0, 2 * MINUTE_US), st.integers(0, 40)), min_size=1, max_size=40
)


@dataclass
class Puddle:
    """A leaky bucket as one would draw it: a level, and a drain of `rate` units a minute."""

    rate: int
    burst: int
    level: Fraction = Fraction(0)
    at_us: int = 0
    admitted: list[tuple[int, int]] = field(default_factory=list)

    def drain(self, now_us: int) -> None:
        gone = Fraction(self.rate * (now_us - self.at_us), MINUTE_US)
        self.level, self.at_us = max(self.level - gone, Fraction(0)), now_us

    def take(self, now_us: int, units: int) -> bool:
        self.drain(now_us)
        if self.level + units > self.burst:
            return False
        self.level += units
        self.admitted.append((now_us, units))
        return True


@given(rate=RATES, burst=st.integers(1, 60), steps=STEPS)
def test_it_admits_what_a_leaky_bucket_of_exact_fractions_admits(rate, burst, steps):
    bucket, puddle = Bucket(rate, burst), Puddle(rate, burst)
    arrival = now_us = 0
    for pause_us, units in steps:
        now_us += pause_us
        after = bucket.after(arrival, now_us, units)
        wait_us = bucket.wait_us(after, now_us)
        assert (wait_us == 0) == puddle.take(now_us, units)
        if not wait_us:
            arrival = after
        assert bucket.left(arrival, now_us) == int(burst - puddle.level)
        room_us = puddle.level * MINUTE_US / rate
        assert room_us <= bucket.reset_us(arrival, now_us) < room_us + 1


@given(rate=RATES, burst=st.integers(1, 60), steps=STEPS)
def test_no_window_holds_more_than_the_burst_and_what_flows_in_meanwhile(rate, burst, steps):
    bucket, arrival, now_us = Bucket(rate, burst), 0, 0
    admitted: list[tuple[int, int]] = []
    for pause_us, units in steps:
        now_us += pause_us
        after = bucket.after(arrival, now_us, units)
        if not bucket.wait_us(after, now_us):
            arrival = after
            admitted.append((now_us, units))
    for first in range(len(admitted)):
        total = 0
        for at_us, units in admitted[first:]:
            total += units
            window = Fraction(rate * (at_us - admitted[first][0]), MINUTE_US)
            assert total <= burst + window


@given(rate=RATES, burst=st.integers(1, 60), steps=STEPS, units=st.integers(1, 60))
def test_a_refused_request_is_admitted_after_the_wait_it_was_told_and_not_before(
    rate, burst, steps, units
):
    bucket, arrival, now_us = Bucket(rate, burst), 0, 0
    for pause_us, taken in steps:
        now_us += pause_us
        arrival = bucket.after(arrival, now_us, taken)  # over the burst, too
    units = min(units, burst)
    wait_us = bucket.wait_us(bucket.after(arrival, now_us, units), now_us)
    then_us = now_us + wait_us
    assert bucket.wait_us(bucket.after(arrival, then_us, units), then_us) == 0
    if wait_us:
        assert bucket.wait_us(bucket.after(arrival, then_us - 1, units), then_us - 1) > 0


@given(rate=RATES, steps=STEPS, backs=st.lists(st.integers(-60, 60), max_size=40))
def test_corrections_keep_the_level_that_exact_fractions_have(rate, steps, backs):
    bucket, puddle, arrival, now_us = Bucket(rate, 60), Puddle(rate, 60), 0, 0
    for (pause_us, units), change in zip(steps, backs, strict=False):
        now_us += pause_us
        arrival = bucket.after(arrival, now_us, units)
        puddle.drain(now_us)
        puddle.level += units
        arrival = bucket.corrected(arrival, now_us, change)
        puddle.level = max(puddle.level + change, Fraction(0))
        assert bucket.left(arrival, now_us) == max(int((60 - puddle.level) // 1), 0)


@given(
    rate=RATES, burst=st.integers(1, 30),
    steps=st.lists(
        st.tuples(st.integers(0, MINUTE_US), st.booleans(), st.integers(0, MINUTE_US)),
        min_size=1, max_size=30,
    ),
)  # fmt: skip
def test_requests_that_came_to_nothing_never_let_more_of_the_others_in(rate, burst, steps):
    """Each is undone after a while or served; those served keep the limit in every window."""
    bucket, arrival = Bucket(rate, burst), 0
    now_us, served, pending = 0, [], []
    for pause_us, is_undone, later_us in steps:
        now_us += pause_us
        for due in [one for one in pending if one[0] <= now_us]:
            pending.remove(due)
            arrival = bucket.undone(arrival, now_us, 1, due[1])
        after = bucket.after(arrival, now_us, 1)
        if bucket.wait_us(after, now_us):
            continue
        arrival = after
        if is_undone:
            pending.append((now_us + later_us, after))
        else:
            served.append(now_us)
    for first, start_us in enumerate(served):
        for count, at_us in enumerate(served[first:], start=1):
            assert count <= burst + Fraction(rate * (at_us - start_us), MINUTE_US)


def test_a_share_is_never_nothing():
    assert Bucket(10, 3).shared(4) == Bucket(2, 1)
