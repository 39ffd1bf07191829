"""From a vendor's file to posted adjustments, in a ledger that the loader wrote."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from gateway.clock import to_microseconds
from gateway.finance.adjustments import adjustments, decide, proposals
from gateway.finance.bill_messages import (
    ImportFile,
    ListImports,
    ListRuns,
    Overlap,
    Reconcile,
    ShowRun,
    SourceKind,
)
from gateway.finance.errors import NotFound, Refused, UnreadableSource
from gateway.finance.imports import imports, keep_import, note_unreadable, parse_import
from gateway.finance.messages import Decide, ListAdjustments, ListProposals
from gateway.finance.runs import keep_run, latest_run, prepare, reconcile, runs, show_run
from gateway.ledger import schema
from gateway.ledger.audit import audit_faults
from gateway.ledger.finance_tables import invoice, invoice_line
from tests.gateway.finance_books import attempt, unknown, write, writing
from tests.gateway.ledger_samples import NOON_US, make_database

MONTH, USD = "2026-10", 10**12
START = 1792195200  # 2026-10-17


def costs(*results: tuple[str, str], start: int = START) -> str:
    """A page of OpenAI's costs: line item and dollars."""
    fields = [
        {
            "object": "organization.costs.result",
            "amount": {"value": value, "currency": "usd"},
            "line_item": item,
            "quantity": 2_000_000 if item.endswith("input") else None,
        }
        for item, value in results
    ]
    return json.dumps({"data": [{"start_time": start, "results": fields}]})


def order(content: str, source=SourceKind.OPENAI_COSTS, **changes) -> ImportFile:
    values = {"actor": "ann", "source": source, "account": "openai", "file_name": "costs.json"}
    return ImportFile(**(values | {"content": content.encode()} | changes))


def keep(connection, wanted: ImportFile):
    return keep_import(connection, wanted, parse_import(wanted), now_us=NOON_US)


def run(connection, **changes):
    return reconcile(
        connection, Reconcile(**({"actor": "ann", "month": MONTH} | changes)), now_us=NOON_US
    )


@pytest.fixture
def empty(tmp_path):
    engine = writing(make_database(tmp_path))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


async def books(tmp_path, *attempts):
    return writing(await write(tmp_path, attempts))


def test_a_file_is_kept_once(empty):
    wanted = order(costs(("gpt-4o, input", "5")))
    first, second = keep(empty, wanted), keep(empty, wanted)
    assert (first.is_new, first.total_pico_usd) == (True, 5 * USD)
    assert (second.is_new, second.batch) == (False, first.batch)
    assert "imported before as 1; nothing was changed" in second.sentence
    assert len(imports(empty, ListImports())) == 1


def test_days_that_another_file_covers_are_refused_until_it_is_said_what_to_do(empty):
    keep(empty, order(costs(("gpt-4o, input", "5"))))
    newer = costs(("gpt-4o, input", "6"))
    with pytest.raises(Refused, match="covers 2026-10-17 to 2026-10-17 of openai, and so does"):
        keep(empty, order(newer))
    replaced = keep(empty, order(newer, overlap=Overlap.REPLACE)).batch.batch_id
    keep(empty, order(costs(("gpt-4o, input", "1")), overlap=Overlap.ADD))
    newest, second, first = imports(empty, ListImports())
    assert (first.replaced_by, second.replaced_by) == (replaced, None)
    found = run(empty)
    assert found.billed_pico_usd == 7 * USD
    assert newest.state == "ok"


def test_a_file_cannot_replace_one_that_covers_more(empty):
    both = json.loads(costs(("gpt-4o, input", "5")))["data"]
    both += json.loads(costs(("gpt-4o, input", "5"), start=START + 86_400))["data"]
    keep(empty, order(json.dumps({"data": both})))
    with pytest.raises(Refused, match="cannot replace"):
        keep(empty, order(costs(("gpt-4o, input", "6")), overlap=Overlap.REPLACE))


