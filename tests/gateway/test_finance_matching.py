"""Differences of a bill and the ledger: the right class, both figures, and an exact sum."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.bill_messages import Tolerances
from gateway.finance.cells import Adjusted, Billed, Exposed, Metered, Used, base_name, namer
from gateway.finance.matching import Sides, compare, token_counts, total

DAY, AS_OF = "2026-10-17", date(2026, 11, 5)
USD = 10**12
MILLION = 1_000_000


def metered(units: int = MILLION, cost: int = 2 * USD, **changes) -> Metered:
    values = {"account": "openai", "day": DAY, "model": "gpt-4o", "meter": "input"}
    names = {"team": "payments", "project": "", "units": units, "cost_pico_usd": cost}
    return Metered(**(values | names | changes))


def billed(units: int | None = MILLION, amount: int = 2 * USD, **changes) -> Billed:
    values = {"account": "openai", "day": DAY, "model": "gpt-4o", "meter": "input"}
    more = {"tier": "standard", "kind": "usage", "fx_pico_usd": 0}
    return Billed(**(values | more | {"units": units, "amount_pico_usd": amount} | changes))


def sides(ours=(), bill=(), used=(), adjusted=(), exposed=(), used_days=()) -> Sides:
    return Sides(
        metered=ours,
        billed=bill,
        used=used,
        adjusted=adjusted,
        exposed=exposed,
        billed_days={"openai": frozenset({DAY})},
        used_days={"openai": frozenset(used_days)},
    )


def found(where: Sides, *, as_of: date = AS_OF, aliases=None) -> list[tuple[str, int]]:
    parts = compare(where, Tolerances(), aliases or {}, as_of=as_of)
    return [(part.difference.kind, part.difference.amount_pico_usd) for part in parts]


LINE = {"model": "", "meter": "", "units": None}
CASES = {
    "the same on both sides is no difference": (sides([metered()], [billed()]), []),
    "usage that we never saw": (
        sides([], [billed()]),
        [("missing_event", 2 * USD)],
    ),
    "usage that went past us in part is worth the billed price": (
        sides([metered()], [billed(2 * MILLION, 4 * USD)]),
        [("missing_event", 2 * USD)],
    ),
    "usage that the vendor does not bill": (sides([metered()]), [("extra_event", -2 * USD)]),
    "usage of which the vendor bills half": (
        sides([metered()], [billed(MILLION // 2, USD)]),
        [("extra_event", -USD)],
    ),
    "another price": (sides([metered()], [billed(amount=3 * USD)]), [("price_drift", USD)]),
    "another tier": (
        sides([metered()], [billed(amount=USD, tier="batch")]),
        [("tier", -USD)],
    ),
    "quantity first, then price": (
        sides([metered()], [billed(2 * MILLION, 6 * USD)]),
        [("missing_event", 3 * USD), ("price_drift", USD)],
    ),
    "a cent apart": (
        sides([metered()], [billed(amount=2 * USD + USD // 100)]),
        [("rounding", USD // 100)],
    ),
    "half a per cent of quantity apart": (
        sides([metered(1_000_000)], [billed(1_004_000, 2 * USD + 8 * USD // 1000)]),
        [("rounding", 8 * USD // 1000)],
    ),
    "quantity and price that cancel out are both told": (
        sides([metered()], [billed(2 * MILLION, 2 * USD)]),
        [("missing_event", USD), ("price_drift", -USD)],
    ),
    "no counts at all, and nothing of it was metered": (
        sides([], [billed(None)]),
        [("missing_event", 2 * USD)],
    ),
    "no counts at all, another amount": (
        sides([metered()], [billed(None, 3 * USD)]),
        [("price_drift", USD)],
    ),
    "the rate of the invoice's day": (
        sides([metered()], [billed(amount=2 * USD + 7, fx_pico_usd=7)]),
        [("fx", 7)],
    ),
    "tax": (
        sides([metered()], [billed(), billed(None, 19, kind="tax", model="", meter="")]),
        [("tax", 19)],
    ),
    "a credit": (
        sides([metered()], [billed(), billed(None, -5, kind="credit", model="", meter="")]),
        [("credit", -5)],
    ),
    "the bill's own rounding": (
        sides([metered()], [billed(), billed(None, 3, kind="rounding", model="", meter="")]),
        [("rounding", 3)],
    ),
    "a bill without models is compared per day": (
        sides([metered(), metered(model="o3", meter="output")], [billed(**LINE, amount=5 * USD)]),
        [("price_drift", USD)],
    ),
    "a bill without meters is compared per model, in tokens": (
        sides(
            [metered(), metered(meter="output"), metered(meter="images", units=3, cost=0)],
            [billed(2 * MILLION, 4 * USD, meter="")],
        ),
        [],
    ),
    "counts come from a report of usage where the bill has none": (
        sides(
            [metered()],
            [billed(None, 4 * USD)],
            [Used(account="openai", day=DAY, model="gpt-4o", meter="input", units=2 * MILLION)],
            used_days=[DAY],
        ),
        [("missing_event", 2 * USD)],
    ),
    "a dated snapshot is the model that we call": (
        sides([metered()], [billed(model="gpt-4o-2024-08-06")]),
        [],
    ),
    "what was corrected before is no difference": (
        sides(
            [metered()],
            [billed(2 * MILLION, 4 * USD)],
            adjusted=[
                Adjusted(
                    account="openai",
                    day=DAY,
                    model="gpt-4o",
                    meter="input",
                    kind="usage",
                    amount_pico_usd=2 * USD,
                )
            ],
        ),
        [],
    ),
    "a tax that was corrected before is no difference": (
        sides(
            bill=[billed(None, 19, kind="tax", model="", meter="")],
            adjusted=[
                Adjusted(
                    account="openai",
                    day=DAY,
                    model="",
                    meter="",
                    kind="tax",
                    amount_pico_usd=19,
                )
            ],
        ),
        [],
    ),
    "a correction of the whole month that is not on the bill": (
        sides(
            [metered()],
            [billed()],
            adjusted=[
                Adjusted(
                    account="openai",
                    day="",
                    model="",
                    meter="",
                    kind="usage",
                    amount_pico_usd=USD,
                )
            ],
        ),
        [("price_drift", -USD)],
    ),
    "a day that no bill covers is not compared": (sides([metered(day="2026-10-18")]), []),
}


@pytest.mark.parametrize(("where", "expected"), CASES.values(), ids=CASES.keys())
def test_a_difference_has_its_class_and_amount(where, expected):
    assert found(where) == expected


def test_a_recent_day_is_late_whatever_else_it_may_be():
    assert found(sides([], [billed()]), as_of=date(2026, 10, 19)) == [("late", 2 * USD)]
    assert found(sides([], [billed()]), as_of=date(2026, 10, 20)) == [("missing_event", 2 * USD)]


def test_the_sentence_has_both_figures():
    where = sides([metered()], [billed(amount=3 * USD)])
    [part] = compare(where, Tolerances(), {}, as_of=AS_OF)
    for words in (
        "openai, input of gpt-4o on 2026-10-17",
        "1,000,000 billed, 1,000,000 metered",
        "3 USD billed, 2 USD booked",
        "3 USD per million billed, 2 USD booked",
    ):
        assert words in part.difference.sentence


def test_an_alias_of_the_configuration_brings_names_together():
    where = sides([metered()], [billed(model="gpt 4o 0806")])
    assert len(found(where)) == 2
    assert found(where, aliases={"openai/gpt 4o 0806": "gpt-4o"}) == []


def test_attempts_of_unknown_bill_come_with_what_is_missing_of_their_model():
    attempt = Exposed(
        account="openai",
        day=DAY,
        model="gpt-4o",
        team="search",
        project="",
        event_id="ab",
        exposure_pico_usd=USD,
    )
    [part] = compare(sides([], [billed()], exposed=[attempt]), Tolerances(), {}, as_of=AS_OF)
    assert part.exposed == (attempt,)


NAMES = {
    "gpt-4o-2024-08-06": "gpt-4o",
    "openai/gpt-4.1-2025-04-14": "gpt-4.1",
    "claude-sonnet-4-20250514": "claude-sonnet-4",
    "claude-3-5-sonnet@20241022": "claude-3-5-sonnet",
    "anthropic.claude-3-5-sonnet-20241022-v2:0": "anthropic.claude-3-5-sonnet",
    "gpt-4-0613": "gpt-4",
    "llama-3.1-8b-instant": "llama-3.1-8b-instant",
}


@pytest.mark.parametrize(("name", "base"), NAMES.items(), ids=NAMES.keys())
def test_a_snapshots_base_is_its_name_without_the_date(name, base):
    assert base_name(name) == base


def test_a_name_that_could_be_two_of_our_models_stays_as_it_is():
    name = namer("openai", ["gpt-4o-2024-05-13", "gpt-4o-2024-08-06"], {})
    assert name("gpt-4o") == "gpt-4o"
    assert name("gpt-4o-2024-05-13") == "gpt-4o-2024-05-13"


def test_coverage_is_of_the_days_that_the_vendor_counts():
    where = sides([metered(900)], [billed(1_000)])
    assert token_counts(where, "openai") == (900, 1_000)
    assert token_counts(sides([metered()], [billed(None)]), "openai") is None
    report = [Used(account="openai", day=DAY, model="m", meter="input", units=10)]
    assert token_counts(sides([metered(5)], (), report, used_days=[DAY]), "openai") == (5, 10)


amounts = st.integers(-(10**15), 10**15)
names = st.sampled_from(["gpt-4o", "gpt-4o-2024-08-06", "o3"])
meters = st.sampled_from(["input", "output", "other"])
ledger = st.builds(
    metered, units=st.integers(0, 10**9), cost=st.integers(0, 10**15), model=names, meter=meters
)
usage_lines = st.builds(
    billed,
    units=st.one_of(st.none(), st.integers(0, 10**9)),
    amount=amounts,
    model=st.one_of(st.just(""), names),
    meter=st.one_of(st.just(""), meters),
    tier=st.sampled_from(["standard", "batch"]),
    fx_pico_usd=amounts,
)
other_lines = st.builds(
    billed,
    units=st.none(),
    amount=amounts,
    model=st.just(""),
    meter=st.just(""),
    kind=st.sampled_from(["tax", "credit", "rounding"]),
)
posted = st.builds(
    Adjusted,
    account=st.just("openai"),
    day=st.sampled_from([DAY, ""]),
    model=st.one_of(st.just(""), names),
    meter=st.one_of(st.just(""), meters),
    kind=st.sampled_from(["usage", "tax", "credit", "rounding"]),
    amount_pico_usd=amounts,
)
reports = st.builds(
    Used,
    account=st.just("openai"),
    day=st.just(DAY),
    model=names,
    meter=meters,
    units=st.integers(0, 10**9),
)


@given(
    st.lists(ledger, max_size=5),
    st.lists(st.one_of(usage_lines, other_lines), max_size=5),
    st.lists(reports, max_size=3),
    st.lists(posted, max_size=4),
    st.booleans(),
    st.sampled_from([AS_OF, date(2026, 10, 18)]),
)
def test_the_parts_sum_to_the_bill_less_the_ledger_to_the_picodollar(
    ours, bill, used, adjusted, is_used, as_of
):
    where = sides(ours, bill, used, adjusted, used_days=[DAY] if is_used else [])
    parts = compare(where, Tolerances(), {}, as_of=as_of)
    difference = sum(line.amount_pico_usd for line in bill)
    difference -= sum(row.cost_pico_usd for row in ours)
    difference -= sum(row.amount_pico_usd for row in adjusted)
    assert total(parts) == difference
    assert all(part.difference.amount_pico_usd for part in parts)
    assert all(part.difference.sentence for part in parts)
