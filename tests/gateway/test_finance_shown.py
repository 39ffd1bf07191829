"""Coverage in words: never 0 for what could not be read, amounts where no tokens are counted."""

from __future__ import annotations

import pytest

from gateway.finance.bill_messages import AccountCoverage
from gateway.finance.shown import coverage_lines, coverage_text

USD = 10**12


def account(name: str = "openai", state: str = "read", **changes) -> AccountCoverage:
    values = {
        "metered_units": 0,
        "billed_units": None,
        "ledger_pico_usd": 0,
        "adjusted_pico_usd": 0,
        "billed_pico_usd": 0,
        "outside_pico_usd": 0,
    }
    return AccountCoverage(account=name, state=state, **(values | changes))


OWN = account("local", "own machine", outside_pico_usd=USD)
CASES = {
    "tokens": (
        [account(metered_units=2, billed_units=3), OWN],
        "66.67 % of billed tokens",
    ),
    "a bill of no tokens": ([account(billed_units=0)], "nothing billed of billed tokens"),
    "a bill without counts": (
        [account(ledger_pico_usd=USD, billed_pico_usd=4 * USD)],
        "25.00 % of billed amounts",
    ),
    "no bill": ([account(state="no source"), OWN], "unknown, there is no bill"),
    "one that cannot be read": (
        [account(metered_units=1, billed_units=1), account("groq", "unreadable")],
        "UNREADABLE",
    ),
}


@pytest.mark.parametrize(("accounts", "text"), CASES.values(), ids=CASES.keys())
def test_coverage_is_said_in_words(accounts, text):
    assert coverage_text(accounts) == text


def test_each_account_has_a_line_with_what_no_bill_covers():
    lines = list(
        coverage_lines(
            [
                account(metered_units=1_000, billed_units=1_000, outside_pico_usd=USD),
                account("groq", "unreadable", reason="UNREADABLE: page.html: is no JSON"),
                account("other", "unreadable"),
                OWN,
            ]
        )
    )
    assert lines == [
        "coverage UNREADABLE",
        "  openai: 100.00 % (1,000 of 1,000 tokens); 1 USD booked on days without a bill",
        "  groq: UNREADABLE: page.html: is no JSON",
        "  other: UNREADABLE",
        "  local: own machine",
    ]