@pytest.mark.anyio
async def test_a_report_of_usage_is_no_bill_of_nothing(tmp_path):
    engine = await books(tmp_path, attempt(1))
    result = {
        "object": "organization.usage.completions.result",
        "input_tokens": 4_000_000,
        "output_tokens": 0,
        "model": "gpt-4o",
    }
    for results, source in (([result], 1), ([], 2)):
        page = json.dumps({"data": [{"start_time": START, "results": results}]})
        with engine.begin() as connection:
            overlap = Overlap.REFUSE if source == 1 else Overlap.REPLACE
            kept = keep(connection, order(page, SourceKind.OPENAI_USAGE, overlap=overlap))
            assert (kept.total_pico_usd, kept.batch.row_count) == (0, len(results))
            found = run(connection)
            assert (found.accounts[0].state, found.differences) == ("no source", ())


@pytest.mark.anyio
async def test_counts_of_a_report_stand_beside_a_bill_without_any(tmp_path):
    engine = await books(tmp_path, attempt(1))
    result = {
        "object": "organization.usage.completions.result",
        "input_tokens": 4_000_000,
        "output_tokens": 0,
        "model": "gpt-4o",
    }
    page = json.dumps({"data": [{"start_time": START, "results": [result]}]})
    with engine.begin() as connection:
        keep(connection, order(page, SourceKind.OPENAI_USAGE))
        bill = costs(("gpt-4o, input", "10")).replace("2000000", "null")
        keep(connection, order(bill))
        found = run(connection)
        [missing] = found.differences
        assert (missing.kind, missing.billed_units) == ("missing_event", 4_000_000)
        assert found.accounts[0].billed_units == 4_000_000


def test_a_bill_of_nothing_is_a_bill(empty):
    kept = keep(empty, order(costs()))
    assert (kept.batch.row_count, kept.total_pico_usd) == (0, 0)
    assert empty.execute(sa.select(invoice.c.total_pico_usd)).scalar_one() == 0


@pytest.mark.anyio
async def test_what_changed_while_it_was_compared_is_compared_again(tmp_path):
    engine = await books(tmp_path, attempt(1))
    wanted = Reconcile(actor="ann", month=MONTH)
    with engine.begin() as connection:
        prepared = prepare(connection, wanted, now_us=NOON_US)
        keep(connection, order(costs(("gpt-4o, input", "5"))))
        with pytest.raises(Refused, match="changed while they were compared"):
            keep_run(connection, wanted, prepared, now_us=NOON_US)


def test_a_bill_in_euros_is_converted_at_both_days(empty):
    rates = "day,base,quote,rate,source\n2026-10-17,EUR,USD,1.1,ECB\n2026-11-02,EUR,USD,1.2,ECB\n"
    mapping = "columns: {day: d, amount: a, model: m, meter: k}\ncurrency: EUR"
    text = "d,a,m,k\n2026-10-17,100,gpt-4o,input\n"
    euros = order(text, SourceKind.CSV, mapping=mapping, rates=rates, issued_on="2026-11-02")
    assert keep(empty, euros).total_pico_usd == 120 * USD
    [line] = empty.execute(sa.select(invoice_line)).all()
    assert (line.amount, line.amount_pico_usd, line.fx_pico_usd) == (
        "100 EUR",
        120 * USD,
        10 * USD,
    )
    assert empty.execute(sa.select(invoice.c.issued_on)).scalar_one() == "2026-11-02"


NOT_KEPT = {
    "a currency without a rate": (
        order(
            "d,a\n2026-10-17,1\n",
            SourceKind.CSV,
            mapping="columns: {day: d, amount: a}\ncurrency: EUR",
        ),
        "costs.json:2: no exchange rate from EUR to USD",
    ),
    "more than the books hold": (
        order(costs(("gpt-4o, input", "1e20"))),
        "more than the books can hold",
    ),
    "a day of issue that is none": (
        order(costs(("gpt-4o, input", "1")), issued_on="2026-02-30"),
        "issued_on 2026-02-30 is no day",
    ),
}


