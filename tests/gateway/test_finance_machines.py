"""Shared machines: times and amounts add up exactly, whatever the order of what was seen."""

from __future__ import annotations

import random
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.finance.machines.allocation import Part, Stretch, Used, User, allocate, rate_of
from gateway.finance.machines.hours import HOUR_US, Session, hours_of, merged, overlap_us
from gateway.finance.machines.messages import ENGINE, SERVER, Hours, IdlePolicy, MachineTerms, Slice

MONTH_US = 30 * 24 * HOUR_US
USD = 10**12
TERMS = MachineTerms(
    gpu_usd_per_hour="3.00",
    gpus=2,
    ops_usd_per_month="3000",
    marginal_usd_per_hour="0.5",
    hours=Hours.ALWAYS_ON,
    price_version="p1",
    target_utilisation_percent=60,
    input_weight="1",
    cached_input_weight="0.1",
    output_weight="8",
    deployments=("vllm/llama",),
)


def user(team: str) -> User:
    return User(team=team, project="", deployment="vllm/llama")


def stretch(start_us=0, *, up_us=HOUR_US, busy_us=0, terms=TERMS, machine="vllm", kind=SERVER):
    return Stretch(
        machine=machine,
        pool="vllm",
        kind=kind,
        start_us=start_us,
        end_us=start_us + HOUR_US,
        up_us=up_us,
        busy_us=busy_us,
        terms=terms,
    )


