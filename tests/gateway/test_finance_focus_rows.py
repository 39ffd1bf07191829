"""Every kind of row in every profile and version: golden files, the linter of 1.4, invariants."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet
import pytest
import sqlalchemy as sa
from focus_data_toolkit import validate_dataset_bundle
from focus_data_toolkit.model.validator import (
    COND_MULTIPLE_PRICING_CATEGORIES,
    COND_UNIT_PRICING,
    lint_focus_1_4_structure,
)

from gateway.finance.focus import parquet, pseudonyms, row_map
from gateway.finance.focus.charges import IDLE, SCALE, ChargeKind, Invoice, Owner
from gateway.finance.focus.columns import ColumnType
from gateway.finance.focus.errors import Inconsistent, MissingExtra
from gateway.finance.focus.files import write_folder
from gateway.finance.focus.inputs import MachineShare
from gateway.finance.focus.invoices import InvoiceAllocation, Spread
from gateway.finance.focus.meters import METER_FORMS
from gateway.finance.focus.order import FileFormat, FocusVersion, NameForm, Parties, Profile
from gateway.finance.focus.parquet import ParquetFile
from gateway.finance.focus.profiles import teller
from gateway.ledger import schema
from gateway.ledger.schema import METERS
from pricing.money import parse_usd
from tests.gateway.focus_samples import (
    PROFILES,
    RATES,
    invoice_charge,
    make_export,
    pico,
    pool,
    read_rows,
    sample_finance,
    usage_sum,
)

GOLDEN = Path(__file__).parent / "focus_golden"
CONDITIONS = (COND_MULTIPLE_PRICING_CATEGORIES, COND_UNIT_PRICING)
DATASETS = {
    "cost_and_usage": "Cost and Usage",
    "billing_period": "Billing Period",
    "invoice_detail": "Invoice Detail",
    "contract_commitment": "Contract Commitment",
}


@pytest.fixture(scope="module")
def no_events():
    """A connection to a ledger without events."""
    engine = sa.create_engine("sqlite://")
    schema.metadata.create_all(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture(scope="module")
def folders(no_events, tmp_path_factory):
    """One export of every kind of row per profile and version."""
    made = {}
    for profile in PROFILES:
        for version in FocusVersion:
            target = tmp_path_factory.mktemp("focus") / f"{profile}-{version}"
            export = make_export(source=sample_finance(), profile=profile, version=version)
            write_folder(no_events, export, FileFormat.CSV, target)
            made[profile, version] = target
    return made


@pytest.mark.parametrize("version", FocusVersion)
@pytest.mark.parametrize("profile", PROFILES)
def test_an_export_of_every_kind_of_row_is_the_golden_one(folders, profile, version) -> None:
    """Set WRITE_GOLDEN=1 to write what is made now, and read the difference."""
    for path in sorted(folders[profile, version].glob("*.csv")):
        golden = GOLDEN / f"{profile}-{version}-{path.name}"
        if os.environ.get("WRITE_GOLDEN"):
            golden.parent.mkdir(exist_ok=True)
            golden.write_bytes(path.read_bytes())
        assert path.read_bytes() == golden.read_bytes()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_linter_of_1_4_finds_nothing_in_any_dataset(folders, profile) -> None:
    folder = folders[profile, FocusVersion.V1_4]
    rows = {name: read_rows(folder / f"{stem}.csv") for stem, name in DATASETS.items()}
    for dataset, found in rows.items():
        report = lint_focus_1_4_structure(dataset, found, supported_conditions=CONDITIONS)
        assert report.messages() == []
        assert report.row_count == len(found)
    bundle = validate_dataset_bundle(rows)
    assert [str(one) for one in bundle.diagnostics if one.is_failure] == []


def test_the_linter_would_find_a_wrong_cost(folders) -> None:
    rows = read_rows(folders[Profile.CHARGEBACK, FocusVersion.V1_4] / "cost_and_usage.csv")
    rows[0]["ContractedCost"] = "1000000.0"
    report = lint_focus_1_4_structure("Cost and Usage", rows, supported_conditions=CONDITIONS)
    assert not report.ok


def test_every_row_kind_stands_in_every_export(folders) -> None:
    for folder in folders.values():
        kinds = {row["x_ChargeKind"] for row in read_rows(folder / "cost_and_usage.csv")}
        assert kinds == {kind.value for kind in ChargeKind}


def test_every_meter_of_the_ledger_has_a_form() -> None:
    assert set(METERS) <= METER_FORMS.keys()
    assert RATES.keys() == METER_FORMS.keys()


@pytest.mark.parametrize("version", FocusVersion)
def test_an_overlay_bills_nothing_and_says_what_is_expected(folders, version) -> None:
    rows = read_rows(folders[Profile.OVERLAY, version] / "cost_and_usage.csv")
    assert {row["BilledCost"] for row in rows} == {"0.0"}
    charged = read_rows(folders[Profile.CHARGEBACK, version] / "cost_and_usage.csv")
    for row, other in zip(rows, charged, strict=True):
        assert row["x_EstimatedBilledCost"] == other["BilledCost"]
        assert row["InvoiceIssuerName"] == row.get("ServiceProviderName", row.get("PublisherName"))


def test_a_purchase_has_no_effective_cost_and_its_use_is_not_billed(folders) -> None:
    rows = read_rows(folders[Profile.CHARGEBACK, FocusVersion.V1_4] / "cost_and_usage.csv")
    by_kind = defaultdict(list)
    for row in rows:
        by_kind[row["x_ChargeKind"]].append(row)
    assert {row["EffectiveCost"] for row in by_kind["purchase"]} == {"0.0"}
    for kind in ("committed_usage", "unused_commitment"):
        assert {row["BilledCost"] for row in by_kind[kind]} == {"0.0"}
        assert all(pico(row["EffectiveCost"]) > 0 for row in by_kind[kind])
    assert {row["ConsumedQuantity"] for row in by_kind["unused_commitment"]} == {""}


def test_shares_of_one_origin_sum_to_one_and_to_its_cost(folders) -> None:
    rows = read_rows(folders[Profile.CHARGEBACK, FocusVersion.V1_4] / "cost_and_usage.csv")
    shares = [row for row in rows if row["x_SplitOriginId"]]
    assert [row["SubAccountId"] for row in shares] == ["payments", "search", IDLE]
    details = [json.loads(row["AllocatedMethodDetails"], parse_float=str) for row in shares]
    ratios = [pico(one["Elements"][0]["AllocatedRatio"]) for one in details]
    assert sum(ratios) == SCALE
    assert sum(pico(row["BilledCost"]) for row in shares) == pico(shares[0]["x_SplitOriginCost"])


def test_a_reconciled_export_bills_what_was_invoiced_to_the_picodollar(folders) -> None:
    rows = read_rows(folders[Profile.RECONCILED, FocusVersion.V1_4] / "cost_and_usage.csv")
    invoiced = [row for row in rows if row["InvoiceDetailId"] == "INV-1/1"]
    assert len(invoiced) > 10
    assert sum(pico(row["BilledCost"]) for row in invoiced) == parse_usd("1000.01")
    assert {row["x_ReconciliationState"] for row in invoiced} == {"Invoiced"}
    states = {row["x_ChargeKind"]: row["x_ReconciliationState"] for row in rows}
    assert states["self_host"] == states["pending"] == "Estimated"
    periods = read_rows(folders[Profile.RECONCILED, FocusVersion.V1_4] / "billing_period.csv")
    assert {row["BillingPeriodStatus"] for row in periods} == {"Closed"}
    assert {row["InvoiceIssuerName"] for row in periods} == {"Acme Platform", "azure", "groq"}


def test_names_of_persons_are_pseudonyms_unless_they_are_asked_for(no_events, tmp_path) -> None:
    texts = {}
    for names in NameForm:
        export = make_export(source=sample_finance(), names=names)
        write_folder(no_events, export, FileFormat.CSV, tmp_path / names)
        texts[names] = (tmp_path / names / "cost_and_usage.csv").read_text()
    assert "jane.doe" in texts[NameForm.PLAIN]
    assert "abcdefghjkmn" in texts[NameForm.PLAIN]
    assert "jane.doe" not in texts[NameForm.PSEUDONYMS]
    assert "abcdefghjkmn" not in texts[NameForm.PSEUDONYMS]
    assert '""env"":""prod""' in texts[NameForm.PSEUDONYMS]  # declared: no personal data
    assert texts[NameForm.PSEUDONYMS].count("p_") > 10


def test_no_token_is_counted_on_two_rows(no_events, tmp_path) -> None:
    """A machine's row counts all its tokens, so no token meter of it may have a row."""
    export = make_export(source=sample_finance())
    write_folder(no_events, export, FileFormat.CSV, tmp_path / "out")
    rows = read_rows(tmp_path / "out" / "cost_and_usage.csv")
    token_rows = [row for row in rows if row["ConsumedUnit"] == "Tokens"]
    machines = {row["ResourceId"] for row in token_rows if row["SkuMeter"] == "GPU Time"}
    others = {row["ResourceId"] for row in token_rows if row["SkuMeter"] != "GPU Time"}
    assert machines
    assert not machines & others


