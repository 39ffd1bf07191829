"""A month's spend as a balanced journal: cost centres on one side, who is paid on the other.

Every line is rounded to the currency's smallest unit by itself, half to even. What the rounded
debits then lack of the rounded credits, or have too much, is one line on the account for rounding,
so debits equal credits to the last cent. A line that rounds to nothing is left to that one, too.
What each line was before rounding is kept beside it, in picodollars, and the sum of all charges
with the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from gateway.finance.errors import Refused
from gateway.finance.journal_messages import JournalLine, JournalPosting
from pricing.money import PICO_PER_USD

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
_Debit = tuple[str, str, str, str]
"""Account, cost centre, team, project."""


class UnmappedTeam(Refused):
    """A team has spend and no cost centre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCharge:
    """What a team is charged for one provider in a period.

    Attributes:
        team: Empty for spend that belongs to no team.
        project: Of the team, empty for none.
        provider: Who is paid; empty where nobody is named.
        amount_pico_usd: Negative for money back.
        is_tax: Whether it is tax, that may have an account of its own.
    """

    team: str
    project: str
    provider: str
    amount_pico_usd: int
    is_tax: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A balanced journal: the debits equal the credits.

    Attributes:
        lines: Debits by account and cost centre, then credits by account, then what rounding left;
            without those that round to nothing.
        total: Of either side, money back counted against it.
        total_pico_usd: Of the charges.
    """

    lines: tuple[JournalLine, ...]
    total: Decimal
    total_pico_usd: int


def make_journal(charges: Iterable[JournalCharge], posting: JournalPosting) -> Journal:
    """Make the journal of a period.

    Args:
        charges: Any number for a team and provider.
        posting: Where lines are posted, in which currency and at which rate.

    Raises:
        UnmappedTeam: A team with spend has no cost centre, or there is spend of no team and no
            cost centre for it.
    """
    book = posting.book()
    debits: defaultdict[_Debit, int] = defaultdict(int)
    credited: defaultdict[str, int] = defaultdict(int)
    missing: set[str] = set()
    for charge in charges:
        centre = book.of(charge.team, charge.project)
        if not centre:
            missing.add(charge.team)
            continue
        account = posting.tax_account if charge.is_tax else posting.expense_account
        # A project is named only where it has a cost centre of its own.
        project = charge.project if centre != book.of(charge.team, "") else ""
        debits[account, centre, charge.team, project] += charge.amount_pico_usd
        paid = posting.clearing.get(charge.provider, posting.clearing_account)
        credited[paid] += charge.amount_pico_usd
    if missing:
        raise UnmappedTeam(_told(missing))
    return _balanced(debits, credited, posting)


def minor_digits(currency: str) -> int:
    """Decimals of a currency's smallest unit (ISO 4217)."""
    if currency in _NO_DIGITS:
        return 0
    return 3 if currency in _THREE_DIGITS else 2


def _balanced(
    debits: Mapping[_Debit, int], credited: Mapping[str, int], posting: JournalPosting
) -> Journal:
    digits, rate = minor_digits(posting.currency), posting.rate()
    lines = [
        _line(account, centre, _rounded(pico, rate, digits), pico, text=_text(team, project))
        for (account, centre, team, project), pico in sorted(debits.items())
    ]
    lines += [
        _line(account, "", -_rounded(pico, rate, digits), -pico, text="model providers")
        for account, pico in sorted(credited.items())
    ]
    nothing = Decimal(0).scaleb(-digits)
    total = sum((_rounded(pico, rate, digits) for pico in credited.values()), nothing)
    left = -sum((Decimal(line.debit) - Decimal(line.credit) for line in lines), nothing)
    kept = [line for line in lines if Decimal(line.debit) or Decimal(line.credit)]
    if left:
        unsaid = -sum(line.amount_pico_usd for line in kept)
        kept.append(_line(posting.rounding_account, "", left, unsaid, text="rounding"))
    return Journal(
        lines=tuple(kept),
        total=total,
        total_pico_usd=sum(debits.values()),
    )


def _told(missing: set[str]) -> str:
    teams = sorted(repr(team) for team in missing if team)
    parts: list[str] = []
    if teams:
        parts.append(f"no cost_centre for team {', '.join(teams)}")
    if "" in missing:
        parts.append("no finance.journal.unattributed_cost_centre for spend of no team")
    return "; ".join(parts) + ": nothing is left out of a journal, so there is none"


def _rounded(amount_pico_usd: int, rate: Fraction, digits: int) -> Decimal:
    """Picodollars in the currency, rounded to its smallest unit, half to even."""
    per_usd = _MINOR_PER_MAJOR[digits] * rate
    minor = round(Fraction(amount_pico_usd, PICO_PER_USD) * per_usd)
    return Decimal(minor).scaleb(-digits)


def _line(
    account: str, cost_centre: str, amount: Decimal, pico_usd: int, *, text: str
) -> JournalLine:
    """Money back on a debit is a credit, and the other way round."""
    nothing = amount - amount  # with the currency's digits
    return JournalLine(
        account=account,
        cost_centre=cost_centre,
        debit=f"{max(amount, nothing):f}",
        credit=f"{max(-amount, nothing):f}",
        text=text,
        amount_pico_usd=pico_usd,
    )


def _text(team: str, project: str) -> str:
    if not team:
        return "unattributed"
    return f"team {team}, project {project}" if project else f"team {team}"
