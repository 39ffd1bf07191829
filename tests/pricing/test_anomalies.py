"""Days that cost more than such days do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.anomalies import SCORE_PERMILLE_MAX, contributions, find_anomalies, median

WEEK = [100, 104, 97, 101, 99, 12, 9]


def test_a_day_far_above_its_weekday_is_found():
    days = [*(day + week % 3 for week in range(8) for day in WEEK), 400]
    (found,) = find_anomalies({"team": days}, excess_pico_usd_min=50)
    assert (found.series, found.amount_pico_usd) == ("team", 400)
    assert found.expected_pico_usd == 101
    assert found.excess_pico_usd == 299
    assert found.score_permille >= 3_500


def test_a_usual_monday_after_a_quiet_sunday_is_none():
    days = [*(day + week % 3 for week in range(8) for day in WEEK), 102]
    assert find_anomalies({"team": days}, excess_pico_usd_min=1) == ()


def test_a_working_days_amount_on_a_sunday_is_one():
    days = [*(day + week % 3 for week in range(9) for day in WEEK)]
    days[-1] = 100
    (found,) = find_anomalies({"team": days}, excess_pico_usd_min=1)
    assert found.expected_pico_usd == 10


def test_one_odd_day_before_does_not_hide_the_next():
    days = [*(day for _ in range(8) for day in WEEK), 400]
    days[0] = 100_000
    assert find_anomalies({"team": days}, excess_pico_usd_min=50)


def test_a_small_excess_is_nobodys_concern():
    days = [1] * 56 + [40]
    assert find_anomalies({"team": days}, excess_pico_usd_min=40) == ()
    (found,) = find_anomalies({"team": days}, excess_pico_usd_min=39)
    assert found.score_permille == SCORE_PERMILLE_MAX


@pytest.mark.parametrize(("length", "count"), [(14, 0), (15, 1)])
def test_a_young_series_is_not_judged(length, count):
    days = [1] * (length - 1) + [1000]
    assert len(find_anomalies({"team": days}, excess_pico_usd_min=1)) == count


def test_the_largest_excess_comes_first():
    series = {"small": [0] * 20 + [10], "large": [0] * 20 + [1000], "none": [5] * 21}
    found = find_anomalies(series, excess_pico_usd_min=1)
    assert [one.series for one in found] == ["large", "small"]


def test_who_made_the_day_is_named_with_what_it_added():
    parts = {
        "steady": [100] * 30,
        "runaway": [10] * 29 + [500],
        "new": [0] * 29 + [50],
        "less": [90] * 29 + [20],
    }
    found = contributions(parts, count=5)
    assert [(one.part, one.excess_pico_usd) for one in found] == [("runaway", 490), ("new", 50)]
    assert contributions(parts, count=1) == found[:1]


@given(st.lists(st.integers(0, 10**15), min_size=15, max_size=80), st.integers(1, 10**15))
def test_what_is_found_is_an_excess_over_the_least(days, least):
    for one in find_anomalies({"x": days}, excess_pico_usd_min=least):
        assert one.excess_pico_usd >= least
        assert 3_500 <= one.score_permille <= SCORE_PERMILLE_MAX


def test_a_least_excess_of_nothing_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        find_anomalies({}, excess_pico_usd_min=0)


def test_the_median_of_nothing_is_nothing():
    assert median([]) == 0
    assert median([1, 9]) == 1
    assert median([9, 1, 5]) == 5
