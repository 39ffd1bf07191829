"""Exports of a ledger: sums to the picodollar in every profile, grain and format."""

from __future__ import annotations

import json
from collections.abc import Sequence

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.finance.focus.charges import SCALE
from gateway.finance.focus.errors import TargetTaken
from gateway.finance.focus.files import MANIFEST, write_folder
from gateway.finance.focus.invoices import InvoiceAllocation
from gateway.finance.focus.order import (
    DAY_US,
    HOUR_US,
    FileFormat,
    FocusVersion,
    Grain,
    NameForm,
    Profile,
    month_of,
)
from gateway.ledger.database import writing_engine
from gateway.ledger.records import AttemptStatus
from pricing.usage import Meter, Quality
from tests.gateway.focus_ledgers import (
    DEPLOYMENTS,
    TOKENS,
    Event,
    column_sum,
    fill,
    ledger_of,
    told,
)
from tests.gateway.focus_samples import (
    FROM_US,
    PROFILES,
    TO_US,
    SampleFinance,
    make_export,
    pico,
    read_rows,
)


def counting(events: Sequence[Event]) -> list[Event]:
    """Of each event the highest entry."""
    newest = {event.number: event for event in sorted(events, key=lambda event: event.entry)}
    return list(newest.values())


meters = st.sampled_from([meter.value for meter in Meter if meter is not Meter.GPU_US])
units = st.one_of(
    st.dictionaries(meters, st.integers(1, 10**7), min_size=1, max_size=4),
    st.fixed_dictionaries({"input": st.integers(0, 999), "gpu_us": st.integers(1, 10**10)}),
)
events = st.builds(
    Event,
    entry=st.integers(0, 1),
    at_us=st.integers(FROM_US, FROM_US + 3 * DAY_US),
    attempt=st.integers(1, 2),
    team=st.integers(0, 2),
    deployment=st.integers(0, 1),
    tags=st.integers(0, 1),
    cost_tags=st.integers(0, 2),
    quality=st.sampled_from(Quality),
    status=st.sampled_from(AttemptStatus),
    units=units.map(lambda used: tuple(used.items())),
    price=st.sampled_from(("v1", "v2", "odd")),
    is_nominal=st.booleans(),
    is_priced=st.booleans(),
    exposure=st.none() | st.integers(0, 10**18),
    has_list=st.booleans(),
    is_late=st.booleans(),
)
LOST = {
    "units": (),
    "is_priced": True,
    "status": AttemptStatus.UNKNOWN_BILLING,
    "quality": Quality.UNKNOWN,
}


def numbered(found: list[Event]) -> list[Event]:
    """Distinct entries of few events; of two entries of one, the first is a lost one.

    Both have the event's instant, and what came after a late entry is late, too.
    """
    at_us = {n % 12: event.at_us for n, event in enumerate(found)}
    made = {}
    for n, event in enumerate(found):
        number = n % 12
        values = {**event.__dict__, "number": number + 1, "at_us": at_us[number]}
        made[number, event.entry] = Event(**values)
    for number, entry in tuple(made):
        if entry and (number, 0) in made:
            lost = Event(**{**made[number, 0].__dict__, **LOST})
            made[number, 0] = lost
            is_late = made[number, 1].is_late or lost.is_late
            made[number, 1] = Event(**{**made[number, 1].__dict__, "is_late": is_late})
    return list(made.values())


