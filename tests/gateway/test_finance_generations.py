"""Generations of a bill and our attempts, matched by the vendor's id: one by one, and exactly."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.bill_messages import SourceKind, Tolerances
from gateway.finance.cells import Billed, Metered, Sent
from gateway.finance.errors import UnreadableSource
from gateway.finance.generation_messages import GenerationState, ListGenerations
from gateway.finance.generations import match, parts_of, told, told_otherwise
from gateway.finance.imports import parse_import
from gateway.finance.matching import Sides, compare
from gateway.finance.runs import list_generations
from gateway.ledger.finance_tables import invoice_line
from providers.compatible import load_catalog
from tests.gateway.finance_books import OCTOBER_US, attempt, unknown
from tests.gateway.test_finance_matching import AS_OF, DAY
from tests.gateway.test_finance_runs import books, keep, order, run

ACCOUNT, MODEL = "openrouter", "openai/gpt-4.1"
MONTH = "2026-10"
DAY_US = 24 * 3_600 * 10**6
MICRO = 10**6
"""A millionth of a dollar."""


def line(number: int, amount: int, **changes) -> Billed:
    values = {"account": ACCOUNT, "day": DAY, "model": MODEL, "meter": "", "tier": "standard"}
    more = {"kind": "usage", "units": 10, "fx_pico_usd": 0, "generation": f"gen-{number}"}
    return Billed(**(values | more | {"amount_pico_usd": amount} | changes))


def ours(number: int, cost: int, **changes) -> Sent:
    values = {"account": ACCOUNT, "day": DAY, "model": MODEL, "generation": f"gen-{number}"}
    more = {"event_id": f"{number:032x}", "units": 10, "cost_pico_usd": cost}
    return Sent(**(values | more | changes))


def metered(sent) -> Metered:
    total = sum(one.cost_pico_usd for one in sent)
    values = {"account": ACCOUNT, "day": DAY, "model": MODEL, "meter": "input"}
    names = {"team": "payments", "project": "", "units": 10 * len(sent), "cost_pico_usd": total}
    return Metered(**(values | names))


def compared(lines, sent, **changes):
    sides = Sides(
        metered=[metered(sent)] if sent else [],
        billed=lines,
        sent=sent,
        billed_days={ACCOUNT: frozenset({DAY})},
        **changes,
    )
    found = compare(sides, Tolerances(), {}, as_of=AS_OF)
    return [one.difference for one in found]


CASES = {
    "the same": ([line(1, 5)], [ours(1, 5)], []),
    "one missing and one extra of the same worth": (
        [line(1, 5), line(2, 7)],
        [ours(1, 5), ours(3, 7)],
        [("missing_event", 7, "missing 1 (gen-2)"), ("extra_event", -7, "extra 1 (gen-3)")],
    ),
    "an attempt without an id, that cost nothing": (
        [line(1, 5)],
        [ours(1, 5), ours(2, 0, generation="")],
        [],
    ),
    "another cost, within tolerance": (
        [line(1, 6)],
        [ours(1, 5, provider_cost_pico_usd=6)],
        [("rounding", 1, "other cost 1 (gen-1)")],
    ),
    "another cost than booked and than told": (
        [line(1, 3 * 10**12)],
        [ours(1, 2 * 10**12, provider_cost_pico_usd=2 * 10**12)],
        [("price_drift", 10**12, "1 billed otherwise than told with the answer")],
    ),
    "a bill of an attempt whose bill was unknown": (
        [line(1, 5)],
        [ours(1, 0, is_unknown=True)],
        [("missing_event", 5, "unknown bill 1 (gen-1)")],
    ),
    "many missing ones": (
        [line(number, 1) for number in range(5)],
        [],
        [("missing_event", 5, "missing 5 (gen-0, gen-1, gen-2 and 2 more)")],
    ),
    "ids of another kind are compared by quantity": (
        [line(1, 5)],
        [ours(1, 5, generation="req_1")],
        [],
    ),
    "an attempt that cost something and has no id is compared by quantity": (
        [line(1, 5)],
        [ours(1, 5), ours(2, 3, generation="")],
        [("rounding", -3, "within tolerance")],
    ),
}


@pytest.mark.parametrize(("lines", "sent", "expected"), CASES.values(), ids=CASES.keys())
def test_each_generation_is_known(lines, sent, expected) -> None:
    found = compared(lines, sent)
    assert [(one.kind, one.amount_pico_usd) for one in found] == [one[:2] for one in expected]
    for one, (_, _, words) in zip(found, expected, strict=True):
        assert words in one.sentence


amounts = st.integers(0, 10**13)


@given(
    st.dictionaries(st.integers(0, 9), amounts, max_size=8),
    st.dictionaries(st.integers(0, 9), amounts, max_size=8),
    st.integers(-(10**13), 10**13),
    st.integers(0, 10**6),
)
def test_the_parts_sum_to_the_difference_whatever_there_is(bill, ledger, adjusted, without_id):
    lines = [line(number, amount) for number, amount in bill.items()]
    sent = [ours(number, cost) for number, cost in ledger.items()]
    booked = sum(ledger.values()) + without_id
    found = match(lines, sent)
    missing, extra, price = parts_of(found, booked=booked, adjusted=adjusted)
    assert missing + extra + price == sum(bill.values()) - booked - adjusted
    if not adjusted:
        assert missing == sum(amount for number, amount in bill.items() if number not in ledger)
        assert -extra == without_id + sum(
            cost for number, cost in ledger.items() if number not in bill
        )
    states = [one.state for one in found]
    assert states.count(GenerationState.MISSING) == len(bill.keys() - ledger.keys())
    assert set(told(found)) == set(states)
    assert told_otherwise(found) == 0


def generation(number: int, at: str, cost: str, model: str = MODEL) -> dict:
    return {
        "id": f"gen-{number}",
        "created_at": at,
        "model": model,
        "total_cost": cost,
        "native_tokens_prompt": 1_000_000,
        "native_tokens_completion": 0,
    }


def bill(*some: dict) -> str:
    return "\n".join(json.dumps({"data": one}) for one in some)


def bought(n: int, **changes):
    names = {"account": ACCOUNT, "model": MODEL, "upstream_request_id": f"gen-{n}"}
    return attempt(n, **(names | changes))


def taking(text: str):
    return order(text, source=SourceKind.OPENROUTER_GENERATIONS, account=ACCOUNT)


@pytest.mark.anyio
async def test_a_month_is_matched_by_id_across_midnight_and_names(tmp_path):
    midnight = OCTOBER_US + DAY_US // 2
    engine = await books(
        tmp_path,
        bought(1, provider_cost_pico_usd=2_500_000 * MICRO),
        bought(2, at_us=midnight - 10),
        bought(3, team="search"),
        bought(5, is_stream=True),
        unknown(6, exposure=10**13, account=ACCOUNT, model=MODEL, upstream_request_id="gen-6"),
        attempt(7),
    )
    with engine.begin() as connection:
        text = bill(
            generation(1, "2026-10-17T12:00:00Z", "2.5"),
            generation(2, "2026-10-18T00:00:01Z", "2.5", "gpt-4.1-of-another-name"),
            generation(3, "2026-10-17T12:00:00Z", "3.5"),
            generation(4, "2026-10-17T12:00:00Z", "2.5"),
            generation(6, "2026-10-17T12:00:00Z", "1.25"),
        )
        keep(connection, taking(text))
        found = run(connection)
        differences = {(one.kind, one.day): one for one in found.differences}
        assert {key: one.amount_pico_usd for key, one in differences.items()} == {
            ("missing_event", DAY): 3_750_000 * MICRO,
            ("extra_event", DAY): -2_500_000 * MICRO,
            ("price_drift", DAY): 10**12,
        }
        assert "missing 1 (gen-4)" in differences["missing_event", DAY].sentence
        assert "extra 1 (gen-5)" in differences["extra_event", DAY].sentence
        assert "other cost 1 (gen-3)" in differences["price_drift", DAY].sentence
        whole = found.billed_pico_usd - found.ledger_pico_usd
        assert sum(one.amount_pico_usd for one in found.differences) == whole
        listed = list_generations(connection, ListGenerations(month=MONTH))
        assert {(one.generation, one.state.value) for one in listed} == {
            ("gen-3", "other_cost"),
            ("gen-4", "missing"),
            ("gen-5", "extra"),
            ("gen-6", "unknown_bill"),
        }
        same = ListGenerations(month=MONTH, account=ACCOUNT, state=GenerationState.SAME)
        [first, second] = list_generations(connection, same)
        assert (first.told_pico_usd, first.booked_pico_usd, first.billed_pico_usd) == (
            2_500_000 * MICRO,
        ) * 3
        assert (second.day, second.model) == (DAY, MODEL)
        kept = connection.execute(sa.select(invoice_line.c.day).order_by(invoice_line.c.id))
        assert kept.scalars().all()[1] == "2026-10-18"
        other = ListGenerations(month=MONTH, account="openai")
        assert list_generations(connection, other) == ()


@pytest.mark.anyio
async def test_a_generation_of_the_last_second_of_a_month_is_of_the_attempts_month(tmp_path):
    last = OCTOBER_US + 14 * DAY_US + DAY_US // 2 - 10
    engine = await books(tmp_path, bought(1, at_us=last), bought(2, at_us=last))
    with engine.begin() as connection:
        text = bill(
            generation(1, "2026-10-31T23:59:59Z", "2.5"),
            generation(2, "2026-11-01T00:00:01Z", "2.5"),
            generation(3, "2026-11-01T00:00:01Z", "1"),
        )
        keep(connection, taking(text))
        october, november = run(connection), run(connection, month="2026-11")
        assert october.differences == ()
        assert october.billed_pico_usd == 5 * 10**12
        assert [(one.kind, one.amount_pico_usd) for one in november.differences] == [
            ("missing_event", 10**12)
        ]


@pytest.mark.anyio
async def test_a_line_stays_where_no_bill_covers_the_day_of_the_attempt(tmp_path):
    before = OCTOBER_US - DAY_US // 2 - 10
    engine = await books(tmp_path, bought(1, at_us=before))
    with engine.begin() as connection:
        keep(connection, taking(bill(generation(1, "2026-10-17T00:00:01Z", "2.5"))))
        [one] = run(connection).differences
        assert (one.kind, one.day) == ("missing_event", DAY)


def test_a_generation_that_stands_twice_is_refused() -> None:
    once_ = generation(1, "2026-10-17T12:00:00Z", "1")
    for text in (bill(once_, once_), bill(once_ | {"id": " "})):
        with pytest.raises(UnreadableSource, match="is empty or stands twice"):
            parse_import(taking(text))


def test_an_attempt_at_openrouter_keeps_the_id_that_is_billed() -> None:
    assert load_catalog()["openrouter"].request_id_headers[0] == "x-generation-id"
