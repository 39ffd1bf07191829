"""Every picodollar of a change is explained, once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.bridge import Line, bridge
from pricing.usage import Meter

lines = st.lists(
    st.builds(
        Line,
        product=st.sampled_from("abc"),
        meter=st.sampled_from(Meter),
        units=st.integers(0, 10**9),
        cost_pico_usd=st.integers(-(10**6), 10**15),
    ),
    max_size=12,
)


def used(product, meter, units, rate):
    return Line(product=product, meter=meter, units=units, cost_pico_usd=units * rate)


def parts(found):
    effects = found.effects
    return {
        name: amount
        for name, amount in {
            "volume": effects.volume_pico_usd,
            "mix": effects.mix_pico_usd,
            "output share": effects.output_share_pico_usd,
            "cache rate": effects.cache_rate_pico_usd,
            "price": effects.price_pico_usd,
        }.items()
        if amount
    }


@given(lines, lines)
def test_the_effects_add_up_to_the_change_together_and_for_each_product(before, after):
    found = bridge(before, after)
    assert found.before_pico_usd == sum(line.cost_pico_usd for line in before)
    assert found.after_pico_usd == sum(line.cost_pico_usd for line in after)
    assert found.effects.total_pico_usd == found.after_pico_usd - found.before_pico_usd
    for product, effects in found.by_product.items():
        was = sum(line.cost_pico_usd for line in before if line.product == product)
        now = sum(line.cost_pico_usd for line in after if line.product == product)
        assert effects.total_pico_usd == now - was


@given(lines)
def test_nothing_changed_is_no_effect(same):
    assert parts(bridge(same, same)) == {}


def test_more_of_the_same_is_volume():
    before = [used("a", Meter.INPUT, 100, 3), used("a", Meter.OUTPUT, 50, 15)]
    after = [used("a", Meter.INPUT, 200, 3), used("a", Meter.OUTPUT, 100, 15)]
    assert parts(bridge(before, after)) == {"volume": 100 * 3 + 50 * 15}


def test_another_rate_is_price():
    before = [used("a", Meter.INPUT, 100, 3)]
    after = [used("a", Meter.INPUT, 100, 2)]
    assert parts(bridge(before, after)) == {"price": -100}


def test_a_dearer_deployment_for_the_same_tokens_is_mix():
    before = [used("a", Meter.INPUT, 100, 1), used("b", Meter.INPUT, 100, 5)]
    after = [used("a", Meter.INPUT, 50, 1), used("b", Meter.INPUT, 150, 5)]
    assert parts(bridge(before, after)) == {"mix": 200}


def test_a_new_deployment_is_mix_and_no_price_change():
    before = [used("a", Meter.INPUT, 100, 4)]
    after = [used("new", Meter.INPUT, 100, 1)]
    assert parts(bridge(before, after)) == {"mix": -300}


def test_more_cache_reads_are_the_cache_rate():
    before = [used("a", Meter.INPUT, 90, 10), used("a", Meter.CACHE_READ, 10, 1)]
    after = [used("a", Meter.INPUT, 10, 10), used("a", Meter.CACHE_READ, 90, 1)]
    assert parts(bridge(before, after)) == {"cache rate": -80 * 9}


def test_longer_answers_for_the_same_number_of_tokens_are_the_output_share():
    before = [used("a", Meter.INPUT, 90, 1), used("a", Meter.OUTPUT, 10, 5)]
    after = [used("a", Meter.INPUT, 50, 1), used("a", Meter.OUTPUT, 50, 5)]
    assert parts(bridge(before, after)) == {"output share": 40 * 4}


def test_the_first_period_with_any_spend_is_mix():
    assert parts(bridge([], [used("a", Meter.IMAGES, 3, 7)])) == {"mix": 21}


def test_the_last_one_is_volume():
    assert parts(bridge([used("a", Meter.IMAGES, 3, 7)], [])) == {"volume": -21}


def test_images_and_tokens_do_not_mix():
    before = [used("a", Meter.IMAGES, 1, 1000), used("a", Meter.INPUT, 1000, 1)]
    after = [used("a", Meter.IMAGES, 2, 1000), used("a", Meter.INPUT, 1000, 1)]
    assert parts(bridge(before, after)) == {"volume": 1000}


def test_a_cost_without_units_is_mix():
    fee = Line(product="a", meter=Meter.INPUT, units=0, cost_pico_usd=9)
    before = [used("a", Meter.INPUT, 10, 1)]
    assert parts(bridge(before, [*before, used("b", Meter.INPUT, 0, 0), fee])) == {"price": 9}
    assert parts(bridge([], [fee])) == {"mix": 9}


def test_negative_units_are_refused():
    with pytest.raises(ValueError, match="units"):
        bridge([Line(product="a", meter=Meter.INPUT, units=-1, cost_pico_usd=0)], [])


def test_two_empty_periods_have_nothing_to_explain():
    found = bridge([], [])
    assert (found.by_product, found.effects.total_pico_usd) == ({}, 0)
