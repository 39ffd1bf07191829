"""Coverage as people read it: how much of what a vendor bills was metered.

An account that could not be read is UNREADABLE, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_EVEN, Decimal

from gateway.finance.bill_messages import AccountCoverage
from pricing.money import format_usd

_HUNDREDTH = Decimal("0.01")


def counted(number: int, one: str, more: str) -> str:
    """A number with what is said of one, or of none and several."""
    return f"{number} {one if number == 1 else more}"


def ratio_text(metered: int, billed: int) -> str:
    """Per cent with two decimals; a bill of nothing has no ratio."""
    if not billed:
        return "nothing billed"
    percent = (Decimal(metered) * 100 / Decimal(billed)).quantize(_HUNDREDTH, ROUND_HALF_EVEN)
    return f"{percent} %"


def coverage_text(accounts: Sequence[AccountCoverage]) -> str:
    """Coverage of all accounts that vendors bill: of tokens, or of amounts without counts."""
    vendors = [one for one in accounts if one.state != "own machine"]
    if any(one.state == "unreadable" for one in vendors):
        return "UNREADABLE"
    counted = [one for one in vendors if one.billed_units is not None]
    if counted:
        metered = sum(one.metered_units for one in counted)
        ratio = ratio_text(metered, sum(one.billed_units or 0 for one in counted))
        return f"{ratio} of billed tokens"
    read = [one for one in vendors if one.state == "read"]
    if not read:
        return "unknown, there is no bill"
    booked = sum(one.ledger_pico_usd + one.adjusted_pico_usd for one in read)
    return f"{ratio_text(booked, sum(one.billed_pico_usd for one in read))} of billed amounts"


def coverage_lines(accounts: Sequence[AccountCoverage]) -> Iterator[str]:
    """The headline, then a line per account."""
    yield f"coverage {coverage_text(accounts)}"
    for one in accounts:
        if one.state == "unreadable":
            yield f"  {one.account}: {one.reason or 'UNREADABLE'}"
            continue
        words = [one.state]
        if one.billed_units is not None:
            ratio = ratio_text(one.metered_units, one.billed_units)
            words = [f"{ratio} ({one.metered_units:,} of {one.billed_units:,} tokens)"]
        if one.outside_pico_usd and one.state != "own machine":
            words.append(f"{format_usd(one.outside_pico_usd)} USD booked on days without a bill")
        yield f"  {one.account}: {'; '.join(words)}"
