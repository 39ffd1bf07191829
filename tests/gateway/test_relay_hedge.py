"""When a hedge starts, where it goes, and which attempt is the answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.failures import Failure
from gateway.relay.hedge import DELAY_S_MIN, SAMPLES_MIN, Hedge, HedgePolicy, Race
from gateway.relay.retry_budget import BURST, RetryBudget
from providers.errors import Overloaded


def policy(percentile=95.0) -> HedgePolicy:
    return HedgePolicy(
        after_percentile=percentile,
        budget=RetryBudget(share_ratio=0.0, monotonic_s=lambda: 0.0),
        domain_of=lambda name: {"p/m": "shared", "q/m": "shared"}.get(name, name),
    )


def plan(candidates, *, running=0, failed=(), ttfts_s=(1.0,) * 40, left_s=60.0):
    failures = [Failure(deployment=name, error=Overloaded("x")) for name in failed]
    return policy().plan(
        candidates, running=running, failures=failures, ttfts_s=ttfts_s, left_s=left_s
    )


HEDGES = {
    "the next in the decision's order": (["a/m", "b/m", "c/m"], 0, (), 1),
    "not one that failed": (["a/m", "b/m", "c/m"], 0, ("b/m",), 2),
    "not itself": (["a/m", "b/m"], 1, ("a/m",), None),
    "not one of the same quota group": (["p/m", "q/m", "c/m"], 0, (), 2),
    "nobody where there is nobody": (["a/m"], 0, (), None),
}


@pytest.mark.parametrize(
    ("candidates", "running", "failed", "chosen"), HEDGES.values(), ids=HEDGES.keys()
)
def test_where_a_hedge_goes(candidates, running, failed, chosen):
    found = plan(candidates, running=running, failed=failed)
    assert found == (None if chosen is None else Hedge(candidate=chosen, start_s=1.0))


def test_no_hedge_without_knowledge_or_without_time():
    both = ["a/m", "b/m"]
    assert plan(both, ttfts_s=[1.0] * (SAMPLES_MIN - 1)) is None
    assert plan(both, left_s=1.0) is None
    assert plan(both, left_s=1.1) is not None


def test_a_hedge_is_never_immediate():
    assert policy().delay_s([0.001] * 50) == DELAY_S_MIN


@given(
    ttfts_s=st.lists(st.floats(DELAY_S_MIN, 100), min_size=SAMPLES_MIN, max_size=200),
    percentile=st.floats(1, 99),
)
def test_no_more_attempts_are_hedged_than_the_percentile_leaves(ttfts_s, percentile):
    delay_s = policy(percentile).delay_s(ttfts_s)
    late = sum(one > delay_s for one in ttfts_s)
    assert late <= len(ttfts_s) * (1 - percentile / 100) + 1e-6


def test_hedges_have_the_retry_budget():
    made = policy()
    assert [made.may_start("a/m") for _ in range(12)] == [True] * round(BURST) + [False] * 2
    assert made.may_start("b/m")


def test_the_first_attempt_with_content_is_the_answer():
    race = Race()
    assert race.winner is None
    assert [race.claim(2), race.claim(1), race.claim(2)] == [True, False, True]
    assert race.winner == 2
