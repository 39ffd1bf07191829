"""Retries are a share of the traffic and no more, in every domain for itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.retry_budget import BURST, FLOOR_PER_S, TOKENS_MAX, RetryBudget


class Ticker:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def spend_all(budget, domain="a"):
    count = 0
    while budget.has_room(domain):
        budget.spend(domain)
        count += 1
    return count


def test_a_new_domain_has_a_burst_and_then_a_floor():
    clock = Ticker()
    budget = RetryBudget(share_ratio=0.2, monotonic_s=clock)
    assert spend_all(budget) == BURST
    clock.now_s += 3.0 / FLOOR_PER_S
    assert spend_all(budget) == 3
    clock.now_s += 1000.0
    assert spend_all(budget) == BURST


def test_traffic_earns_its_share_up_to_a_limit():
    budget = RetryBudget(share_ratio=0.2, monotonic_s=Ticker())
    spend_all(budget)
    for _ in range(50):
        budget.note_first("a")
    assert spend_all(budget) in (9, 10)  # 50 times a fifth, in floating point
    for _ in range(10_000):
        budget.note_first("a")
    assert spend_all(budget) == TOKENS_MAX


def test_domains_do_not_share():
    budget = RetryBudget(share_ratio=0.0, monotonic_s=Ticker())
    spend_all(budget, "a")
    assert not budget.has_room("a")
    assert budget.has_room("b")


@given(
    steps=st.lists(st.tuples(st.booleans(), st.floats(0, 0.5)), max_size=300),
    share_ratio=st.floats(0, 1),
)
def test_an_outage_is_amplified_by_no_more_than_the_share(steps, share_ratio):
    # Every request fails and wants to be repeated: what reaches the domain beside first attempts.
    clock = Ticker()
    budget = RetryBudget(share_ratio=share_ratio, monotonic_s=clock)
    firsts = repeats = 0
    for is_first, passed_s in steps:
        clock.now_s += passed_s
        if is_first:
            budget.note_first("a")
            firsts += 1
        elif budget.has_room("a"):
            budget.spend("a")
            repeats += 1
    allowed = BURST + firsts * share_ratio + (clock.now_s - 100.0) * FLOOR_PER_S
    assert repeats <= allowed + 1e-6
