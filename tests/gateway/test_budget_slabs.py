"""Slabs: what a worker holds is never more than what it was leased, whatever happens in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.budgets.messages import BudgetRule, BudgetScope, BudgetState, BudgetWindow, Lease
from gateway.budgets.slabs import Bucket, Budget, hold
from gateway.budgets.windows import Window

HOUR_US = 3_600_000_000


def rule(**changes) -> BudgetRule:
    facts = {
        "budget_id": 1, "name": "team apps, day", "scope": BudgetScope.TEAM, "team": "apps",
        "limit_pico_usd": 10**12, "window": BudgetWindow.DAY,
    }  # fmt: skip
    return BudgetRule(**{**facts, **changes})


STATE = BudgetState(
    budget_id=1, window_start_us=0, window_end_us=24 * HOUR_US, limit_pico_usd=100,
    spent_pico_usd=0, reserved_pico_usd=90, exposed_pico_usd=0,
)  # fmt: skip


def bucket(*amounts: int, budget_id: int = 1) -> Bucket:
    made = Bucket(rule(budget_id=budget_id), Window(start_us=0, end_us=24 * HOUR_US), now_us=0)
    for number, amount in enumerate(amounts):
        made.add(lease(budget_id * 100 + number, amount, budget_id=budget_id), now_us=0)
    return made


def lease(number: int, amount: int, budget_id: int = 1) -> Lease:
    return Lease(
        lease_id=number.to_bytes(16, "big"), budget_id=budget_id, window_start_us=0,
        window_end_us=24 * HOUR_US, amount_pico_usd=amount,
    )  # fmt: skip


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lease"), st.integers(0, 2), st.integers(1, 50)),
        st.tuples(st.just("hold"), st.sets(st.integers(0, 2), min_size=1), st.integers(1, 40)),
        st.tuples(st.just("undo"), st.integers(0, 10), st.none()),
        st.tuples(st.just("return"), st.integers(0, 2), st.none() | st.integers(1, 40)),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_lease_is_held_in_hand_or_given_back_and_nothing_of_it_twice(steps):
    buckets = [bucket(budget_id=number + 1) for number in range(3)]
    leased: dict[bytes, int] = {}
    held: dict[bytes, int] = {}
    given_back: dict[bytes, int] = {}
    taken: list[tuple[list[Bucket], tuple, int]] = []
    for step, where, amount in steps:
        if step == "lease":
            made = lease(len(leased) + 1, amount, budget_id=where + 1)
            leased[made.lease_id] = amount
            buckets[where].add(made, now_us=0)
        elif step == "hold":
            chosen = [buckets[number] for number in sorted(where)]
            before = [one.in_hand_pico_usd for one in chosen]
            fits = all(one.fitting(amount) for one in chosen)
            slabs = hold(chosen, amount, now_us=0)
            assert (slabs is not None) == fits
            if slabs is None:
                assert [one.in_hand_pico_usd for one in chosen] == before, "all or nothing"
                continue
            taken.append((chosen, slabs, amount))
            for slab in slabs:
                held[slab.lease_id] = held.get(slab.lease_id, 0) + amount
        elif step == "undo" and taken:
            chosen, slabs, amount = taken.pop(where % len(taken))
            for one, slab in zip(chosen, slabs, strict=True):
                one.put_back(slab, amount)
                held[slab.lease_id] -= amount
        elif step == "return":
            for lease_id, left in buckets[where].give_back(below_pico_usd=amount).items():
                given_back[lease_id] = given_back.get(lease_id, 0) + left
        for lease_id, amount in leased.items():
            assert held.get(lease_id, 0) + given_back.get(lease_id, 0) <= amount
        in_hand = sum(one.in_hand_pico_usd for one in buckets)
        total = in_hand + sum(held.values()) + sum(given_back.values())
        assert total == sum(leased.values())
        assert all(one.in_hand_pico_usd >= 0 for one in buckets)


def test_a_hold_is_covered_by_one_lease_since_the_intent_names_one_amount_for_all():
    made = bucket(30, 30)
    assert hold([made], 40, now_us=0) is None
    assert made.in_hand_pico_usd == 60


def test_small_remainders_are_given_back_and_others_stay():
    made = bucket(10, 50, 20)
    assert sum(made.give_back(below_pico_usd=30).values()) == 30
    assert made.in_hand_pico_usd == 50


def test_a_slab_is_asked_for_by_what_was_spent_lately():
    made = bucket(1_000)
    for second in range(10):
        assert hold([made], 50, now_us=second * 1_000_000)
    # 500 in ten seconds: 50 a second, of which half is believed the first time; four holds are more.
    assert made.wanted(0, now_us=10_000_000) == 1  # 500 are in hand
    assert made.wanted(700, now_us=11_000_000) == 701
    assert not made.is_low
    assert hold([made], 450, now_us=11_000_000)
    assert made.is_low, "less in hand than two such holds"


def test_a_bucket_is_that_of_the_instant_and_the_old_one_is_handed_out_at_the_turn():
    budget = Budget(rule())
    first, before = budget.turn(23 * HOUR_US, now_us=0)
    assert before is None
    assert budget.bucket_at(24 * HOUR_US - 1) is first
    assert budget.bucket_at(24 * HOUR_US) is None
    second, before = budget.turn(24 * HOUR_US, now_us=0)
    assert before is first
    assert second.window.start_us == 24 * HOUR_US


def test_another_limit_keeps_the_bucket_and_another_window_does_not():
    budget = Budget(rule())
    made, _ = budget.turn(0, now_us=0)
    made.pause_until_us = made.ahead_from_us = 5
    made.shortage = STATE
    assert budget.follow(rule(limit_pico_usd=5)) is None
    assert budget.bucket is made
    assert (made.rule.limit_pico_usd, made.shortage) == (5, None)
    assert made.pause_until_us == made.ahead_from_us == 0
    assert budget.follow(rule(window=BudgetWindow.WEEK)) is made
    assert budget.bucket is None
    assert budget.follow(rule()) is None
