"""Amounts as people read them: cents on the page, every digit in the title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from gateway.dashboard.figures import NOTHING
from pricing.money import PICO_PER_USD, format_usd
from pricing.shares import round_together

_CENT_PICO_USD = PICO_PER_USD // 100
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An amount on a page.

    Attributes:
        text: In dollars and cents, digits grouped.
        exact: Every digit, for the title and for machines.
    """

    text: str
    exact: str


def shown(amount_pico_usd: int) -> Shown:
    """One amount, rounded to cents half to even; what is not nothing is never shown as nothing."""
    cents = round(Fraction(amount_pico_usd, _CENT_PICO_USD))
    text = cents_text(cents)
    if amount_pico_usd and not cents:
        text = "< 0.01" if amount_pico_usd > 0 else f"> {MINUS}0.01"
    return Shown(text=text, exact=format_usd(amount_pico_usd))


def shown_together(amounts_pico_usd: Sequence[int]) -> list[Shown]:
    """Amounts of a column, rounded so that the cents on the page add up to the rounded total."""
    cents = round_together([Fraction(one, _CENT_PICO_USD) for one in amounts_pico_usd])
    return [
        Shown(text=cents_text(rounded), exact=format_usd(amount))
        for rounded, amount in zip(cents, amounts_pico_usd, strict=True)
    ]


def cents_text(cents: int) -> str:
    """Whole cents as dollars, digits grouped."""
    sign = MINUS if cents < 0 else ""
    whole, rest = divmod(abs(cents), 100)
    return f"{sign}{whole:,}.{rest:02}"


def share_text(part: int, whole: int) -> str:
    """A share in per cent with one digit, rounded half to even; a dash where there is no whole."""
    if not whole:
        return NOTHING
    per_mille = round(Fraction(part * 1000, whole))
    sign = MINUS if per_mille < 0 else ""
    return f"{sign}{abs(per_mille) // 10}.{abs(per_mille) % 10} %"


def change_text(now: int, before: int) -> str:
    """The change in per cent with its sign; a dash where it began at nothing."""
    if before <= 0:
        return NOTHING
    per_mille = round(Fraction((now - before) * 1000, before))
    sign = MINUS if per_mille < 0 else "+"
    return f"{sign}{abs(per_mille) // 10:,}.{abs(per_mille) % 10} %"


def unit_cost_text(cost_pico_usd: int, units: int, per: int) -> Shown:
    """What so many units cost on average; a dash without units.

    Dollars with four digits, of a hundred dollars and more with two.
    """
    if not units:
        return Shown(text=NOTHING, exact="")
    exact = Fraction(cost_pico_usd * per, units)
    if abs(exact) >= 100 * PICO_PER_USD:
        cents = cents_text(round(exact / _CENT_PICO_USD))
        return Shown(text=cents, exact=format_usd(round(exact)))
    tenths_of_milli = round(exact * 10_000 / PICO_PER_USD)
    whole, rest = divmod(tenths_of_milli, 10_000)
    return Shown(text=f"{whole:,}.{rest:04}", exact=format_usd(round(exact)))