def test_the_same_rows_give_the_same_bytes(no_events, tmp_path) -> None:
    digests = []
    for form in FileFormat:
        pair = [
            write_folder(
                no_events, make_export(source=sample_finance()), form, tmp_path / f"{form}{n}"
            )
            for n in range(2)
        ]
        assert pair[0] == pair[1]
        for file in pair[0].files:
            data = (tmp_path / f"{form}0" / file.name).read_bytes()
            assert (hashlib.sha256(data).hexdigest(), len(data)) == (file.sha256, file.bytes)
        digests.append(pair[0].ledger_sha256)
    assert digests[0] == digests[1]


def test_a_spreadsheet_runs_nothing_and_other_readers_get_the_value(no_events, tmp_path) -> None:
    wild = usage_sum("input", 1, owner=Owner(team='=HYPERLINK("http://x","y")'))
    cells = {}
    for is_spreadsheet in (False, True):
        source = sample_finance()
        source.more = [row_map.usage(wild)]
        export = make_export(source=source, is_spreadsheet=is_spreadsheet)
        folder = tmp_path / str(is_spreadsheet)
        write_folder(no_events, export, FileFormat.CSV, folder)
        (row,) = read_rows(folder / "cost_and_usage.csv")
        cells[is_spreadsheet] = row["SubAccountId"], row["BilledCost"]
    assert cells[False] == ('=HYPERLINK("http://x","y")', "0.00000015")
    assert cells[True] == ('\'=HYPERLINK("http://x","y")', "0.00000015")


