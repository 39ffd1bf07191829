"""What an hour of a node costs: each part by hand, and the whole is their sum."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.node_rate import NodeFacts

NODE = NodeFacts(
    capex_usd=Fraction(250_000),
    residual_usd=Fraction(50_000),
    life_hours=Fraction(5 * 8_760),
    power_kw=Fraction("8.5"),
    pue=Fraction("1.4"),
    usd_per_kwh=Fraction("0.18"),
    colocation_usd_per_month=Fraction(730),
    support_usd_per_year=Fraction(8_760),
    spare_ratio=Fraction("0.1"),
)


def test_each_part_is_what_it_says():
    depreciation = Fraction(200_000, 43_800)
    assert NODE.parts() == {
        "depreciation": depreciation,
        "power": Fraction("2.142"),
        "colocation": 1,
        "support": 1,
        # A spare node is bought, housed and supported; it draws no power.
        "spare": (depreciation + 2) / 10,
    }
    assert NODE.usd_per_hour == (depreciation + 2) * Fraction("1.1") + Fraction("2.142")


def test_a_year_of_hours_costs_a_year():
    facts = NodeFacts(support_usd_per_year=Fraction(1_000), colocation_usd_per_month=Fraction(1))
    assert facts.usd_per_hour * 8_760 == 1_012


FAULTS = {
    "a negative fact": ({"power_kw": Fraction(-1)}, "power_kw must be at least 0"),
    "no life": ({"life_hours": Fraction(0)}, "life_hours must be above 0"),
    "more left than paid": ({"residual_usd": Fraction(1)}, "residual_usd is above capex_usd"),
    "a site that draws less": ({"pue": Fraction("0.9")}, "pue must be at least 1"),
}


@pytest.mark.parametrize(("facts", "says"), FAULTS.values(), ids=FAULTS.keys())
def test_what_cannot_be_is_refused(facts, says):
    with pytest.raises(ValueError, match=says):
        NodeFacts(**facts)


amounts = st.fractions(0, 10**6, max_denominator=10**6)


@given(amounts, amounts, amounts, st.integers(1, 10**6))
def test_spare_nodes_make_it_dearer_by_their_share_of_all_but_power(capex, colo, ratio, life):
    facts = {
        "capex_usd": capex,
        "colocation_usd_per_month": colo,
        "life_hours": Fraction(life),
        "power_kw": Fraction(3),
        "usd_per_kwh": Fraction("0.2"),
    }
    alone, spared = NodeFacts(**facts), NodeFacts(**facts, spare_ratio=ratio)
    power = Fraction("0.6")
    assert spared.usd_per_hour - power == (alone.usd_per_hour - power) * (1 + ratio)
    assert sum(spared.parts().values()) == spared.usd_per_hour