@pytest.mark.parametrize(("wanted", "says"), NOT_KEPT.values(), ids=NOT_KEPT.keys())
def test_what_cannot_be_converted_is_unreadable(wanted, says):
    with pytest.raises(UnreadableSource, match=says):
        parse_import(wanted)


@pytest.mark.anyio
async def test_an_unreadable_source_is_never_taken_for_nothing(tmp_path):
    engine = await books(tmp_path, attempt(1))
    with engine.begin() as connection:
        note_unreadable(connection, order("<html>"), "UNREADABLE: no JSON", now_us=NOON_US)
        found = run(connection)
        [account] = found.accounts
        assert (account.state, account.reason) == ("unreadable", "UNREADABLE: no JSON")
        assert (account.billed_units, found.state) == (None, "partial")
        assert account.outside_pico_usd == 2_500_000 * 1_000_000


@pytest.mark.anyio
async def test_a_month_that_agrees_has_no_difference_and_full_coverage(tmp_path):
    engine = await books(tmp_path, attempt(1), attempt(2, team="search"))
    with engine.begin() as connection:
        keep(connection, order(costs(("gpt-4o-2024-08-06, input", "5"))))
        found = run(connection)
        assert (found.state, found.differences, found.proposal_ids) == ("read", (), ())
        [account] = found.accounts
        assert (account.metered_units, account.billed_units) == (2_000_000, 2_000_000)
        assert (found.ledger_pico_usd, found.billed_pico_usd) == (5 * USD, 5 * USD)


@pytest.mark.anyio
async def test_a_price_drift_is_shared_by_the_teams_of_its_cell_exactly(tmp_path):
    third = attempt(3, team="ops", usage={"input": 1})
    engine = await books(
        tmp_path,
        attempt(1, usage={"input": 999_999}),
        attempt(2, team="search"),
        third,
    )
    with engine.begin() as connection:
        keep(connection, order(costs(("gpt-4o, input", "6.000000000001"))))
        found = run(connection)
        [drift] = found.differences
        assert (drift.kind, drift.amount_pico_usd) == ("price_drift", USD + 1)
        [proposal] = proposals(connection, ListProposals(state="proposed"))
        assert proposal.proposal_id == drift.proposal_id
        assert sum(line.amount_pico_usd for line in proposal.lines) == USD + 1
        assert {line.team for line in proposal.lines} == {"payments", "search", "ops"}
        decide(
            connection,
            Decide(actor="ben", proposal_id=proposal.proposal_id, is_approved=True),
            now_us=NOON_US,
        )
        again = run(connection)
        assert again.differences == ()
        assert again.adjusted_pico_usd == USD + 1
        assert list(audit_faults(connection)) == []