def test_busy_time_goes_to_teams_by_weighted_tokens_and_the_rest_is_idle():
    uses = {
        ("vllm", 0): {
            user("search"): Used(input_tokens=600, cached_input_tokens=4_000, attempts=1),
            user("payments"): Used(output_tokens=125, attempts=9),
        }
    }
    [found] = allocate([stretch(busy_us=HOUR_US // 2)], uses, month_us=MONTH_US)
    # Work: 600 + 0.1 x 4,000 = 1,000, and 8 x 125 = 1,000.
    assert found.parts[user("search")].used_us == found.parts[user("payments")].used_us
    hour = Fraction(6 * USD) + Fraction(3_000 * USD, 720)
    assert found.cost_pico_usd == round(hour)
    quarter = round(hour / 4)
    assert abs(found.parts[user("search")].actual_pico_usd - quarter) <= 1
    assert found.rest.borne_us == HOUR_US // 2
    assert found.rest.actual_pico_usd + sum(
        part.actual_pico_usd for part in found.parts.values()
    ) == round(hour)
    assert found.parts[user("search")].marginal_pico_usd == USD // 4
    assert found.parts[user("search")].standard_pico_usd == round(hour / 4 / Fraction("0.6"))


def test_an_engine_that_tells_whose_busy_time_it_was_is_shared_by_that_alone():
    uses = {
        ("vllm", 0): {
            user("search"): Used(gpu_us=1, output_tokens=1_000_000),
            user("payments"): Used(gpu_us=3),
        }
    }
    [found] = allocate([stretch(busy_us=4_000, kind=ENGINE)], uses, month_us=MONTH_US)
    assert {one.team: part.used_us for one, part in found.parts.items()} == {
        "search": 1_000,
        "payments": 3_000,
    }


def test_where_no_tokens_are_known_attempts_share():
    uses = {("vllm", 0): {user("a"): Used(attempts=1), user("b"): Used(attempts=2)}}
    [found] = allocate([stretch(busy_us=3_000)], uses, month_us=MONTH_US)
    assert [found.parts[user(one)].used_us for one in "ab"] == [1_000, 2_000]


def test_idle_time_that_is_spread_falls_on_who_used_the_machine_in_the_month():
    terms = msgspec.structs.replace(TERMS, idle=IdlePolicy.BY_USE)
    uses = {
        ("vllm", 0): {user("a"): Used(output_tokens=1), user("b"): Used(output_tokens=3)},
    }
    stretches = [stretch(busy_us=4_000, terms=terms), stretch(HOUR_US, terms=terms)]
    first, second = allocate(stretches, uses, month_us=MONTH_US)
    assert first.rest.borne_us == second.rest.borne_us == 0
    assert [second.parts[user(one)].borne_us for one in "ab"] == [HOUR_US // 4, HOUR_US * 3 // 4]
    assert all(part.used_us == 0 for part in second.parts.values())


HALF_AND_QUARTER = (Slice(team="a", fraction="1/2"), Slice(team="b", fraction="1/4"))
SLICED = {
    "owners bear what is idle of their slices, and the rest is nobody's": (
        {"a": 10, "b": 25},
        {"a": 40, "b": 0},
        25,
    ),
    "what is used beyond a slice is taken out of what is nobody's first": (
        {"b": 35},
        {"a": 50, "b": 0},
        15,
    ),
    "so is what is used by a team without a slice": ({"c": 25}, {"a": 50, "b": 25}, 0),
    "what is used beyond that was not idle of its owners, in proportion": (
        {"c": 55},
        {"a": 30, "b": 15},
        0,
    ),
    "an owner's own use is not lent to others": ({"a": 50, "c": 40}, {"a": 0, "b": 10}, 0),
    "a machine in full use is idle for nobody": ({"c": 100}, {"a": 0, "b": 0}, 0),
    "a machine that nobody used is borne by its owners": ({}, {"a": 50, "b": 25}, 25),
}


@pytest.mark.parametrize(("busy", "idle", "rest"), SLICED.values(), ids=SLICED.keys())
def test_owners_of_slices_bear_what_is_idle_of_them(busy, idle, rest):
    terms = msgspec.structs.replace(TERMS, idle=IdlePolicy.RESERVED, slices=HALF_AND_QUARTER)
    uses = {("vllm", 0): {user(team): Used(output_tokens=used) for team, used in busy.items()}}
    one = stretch(up_us=100, busy_us=sum(busy.values()), terms=terms)
    [found] = allocate([one], uses, month_us=MONTH_US)
    for team, used in busy.items():
        assert found.parts[user(team)].used_us == found.parts[user(team)].borne_us == used
    for team, time_us in idle.items():
        owner = User(team=team, project="", deployment="")
        assert found.parts.get(owner, Part()).borne_us == time_us
        assert found.parts.get(owner, Part()).used_us == 0
    assert found.rest.borne_us == rest


def test_three_thirds_leave_nothing_to_nobody():
    thirds = tuple(Slice(team=team, fraction="1/3") for team in "abc")
    terms = msgspec.structs.replace(TERMS, idle=IdlePolicy.RESERVED, slices=thirds)
    [found] = allocate([stretch(terms=terms)], {}, month_us=MONTH_US)
    assert found.rest == Part()
    assert sum(part.borne_us for part in found.parts.values()) == HOUR_US


def test_nobody_bears_the_idle_time_of_a_machine_that_nobody_used():
    terms = msgspec.structs.replace(TERMS, idle=IdlePolicy.BY_USE)
    [found] = allocate([stretch(terms=terms)], {}, month_us=MONTH_US)
    assert found.parts == {}
    assert found.rest.actual_pico_usd == found.cost_pico_usd


def test_a_month_of_running_costs_is_the_month_to_the_picodollar():
    terms = msgspec.structs.replace(TERMS, gpu_usd_per_hour="0", ops_usd_per_month="100.01")
    stretches = [stretch(hour * HOUR_US, terms=terms) for hour in range(720)]
    found = allocate(stretches, {}, month_us=MONTH_US)
    assert sum(one.cost_pico_usd for one in found) == 100_010_000_000_000


decimals = st.decimals(0, 100, places=6, allow_nan=False).map(lambda value: f"{value:f}")
used = st.builds(
    Used,
    gpu_us=st.integers(0, 10**9),
    input_tokens=st.integers(0, 10**7),
    cached_input_tokens=st.integers(0, 10**7),
    output_tokens=st.integers(0, 10**7),
    attempts=st.integers(0, 100),
)


@st.composite
def slices(draw):
    """Teams and their parts of a machine, at most one together."""
    teams = sorted(draw(st.sets(st.sampled_from("abcd"))))
    parts = [draw(st.integers(1, 7)) for _ in teams]
    whole = sum(parts) + draw(st.integers(0, 7))
    return tuple(
        Slice(team=team, fraction=str(Fraction(part, whole)))
        for team, part in zip(teams, parts, strict=True)
    )


any_terms = st.builds(
    MachineTerms,
    gpu_usd_per_hour=decimals,
    gpus=st.integers(1, 8),
    ops_usd_per_month=decimals,
    marginal_usd_per_hour=decimals,
    hours=st.just(Hours.ALWAYS_ON),
    price_version=st.just("p"),
    idle=st.sampled_from(IdlePolicy),
    slices=slices(),
    target_utilisation_percent=st.integers(1, 100),
    input_weight=decimals,
    cached_input_weight=decimals,
    output_weight=decimals,
)


@st.composite
def months(draw):
    """Machines in hours, and who used them."""
    stretches = []
    for machine in draw(st.sets(st.sampled_from("xyz"), min_size=1)):
        for hour in draw(st.sets(st.integers(0, 5))):
            up_us = draw(st.integers(0, HOUR_US))
            stretches.append(
                stretch(
                    hour * HOUR_US,
                    up_us=up_us,
                    busy_us=draw(st.integers(0, up_us)),
                    terms=draw(any_terms),
                    machine=machine,
                    kind=draw(st.sampled_from((ENGINE, SERVER))),
                )
            )
    uses = draw(
        st.dictionaries(
            st.integers(0, 5).map(lambda hour: ("vllm", hour * HOUR_US)),
            st.dictionaries(st.sampled_from("abc").map(user), used, max_size=3),
        )
    )
    return stretches, uses


@settings(max_examples=20)
@given(months(), st.randoms(use_true_random=False))
def test_shares_sum_to_the_cost_and_the_time_whatever_the_order(month, rng: random.Random):
    stretches, uses = month
    found = allocate(stretches, uses, month_us=MONTH_US)
    for one in found:
        parts = [*one.parts.values(), one.rest]
        assert sum(part.actual_pico_usd for part in parts) == one.cost_pico_usd
        assert sum(part.borne_us for part in parts) == one.stretch.up_us
        assert all(part.borne_us >= part.used_us >= 0 for part in parts[:-1])
        assert one.rest.borne_us >= 0
        assert all(part.actual_pico_usd >= 0 for part in parts)
        assert sum(part.used_us for part in parts) in (0, one.stretch.busy_us)
        assert 0 <= one.busy_pico_usd <= one.cost_pico_usd
    for machine in {one.machine for one in stretches}:
        exact = sum(
            rate_of(one.terms, MONTH_US) * one.up_us for one in stretches if one.machine == machine
        )
        booked = sum(one.cost_pico_usd for one in found if one.stretch.machine == machine)
        assert booked == round(exact)
    shuffled = list(stretches)
    rng.shuffle(shuffled)
    mixed = {key: dict(reversed(one.items())) for key, one in reversed(uses.items())}
    assert allocate(shuffled, mixed, month_us=MONTH_US) == found


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 5 * HOUR_US), st.integers(0, HOUR_US)), max_size=8),
    st.integers(0, HOUR_US),
)
def test_merged_intervals_cover_what_any_of_them_does(pairs, gap_us):
    intervals = [(start, start + length) for start, length in pairs]
    found = merged(intervals)
    assert found == merged(reversed(intervals))
    assert all(end < start for (_, end), (start, _) in zip(found, found[1:], strict=False))
    whole = sum(overlap_us(found, *hour) for hour in hours_of(0, 7 * HOUR_US))
    assert whole == sum(end - start for start, end in found)
    assert overlap_us(merged(intervals, gap_us=gap_us), 0, 7 * HOUR_US) >= whole


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=12),
    st.integers(0, 10**7),
    st.randoms(use_true_random=False),
)
def test_busy_time_between_readings_adds_up_and_is_never_more_than_time(steps, start_us, rng):
    up_us = busy_us = 0
    readings = []
    for up, busy in steps:
        up_us += up
        busy_us += min(up, busy)
        readings.append((up_us, busy_us))
    expected = Session.of(start_us, readings)
    rng.shuffle(readings)
    session = Session.of(start_us, [*readings, *readings[:3]])
    assert session == expected
    edges = sorted(
        {start_us, start_us + up_us, *(rng.randrange(start_us + up_us + 1) for _ in "ab")}
    )
    parts = [session.busy_us(*pair) for pair in zip(edges, edges[1:], strict=False)]
    lengths = [end - start for start, end in zip(edges, edges[1:], strict=False)]
    assert all(0 <= part <= length for part, length in zip(parts, lengths, strict=True))
    assert sum(parts) == session.busy_us(0, start_us + up_us + 1) == busy_us


def test_a_meter_that_claims_more_busy_than_time_is_cut():
    session = Session.of(0, [(10, 12), (20, 11)])
    assert session.readings == ((0, 0), (10, 10), (20, 11))
    assert session.interval == (0, 20)
    assert [session.busy_us(5, 10), session.busy_us(10, 30)] == [5, 1]