ODD = [
    Event(number=21, units=(("input", 5), ("gpu_us", 10**9)), price="odd", deployment=1),
    Event(number=22, is_priced=False, exposure=5),
    Event(number=23, is_priced=False, exposure=7),
    Event(number=23, entry=1, quality=Quality.ESTIMATED, has_list=True),
    Event(number=24, is_late=True),
    Event(number=25, **LOST, exposure=7),
    Event(number=25, entry=1, is_late=True),
    Event(number=26, is_priced=False, exposure=9, is_late=True),
]
"""One of each kind that is no plain charge, late ones among them."""


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@example(ODD, Profile.RECONCILED, FocusVersion.V1_4, Grain.HOUR, False)
@given(
    st.lists(events, max_size=20).map(numbered),
    st.sampled_from(Profile),
    st.sampled_from(FocusVersion),
    st.sampled_from(Grain),
    st.booleans(),
)
def test_an_export_sums_to_the_ledger(found, profile, version, grain, with_keys) -> None:
    """Of the month and the next one, in which late entries count: all of it is told once."""
    expected = counting(found)
    cost = sum(event.cost or 0 for event in expected)
    unpriced = [event for event in expected if not event.is_priced]
    unknown = [
        event
        for event in expected
        if event.is_priced
        and (event.quality is Quality.UNKNOWN or event.status is AttemptStatus.UNKNOWN_BILLING)
    ]
    with ledger_of(found) as connection:
        options = {"profile": profile, "version": version, "with_keys": with_keys}
        export = make_export(**options, grain=grain, to_us=month_of("2026-12")[1])
        rows = told(connection, export)
        in_time = told(connection, make_export(**options))
    for name in ("ContractedCost", "EffectiveCost"):
        assert column_sum(rows, name) == cost
    assert column_sum(rows, "ListCost") == sum(event.list_cost for event in expected)
    closed = counting([event for event in found if not event.is_late])
    assert column_sum(in_time, "ContractedCost") == sum(event.cost or 0 for event in closed)
    late = [row for row in rows if row["ChargeClass"] == "Correction"]
    assert {row["BillingPeriodStart"] for row in late} <= {TO_US}
    assert all(row["x_OriginalEventDate"] for row in late)
    billed = "x_EstimatedBilledCost" if profile is Profile.OVERLAY else "BilledCost"
    assert column_sum(rows, billed) == cost
    assert column_sum(rows, "x_UnpricedAttempts") == len(unpriced) * SCALE
    assert column_sum(rows, "x_UnknownBillingAttempts") == len(unknown) * SCALE
    exposure = sum(event.exposure or 0 for event in (*unpriced, *unknown))
    assert column_sum(rows, "x_ExposureUpperBound") == exposure
    seen = [event for event in expected if event.lines or event in unpriced or event in unknown]
    assert column_sum(rows, "x_RequestCount") == SCALE * sum(event.attempt == 1 for event in seen)
    assert export.totals.contracted_pico_usd == cost
    for row in rows:
        if row["x_PricingState"] != "Priced":
            assert (row["SkuPriceId"], row["PricingQuantity"]) == (None, None)
        assert (row["x_CredentialId"] is None) is not with_keys


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(st.lists(events, max_size=20).map(numbered))
def test_every_token_of_a_priced_attempt_is_counted_once(found) -> None:
    expected = sum(
        count
        for event in counting(found)
        if event.lines
        for meter, count in event.units
        if meter in TOKENS
    )
    with ledger_of(found) as connection:
        rows = told(connection, make_export(to_us=month_of("2026-12")[1]))
    consumed = [row for row in rows if row["ConsumedUnit"] == "Tokens"]
    assert column_sum(consumed, "ConsumedQuantity") == expected * SCALE


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=25)
@given(
    st.lists(events, max_size=20).map(numbered),
    st.lists(
        st.tuples(
            st.sampled_from([provider for provider, _ in DEPLOYMENTS]),
            st.none() | st.sampled_from([name for _, name in DEPLOYMENTS]),
            st.none() | st.sampled_from(Meter).map(str),
            st.integers(-(10**15), 10**15),
        ),
        max_size=4,
    ),
)
def test_reconciled_rows_bill_what_invoices_say(found, invoiced) -> None:
    allocated = [
        InvoiceAllocation(
            billing_us=FROM_US,
            provider=provider,
            deployment=deployment,
            meter=meter,
            amount_pico_usd=amount,
            invoice_id=f"INV-{n}",
        )
        for n, (provider, deployment, meter, amount) in enumerate(invoiced)
    ]
    source = SampleFinance(allocated=allocated)
    with ledger_of(found) as connection:
        rows = told(connection, make_export(profile=Profile.RECONCILED, source=source))
    by_invoice = [row for row in rows if row["InvoiceId"] is not None]
    assert column_sum(by_invoice, "BilledCost") == sum(one.amount_pico_usd for one in allocated)
    estimated = [row for row in rows if row["x_ReconciliationState"] == "Estimated"]
    assert all(row["BilledCost"] == row["x_EstimatedBilledCost"] for row in estimated)


@pytest.mark.parametrize("grain", Grain)
def test_a_row_is_one_period_owner_place_meter_price_and_quality(grain) -> None:
    same = [Event(number=n, at_us=FROM_US + n) for n in (1, 2, 3)]
    others = [
        Event(number=11, at_us=FROM_US + HOUR_US),
        Event(number=12, at_us=FROM_US + DAY_US),
        Event(number=13, team=2),
        Event(number=14, deployment=1),
        Event(number=15, tags=1),
        Event(number=16, cost_tags=1),
        Event(number=17, price="v2"),
        Event(number=18, quality=Quality.ESTIMATED),
        Event(number=19, is_nominal=True),
        Event(number=20, units=(("output", 5),)),
    ]
    with ledger_of([*same, *others]) as connection:
        rows = told(connection, make_export(grain=grain))
    assert len(rows) == (11 if grain is Grain.HOUR else 10)
    first = max(rows, key=lambda row: row["x_AttemptCount"])
    assert first["ConsumedQuantity"] == (300 if grain is Grain.HOUR else 400) * SCALE
    assert (first["x_AttemptCount"], first["x_EstimateQuality"]) == (
        (3 if grain is Grain.HOUR else 4) * SCALE,
        "exact",
    )
    assert json.loads(str(first["Tags"])) == {"fareway:project": "fraud"}


def test_only_events_of_the_range_are_exported() -> None:
    bounds = (FROM_US - 1, FROM_US, TO_US - 1, TO_US)
    found = [Event(number=n, at_us=at_us) for n, at_us in enumerate(bounds, start=1)]
    with ledger_of(found) as connection:
        assert column_sum(told(connection, make_export()), "x_AttemptCount") == 2 * SCALE


