"""Prices that bills imply: exact, told only where they can be, decided by a person, changing nothing."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.bill_messages import Reconcile, Tolerances
from gateway.finance.cells import Metered
from gateway.finance.desk import FinanceDesk
from gateway.finance.errors import NotFound, Refused
from gateway.finance.form_messages import Done, Once
from gateway.finance.matching import Sides
from gateway.finance.once import once
from gateway.finance.price_books import decide_price, price_proposals
from gateway.finance.price_drift import PRICE_KEYS, cleaned, drifts, price_of
from gateway.finance.price_messages import (
    DecidePrice,
    ListPriceProposals,
    PriceState,
    how_to_set,
)
from gateway.ledger import schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.month_digest import month_digest
from gateway.ledger.service import LedgerService
from gateway.settings.loader import load_text
from tests.gateway.finance_books import attempt
from tests.gateway.ledger_samples import NOON_US, FakeClock, open_spool
from tests.gateway.pages_harness import running_pages
from tests.gateway.people_harness import logged_in, make
from tests.gateway.test_finance_close import NOVEMBER_6
from tests.gateway.test_finance_matching import AS_OF, DAY, MILLION, USD, billed, metered
from tests.gateway.test_finance_runs import books, costs, keep, order, run
from tests.gateway.test_finance_two_people import at_once
from tests.gateway.test_pages_admin import code_of
from tests.gateway.test_pages_books import OCTOBER_17, fields, send

MONTH = "2026-10"
OURS = Fraction(2 * MILLION)
OTHER_DAY = "2026-10-18"


def ours(units: int = MILLION, rate: Fraction = OURS, **changes) -> Metered:
    """What we priced at 2 USD a million."""
    return metered(units, round(units * rate), rates=((rate, units),), **changes)


def of_days(rows, lines, days=(DAY,)) -> Sides:
    return Sides(metered=rows, billed=lines, billed_days={"openai": frozenset(days)})


def told(sides: Sides, *, as_of: date = AS_OF, **changes):
    tolerances = msgspec.structs.replace(Tolerances(), **changes)
    found = drifts(sides, tolerances, {}, as_of=as_of)
    return [(one.meter, one.ours, one.billed, one.days) for one in found]


THREE = [("input", OURS, Fraction(3 * MILLION), (DAY,))]
CASES = {
    "the same price": (of_days([ours()], [billed()]), []),
    "another price": (of_days([ours()], [billed(amount=3 * USD)]), THREE),
    "another price of another quantity": (
        of_days([ours()], [billed(2 * MILLION, 6 * USD)]),
        THREE,
    ),
    "a thousandth apart": (of_days([ours(10**10)], [billed(10**10, 20_020 * USD)]), []),
    "more than a thousandth apart": (
        of_days([ours(10**10)], [billed(10**10, 20_021 * USD)]),
        [("input", OURS, Fraction(2_002_100), (DAY,))],
    ),
    "another price that makes less than a cent": (
        of_days([ours(1000)], [billed(1000, 9 * 10**9)]),
        [],
    ),
    "what the currency makes is no price": (
        of_days([ours()], [billed(amount=3 * USD, fx_pico_usd=USD)]),
        [],
    ),
    "another tier": (of_days([ours()], [billed(amount=3 * USD, tier="batch")]), []),
    "no units on the bill": (of_days([ours()], [billed(None, 3 * USD)]), []),
    "no meter on the bill": (of_days([ours()], [billed(amount=3 * USD, meter="")]), []),
    "a meter that has no price of ours": (
        of_days([ours(meter="gpu_us")], [billed(amount=3 * USD, meter="gpu_us")]),
        [],
    ),
    "attempts without a price": (of_days([metered()], [billed(amount=3 * USD)]), []),
    "nothing metered": (of_days([], [billed(amount=3 * USD)]), []),
    "money back": (of_days([ours()], [billed(amount=-3 * USD)]), []),
    "a line of the month": (of_days([ours()], [billed(amount=3 * USD, day="")]), []),
    "what we give away and the vendor bills": (
        of_days([ours(rate=Fraction(0))], [billed()]),
        [("input", Fraction(0), OURS, (DAY,))],
    ),
    "a price of ours that changed is compared on its own days": (
        of_days(
            [ours(), ours(day=OTHER_DAY, rate=Fraction(3 * MILLION))],
            [billed(amount=3 * USD), billed(amount=3 * USD, day=OTHER_DAY)],
            (DAY, OTHER_DAY),
        ),
        THREE,
    ),
    "days with the same price are taken together": (
        of_days(
            [ours(), ours(day=OTHER_DAY)],
            [billed(amount=3 * USD), billed(amount=3 * USD, day=OTHER_DAY)],
            (DAY, OTHER_DAY),
        ),
        [("input", OURS, Fraction(3 * MILLION), (DAY, OTHER_DAY))],
    ),
    "a price of the bill that changed is told on its own days": (
        of_days(
            [ours(), ours(day=OTHER_DAY)],
            [billed(), billed(amount=3 * USD, day=OTHER_DAY)],
            (DAY, OTHER_DAY),
        ),
        [("input", OURS, Fraction(3 * MILLION), (OTHER_DAY,))],
    ),
    "a price of the bill that changed twice is two": (
        of_days(
            [ours(), ours(day=OTHER_DAY)],
            [billed(amount=3 * USD), billed(amount=5 * USD, day=OTHER_DAY)],
            (DAY, OTHER_DAY),
        ),
        [*THREE, ("input", OURS, Fraction(5 * MILLION), (OTHER_DAY,))],
    ),
    "what a bill rounds to cents is one price": (
        of_days(
            [ours(), ours(day=OTHER_DAY)],
            [billed(amount=3 * USD), billed(amount=3 * USD + 10**10, day=OTHER_DAY)],
            (DAY, OTHER_DAY),
        ),
        [("input", OURS, Fraction(6 * USD + 10**10, 2 * MILLION), (DAY, OTHER_DAY))],
    ),
    "two prices of ours on one day are told as their mean": (
        of_days(
            [ours(), ours(team="search", rate=Fraction(4 * MILLION))],
            [billed(2 * MILLION, 8 * USD)],
        ),
        [("input", Fraction(3 * MILLION), Fraction(4 * MILLION), (DAY,))],
    ),
}


@pytest.mark.parametrize(("sides", "expected"), CASES.values(), ids=CASES.keys())
def test_a_price_is_told_where_it_can_be(sides, expected) -> None:
    assert told(sides) == expected


def test_days_that_are_not_final_imply_no_price() -> None:
    sides = of_days([ours()], [billed(amount=3 * USD)])
    assert told(sides, as_of=date(2026, 10, 19)) == []
    assert told(sides, as_of=date(2026, 10, 20)) == THREE


@given(
    st.integers(1, 10**12),
    st.integers(1, 10**9),
    st.integers(1, 10**12),
    st.integers(1, 10**12),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
)
def test_the_implied_price_is_an_exact_fraction_and_cleaned_once(pico, per, bill, units, parts):
    rate = Fraction(pico, per)
    lines = [billed(units, bill + part, line_id=place) for place, part in enumerate(parts)]
    sides = of_days([ours(rate=rate)], lines)
    for one in drifts(sides, Tolerances(), {}, as_of=AS_OF):
        whole = sum(line.amount_pico_usd for line in lines)
        assert one.billed == Fraction(whole, units * len(lines))
        assert one.ours == rate
        assert one.billed * one.billed_units == one.billed_pico_usd == whole
        assert abs(one.billed - rate) > Fraction(1, 1000) * rate
    written = cleaned(rate)
    assert len(written.as_tuple().digits) <= 12
    assert abs(Fraction(written) - rate) * 2 * 10**11 <= Fraction(written) * 11


def test_every_price_is_one_of_the_configuration(tmp_path) -> None:
    for meter, (key, _) in PRICE_KEYS.items():
        text = f"""
