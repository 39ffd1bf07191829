"""Errors that pricing may raise, named by what the caller should do.

PricingError
  InvalidAmount    mend the text or number: it is no exact amount of money, or no valid rate
  PriceBookError   mend the configuration: every fault of the price book at once  (problems)

An unknown price is no error: it is the value `pricing.price_book.Unpriced`.
"""

from __future__ import annotations

from collections.abc import Sequence


class PricingError(Exception):
    """Root of everything that `pricing` raises on purpose."""


class InvalidAmount(PricingError, ValueError):
    """The text or number is no exact amount, or the rate is not valid."""


class PriceBookError(PricingError):
    """The price book cannot be used.

    Attributes:
        problems: One sentence per fault, each naming its deployment; all faults, not the first.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep every problem and join them into the message."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