def test_sums_beyond_what_a_database_can_hold_are_exact() -> None:
    """SQLite's integers end at 9.2 million dollars."""
    found = [Event(number=n, units=(("requests", 10**8),)) for n in range(1, 31)]
    assert sum(event.cost or 0 for event in found) > 2**63
    with ledger_of(found) as connection:
        rows = told(connection, make_export())
    assert column_sum(rows, "BilledCost") == sum(event.cost or 0 for event in found)


@pytest.mark.slow
@pytest.mark.parametrize("form", FileFormat)
def test_duckdb_and_the_manifest_have_the_ledgers_sum(tmp_path, form) -> None:
    found = [
        Event(number=n, at_us=FROM_US + n * HOUR_US, units=(("input", n), ("output", 3 * n)))
        for n in range(1, 200)
    ]
    cost = sum(event.cost or 0 for event in found)
    with ledger_of(found) as connection:
        manifest = write_folder(connection, make_export(), form, tmp_path / "out")
    file = tmp_path / "out" / f"cost_and_usage.{form}"
    # CSV has no types: DuckDB must be told not to take amounts for floats.
    read = (
        f"read_parquet('{file}')"
        if form is FileFormat.PARQUET
        else f"read_csv('{file}', all_varchar=true)"
    )
    billed, rows = duckdb.sql(
        f"select sum(BilledCost::decimal(38,12)), count(*) from {read}"
    ).fetchall()[0]
    assert int(billed.scaleb(12)) == cost == pico(str(manifest.totals["billed_cost"]))
    assert rows == manifest.files[0].rows == 398
    types = dict(
        duckdb.sql(f"select column_name, column_type from (describe from {read})").fetchall()
    )
    if form is FileFormat.PARQUET:
        assert types["BilledCost"] == "DECIMAL(38,12)"
        assert types["ChargePeriodStart"] == "TIMESTAMP WITH TIME ZONE"
    assert json.loads((tmp_path / "out" / MANIFEST).read_text())["price_versions"] == ["v1"]


def test_the_ledgers_digest_is_that_of_what_is_in_it(tmp_path) -> None:
    found = [Event(number=n, at_us=FROM_US + n) for n in range(1, 4)]
    digests = {}
    for name, ledger in (("same", found), ("again", found), ("less", found[:2])):
        for profile in PROFILES:
            with ledger_of(ledger) as connection:
                manifest = write_folder(
                    connection,
                    make_export(profile=profile, names=NameForm.PLAIN),
                    FileFormat.CSV,
                    tmp_path / f"{name}-{profile}",
                )
            digests.setdefault(name, set()).add(manifest.ledger_sha256)
    assert digests["same"] == digests["again"] != digests["less"]
    assert all(len(one) == 1 for one in digests.values())


def test_an_export_replaces_nothing_and_leaves_nothing_half_done(tmp_path) -> None:
    with ledger_of([Event()]) as connection:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "letter.txt").write_text("mine")
        with pytest.raises(TargetTaken, match="not empty"):
            write_folder(connection, make_export(), FileFormat.CSV, tmp_path / "full")
        broken = SampleFinance(closed=[None])
        with pytest.raises(AttributeError):
            write_folder(connection, make_export(source=broken), FileFormat.CSV, tmp_path / "new")
        (tmp_path / "empty").mkdir()
        write_folder(connection, make_export(), FileFormat.CSV, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    assert len(read_rows(tmp_path / "empty" / "cost_and_usage.csv")) == 1


@pytest.mark.parametrize("form", FileFormat)
def test_a_month_without_events_is_a_file_without_rows(tmp_path, form) -> None:
    with ledger_of([]) as connection:
        manifest = write_folder(connection, make_export(), form, tmp_path / "out")
    assert [(file.dataset, file.rows) for file in manifest.files] == [("Cost and Usage", 0)]


@pytest.mark.anyio
async def test_postgresql_says_the_same_as_sqlite(postgres_ledger_url) -> None:
    found = [
        Event(number=n, at_us=FROM_US + n * HOUR_US, team=n % 3, cost_tags=n % 3)
        for n in range(1, 10)
    ]
    found += ODD
    found += [Event(number=n, units=(("requests", 10**8),)) for n in range(30, 60)]
    engine = writing_engine(postgres_ledger_url)
    async with engine.begin() as connection:
        await connection.run_sync(fill, found)
        until = month_of("2026-12")[1]
        export = make_export(with_keys=True, to_us=until)
        theirs = await connection.run_sync(told, export)
    await engine.dispose()
    with ledger_of(found) as connection:
        ours = make_export(with_keys=True, to_us=until)
        assert told(connection, ours) == theirs
    assert ours.ledger_digest == export.ledger_digest
    assert len(theirs) > 10
    assert column_sum(theirs, "x_ExposureUpperBound") == 5 + 9
