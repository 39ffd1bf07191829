"""What the coming days will cost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.forecast import HORIZON_DAYS_MAX, forecast

WEEK = [100, 120, 110, 130, 90, 20, 10]
SCALE = 10**12


@given(st.lists(st.integers(0, 10**17), min_size=7, max_size=60), st.integers(0, 40))
def test_sums_add_up_and_bands_hold_the_sum(history, days):
    found = forecast(history, days=days)
    assert len(found.days_pico_usd) == days
    assert found.total_pico_usd == sum(found.days_pico_usd)
    assert min(found.days_pico_usd, default=0) >= 0
    widths = [band.high_pico_usd - band.low_pico_usd for band in found.bands]
    assert widths == sorted(widths)
    for band in found.bands:
        assert 0 <= band.low_pico_usd <= found.total_pico_usd <= band.high_pico_usd


def test_steady_weeks_go_on_as_they_are():
    history = [day * SCALE for day in WEEK * 4]
    found = forecast(history, days=14)
    for guessed, day in zip(found.days_pico_usd, WEEK * 2, strict=True):
        assert abs(guessed - day * SCALE) <= SCALE // 100
    assert found.error_permille is not None
    assert found.error_permille < 10
    assert [band.percent for band in found.bands] == [80, 95]


def test_growth_goes_on_and_slows_down():
    history = [(100 + 2 * day) * SCALE for day in range(28)]
    coming = forecast(history, days=60).days_pico_usd
    assert coming[6] > history[-7]
    by_week = [sum(coming[start : start + 7]) for start in range(0, 56, 7)]
    growth = [after - before for before, after in zip(by_week, by_week[1:], strict=False)]
    assert growth == sorted(growth, reverse=True)


def test_the_95_percent_band_holds_the_truth_of_noisy_months_mostly():
    rng = random.Random(20261130)
    held = 0
    for _ in range(60):
        series = [day * SCALE * rng.randint(80, 120) // 100 for day in WEEK * 10]
        found = forecast(series[:56], days=14)
        band = found.bands[-1]
        held += band.low_pico_usd <= sum(series[56:]) <= band.high_pico_usd
    assert held >= 50


@pytest.mark.parametrize("length", [7, 13, 14])
def test_a_short_history_gives_a_forecast_without_a_band(length):
    found = forecast([SCALE] * length, days=3)
    assert found.total_pico_usd == 3 * SCALE
    assert (found.bands, found.error_permille) == ((), None)
    assert found.history_days == length


def test_nothing_spent_is_nothing_to_come():
    found = forecast([0] * 28, days=5)
    assert (found.total_pico_usd, found.error_permille) == (0, None)


def test_no_coming_days_are_a_sum_of_nothing():
    found = forecast([SCALE] * 28, days=0)
    assert (found.days_pico_usd, found.total_pico_usd, found.bands) == ((), 0, ())


@pytest.mark.parametrize("days", [-1, HORIZON_DAYS_MAX + 1])
def test_a_horizon_without_meaning_is_refused(days):
    with pytest.raises(ValueError, match="days must be"):
        forecast([1] * 28, days=days)


def test_less_than_a_week_is_refused():
    with pytest.raises(ValueError, match="7 days"):
        forecast([1] * 6, days=1)
