"""Which commitment pays for which usage, and when it will be used up."""

from __future__ import annotations

from datetime import date, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from pricing.commitments import CommitmentKind, Pledge, Term, draw_down, run_out

FIRST = date(2026, 11, 1)
K = CommitmentKind


def day(number: int) -> date:
    return FIRST + timedelta(days=number - 1)


def term(amount: int = 100, first: int = 1, last: int = 30, **changes) -> Term:
    values = {
        "counts_from": day(first),
        "first_day": day(first),
        "last_day": day(last),
        "amount_pico_usd": amount,
        "provider": "openai",
    }
    return Term(**(values | changes))


def pledge(number: int = 1, kind: K = K.CREDIT, *terms: Term, **changes) -> Pledge:
    return Pledge(number=number, kind=kind, terms=terms or (term(**changes),))


def used(*costs: int, deployment: str = "openai/a") -> dict[date, dict[str, int]]:
    return {day(place): {deployment: cost} for place, cost in enumerate(costs, 1)}


def test_a_credit_is_drawn_until_nothing_is_left():
    found = draw_down([pledge()], used(30, 30, 30, 30), until=day(4))
    assert found.drawn[1] == {day(1): 30, day(2): 30, day(3): 30, day(4): 10}
    assert (found.left[1], found.unused[1]) == (0, {})
    assert found.parts[day(4), "openai/a"] == [(1, 10)]


def test_what_is_left_of_a_credit_on_its_last_day_has_lapsed():
    found = draw_down([pledge(last=2)], used(10, 10, 10), until=day(3))
    assert (found.unused[1], found.left[1]) == ({day(2): 80}, 0)
    before = draw_down([pledge(last=2)], used(10), until=day(1))
    assert (before.unused[1], before.left[1]) == ({}, 90)


def test_what_a_day_does_not_use_of_throughput_is_gone():
    found = draw_down([pledge(1, K.THROUGHPUT, last=3)], used(40, 20, 33), until=day(3))
    assert found.drawn[1] == {day(1): 34, day(2): 20, day(3): 33}
    assert found.unused[1] == {day(2): 13}


def test_what_ends_first_is_drawn_first_and_a_cost_is_split():
    late, early = pledge(1, amount=100, last=30), pledge(2, amount=25, last=10)
    found = draw_down([late, early], used(30), until=day(1))
    assert found.parts[day(1), "openai/a"] == [(2, 25), (1, 5)]


def test_of_two_that_end_together_the_older_one_comes_first():
    found = draw_down([pledge(2), pledge(1)], used(5), until=day(1))
    assert found.parts[day(1), "openai/a"] == [(1, 5)]
    begun = draw_down([pledge(1, first=2), pledge(2)], {day(2): {"openai/a": 5}}, until=day(2))
    assert begun.parts[day(2), "openai/a"] == [(2, 5)]


def test_only_what_is_covered_is_drawn():
    one = pledge(1, K.SPEND, term(deployments=frozenset({"openai/b"})))
    usage = {day(1): {"openai/a": 5, "openai/b": 7, "openai2/a": 9}}
    assert draw_down([one], usage, until=day(1)).drawn[1] == {day(1): 7}
    every = draw_down([pledge()], usage, until=day(1))
    assert every.drawn[1] == {day(1): 12}


def test_a_correction_counts_from_its_day_and_takes_back_nothing():
    corrected = pledge(1, K.CREDIT, term(), term(40, counts_from=day(3)))
    found = draw_down([corrected], used(30, 30, 30), until=day(3))
    assert found.drawn[1] == {day(1): 30, day(2): 30}
    raised = pledge(1, K.CREDIT, term(), term(70, counts_from=day(3)))
    assert draw_down([raised], used(30, 30, 30), until=day(3)).drawn[1][day(3)] == 10


def test_what_was_withdrawn_draws_nothing_more_and_what_does_not_count_yet_nothing():
    gone = pledge(1, K.CREDIT, term(), term(counts_from=day(2), is_withdrawn=True))
    assert draw_down([gone], used(5, 5), until=day(2)).drawn[1] == {day(1): 5}
    later = pledge(1, K.CREDIT, term(counts_from=day(2)))
    assert draw_down([later], used(5, 5), until=day(2)).drawn[1] == {day(2): 5}
    assert draw_down([], used(5), until=day(1)).parts == {}


