"""At how much use a machine of one's own costs what the same use would cost at a vendor; exact.

Hours, tokens, requests: the unit is the caller's. Nothing is rounded here, so what is built on it
(cards, plans, advice) rounds once, where it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.usage import Meter


def mix_cost(used: Mapping[str, int], version: PriceVersion) -> Fraction | Unpriced:
    """What a mix of usage costs at a price by usage, in picodollars, not rounded.

    Args:
        used: Counts by the names of their meters, each at least 0. Busy time of a machine is no
            usage of a vendor and is left out; requests without a fee cost nothing.
        version: The vendor's price.

    Returns:
        `Unpriced` where a count above zero has no rate (its own or its fallback's), or the price is
        by the hour: part of a cost would read as all of it.
    """
    if version.basis is Basis.GPU_TIME:
        return Unpriced(reason="it is priced by machine time")
    total = Fraction(0)
    for name, units in used.items():
        meter = Meter(name)
        if meter is Meter.GPU_US or not units:
            continue
        rate = version.rate_for(meter)
        if rate is None:
            if meter is Meter.REQUESTS:
                continue
            return Unpriced(reason=f"no rate for {name}")
        total += Fraction(units * rate.pico_usd, rate.per_units)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Two ways to serve the same use: one with a fixed cost, and one that is paid by use.

    Attributes:
        fixed_pico_usd: What the machine costs in a period, whatever the use; at least 0.
        own_pico_usd_per_unit: What a unit costs on it besides, such as power; at least 0.
        hosted_pico_usd_per_unit: What a unit costs at the vendor; at least 0.
    """

    fixed_pico_usd: Fraction
    own_pico_usd_per_unit: Fraction = Fraction(0)
    hosted_pico_usd_per_unit: Fraction

    def __post_init__(self) -> None:
        """Refuse what is no cost.

        Raises:
            ValueError: One of them is negative.
        """
        least = min(self.fixed_pico_usd, self.own_pico_usd_per_unit, self.hosted_pico_usd_per_unit)
        if least < 0:
            raise ValueError(f"costs must be >= 0, got {self}")

    @property
    def units(self) -> Fraction | None:
        """Use in a period at which both cost the same; more is cheaper on the machine.

        None where that never happens: a unit is no cheaper on the machine. 0 where the machine
        costs nothing to have.
        """
        gained = self.hosted_pico_usd_per_unit - self.own_pico_usd_per_unit
        return self.fixed_pico_usd / gained if gained > 0 else None

    @property
    def whole_units(self) -> int | None:
        """The least whole use at which the machine is not dearer; None as `units`."""
        exact = self.units
        return None if exact is None else -(-exact.numerator // exact.denominator)

    def saved_pico_usd(self, units: int | Fraction) -> Fraction:
        """What the machine costs less than the vendor at some use; negative where it is dearer."""
        hosted = self.hosted_pico_usd_per_unit * units
        return hosted - self.own_pico_usd_per_unit * units - self.fixed_pico_usd
