"""A month's spend as a balanced journal: cost centres on one side, who is paid on the other.

Both sides are rounded to the currency's smallest unit together, so that each of them adds up to the
rounded total: debits equal credits to the cent, without a line for rounding differences. What each
line was before rounding is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from gateway.finance.errors import FinanceError
from pricing.money import PICO_PER_USD
from pricing.shares import round_together

_NO_DIGITS = frozenset(
    {
        "BIF",
        "CLP",
        "DJF",
        "GNF",
        "ISK",
        "JPY",
        "KMF",
        "KRW",
        "PYG",
        "RWF",
        "UGX",
        "VND",
        "VUV",
        "XAF",
        "XOF",
        "XPF",
    }
)
_MINOR_PER_MAJOR = (1, 10, 100, 1000)
_THREE_DIGITS = frozenset({"BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"})


class UnmappedTeam(FinanceError):
    """A team has spend and no cost centre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCharge:
    """What a team is charged for one provider in a period.

    Attributes:
        team: Empty for spend that belongs to no team.
        provider: Who is paid.
        amount_pico_usd: Cost and adjustments together; negative for money back.
    """

    team: str
    provider: str
    amount_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalAccounts:
    """Where lines are posted.

    Attributes:
        expense: Account of the debits.
        clearing: Account of the credits, per provider; `""` is the one for all others.
        unattributed_cost_centre: For spend of no team; empty where that is an error.
        cost_centres: Per team.
    """

    expense: str
    clearing: Mapping[str, str]
    unattributed_cost_centre: str
    cost_centres: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One line.

    Attributes:
        account: Posted to.
        cost_centre: Empty on the credit side.
        debit: Decimal with the currency's digits; 0 on a credit line.
        credit: Decimal with the currency's digits; 0 on a debit line.
        text: What it is for.
        amount_pico_usd: Before rounding and conversion; positive for a debit.
    """

    account: str
    cost_centre: str
    debit: Decimal
    credit: Decimal
    text: str
    amount_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A balanced journal: the debits equal the credits.

    Attributes:
        period: For example `2026-10`.
        currency: Of the lines.
        lines: Debits by cost centre, then credits by account; without lines of nothing.
        total: Of either side, money back counted against it.
    """

    period: str
    currency: str
    lines: tuple[JournalLine, ...]
    total: Decimal


def make_journal(
    charges: Iterable[JournalCharge],
    accounts: JournalAccounts,
    *,
    period: str,
    currency: str = "USD",
    rate: Fraction = Fraction(1),
) -> Journal:
    """Make the journal of a period.

    Args:
        charges: Any number for a team and provider.
        accounts: Where lines are posted.
        period: What the lines say.
        currency: Of the lines.
        rate: Units of it per US dollar, one rate for the whole journal.

    Raises:
        UnmappedTeam: A team with spend has no cost centre, or there is spend of no team and no
            cost centre for it.
    """
    by_centre: dict[tuple[str, str], int] = {}
    by_account: dict[str, int] = {}
    missing: set[str] = set()
    for charge in charges:
        centre = _centre(charge, accounts)
        if not centre:
            missing.add(charge.team)
            continue
        key = (centre, charge.team)
        by_centre[key] = by_centre.get(key, 0) + charge.amount_pico_usd
        account = accounts.clearing.get(charge.provider) or accounts.clearing[""]
        by_account[account] = by_account.get(account, 0) + charge.amount_pico_usd
    if missing:
        raise UnmappedTeam(_told(missing))
    digits = minor_digits(currency)
    centres, paid = sorted(by_centre.items()), sorted(by_account.items())
    debits = _rounded([pico for _, pico in centres], rate, digits)
    paid_off = _rounded([pico for _, pico in paid], rate, digits)
    lines = [
        _line(accounts.expense, centre, amount, pico, text=f"{_text(team)} {period}")
        for ((centre, team), pico), amount in zip(centres, debits, strict=True)
    ]
    lines += [
        _line(account, "", -amount, -pico, text=f"model providers {period}")
        for (account, pico), amount in zip(paid, paid_off, strict=True)
    ]
    return Journal(
        period=period,
        currency=currency,
        lines=tuple(line for line in lines if line.debit or line.credit),
        total=sum(debits, Decimal(0)),
    )


def minor_digits(currency: str) -> int:
    """Decimals of a currency's smallest unit (ISO 4217)."""
    if currency in _NO_DIGITS:
        return 0
    return 3 if currency in _THREE_DIGITS else 2


def _centre(charge: JournalCharge, accounts: JournalAccounts) -> str:
    if not charge.team:
        return accounts.unattributed_cost_centre
    return accounts.cost_centres.get(charge.team, "")


def _told(missing: set[str]) -> str:
    teams = sorted(repr(team) for team in missing if team)
    parts: list[str] = []
    if teams:
        parts.append(f"no cost_centre for team {', '.join(teams)}")
    if "" in missing:
        parts.append("no finance.journal.unattributed_cost_centre for spend of no team")
    return "; ".join(parts) + ": nothing is left out of a journal, so there is none"


def _rounded(amounts: Iterable[int], rate: Fraction, digits: int) -> list[Decimal]:
    """Picodollars in the currency's smallest units, rounded together, as decimals."""
    unit = Fraction(_MINOR_PER_MAJOR[digits], PICO_PER_USD) * rate
    minor = round_together([amount * unit for amount in amounts])
    return [Decimal(one).scaleb(-digits) for one in minor]


def _line(
    account: str, cost_centre: str, amount: Decimal, pico_usd: int, *, text: str
) -> JournalLine:
    """Money back on a debit is a credit, and the other way round."""
    nothing = amount - amount  # with the currency's digits
    return JournalLine(
        account=account,
        cost_centre=cost_centre,
        debit=max(amount, nothing),
        credit=max(-amount, nothing),
        text=text,
        amount_pico_usd=pico_usd,
    )


def _text(team: str) -> str:
    return f"team {team}" if team else "unattributed"