@st.composite
def pledges(draw: st.DrawFn) -> Pledge:
    first = draw(st.integers(1, 8))
    return pledge(
        draw(st.integers(1, 10**6)),
        draw(st.sampled_from(K)),
        term(
            draw(st.integers(0, 10**13)),
            first,
            first + draw(st.integers(0, 8)),
            deployments=draw(st.sampled_from([frozenset(), frozenset({"openai/a"})])),
        ),
    )


@settings(max_examples=60)
@given(
    st.lists(pledges(), max_size=4, unique_by=lambda one: one.number),
    st.lists(
        st.dictionaries(st.sampled_from(["openai/a", "openai/b", "x/c"]), st.integers(0, 10**13)),
        max_size=18,
    ),
)
def test_every_picodollar_is_drawn_once_or_unused_or_left(bought, days):
    usage = {day(place): costs for place, costs in enumerate(days, 1)}
    until = day(18)
    found = draw_down(bought, usage, until=until)
    for one in bought:
        [only] = one.terms
        spent = sum(found.drawn[one.number].values())
        gone = sum(found.unused[one.number].values())
        assert spent + gone + found.left[one.number] == only.amount_pico_usd
    for (when, deployment), parts in found.parts.items():
        assert 0 < sum(part for _, part in parts) <= usage[when][deployment]
        assert deployment != "x/c"
    by_parts = sum(part for parts in found.parts.values() for _, part in parts)
    assert by_parts == sum(sum(by_day.values()) for by_day in found.drawn.values())


@st.composite
def corrected_pledges(draw: st.DrawFn) -> Pledge:
    """One that is corrected once, to at least what it was, for longer or shorter."""
    amount, first = draw(st.integers(0, 10**6)), draw(st.integers(1, 8))
    counts = draw(st.integers(first + 1, 16))
    return pledge(
        1,
        draw(st.sampled_from(K)),
        term(amount, first, draw(st.integers(first, 16))),
        term(
            amount + draw(st.integers(0, 10**6)),
            first,
            draw(st.integers(counts, 18)),
            counts_from=day(counts),
        ),
    )


@settings(max_examples=60)
@given(corrected_pledges(), st.lists(st.integers(0, 10**6), max_size=18))
def test_a_correction_gives_in_all_no_more_and_no_less_than_it_says(one, costs):
    found = draw_down([one], used(*costs), until=day(18))
    drawn, unused = found.drawn[1], found.unused[1]
    assert sum(drawn.values()) + sum(unused.values()) == one.terms[-1].amount_pico_usd
    assert found.left[1] == 0


def test_a_credit_that_lapsed_and_is_made_longer_gives_only_what_was_added():
    longer = pledge(1, K.CREDIT, term(100, 1, 2), term(110, 1, 5, counts_from=day(3)))
    found = draw_down([longer], used(30, 30, 30), until=day(5))
    assert found.unused[1] == {day(2): 40}
    assert found.drawn[1] == {day(1): 30, day(2): 30, day(3): 10}


def test_throughput_that_is_corrected_shares_what_is_left_among_the_days_that_are_left():
    cheaper = pledge(1, K.THROUGHPUT, term(100, 1, 10), term(62, 1, 10, counts_from=day(6)))
    assert draw_down([cheaper], {}, until=day(10)).unused[1] == {
        **{day(number): 10 for number in range(1, 6)},
        day(6): 3, day(7): 3, day(8): 2, day(9): 2, day(10): 2,
    }  # fmt: skip


def test_the_pace_says_when_it_is_used_up():
    found = run_out(80, [10, 10], last_seen=day(2), last_day=day(30))
    assert (found.pace_pico_usd, found.on, found.percent) == (10, day(10), None)


def test_what_lasts_has_no_such_day():
    for history in ([], [0, 0], [1, 1]):
        assert run_out(80, history, last_seen=day(2), last_day=day(30)).on is None
    assert run_out(0, [5], last_seen=day(30), last_day=day(30)).on is None


def test_a_steady_history_has_a_band_that_holds_the_day():
    short = run_out(50, [10] * 7, last_seen=day(7), last_day=day(30))
    assert (short.on, short.percent) == (day(12), None)
    history = [10, 12, 9, 11, 10, 8, 10] * 4
    found = run_out(50, history, last_seen=day(28), last_day=day(60))
    assert found.percent == 80
    assert found.early is not None
    assert found.on is not None
    assert found.late is not None
    assert found.early <= found.on <= found.late