@pytest.mark.anyio
async def test_missing_usage_settles_attempts_of_unknown_bill_first_and_then_is_nobodys(tmp_path):
    engine = await books(
        tmp_path,
        attempt(1),
        unknown(2, team="search", exposure=USD),
        unknown(3, team="ops", exposure=USD // 2),
    )
    with engine.begin() as connection:
        keep(connection, order(costs(("gpt-4o, input", "5"))))
        [missing] = run(connection).differences
        assert (missing.kind, missing.amount_pico_usd) == ("missing_event", 25 * USD // 10)
        [proposal] = proposals(connection, ListProposals())
        shares = [(line.team, line.amount_pico_usd) for line in proposal.lines]
        assert sorted(shares) == [
            ("ops", USD // 2),
            ("search", USD),
            ("unattributed", USD),
        ]
        decide(
            connection,
            Decide(actor="ben", proposal_id=proposal.proposal_id, is_approved=True),
            now_us=NOON_US,
        )
        settled = [one.event_id for one in adjustments(connection, ListAdjustments())]
        assert settled.count("") == 1
        assert run(connection).differences == ()


@pytest.mark.anyio
async def test_a_newer_run_withdraws_what_the_older_one_proposed(tmp_path):
    engine = await books(tmp_path, attempt(1))
    with engine.begin() as connection:
        keep(connection, order(costs(("gpt-4o, input", "50"))))
        first, second = run(connection), run(connection)
        states = {one.proposal_id: one.state for one in proposals(connection, ListProposals())}
        assert states == {first.proposal_ids[0]: "rejected", second.proposal_ids[0]: "proposed"}
        third = run(connection, proposes=False)
        assert third.proposal_ids == ()
        assert [one.run_id for one in runs(connection, ListRuns(month=MONTH))] == [3, 2, 1]
        latest = latest_run(connection, MONTH)
        assert latest is not None
        assert latest.run_id == 3
        assert latest_run(connection, "2026-01") is None


@pytest.mark.anyio
async def test_tax_is_shared_by_the_teams_of_the_account_and_of_nobody_without_any(tmp_path):
    engine = await books(tmp_path, attempt(1), attempt(2, team="search"))
    mapping = "columns: {day: d, amount: a, kind: k, model: m, meter: t}\nkinds: {VAT: tax}"
    tax = "d,a,k,m,t\n2026-10-17,3,VAT,,\n2026-10-17,5,usage,gpt-4o,input\n"
    with engine.begin() as connection:
        keep(connection, order(tax, SourceKind.CSV, mapping=mapping))
        other = order(tax.replace("5,usage", "0,usage"), SourceKind.CSV, mapping=mapping)
        keep(
            connection, order(other.content.decode(), SourceKind.CSV, mapping=mapping, account="x")
        )
        found = run(connection)
        assert [(one.account, one.kind) for one in found.differences] == [
            ("openai", "tax"),
            ("x", "tax"),
        ]
        [proposal] = proposals(connection, ListProposals())
        shares = [(line.team, line.amount_pico_usd) for line in proposal.lines]
        assert shares == [
            ("payments", 3 * USD // 2),
            ("search", 3 * USD // 2),
            ("unattributed", 3 * USD),
        ]


@pytest.mark.anyio
async def test_a_machine_of_our_own_needs_no_bill(tmp_path):
    own = attempt(1, account="local", model="smollm2", usage={"gpu_us": 5_000})
    engine = await books(tmp_path, own)
    with engine.begin() as connection:
        found = run(connection)
        assert [(one.account, one.state) for one in found.accounts] == [("local", "own machine")]
        assert found.state == "read"


@pytest.mark.anyio
async def test_spend_without_any_bill_is_told(tmp_path):
    engine = await books(tmp_path, attempt(1))
    with engine.begin() as connection:
        found = run(connection)
        assert (found.accounts[0].state, found.state) == ("no source", "partial")


@pytest.mark.anyio
async def test_a_rounding_of_a_day_without_models_is_corrected_once(tmp_path):
    engine = await books(tmp_path, attempt(1))
    with engine.begin() as connection:
        text = costs(("x, input", "2.501")).replace('"x, input"', "null").replace("2000000", "null")
        keep(connection, order(text))
        found = run(connection)
        [rounding] = found.differences
        assert (rounding.kind, rounding.amount_pico_usd) == ("rounding", USD // 1000)
        decide(
            connection,
            Decide(actor="ben", proposal_id=found.proposal_ids[0], is_approved=True),
            now_us=NOON_US,
        )
        assert run(connection).differences == ()


@pytest.mark.anyio
async def test_events_are_never_changed_by_any_of_it(tmp_path):
    engine = await books(tmp_path, attempt(1))
    with engine.begin() as connection:
        before = connection.execute(sa.select(schema.spend_event)).all()
        keep(connection, order(costs(("gpt-4o, input", "50"))))
        number = run(connection).proposal_ids[0]
        decide(
            connection,
            Decide(actor="ben", proposal_id=number, is_approved=True),
            now_us=NOON_US,
        )
        assert connection.execute(sa.select(schema.spend_event)).all() == before


def test_a_run_that_does_not_exist_is_not_found(empty):
    with pytest.raises(NotFound, match="number 9"):
        show_run(empty, ShowRun(run_id=9))


def test_the_tests_day_is_the_books_day():
    from datetime import UTC, datetime

    assert to_microseconds(datetime(2026, 10, 17, tzinfo=UTC)) == START * 10**6