def test_a_client_cannot_take_the_name_of_our_own_tag(no_events, tmp_path) -> None:
    owner = Owner(team="t", project="real", cost_tags=(("fareway:project", "forged"),))
    source = sample_finance()
    source.more = [row_map.usage(usage_sum("input", 1, owner=owner))]
    export = make_export(source=source, names=NameForm.PLAIN)
    write_folder(no_events, export, FileFormat.CSV, tmp_path / "out")
    (row,) = read_rows(tmp_path / "out" / "cost_and_usage.csv")
    assert json.loads(row["Tags"]) == {
        "client:fareway:project": "forged",
        "fareway:project": "real",
    }


def test_numbers_are_exact_and_always_have_a_point(folders) -> None:
    rows = read_rows(folders[Profile.CHARGEBACK, FocusVersion.V1_4] / "cost_and_usage.csv")
    numbers = [
        value
        for row in rows
        for name, value in row.items()
        if value and name.endswith(("Cost", "Quantity", "UnitPrice", "Count", "Attempts"))
    ]
    assert len(numbers) > 200
    assert all("." in number and "e" not in number.lower() for number in numbers)


def test_a_priced_row_is_unit_price_times_quantity_to_the_picodollar(folders) -> None:
    """Where the rate divides; the others are the sum of attempts that were rounded once each."""
    rows = read_rows(folders[Profile.CHARGEBACK, FocusVersion.V1_4] / "cost_and_usage.csv")
    checked = 0
    for row in rows:
        if row["PricingUnit"] in {"1000000 Tokens", "Images", "Requests"}:
            product = pico(row["ContractedUnitPrice"]) * pico(row["PricingQuantity"])
            assert product == pico(row["ContractedCost"]) * SCALE
            checked += 1
    assert checked > 10


