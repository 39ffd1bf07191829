"""A month's spend as a balanced journal."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finance.journal import JournalAccounts, JournalCharge, UnmappedTeam, make_journal
from pricing.money import PICO_PER_USD

ACCOUNTS = JournalAccounts(
    expense="6815",
    clearing={"": "2000", "groq": "2010"},
    unattributed_cost_centre="9999",
    cost_centres={"payments": "4711", "search": "4712", "ops": "4712"},
)
charges = st.lists(
    st.builds(
        JournalCharge,
        team=st.sampled_from(["payments", "search", "ops", ""]),
        provider=st.sampled_from(["groq", "together", "local"]),
        amount_pico_usd=st.integers(-(10**15), 10**17),
    ),
    max_size=15,
)
rates = st.fractions(min_value=Fraction(1, 1000), max_value=200, max_denominator=10**6)


@given(charges, rates, st.sampled_from(["USD", "EUR", "JPY", "KWD"]))
def test_debits_equal_credits_to_the_smallest_unit(given_charges, rate, currency):
    found = make_journal(given_charges, ACCOUNTS, period="2026-10", currency=currency, rate=rate)
    debits = sum((line.debit for line in found.lines), Decimal(0))
    credited = sum((line.credit for line in found.lines), Decimal(0))
    assert debits == credited
    digits = {"JPY": 0, "KWD": 3}.get(currency, 2)
    exact = Fraction(sum(one.amount_pico_usd for one in given_charges), PICO_PER_USD) * rate
    assert abs(Fraction(found.total) - exact) <= Fraction(1, 2 * 10**digits)
    for line in found.lines:
        assert line.debit.as_tuple().exponent == line.credit.as_tuple().exponent == -digits
        assert (line.debit > 0) != (line.credit > 0)
        off = (
            Fraction(line.debit - line.credit) - Fraction(line.amount_pico_usd, PICO_PER_USD) * rate
        )
        assert abs(off) <= Fraction(1, 10**digits)


def charge(team, provider, usd):
    return JournalCharge(team=team, provider=provider, amount_pico_usd=int(usd * PICO_PER_USD))


def test_thirds_of_a_cent_are_not_lost():
    third = PICO_PER_USD // 300
    rows = [
        JournalCharge(team=team, provider="groq", amount_pico_usd=third)
        for team in ("payments", "search", "ops")
    ]
    found = make_journal(rows, ACCOUNTS, period="2026-10")
    assert [(line.account, line.cost_centre, line.debit, line.credit) for line in found.lines] == [
        ("6815", "4711", Decimal("0.01"), Decimal("0.00")),
        ("2010", "", Decimal("0.00"), Decimal("0.01")),
    ]


def test_lines_name_cost_centre_team_and_account():
    found = make_journal(
        [
            charge("payments", "groq", 12),
            charge("search", "together", 3),
            charge("payments", "together", 1),
            charge("", "groq", 2),
            charge("ops", "local", -4),
        ],
        ACCOUNTS,
        period="2026-10",
    )
    assert [
        (line.account, line.cost_centre, str(line.debit), str(line.credit), line.text)
        for line in found.lines
    ] == [
        ("6815", "4711", "13.00", "0.00", "team payments 2026-10"),
        ("6815", "4712", "0.00", "4.00", "team ops 2026-10"),
        ("6815", "4712", "3.00", "0.00", "team search 2026-10"),
        ("6815", "9999", "2.00", "0.00", "unattributed 2026-10"),
        ("2010", "", "0.00", "14.00", "model providers 2026-10"),
    ]
    assert found.total == Decimal("14.00")


def test_a_team_without_a_cost_centre_stops_the_journal_and_is_named():
    rows = [charge("new", "groq", 1), charge("newer", "groq", 1)]
    with pytest.raises(UnmappedTeam, match="team 'new', 'newer': nothing is left out"):
        make_journal(rows, ACCOUNTS, period="2026-10")


def test_spend_of_no_team_needs_a_cost_centre_too():
    accounts = JournalAccounts(
        expense="1", clearing={"": "2"}, unattributed_cost_centre="", cost_centres={}
    )
    with pytest.raises(UnmappedTeam, match="unattributed_cost_centre"):
        make_journal([charge("", "groq", 1)], accounts, period="2026-10")


def test_a_month_without_spend_is_an_empty_journal():
    found = make_journal([], ACCOUNTS, period="2026-10")
    assert (found.lines, found.total) == ((), 0)
