"""Money paid in advance."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.commitments import Commitment, CommitmentKind, burn_down, daily_costs


def credit(paid=100, first=date(2026, 11, 1), last=date(2026, 11, 30)):
    return Commitment(
        name="credit",
        kind=CommitmentKind.CREDIT,
        paid_pico_usd=paid,
        first_day=first,
        last_day=last,
    )


@given(st.integers(1, 10**18), st.lists(st.integers(0, 10**17), max_size=40))
def test_every_picodollar_is_drawn_left_or_lapsed(paid, usage):
    found = burn_down(credit(paid), usage)
    left = found.left_pico_usd[-1] if usage else paid
    assert sum(found.drawn_pico_usd) + left == paid
    assert sum(found.drawn_pico_usd) + found.beyond_pico_usd == sum(usage)
    assert found.lapsed_pico_usd in (0, left)


def test_it_goes_down_and_says_when_it_is_gone():
    found = burn_down(credit(), [30, 30, 30, 30])
    assert found.drawn_pico_usd == (30, 30, 30, 10)
    assert found.left_pico_usd == (70, 40, 10, 0)
    assert found.beyond_pico_usd == 20
    assert found.runs_out_on == date(2026, 11, 4)


def test_the_day_on_which_it_will_be_gone_follows_from_the_pace():
    found = burn_down(credit(), [10, 10])
    assert found.pace_pico_usd == 10
    assert found.runs_out_on == date(2026, 11, 10)


def test_a_credit_that_lasts_has_no_such_day():
    assert burn_down(credit(), [1, 1]).runs_out_on is None
    assert burn_down(credit(), [0, 0]).runs_out_on is None
    assert burn_down(credit(), []).runs_out_on is None


def test_what_is_left_after_the_last_day_has_lapsed():
    found = burn_down(credit(last=date(2026, 11, 2)), [10, 10, 10])
    assert found.left_pico_usd == (90, 80, 80)
    assert (found.lapsed_pico_usd, found.beyond_pico_usd) == (80, 10)


def test_capacity_costs_the_same_every_day_and_together_what_was_paid():
    costs = daily_costs(credit(paid=100, last=date(2026, 11, 3)))
    assert costs == (34, 33, 33)


@pytest.mark.parametrize(
    "bad", [{"paid": 0}, {"first": date(2026, 12, 1)}], ids=["nothing paid", "ends before"]
)
def test_a_purchase_that_means_nothing_is_refused(bad):
    with pytest.raises(ValueError, match="credit: "):
        credit(**bad)