def test_a_meter_that_exports_do_not_know_ends_them() -> None:
    with pytest.raises(Inconsistent, match="'video'"):
        row_map.usage(replace(usage_sum("input", 1), meter="video"))


def test_a_credit_that_costs_something_is_refused() -> None:
    with pytest.raises(Inconsistent, match="not below zero"):
        row_map.credit(invoice_charge("1", "Credit"))


def test_a_machine_without_any_work_cannot_be_shared() -> None:
    with pytest.raises(Inconsistent, match="nothing was worked"):
        list(row_map.self_host(pool(shares=(MachineShare(owner=Owner(), work=0, tokens=0),))))


def test_more_values_than_are_remembered_keep_their_pseudonyms(monkeypatch) -> None:
    monkeypatch.setattr(pseudonyms, "_CACHED_MAX", 2)
    names = pseudonyms.Names(NameForm.PSEUDONYMS, key=b"k" * 32)
    first = [names.tag_value("user", str(n)) for n in range(5)]
    assert first == [names.tag_value("user", str(n)) for n in range(5)]
    assert len(set(first)) == 5
    assert names.tag_value("other", "0") != first[0]


def test_parquet_without_its_library_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="extra `exports`"):
        ParquetFile(tmp_path / "x.parquet", [("a", ColumnType.TEXT)])


def test_parquet_is_written_in_groups(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 2)
    file = ParquetFile(tmp_path / "x.parquet", [("a", ColumnType.DECIMAL)])
    file.write([[SCALE], [None], [-1]])
    file.close()
    found = pyarrow.parquet.ParquetFile(tmp_path / "x.parquet")
    assert found.num_row_groups == 2
    values = found.read().column("a").to_pylist()
    assert [None if value is None else int(value.scaleb(12)) for value in values] == [
        SCALE,
        None,
        -1,
    ]


def test_an_invoice_over_usage_that_cost_nothing_is_a_row_of_its_own() -> None:
    free = row_map.usage(usage_sum("input", 0))
    one = InvoiceAllocation(
        billing_us=free.billing_us,
        provider="groq",
        deployment=None,
        meter=None,
        amount_pico_usd=5,
        invoice_id="INV-9",
    )
    spread = Spread.of([one])
    spread.count(free)
    found = spread.billed(free)
    assert (found.amount_pico_usd, found.invoice) == (0, Invoice(invoice_id="INV-9"))
    assert [left.amount_pico_usd for left in spread.left()] == [5]


def test_what_nothing_is_sold_of_has_no_price_in_the_vendors_currency() -> None:
    sold = row_map.usage(usage_sum("input", 1_000_000))
    bill = InvoiceAllocation(
        billing_us=sold.billing_us,
        provider="groq",
        deployment=None,
        meter=None,
        amount_pico_usd=10 * SCALE,
        invoice_id="INV-9",
        currency="EUR",
        rate=Fraction(5, 4),
    )
    told = []
    for charge in (sold, replace(sold, sku=None)):
        spread = Spread.of([bill])
        spread.count(charge)
        names = pseudonyms.Names(NameForm.PLAIN, key=b"")
        parties = Parties(organisation="Acme")
        told.append(teller(Profile.RECONCILED, parties=parties, names=names, spread=spread)(charge))
    assert [line.costs.billed_pico_usd for line in told] == [10 * SCALE, 10 * SCALE]
    assert [line.charge.currency and line.charge.currency.code for line in told] == ["EUR", None]