providers: {{up: {{kind: openai_compatible, base_url: "http://127.0.0.1:9"}}}}
models:
  m:
    deployments: [{{deployment: up/m, price: {{{key}: {price_of(meter, Fraction(7_000_000, 3))}}}}}]
"""
        assert load_text(text, environ={}, base_dir=tmp_path).settings.models["m"].deployments


BILL = ("gpt-4o, input", "6")


def decision(number: int, *, accepts: bool = True, **changes) -> DecidePrice:
    values = {"actor": "ben", "proposal_id": number, "is_accepted": accepts, "reason": "new list"}
    return DecidePrice(**(values | changes))


@pytest.mark.anyio
async def test_a_run_proposes_a_price_and_a_person_decides_it(tmp_path):
    engine = await books(tmp_path, attempt(1), attempt(2, team="search"))
    with engine.begin() as connection:
        kept = keep(connection, order(costs(BILL)))
        before = month_digest(connection, MONTH)
        found = run(connection)
        [one] = price_proposals(connection, ListPriceProposals())
        assert found.price_proposal_ids == (one.proposal_id,)
        assert (one.deployment, one.meter, one.price_key) == (
            "openai/gpt-4o", "input", "input_usd_per_mtok",
        )  # fmt: skip
        assert (one.our_price, one.billed_price, one.state) == ("2.5", "3", PriceState.OPEN)
        assert (one.our_rate, one.billed_rate, one.is_mixed) == ("2500000", "3000000", False)
        evidence = one.evidence
        assert (evidence.days, evidence.imports) == (("2026-10-17",), (kept.batch.batch_id,))
        assert (evidence.billed_pico_usd, evidence.at_ours_pico_usd) == (6 * USD, 5 * USD)
        assert (evidence.metered_units, evidence.billed_units) == (2 * MILLION, 2 * MILLION)
        assert evidence.line_count == len(evidence.lines) == 1
        assert how_to_set(one).count("input_usd_per_mtok: 3, valid_from: 2026-10-17T00:00:00Z") == 1
        done = decide_price(connection, decision(one.proposal_id), now_us=NOON_US)
        assert (done.state, done.decided_by, done.reason) == (
            PriceState.ACCEPTED, "ben", "new list",
        )  # fmt: skip
        with pytest.raises(Refused, match="was accepted by ben already"):
            decide_price(connection, decision(one.proposal_id, accepts=False), now_us=NOON_US)
        with pytest.raises(NotFound, match="no price proposal has the number 99"):
            decide_price(connection, decision(99), now_us=NOON_US)
        again = run(connection)
        assert again.price_proposal_ids == ()
        assert month_digest(connection, MONTH) == before
        log = schema.audit_log
        acts = connection.execute(sa.select(log.c.actor, log.c.action).order_by(log.c.seq)).all()
        assert ("ben", "price.accept") in [tuple(row) for row in acts]
        assert [row[1] for row in acts].count("price.propose") == 1
        assert list(audit_faults(connection)) == []


@pytest.mark.anyio
async def test_a_newer_run_looks_again_and_keeps_what_was_decided(tmp_path):
    engine = await books(tmp_path, attempt(1))
    with engine.begin() as connection:
        keep(connection, order(costs(("gpt-4o, input", "3"))))
        assert run(connection, proposes=False).price_proposal_ids == ()
        [first] = run(connection).price_proposal_ids
        [second] = run(connection).price_proposal_ids
        states = {
            one.proposal_id: one.state for one in price_proposals(connection, ListPriceProposals())
        }
        assert states == {first: PriceState.WITHDRAWN, second: PriceState.OPEN}
        with pytest.raises(Refused, match="was withdrawn by"):
            decide_price(connection, decision(first), now_us=NOON_US)
        form = Once(form="a" * 32, act=decision(second, accepts=False))
        done = once(
            connection,
            form,
            lambda inner: decide_price(inner, form.act, now_us=NOON_US),
            now_us=NOON_US,
        )
        assert done == Done(subject=str(second), sentence=f"price proposal {second} is rejected")
        assert run(connection).price_proposal_ids == ()
        asked = ListPriceProposals(state=PriceState.REJECTED, month=MONTH)
        assert [one.proposal_id for one in price_proposals(connection, asked)] == [second]
        assert price_proposals(connection, ListPriceProposals(month="2026-09")) == ()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_price_is_decided_over_http_and_on_the_page(tmp_path):
    async with running_pages(tmp_path) as pages:
        place = {"provider": "up", "upstream_model": "m", "deployment": "up/m"}
        await pages.book(tokens=MILLION, ago_us=OCTOBER_17, **place)
        for login, role in (("carla", "finance_admin"), ("vera", "finance_viewer")):
            await make(pages, login, role)
        bill = {
            "source": "csv",
            "account": "up",
            "file_name": "bill.csv",
            "mapping": "columns: {day: d, model: m, meter: k, units: u, amount: a}",
            "content": "d,m,k,u,a\n2026-10-17,m,input,1000000,0.25\n",
        }
        path = "/admin/v1/finance/price-proposals"
        async with pages.admin() as admin:
            assert (await admin.post("/admin/v1/finance/imports", json=bill)).status_code == 200
            compared = await admin.post("/admin/v1/finance/reconciliations", json={"month": MONTH})
            [number] = compared.json()["price_proposal_ids"]
            listed = (await admin.get(path, params={"state": "open", "month": MONTH})).json()
            assert [one["billed_price"] for one in listed["proposals"]] == ["0.25"]
            assert listed["proposals"][0]["evidence"]["billed_usd"] == "0.25"
            assert (await admin.get(path, params={"state": "odd"})).status_code == 422
            bare = await admin.post(f"{path}/{number}/accept", json={})
            assert bare.status_code == 422
            none = await admin.post(f"{path}/99/reject", json={"reason": "x"})
            assert (none.status_code, code_of(none)) == (404, "finance_not_found")
            done = await admin.post(f"{path}/{number}/accept", json={"reason": "the new list"})
            assert "input_usd_per_mtok: 0.25" in done.json()["how_to_set"]
            twice = await admin.post(f"{path}/{number}/reject", json={"reason": "x"})
            assert (twice.status_code, code_of(twice)) == (409, "finance_conflict")
            bill |= {"content": bill["content"].replace("0.25", "0.5"), "overlap": "replace"}
            await admin.post("/admin/v1/finance/imports", json=bill)
            compared = await admin.post("/admin/v1/finance/reconciliations", json={"month": MONTH})
            [number] = compared.json()["price_proposal_ids"]
        page = f"/ui/reconciliation?month={MONTH}"
        act = f"/ui/reconciliation/prices/{number}"
        async with logged_in(pages, "vera") as vera:
            seen = (await vera.get(page)).text
            assert "deciding it needs the role finance_admin" in seen
            assert 'action="/ui/reconciliation/prices' not in seen
        async with logged_in(pages, "carla") as carla:
            assert "the new list" in (await carla.get(page)).text
            form = await fields(carla, page) | {"month": MONTH, "do": "reject"}
            empty = await send(carla, act, form)
            assert (empty.status_code, "give a reason of 1 to 500" in empty.text) == (422, True)
            odd = await send(carla, act, form | {"do": "odd", "reason": "x"})
            assert odd.status_code == 422
            answers = [await send(carla, act, form | {"reason": "a credit"}) for _ in range(2)]
            assert {one.headers.get("location") for one in answers} == {f"{page}&price={number}"}
            assert "a credit" in (await carla.get(page)).text
            gone = await send(carla, act, await fields(carla, page) | form | {"reason": "other"})
            assert gone.status_code == 422


async def decide_at_once(url: str, folder) -> None:
    """Two decide the same proposal at the same time, each the other way."""
    clock = FakeClock(wall=NOVEMBER_6)
    service = LedgerService(url, folder / "spool", clock=clock.clock)
    await service.start()
    desk = FinanceDesk(service, clock=clock.clock)
    writer = open_spool(folder / "spool" / "w1", session=1, clock=clock.clock)
    try:
        for record in attempt(1):
            writer.append(record)
        await writer.close()
        await desk.answer(order(costs(("gpt-4o, input", "6"))))
        found = await desk.answer(Reconcile(actor="ann", month=MONTH))
        [number] = found.price_proposal_ids
        orders = [decision(number), decision(number, actor="cyd", accepts=False)]
        outcomes = await at_once(desk, *orders)
        [done] = [one for one in outcomes if not isinstance(one, Refused)]
        [kept] = await desk.answer(ListPriceProposals())
        assert kept == done
        assert kept.decided_by == ("ben" if kept.state is PriceState.ACCEPTED else "cyd")
        assert (kept.our_rate, kept.billed_rate) == ("2500000", "3000000")
        verification = await service.verify()
        assert verification.faults == ()
    finally:
        await service.stop(drain=False)


@pytest.mark.anyio
async def test_of_two_who_decide_at_once_one_does_on_sqlite(tmp_path):
    await decide_at_once(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path)


@pytest.mark.slow
@pytest.mark.anyio
async def test_of_two_who_decide_at_once_one_does_on_postgresql(tmp_path, postgres_url):
    await decide_at_once(postgres_url, tmp_path)
