"""Commitments in an export: what they paid, what was bought, what nobody used."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

import pytest
import sqlalchemy as sa
from focus_data_toolkit import validate_dataset_bundle
from focus_data_toolkit.model.validator import lint_focus_1_4_structure

from gateway.clock import from_microseconds
from gateway.finance import commitments
from gateway.finance.bill_messages import ImportFile, SourceKind
from gateway.finance.close import close_month
from gateway.finance.commitment_messages import RecordCommitment, WithdrawCommitment
from gateway.finance.focus.books import Books, open_export
from gateway.finance.focus.committed import Coverage, contract
from gateway.finance.focus.files import write_folder
from gateway.finance.focus.order import (
    HOUR_US,
    ExportOrder,
    FileFormat,
    Grain,
    NameForm,
    Profile,
    month_of,
)
from gateway.finance.imports import keep_import, parse_import
from gateway.ledger.finance_tables import import_batch, invoice, invoice_line
from pricing.commitments import CommitmentKind
from pricing.money import parse_usd
from tests.gateway.finance_books import DAY_US, OCTOBER_US, attempt, load, write, writing
from tests.gateway.focus_ledgers import column_sum, told
from tests.gateway.focus_samples import PARTIES, commitment, read_rows, usage_sum
from tests.gateway.ledger_samples import FakeClock, make_database
from tests.gateway.test_finance_close import ALL, order
from tests.gateway.test_finance_close import sound as sound_books
from tests.gateway.test_finance_focus_rows import CONDITIONS, DATASETS

pytestmark = pytest.mark.anyio

FROM_US, TO_US = month_of("2026-10")
NOVEMBER_US = month_of("2026-11")[1]
EACH = parse_usd("2.5")
K = CommitmentKind
RATES = "day,base,quote,rate,source\n2026-10-01,EUR,USD,1.25,ECB\n"


def deal(name: str, kind: K, amount: str, **changes) -> RecordCommitment:
    values = {
        "actor": "ann",
        "name": name,
        "kind": kind,
        "provider": "openai",
        "amount": amount,
        "first_day": "2026-10-01",
        "last_day": "2026-10-31",
        "rates": RATES,
    }
    return RecordCommitment(**(values | changes))


CREDIT = deal("credit", K.CREDIT, "3", currency="EUR", invoice="INV-7", last_day="2026-10-20")
CAPACITY = deal("capacity", K.THROUGHPUT, "31", provider="groq")
PROMISE = deal("promise", K.SPEND, "4", provider="mistral")


@pytest.fixture
async def books(tmp_path):
    """Five attempts on three days; what they cost is drawn from three commitments."""
    hours = (0, 1, 2, DAY_US // HOUR_US)
    attempts = [
        attempt(n, at_us=OCTOBER_US + hour * HOUR_US) for n, hour in enumerate(hours, start=1)
    ]
    attempts.append(attempt(8, account="groq", model="llama", usage={"input": 200_000}))
    attempts.append(attempt(9, account="mistral", model="large"))
    engine = writing(await write(tmp_path, attempts))
    with engine.begin() as connection:
        for one in (CREDIT, CAPACITY, PROMISE):
            commitments.record(connection, one, now_us=OCTOBER_US)
    yield engine
    engine.dispose()


COST = 5 * EACH + parse_usd("0.5")


def rows_of(
    engine: sa.Engine,
    profile: Profile = Profile.CHARGEBACK,
    *,
    from_us: int = FROM_US,
    to_us: int = TO_US,
    now_us: int = TO_US,
    **options,
):
    wanted = ExportOrder(
        from_us=from_us, to_us=to_us, profile=profile, names=NameForm.PLAIN, **options
    )
    with engine.begin() as connection:
        export = open_export(
            connection, wanted, parties=PARTIES, pseudonym_key=b"k" * 32, now_us=now_us
        )
        return told(connection, export)


def of_kind(rows, *kinds: str):
    return [row for row in rows if row["x_ChargeKind"] in kinds]


async def test_what_is_paid_ahead_is_billed_once_and_used_up_to_its_end(books):
    rows = rows_of(books)
    paid, wasted, owed = parse_usd("3.75") + parse_usd("31"), parse_usd("30.5"), parse_usd("1.5")
    drawn = parse_usd("3.75") + parse_usd("0.5")
    assert column_sum(rows, "EffectiveCost") == COST + wasted + owed
    assert column_sum(rows, "BilledCost") == COST - drawn + paid + owed
    used = of_kind(rows, "committed_usage")
    assert column_sum(used, "EffectiveCost") == column_sum(used, "ContractedCost") == drawn
    assert column_sum(used, "BilledCost") == 0
    assert column_sum(used, "CommitmentDiscountQuantity") == drawn
    assert {row["CommitmentDiscountStatus"] for row in used} == {"Used"}
    [unused] = of_kind(rows, "unused_commitment")
    assert (unused["EffectiveCost"], unused["CommitmentDiscountId"]) == (wasted, "capacity")
    shortfall = [row for row in rows if "Shortfall" in str(row["ChargeDescription"])]
    assert [(row["BilledCost"], row["InvoiceIssuerName"]) for row in shortfall] == [
        (owed, PARTIES.organisation)
    ]


async def test_the_row_in_which_a_credit_ends_is_told_as_two_that_add_up(books):
    rows = [row for row in rows_of(books) if row["ResourceId"] == "openai/gpt-4o"]
    costs = [(row["x_ChargeKind"], row["ContractedCost"]) for row in rows]
    assert costs == [
        ("committed_usage", EACH),
        ("committed_usage", parse_usd("1.25")),
        ("usage", parse_usd("1.25")),
        ("usage", EACH),
        ("usage", EACH),
    ]
    assert column_sum(rows, "ConsumedQuantity") == 4 * 10**6 * 10**12
    assert column_sum(rows, "x_RequestCount") == 4 * 10**12
    for row in rows:
        quantity, price = int(row["PricingQuantity"]), int(row["ContractedUnitPrice"])
        assert quantity * price == int(row["ContractedCost"]) * 10**12


async def test_a_range_that_begins_within_a_day_knows_what_was_drawn_before(books):
    noon = OCTOBER_US
    whole = [r for r in rows_of(books, grain=Grain.HOUR) if r["x_ChargeKind"] != "purchase"]
    parts = [
        row
        for start, end in ((FROM_US, noon + HOUR_US), (noon + HOUR_US, TO_US))
        for row in rows_of(books, from_us=start, to_us=end)
        if row["x_ChargeKind"] != "purchase"
    ]

    def key(row):
        return sorted((name, str(value)) for name, value in row.items())

    assert sorted(parts, key=key) == sorted(whole, key=key)


async def test_a_purchase_in_euros_says_so(books):
    bought = {row["CommitmentDiscountId"]: row for row in of_kind(rows_of(books), "purchase")}
    assert bought.keys() == {"credit", "capacity"}
    credit = bought["credit"]
    assert (credit["BilledCost"], credit["EffectiveCost"]) == (parse_usd("3.75"), 0)
    assert (credit["PricingCurrency"], credit["InvoiceId"]) == ("EUR", "INV-7")
    assert credit["x_VendorCurrencyRate"] == parse_usd("1.25")
    assert credit["PricingCurrencyContractedUnitPrice"] == parse_usd("0.8")
    assert bought["capacity"]["PricingCurrency"] == "USD"


async def test_what_is_not_over_is_not_unused_yet(books):
    rows = rows_of(books, now_us=OCTOBER_US + DAY_US)
    [unused] = of_kind(rows, "unused_commitment")
    assert unused["EffectiveCost"] == parse_usd("16.5"), "17 days of a dollar, one half used"
    assert not [row for row in rows if "Shortfall" in str(row["ChargeDescription"])]


async def test_corrections_and_withdrawals_are_rows_of_their_month(books):
    with books.begin() as connection:
        close_month(connection, order(accepted=ALL), sound_books(), now_us=TO_US + 6 * DAY_US)
        raised = deal(
            "capacity", K.THROUGHPUT, "60", provider="groq", last_day="2026-11-30",
            is_correction=True, reason="longer",
        )  # fmt: skip
        commitments.record(connection, raised, now_us=TO_US + 7 * DAY_US)
        late = deal("late", K.CREDIT, "9", last_day="2026-12-31")
        assert commitments.record(connection, late, now_us=TO_US).counts_from == "2026-11-01"
    before = rows_of(books)
    november = rows_of(books, from_us=TO_US, to_us=NOVEMBER_US, now_us=NOVEMBER_US)
    assert column_sum(of_kind(before, "purchase"), "BilledCost") == parse_usd("34.75")
    amounts = {
        row["CommitmentDiscountId"]: row["BilledCost"] for row in of_kind(november, "purchase")
    }
    assert amounts == {"capacity": parse_usd("29"), "late": parse_usd("9")}
    with books.begin() as connection:
        gone = WithdrawCommitment(actor="ann", name="late", reason="twice")
        commitments.withdraw(connection, gone, now_us=NOVEMBER_US)
        gone = WithdrawCommitment(actor="ann", name="capacity", reason="given back")
        commitments.withdraw(connection, gone, now_us=NOVEMBER_US)
    after = rows_of(books, from_us=TO_US, to_us=NOVEMBER_US, now_us=NOVEMBER_US)
    assert of_kind(after, "purchase") == []
    assert column_sum(after, "EffectiveCost") == 0
    back = [row for row in after if "Correction of" in str(row["ChargeDescription"])]
    assert back == [], "nothing more was paid, and what October used stays"
    assert rows_of(books) == before


async def test_late_usage_is_paid_on_the_first_day_of_its_month(tmp_path, books):
    with books.begin() as connection:
        close_month(connection, order(accepted=ALL), sound_books(), now_us=TO_US + 6 * DAY_US)
        more = deal("more", K.CREDIT, "1", last_day="2026-12-31")
        commitments.record(connection, more, now_us=TO_US)
    await load(tmp_path, str(books.url), [attempt(40)], clock=FakeClock(), session=2)
    rows = rows_of(books, from_us=TO_US, to_us=NOVEMBER_US, now_us=NOVEMBER_US)
    late = [row for row in rows if row["ChargeClass"] == "Correction"]
    assert [(row["x_ChargeKind"], row["EffectiveCost"], row["BilledCost"]) for row in late] == [
        ("committed_usage", parse_usd("1"), 0),
        ("correction", parse_usd("1.5"), parse_usd("1.5")),
    ]
    assert {row["x_OriginalEventDate"] for row in late} == {"2026-10-17"}


async def test_what_late_usage_drew_is_not_drawn_again_in_the_next_range(tmp_path, books):
    with books.begin() as connection:
        close_month(connection, order(accepted=ALL), sound_books(), now_us=TO_US + 6 * DAY_US)
        more = deal("more", K.CREDIT, "4", last_day="2026-12-31")
        commitments.record(connection, more, now_us=TO_US)
    evening = attempt(41, at_us=TO_US + 18 * HOUR_US)
    await load(tmp_path, str(books.url), [attempt(40), evening], clock=FakeClock(), session=2)
    noon = TO_US + 12 * HOUR_US
    for bounds in ([(TO_US, NOVEMBER_US)], [(TO_US, noon), (noon, NOVEMBER_US)]):
        paid = [
            row["EffectiveCost"]
            for start, end in bounds
            for row in rows_of(books, from_us=start, to_us=end, now_us=NOVEMBER_US)
            if row["x_ChargeKind"] == "committed_usage"
        ]
        assert sorted(paid) == [parse_usd("1.5"), EACH]


@pytest.mark.parametrize("profile", Profile)
async def test_the_linter_finds_nothing_in_commitments_of_the_books(books, tmp_path, profile):
    wanted = ExportOrder(from_us=FROM_US, to_us=TO_US, profile=profile)
    with books.begin() as connection:
        fill_invoice(connection)
        export = open_export(
            connection, wanted, parties=PARTIES, pseudonym_key=b"k" * 32, now_us=TO_US
        )
        write_folder(connection, export, FileFormat.CSV, tmp_path / "out")
    rows = {
        name: read_rows(tmp_path / "out" / f"{stem}.csv")
        for stem, name in DATASETS.items()
        if (tmp_path / "out" / f"{stem}.csv").exists()
    }
    assert len(rows["Contract Commitment"]) == 3
    for dataset, found in rows.items():
        report = lint_focus_1_4_structure(dataset, found, supported_conditions=CONDITIONS)
        assert report.messages() == []
    bundle = validate_dataset_bundle(rows)
    assert [str(one) for one in bundle.diagnostics if one.is_failure] == []


def fill_invoice(connection: sa.Connection) -> None:
    """An invoice in euros for what openai billed: 4 EUR at 1.25."""
    batch = {
        "id": 1, "at_us": TO_US, "actor": "ann", "source": "csv", "account": "openai",
        "file_name": "o.csv", "sha256": b"s" * 32, "state": "ok", "reason": "",
        "first_day": "2026-10-01", "last_day": "2026-10-31", "row_count": 1, "replaced_by": None,
    }  # fmt: skip
    bill = {
        "id": 1, "batch_id": 1, "account": "openai", "number": "R-10", "issued_on": "2026-11-01",
        "currency": "EUR", "total_pico_usd": parse_usd("5"),
    }  # fmt: skip
    lines = [
        {
            "id": n, "invoice_id": 1, "line": n, "kind": "usage", "day": f"2026-10-1{n}",
            "model": "gpt-4o", "meter": "input", "tier": "", "units": None, "amount": "2 EUR",
            "amount_pico_usd": parse_usd("2.5"), "fx_pico_usd": 0, "description": "tokens",
        }
        for n in (7, 8)
    ]  # fmt: skip
    connection.execute(sa.insert(import_batch), batch)
    connection.execute(sa.insert(invoice), bill)
    connection.execute(sa.insert(invoice_line), lines)


async def test_what_a_vendor_bills_in_euros_has_prices_in_euros(books):
    with books.begin() as connection:
        fill_invoice(connection)
    rows = rows_of(books, Profile.RECONCILED)
    billed = [row for row in rows if row["InvoiceId"] == "R-10"]
    assert column_sum(billed, "BilledCost") == parse_usd("5")
    assert {row["x_ChargeKind"] for row in billed} == {"usage"}, "what the credit paid is paid"
    for row in billed:
        assert (row["PricingCurrency"], row["x_VendorCurrencyRate"]) == ("EUR", parse_usd("1.25"))
        assert row["PricingCurrencyContractedUnitPrice"] == parse_usd("2")
        assert int(row["PricingCurrencyEffectiveCost"]) * 5 == int(row["EffectiveCost"]) * 4


async def test_a_bill_that_was_imported_is_exported_in_each_of_its_currencies(books):
    content = "d,m,k,a,c\n2026-10-17,gpt-4o,input,2.00000000000000001,EUR\n"
    content += "2026-10-18,gpt-4o,input,2,EUR\n2026-10-18,gpt-4o,input,1.5,USD\n"
    order = ImportFile(
        actor="ann", source=SourceKind.CSV, account="openai", file_name="o.csv",
        content=content.encode(), rates=RATES.replace("-01,", "-16,"), number="R-11",
        issued_on="2026-10-18",
        mapping="columns: {day: d, model: m, meter: k, amount: a, currency: c}",
    )  # fmt: skip
    parsed = parse_import(order)
    with books.begin() as connection:
        keep_import(connection, order, parsed, now_us=TO_US)
    rows = rows_of(books, Profile.RECONCILED)
    billed = [row for row in rows if row["InvoiceId"] == "R-11"]
    assert column_sum(billed, "BilledCost") == parse_usd("6.5")
    with books.begin() as connection:
        source = Books(connection, Profile.RECONCILED, TO_US)
        found = source.allocations(FROM_US, TO_US)
    assert [(one.currency, one.amount_pico_usd, one.rate) for one in found] == [
        ("EUR", parse_usd("5"), 5 / Fraction("4.00000000000000001")),
        ("USD", parse_usd("1.5"), 1),
    ]


async def test_money_back_is_a_row_that_takes_nothing_from_usage(books):
    with books.begin() as connection:
        close_month(connection, order(accepted=ALL), sound_books(), now_us=TO_US + 6 * DAY_US)
        late = deal("late", K.CREDIT, "9", last_day="2026-12-31")
        commitments.record(connection, late, now_us=TO_US)
        later = order(accepted=ALL, month="2026-11")
        close_month(connection, later, sound_books(), now_us=NOVEMBER_US + 6 * DAY_US)
        lower = deal(
            "late", K.CREDIT, "7", last_day="2026-12-31", is_correction=True, reason="less"
        )
        commitments.record(connection, lower, now_us=NOVEMBER_US)
    december_us = month_of("2026-12")[1]
    rows = rows_of(books, from_us=NOVEMBER_US, to_us=december_us, now_us=NOVEMBER_US)
    [back] = [row for row in rows if row["x_ChargeKind"] == "adjustment"]
    assert (back["BilledCost"], back["EffectiveCost"]) == (-parse_usd("2"), 0)
    assert back["ChargeDescription"] == "Correction of commitment late: less"


CONTRACT_STATES = {
    "coming": ({"first_day": "2026-12-01", "last_day": "2026-12-31"}, "Pending"),
    "open": ({"last_day": "2026-12-31"}, "Active"),
    "over": ({}, "Expired"),
    "of one day": ({"last_day": "2026-10-01"}, "Expired"),
}


@pytest.mark.parametrize(
    ("changes", "status"), CONTRACT_STATES.values(), ids=CONTRACT_STATES.keys()
)
def test_where_a_contract_stands(tmp_path, changes, status):
    engine = writing(make_database(tmp_path))
    with engine.begin() as connection:
        commitments.record(connection, deal("one", K.SPEND, "5", **changes), now_us=FROM_US)
        [bought] = commitments.load(connection)
        assert contract(bought, today=date(2026, 11, 15)).status == status
        gone = WithdrawCommitment(actor="ann", name="one", reason="x")
        commitments.withdraw(connection, gone, now_us=FROM_US)
        [bought] = commitments.load(connection)
        assert contract(bought, today=date(2026, 11, 15)).status == "Cancelled"
    engine.dispose()


def test_public_costs_and_counts_of_a_split_row_add_up():
    found = usage_sum("output", 1_001, list_cost_pico_usd=2_003, cost_pico_usd=1_001)
    payer = commitment(is_spend=True)
    day = from_microseconds(found.start_us).date()
    cover = Coverage({(day, found.resource.deployment): [(payer, 3), (payer, 500)]})
    told = list(cover.usage(found))
    assert [charge.costs.contracted_pico_usd for charge in told] == [3, 500, 498]
    assert sum(charge.costs.list_pico_usd for charge in told) == 2_003
    assert sum(charge.evidence.requests for charge in told) == found.requests
    assert list(cover.usage(found))[0].kind.value == "usage", "nothing is left"
