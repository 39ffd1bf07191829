"""A month's spend as a balanced journal, and the documents that are made of it."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.adjustments import decide, propose
from gateway.finance.close import close_month
from gateway.finance.errors import Refused
from gateway.finance.journal import JournalCharge, UnmappedTeam, make_journal, minor_digits
from gateway.finance.journal_books import issue_journal, show_journal
from gateway.finance.journal_csv import journal_csv
from gateway.finance.journal_messages import IssueJournal, JournalPosting, ShowJournal
from gateway.finance.messages import AdjustmentKind, AdjustmentLine, Decide, Propose
from gateway.ledger import schema
from gateway.ledger.finance_tables import journal_document, period_close
from gateway.ledger.views import CostCentre
from pricing.money import PICO_PER_USD
from tests.gateway.finance_books import attempt, load, write, writing
from tests.gateway.ledger_samples import NOON_US, FakeClock
from tests.gateway.test_finance_close import ALL, MONTH, NOVEMBER_6, USD, order, sound

POSTING = JournalPosting(
    entity="DE01",
    document_prefix="FW",
    currency="USD",
    exact_rate="1",
    rate_day="",
    rate_source="",
    expense_account="6815",
    tax_account="1406",
    clearing_account="2000",
    clearing={"groq": "2010"},
    rounding_account="6899",
    cost_centres=(
        CostCentre("", "", "9999"),
        CostCentre("payments", "", "4711"),
        CostCentre("payments", "fraud", "4711-F"),
        CostCentre("search", "", "4712"),
        CostCentre("ops", "", "4712"),
    ),
)
charges = st.lists(
    st.builds(
        JournalCharge,
        team=st.sampled_from(["payments", "search", "ops", ""]),
        project=st.sampled_from(["", "fraud", "web"]),
        provider=st.sampled_from(["groq", "together", "local"]),
        amount_pico_usd=st.integers(-(10**15), 10**17),
        is_tax=st.booleans(),
    ),
    max_size=15,
)
rates = st.fractions(min_value=Fraction(1, 1000), max_value=200, max_denominator=10**6)


def posting(**changes) -> JournalPosting:
    return msgspec.structs.replace(POSTING, **changes)


def sides(lines) -> tuple[Decimal, Decimal]:
    return (
        sum((Decimal(line.debit) for line in lines), Decimal(0)),
        sum((Decimal(line.credit) for line in lines), Decimal(0)),
    )


@given(charges, rates, st.sampled_from(["USD", "EUR", "JPY", "KWD"]))
def test_debits_equal_credits_to_the_smallest_unit(given_charges, rate, currency):
    wanted = posting(currency=currency, exact_rate=str(rate))
    found = make_journal(given_charges, wanted)
    debits, credited = sides(found.lines)
    assert debits == credited
    assert found.total_pico_usd == sum(one.amount_pico_usd for one in given_charges)
    digits = {"JPY": 0, "KWD": 3}.get(currency, 2)
    assert digits == minor_digits(currency)
    for line in found.lines:
        debit, credit = Decimal(line.debit), Decimal(line.credit)
        assert debit.as_tuple().exponent == credit.as_tuple().exponent == -digits
        assert (debit > 0) != (credit > 0)
        if line.account != "6899":
            exact = Fraction(line.amount_pico_usd, PICO_PER_USD) * rate
            assert abs(Fraction(debit - credit) - exact) <= Fraction(1, 2 * 10**digits)


@given(charges)
def test_lines_before_rounding_sum_to_the_charges_on_either_side(given_charges):
    found = make_journal(given_charges, POSTING)
    if any(line.account == "6899" for line in found.lines):
        assert sum(line.amount_pico_usd for line in found.lines) == 0
    dropped = USD // 100 * len(given_charges)
    debits = sum(line.amount_pico_usd for line in found.lines if line.cost_centre)
    assert abs(debits - found.total_pico_usd) <= dropped


def charge(team, provider, usd, project="", **more):
    amount = int(usd * PICO_PER_USD)
    return JournalCharge(
        team=team, project=project, provider=provider, amount_pico_usd=amount, **more
    )


def test_thirds_of_a_cent_are_one_line_of_rounding():
    third = PICO_PER_USD // 300
    rows = [
        JournalCharge(team=team, project="", provider="groq", amount_pico_usd=third)
        for team in ("payments", "search", "ops")
    ]
    found = make_journal(rows, POSTING)
    assert [(line.account, line.cost_centre, line.debit, line.credit) for line in found.lines] == [
        ("2010", "", "0.00", "0.01"),
        ("6899", "", "0.01", "0.00"),
    ]


def test_lines_name_cost_centre_team_and_account():
    found = make_journal(
        [
            charge("payments", "groq", 12),
            charge("payments", "groq", 5, project="fraud"),
            charge("payments", "groq", 1, project="web"),
            charge("search", "together", 3),
            charge("search", "together", 1, is_tax=True),
            charge("", "groq", 2),
            charge("ops", "", -4),
        ],
        POSTING,
    )
    assert [
        (line.account, line.cost_centre, line.debit, line.credit, line.text) for line in found.lines
    ] == [
        ("1406", "4712", "1.00", "0.00", "team search"),
        ("6815", "4711", "13.00", "0.00", "team payments"),
        ("6815", "4711-F", "5.00", "0.00", "team payments, project fraud"),
        ("6815", "4712", "0.00", "4.00", "team ops"),
        ("6815", "4712", "3.00", "0.00", "team search"),
        ("6815", "9999", "2.00", "0.00", "unattributed"),
        ("2010", "", "0.00", "20.00", "model providers"),
    ]
    assert (found.total, found.total_pico_usd) == (Decimal("20.00"), 20 * USD)


def test_a_team_without_a_cost_centre_stops_the_journal_and_is_named():
    rows = [charge("new", "groq", 1), charge("newer", "groq", 1)]
    with pytest.raises(UnmappedTeam, match="team 'new', 'newer': nothing is left out"):
        make_journal(rows, POSTING)


def test_spend_of_no_team_needs_a_cost_centre_too():
    with pytest.raises(UnmappedTeam, match="unattributed_cost_centre"):
        make_journal([charge("", "groq", 1)], posting(cost_centres=()))


def test_a_month_without_spend_is_an_empty_journal():
    found = make_journal([], POSTING)
    assert (found.lines, found.total) == ((), 0)


def issue(**changes) -> IssueJournal:
    values = {"actor": "ann", "month": MONTH, "posting": POSTING}
    return IssueJournal(**(values | changes))


def adjust(connection, *lines, kind="reattribution", period=MONTH) -> None:
    wanted = Propose(
        actor="ann",
        period=period,
        kind=AdjustmentKind(kind),
        reason="asked for",
        lines=tuple(AdjustmentLine(team=team, amount_pico_usd=amount) for team, amount in lines),
    )
    made = propose(connection, wanted, now_us=NOVEMBER_6)
    decision = Decide(actor="ben", proposal_id=made.proposal_id, is_approved=True)
    decide(connection, decision, now_us=NOVEMBER_6)


@pytest.mark.anyio
async def test_the_journal_of_a_closed_month_is_what_was_closed_to_the_picodollar(tmp_path):
    engine = writing(
        await write(tmp_path, [attempt(1), attempt(2, team="search"), attempt(3, team="")])
    )
    with engine.begin() as connection:
        adjust(connection, ("unattributed", -2 * USD), ("search", 2 * USD))
        adjust(connection, ("search", 7), kind="tax")
        for refused in (issue(), ShowJournal(month=MONTH, posting=POSTING)):
            with pytest.raises(Refused, match="closed"):
                if isinstance(refused, IssueJournal):
                    issue_journal(connection, refused, now_us=NOVEMBER_6)
                else:
                    show_journal(connection, refused)
        draft = show_journal(connection, ShowJournal(month=MONTH, posting=POSTING, is_draft=True))
        assert (draft.number, draft.is_draft) == ("DRAFT-FW-2026-10", True)
        closed = close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        with pytest.raises(Refused, match="no journal was issued for 2026-10"):
            show_journal(connection, ShowJournal(month=MONTH, posting=POSTING))
        made = issue_journal(connection, issue(), now_us=NOVEMBER_6)
        total = closed.cost_pico_usd + closed.adjusted_pico_usd + closed.late_pico_usd
        assert made.total_pico_usd == total == 7_500_000_000_007
        assert (made.booked_pico_usd, made.adjusted_pico_usd) == (closed.cost_pico_usd, 7)
        assert {(line.cost_centre, line.debit) for line in made.lines if line.cost_centre} == {
            ("4711-F", "2.50"),
            ("4712", "4.50"),
            ("9999", "0.50"),
        }
        assert (made.number, made.revision, made.issued_by) == ("FW-2026-10", 1, "ann")
        assert (made.posting_date, made.total) == ("2026-10-31", "7.50")
        assert show_journal(connection, ShowJournal(month=MONTH, posting=POSTING)) == made
        log = schema.audit_log
        last = connection.execute(sa.select(log.c.action, log.c.details).order_by(log.c.seq.desc()))
        action, details = last.first()
        assert (action, details["digest"]) == ("journal.issue", made.digest)


@pytest.mark.anyio
async def test_an_issued_journal_comes_again_unchanged_until_it_is_revised(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    moved = posting(cost_centres=(CostCentre("payments", "", "8000"),))
    with engine.begin() as connection:
        close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        first = issue_journal(connection, issue(), now_us=NOVEMBER_6)
        assert issue_journal(connection, issue(is_revision=True), now_us=1) == first
        again = issue_journal(connection, issue(posting=moved), now_us=NOVEMBER_6)
        assert again == msgspec.structs.replace(first, is_current=False)
        unmapped = posting(cost_centres=())
        assert not issue_journal(connection, issue(posting=unmapped), now_us=1).is_current
        second = issue_journal(
            connection, issue(posting=moved, is_revision=True), now_us=NOVEMBER_6
        )
        assert (second.number, second.revision) == ("FW-2026-10-2", 2)
        assert second.digest != first.digest
        with pytest.raises(sa.exc.IntegrityError, match="append-only"):
            connection.execute(sa.delete(journal_document))


@pytest.mark.anyio
async def test_late_usage_is_in_the_journal_of_the_month_that_it_is_counted_in(tmp_path):
    url = await write(tmp_path, [attempt(1)])
    engine = writing(url)
    with engine.begin() as connection:
        close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        october = issue_journal(connection, issue(), now_us=NOVEMBER_6)
    clock = FakeClock()
    more = [attempt(2, team="search"), attempt(3, at_us=NOON_US - 10**9)]
    await load(tmp_path, url, more, clock=clock, session=2)
    with engine.begin() as connection:
        assert issue_journal(connection, issue(), now_us=1) == october
        query = ShowJournal(month="2026-11", posting=POSTING, is_draft=True)
        november = show_journal(connection, query)
        assert (november.booked_pico_usd, november.late_pico_usd) == (25 * USD // 10,) * 2
        closed = close_month(
            connection, order(month="2026-11", accepted=ALL), sound(), now_us=NOVEMBER_6 + 10**13
        )
        made = issue_journal(connection, issue(month="2026-11"), now_us=NOVEMBER_6)
        assert made.total_pico_usd == closed.cost_pico_usd + closed.late_pico_usd == 5 * USD


@pytest.mark.anyio
async def test_books_that_do_not_hold_what_was_closed_have_no_journal(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        connection.execute(
            sa.insert(period_close).values(
                month=MONTH,
                state="closed",
                soft_by="",
                closed_at_us=1,
                closed_by="ann",
                accepted=[],
                figures={"cost_pico_usd": 1, "adjusted_pico_usd": 0},
                ledger_digest=bytes(32),
                anchor=bytes(32),
            )
        )
        with pytest.raises(Refused, match="do not hold what was closed"):
            issue_journal(connection, issue(), now_us=1)


@pytest.mark.anyio
async def test_a_journal_whose_entries_were_dropped_since_is_taken_as_it_was_issued(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1)]))
    with engine.begin() as connection:
        close_month(connection, order(accepted=ALL), sound(), now_us=NOVEMBER_6)
        first = issue_journal(connection, issue(), now_us=NOVEMBER_6)
        connection.execute(sa.delete(schema.rollup_day))
        connection.execute(sa.delete(schema.rollup_qh))
        assert issue_journal(connection, issue(), now_us=1) == first


@pytest.mark.anyio
async def test_csv_has_every_line_and_nothing_that_a_spreadsheet_would_run(tmp_path):
    engine = writing(await write(tmp_path, [attempt(1, team="=cmd|' /C calc'!A0")]))
    wanted = posting(cost_centres=(CostCentre("=cmd|' /C calc'!A0", "", "4711"),))
    with engine.begin() as connection:
        found = show_journal(connection, ShowJournal(month=MONTH, posting=wanted, is_draft=True))
    rows = list(csv.DictReader(io.StringIO(journal_csv(found), newline="")))
    assert [row["state"] for row in rows] == ["draft", "draft"]
    assert [(row["debit"], row["credit"]) for row in rows] == [("2.50", "0.00"), ("0.00", "2.50")]
    assert sum(int(row["amount_pico_usd"]) for row in rows) == 0
    assert all(not cell.startswith(("=", "+", "@")) for row in rows for cell in row.values())
    assert rows[0]["text"] == "team =cmd|' /C calc'!A0"
