"""Parts that add up again."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.shares import round_together, split

amounts = st.integers(-(10**21), 10**21)
weights = st.lists(st.integers(0, 10**12), min_size=1, max_size=30).filter(any)


@given(amounts, weights)
def test_the_parts_add_up_and_none_is_off_by_a_unit(amount, given_weights):
    parts = split(amount, given_weights)
    assert sum(parts) == amount
    total = sum(given_weights)
    for part, weight in zip(parts, given_weights, strict=True):
        assert abs(part - Fraction(amount * weight, total)) < 1


@given(amounts, weights)
def test_money_back_is_split_like_money(amount, given_weights):
    assert split(-amount, given_weights) == tuple(-part for part in split(amount, given_weights))


def test_the_largest_remainder_gets_what_is_left_and_equal_ones_in_their_order():
    assert split(100, [1, 1, 1]) == (34, 33, 33)
    assert split(10, [Fraction(1, 3), Fraction(2, 3)]) == (3, 7)
    assert split(5, [0, 2, 0, 1]) == (0, 3, 0, 2)


@given(amounts, weights)
def test_a_part_without_weight_gets_nothing(amount, given_weights):
    for part, weight in zip(split(amount, given_weights), given_weights, strict=True):
        assert weight or part == 0


@pytest.mark.parametrize("bad", [[], [0], [0, 0], [1, -1], [-1]])
def test_weights_that_mean_nothing_are_refused(bad):
    with pytest.raises(ValueError, match="weight"):
        split(1, bad)


@given(st.lists(st.fractions(max_denominator=10**6), max_size=20))
def test_rounding_together_keeps_the_rounded_sum_and_moves_nothing_by_a_unit(exact):
    rounded = round_together(exact)
    assert sum(rounded) == round(sum(exact, Fraction(0)))
    assert all(abs(new - old) <= 1 for new, old in zip(rounded, exact, strict=True))


@given(st.lists(st.integers(-(10**15), 10**15)))
def test_whole_amounts_stay_as_they_are(exact):
    assert round_together([Fraction(one) for one in exact]) == tuple(exact)
