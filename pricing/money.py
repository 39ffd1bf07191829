"""Integer picodollars, exact rates, and the one place where money is rounded.

Money enters as text, integers or `Decimal` and leaves as decimal strings; no float is accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import NewType

from pricing.errors import InvalidAmount

PicoUsd = NewType("PicoUsd", int)
"""An amount in whole picodollars (1e-12 USD); 64 bits hold about 9.2 million USD in one event."""

PICO_PER_USD = 10**12
MICROSECONDS_PER_HOUR = 3_600_000_000
MILLISECONDS_PER_MINUTE = 60_000
TOKENS_PER_MTOK = 1_000_000
SIGNIFICANT_DIGITS = 12
"""Digits that an imported rate keeps; the noise of a float lies beyond them."""

_AMOUNT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_MAX_TEXT_CHARS = 64
_MAX_EXPONENT = 40
"""Powers of ten beyond this are refused before any integer of that size is built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A price: `pico_usd` for every `per_units` units; 0.0375 USD per million tokens is 37_500.

    Attributes:
        pico_usd: Whole picodollars, at least 0.
        per_units: Units that they buy, at least 1.
    """

    pico_usd: int
    per_units: int = 1

    def __post_init__(self) -> None:
        """Refuse what could not be priced.

        Raises:
            InvalidAmount: `pico_usd` is negative or `per_units` is below 1.
        """
        if self.pico_usd < 0:
            raise InvalidAmount(f"a rate must be at least 0, got {self.pico_usd} picodollars")
        if self.per_units < 1:
            raise InvalidAmount(f"a rate is per 1 unit or more, got per {self.per_units}")


def line_cost(units: int, rate: Rate) -> PicoUsd:
    """Price one usage line; the only place where money of ours is rounded (once, half-even).

    Args:
        units: Count of one usage kind, at least 0.
        rate: Rate in force when the attempt started, tier and contract discount already applied.

    Raises:
        ValueError: `units` is negative; a correction is a new entry.
    """
    if units < 0:
        raise ValueError(f"units must be >= 0, got {units}")
    if rate.per_units == 1:  # nearly every rate per token; nothing is left to round
        return PicoUsd(units * rate.pico_usd)
    whole, rest = divmod(units * rate.pico_usd, rate.per_units)
    return PicoUsd(whole + _rounds_up(whole, rest, rate.per_units))


def parse_usd(amount: str | int | Decimal) -> PicoUsd:
    """Turn dollars into picodollars, exactly.

    Args:
        amount: Dollars; a leading minus means money back.

    Raises:
        InvalidAmount: Not a finite plain number, out of range, or finer than a picodollar.
    """
    pico = _to_fraction(amount) * PICO_PER_USD
    if pico.denominator != 1:
        raise InvalidAmount(f"{amount} USD is finer than a picodollar (12 decimals)")
    return PicoUsd(pico.numerator)


def round_reported_usd(amount: str | int | Decimal) -> PicoUsd:
    """Turn dollars that someone else reports into the nearest picodollar, half-even.

    For evidence beside our own charge (a provider's cost field), never for computing a charge:
    vendors print floats with digits beyond the picodollar.

    Raises:
        InvalidAmount: Not a finite plain number, or out of range.
    """
    return PicoUsd(round(_to_fraction(amount) * PICO_PER_USD))


def rate_per_mtok(amount: str | int | Decimal) -> Rate:
    """Turn USD per million tokens into an exact rate per token.

    Raises:
        InvalidAmount: Negative, not a finite plain number, or out of range.
    """
    pico_per_token = _to_fraction(amount) * PICO_PER_USD / TOKENS_PER_MTOK
    return Rate(pico_usd=pico_per_token.numerator, per_units=pico_per_token.denominator)


def rate_per_hour_us(amount: str | int | Decimal | Fraction, count: int = 1) -> Rate:
    """Turn USD per hour of one GPU into an exact rate per busy microsecond of the machine.

    Args:
        amount: USD per hour and GPU; a fraction where it is worked out of facts.
        count: GPUs that are busy together.

    Raises:
        InvalidAmount: Negative, not a finite plain number, out of range, or `count` below 1.
    """
    if count < 1:
        raise InvalidAmount(f"a machine has 1 GPU or more, got {count}")
    if isinstance(amount, Fraction):  # in lowest terms, which its denominator needs
        per_us = amount * PICO_PER_USD * count / MICROSECONDS_PER_HOUR
        return Rate(pico_usd=per_us.numerator, per_units=per_us.denominator)
    pico = _to_fraction(amount) * PICO_PER_USD * count
    return Rate(pico_usd=pico.numerator, per_units=pico.denominator * MICROSECONDS_PER_HOUR)


def rate_per_unit(amount: str | int | Decimal) -> Rate:
    """Turn USD per single unit (an image, a request) into an exact rate.

    Raises:
        InvalidAmount: Negative, not a finite plain number, or out of range.
    """
    pico = _to_fraction(amount) * PICO_PER_USD
    return Rate(pico_usd=pico.numerator, per_units=pico.denominator)


def rate_per_minute_ms(amount: str | int | Decimal) -> Rate:
    """Turn USD per minute of audio into an exact rate per millisecond.

    Raises:
        InvalidAmount: Negative, not a finite plain number, or out of range.
    """
    pico = _to_fraction(amount) * PICO_PER_USD
    return Rate(pico_usd=pico.numerator, per_units=pico.denominator * MILLISECONDS_PER_MINUTE)


def format_usd(amount_pico_usd: int) -> str:
    """Write picodollars as dollars: exact, no exponent, no trailing zeros."""
    if 0 < amount_pico_usd < PICO_PER_USD:  # what a request costs
        return f"0.{amount_pico_usd:012d}".rstrip("0")
    sign = "-" if amount_pico_usd < 0 else ""
    whole, rest = divmod(abs(amount_pico_usd), PICO_PER_USD)
    decimals = f"{rest:012d}".rstrip("0")
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"


def clean_imported_usd(amount: str | int | Decimal) -> Decimal:
    """Round an imported price to 12 significant digits, half-even; the caller keeps the original.

    Price lists hold floats such as 7.000000000000001e-07, whose tail means nothing.

    Raises:
        InvalidAmount: Not a finite plain number, or out of range.
    """
    context = Context(prec=SIGNIFICANT_DIGITS, rounding=ROUND_HALF_EVEN)
    return context.create_decimal(_to_decimal(amount))


def _rounds_up(whole: int, rest: int, divisor: int) -> bool:
    """Whether `whole + rest / divisor` rounds to `whole + 1`, ties to the even neighbour."""
    twice = 2 * rest - divisor
    return twice > 0 or (twice == 0 and whole % 2 == 1)


def _to_fraction(amount: str | int | Decimal) -> Fraction:
    """The exact value; raises InvalidAmount."""
    return Fraction(_to_decimal(amount))


def _to_decimal(amount: object) -> Decimal:
    """The exact decimal value, bounded in size; raises InvalidAmount."""
    if isinstance(amount, bool) or not isinstance(amount, str | int | Decimal):
        # Configuration reaches this untyped; a float has lost its digits already.
        kind = type(amount).__name__
        raise InvalidAmount(f"money is text, an integer or a Decimal, never a {kind}")
    if isinstance(amount, str) and (len(amount) > _MAX_TEXT_CHARS or not _AMOUNT.fullmatch(amount)):
        raise InvalidAmount(f"{amount[:_MAX_TEXT_CHARS]!r} is no plain decimal number")
    value = Decimal(amount)
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise InvalidAmount(f"{amount} is not finite")
    if exponent < -_MAX_TEXT_CHARS - _MAX_EXPONENT or value.adjusted() >= _MAX_EXPONENT:
        raise InvalidAmount("the amount is out of range")
    return value
