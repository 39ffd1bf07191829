"""A price book gives one price per instant or says that there is none, and reports every fault."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pricing.errors import PriceBookError
from pricing.money import Rate
from pricing.price_book import Basis, PriceBook, PriceVersion, Unpriced
from pricing.usage import Meter

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NAIVE = NOW.replace(tzinfo=None)
DAY = timedelta(days=1)


def version(**changes) -> PriceVersion:
    base = {
        "rates": {Meter.INPUT: Rate(pico_usd=5), Meter.OUTPUT: Rate(pico_usd=8)},
        "source": "fareway.yaml",
    }
    return PriceVersion(**{**base, **changes})


def test_validity_is_half_open() -> None:
    book = PriceBook({"groq/a": [version(valid_from=NOW, valid_to=NOW + DAY)]})
    assert isinstance(book.lookup("groq/a", NOW), PriceVersion)
    assert isinstance(book.lookup("groq/a", NOW + DAY - timedelta(microseconds=1)), PriceVersion)
    assert book.lookup("groq/a", NOW + DAY) == Unpriced(
        reason="no price in force on 2026-11-02T00:00:00+00:00"
    )
    assert isinstance(book.lookup("groq/a", NOW - timedelta(microseconds=1)), Unpriced)


def test_a_price_without_bounds_is_always_in_force() -> None:
    always = version()
    book = PriceBook({"groq/a": [always]})
    assert book.lookup("groq/a", datetime(1, 1, 2, tzinfo=UTC)) is always
    assert book.lookup("groq/a", datetime(9999, 1, 1, tzinfo=UTC)) is always


def test_a_deployment_without_an_entry_is_unpriced_not_free() -> None:
    assert PriceBook({}).lookup("groq/a", NOW) == Unpriced(reason="no price configured")


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(ValueError, match="aware"):
        PriceBook({}).lookup("groq/a", NAIVE)


def test_versions_are_kept_by_start_whatever_their_order() -> None:
    old, new = version(valid_to=NOW), version(valid_from=NOW)
    book = PriceBook({"groq/a": [new, old]})
    assert book.versions("groq/a") == (old, new)
    assert book.versions("groq/b") == ()
    assert book.lookup("groq/a", NOW - DAY) is old
    assert book.lookup("groq/a", NOW) is new


def test_the_same_instant_in_two_time_zones_finds_the_same_price() -> None:
    book = PriceBook({"groq/a": [version(valid_from=NOW)]})
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    assert book.lookup("groq/a", east) is book.lookup("groq/a", NOW)


PROBLEMS = {
    "no source": ([version(source="")], "source is not named"),
    "no rates": ([version(rates={})], "it has no rate"),
    "an end before the start": ([version(valid_from=NOW, valid_to=NOW - DAY)], "is not before"),
    "an empty interval": ([version(valid_from=NOW, valid_to=NOW)], "is not before"),
    "a start without time zone": (
        [version(valid_from=NAIVE, valid_to=NOW)],
        "valid_from has no time zone",
    ),
    "an end without time zone": (
        [version(valid_to=NAIVE)],
        "valid_to has no time zone",
    ),
    "token rates on a busy-time price": (
        [version(basis=Basis.GPU_TIME)],
        "a input rate is never charged on the basis gpu_time",
    ),
    "a busy-time rate on a token price": (
        [version(rates={Meter.GPU_US: Rate(pico_usd=1)})],
        "never charged on the basis tokens",
    ),
    "two open prices": ([version(), version(source="other")], "overlap"),
    "an open start after a closed price": (
        [version(valid_to=NOW + DAY), version(valid_from=NOW)],
        "overlap",
    ),
    "an open end before a later price": (
        [version(valid_from=NOW - DAY), version(valid_from=NOW)],
        "overlap",
    ),
    "the same price twice": ([version(valid_from=NOW, valid_to=NOW + DAY)] * 2, "overlap"),
}


@pytest.mark.parametrize(("versions", "problem"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_book_is_refused(versions: list[PriceVersion], problem: str) -> None:
    with pytest.raises(PriceBookError, match=problem):
        PriceBook({"groq/a": versions})


def test_all_problems_are_reported_at_once_with_their_deployment() -> None:
    with pytest.raises(PriceBookError) as refused:
        PriceBook(
            {
                "groq/a": [version(source="", rates={})],
                "groq/b": [version(), version()],
                "groq/c": [version()],
            }
        )
    assert [problem.split(":")[0] for problem in refused.value.problems] == [
        "groq/a",
        "groq/a",
        "groq/b",
    ]


IDENTITY = {
    "another rate": (version(rates={Meter.INPUT: Rate(pico_usd=6)}), True),
    "another basis": (version(basis=Basis.GPU_TIME), True),
    "another source": (version(source="contract"), True),
    "another start": (version(valid_from=NOW), True),
    "a nominal rate": (version(is_nominal=True), True),
    "an end set later": (version(valid_to=NOW), False),
    "a later check": (version(checked_on=date(2026, 11, 1)), False),
    "rates in another order": (
        version(rates={Meter.OUTPUT: Rate(pico_usd=8), Meter.INPUT: Rate(pico_usd=5)}),
        False,
    ),
}


@pytest.mark.parametrize(("other", "differs"), IDENTITY.values(), ids=IDENTITY.keys())
def test_identity_follows_content(other: PriceVersion, differs: bool) -> None:
    assert (other.version_id != version().version_id) is differs


def test_identity_does_not_depend_on_the_time_zone_of_the_start() -> None:
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    assert version(valid_from=east).version_id == version(valid_from=NOW).version_id


def test_a_version_cannot_be_changed_through_the_mapping_it_was_made_from() -> None:
    rates = {Meter.INPUT: Rate(pico_usd=5)}
    made = version(rates=rates)
    rates[Meter.INPUT] = Rate(pico_usd=500)
    assert made.rate_for(Meter.INPUT) == Rate(pico_usd=5)
    with pytest.raises(TypeError):
        made.rates[Meter.INPUT] = Rate(pico_usd=500)  # type: ignore[index]
    assert hash(made) == hash(replace(made))


FALLBACKS = {
    "cache reads pay the input rate": (Meter.CACHE_READ, 5),
    "cache writes pay the input rate": (Meter.CACHE_WRITE, 5),
    "reasoning pays the output rate": (Meter.REASONING, 8),
    "images have no fallback": (Meter.IMAGES, None),
    "requests have no fallback": (Meter.REQUESTS, None),
}


@pytest.mark.parametrize(("meter", "pico_usd"), FALLBACKS.values(), ids=FALLBACKS.keys())
def test_a_missing_rate_is_never_free(meter: Meter, pico_usd: int | None) -> None:
    rate = version().rate_for(meter)
    assert rate == (None if pico_usd is None else Rate(pico_usd=pico_usd))


def test_without_an_input_rate_a_cache_read_has_no_rate() -> None:
    assert version(rates={Meter.OUTPUT: Rate(pico_usd=8)}).rate_for(Meter.CACHE_READ) is None


def test_a_declared_cache_rate_wins_over_the_fallback() -> None:
    rates = {Meter.INPUT: Rate(pico_usd=5), Meter.CACHE_READ: Rate(pico_usd=0)}
    assert version(rates=rates).rate_for(Meter.CACHE_READ) == Rate(pico_usd=0)


@given(
    cuts=st.lists(st.integers(min_value=0, max_value=1000), min_size=2, max_size=8, unique=True),
    probe=st.integers(min_value=-10, max_value=1010),
    seed=st.randoms(use_true_random=False),
)
def test_adjacent_intervals_give_exactly_one_price_at_every_instant_they_cover(
    cuts, probe, seed
) -> None:
    instants = [NOW + cut * DAY for cut in sorted(cuts)]
    versions = [
        version(valid_from=start, valid_to=end)
        for start, end in zip(instants, instants[1:], strict=False)
    ]
    shuffled = list(versions)
    seed.shuffle(shuffled)
    found = PriceBook({"groq/a": shuffled}).lookup("groq/a", NOW + probe * DAY)
    covering = [one for one in versions if one.valid_from <= NOW + probe * DAY < one.valid_to]
    assert ([found] if isinstance(found, PriceVersion) else []) == covering


@given(
    cuts=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=6, unique_by=lambda cut: cut[0]
    ),
    has_end=st.booleans(),
    first=st.integers(-3, 25),
    second=st.integers(-3, 25),
)
def test_within_a_steady_interval_every_lookup_finds_the_same(cuts, has_end, first, second) -> None:
    cuts = sorted(cuts)
    ends = [*(start for start, _ in cuts[1:]), 30 if has_end else None]
    versions = [
        version(
            valid_from=NOW + start * DAY,
            valid_to=None if end is None else NOW + min(start + length, end) * DAY,
        )
        for (start, length), end in zip(cuts, ends, strict=False)
    ]
    book = PriceBook({"groq/a": versions, "groq/b": [version()]})
    at, other = NOW + first * DAY, NOW + second * DAY
    since, until = book.steady(["groq/a", "groq/b", "groq/c"], at)
    assert since is None or since <= at
    assert until is None or at < until
    one, two = book.lookup("groq/a", at), book.lookup("groq/a", other)
    if (since is None or since <= other) and (until is None or other < until):
        assert one is two or (isinstance(one, Unpriced) and isinstance(two, Unpriced))
    elif isinstance(one, PriceVersion):
        assert one is not two


def test_where_nothing_is_dated_the_prices_are_steady_for_ever() -> None:
    assert PriceBook({"groq/a": [version()]}).steady(["groq/a", "groq/b"], NOW) == (None, None)


def test_a_reason_that_names_the_instant_says_so() -> None:
    book = PriceBook({"groq/a": [version(valid_to=NOW)]})
    assert [book.lookup(name, NOW).is_momentary for name in ("groq/a", "groq/b")] == [True, False]


def test_a_public_price_is_part_of_a_prices_identity_and_none_leaves_it_as_it_was() -> None:
    plain, listed = version(), version(list_rates={Meter.INPUT: Rate(pico_usd=6)})
    assert plain.version_id == "17cfe088728c7171"
    assert listed.version_id != plain.version_id
    assert (plain.list_plan, plain.plan) == (None, listed.plan)


def test_a_public_price_says_nothing_of_a_meter_has_the_contracted_rate() -> None:
    rates = {
        Meter.INPUT: Rate(pico_usd=5),
        Meter.CACHE_READ: Rate(pico_usd=1),
        Meter.OUTPUT: Rate(pico_usd=8),
    }
    listed = version(rates=rates, list_rates={Meter.INPUT: Rate(pico_usd=6)})
    assert listed.list_plan[:5] == (
        Rate(pico_usd=6),
        Rate(pico_usd=1),
        Rate(pico_usd=6),  # cache writes cost what fresh input does, in public too
        Rate(pico_usd=8),
        Rate(pico_usd=8),
    )


ODD_LIST_PRICES = {
    "a public rate of what is not charged": (Meter.IMAGES, "stands beside none"),
    "a public rate of another basis": (Meter.GPU_US, "never charged on the basis"),
}


@pytest.mark.parametrize(("meter", "message"), ODD_LIST_PRICES.values(), ids=ODD_LIST_PRICES.keys())
def test_odd_public_prices_are_refused(meter: Meter, message: str) -> None:
    with pytest.raises(PriceBookError, match=message):
        PriceBook({"groq/a": [version(list_rates={meter: Rate(pico_usd=1)})]})
