"""What an hour of a machine of one's own costs, from what was paid for it and what it takes; exact.

(capex - residual) / life + power x PUE x tariff + colocation + support, and a share of spare nodes:
these are bought, housed and supported as the others are, and draw no power.

Source: the usual total cost of ownership of a server; PUE as in ISO/IEC 30134-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction

HOURS_PER_YEAR = 8_760
"""Of 365 days; a year's and a month's cost fall on its hours alike, whatever the month."""
MONTHS_PER_YEAR = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of a node; amounts in USD, all at least 0.

    Attributes:
        capex_usd: Paid for it.
        residual_usd: What it will still be worth; at most what was paid.
        life_hours: How long it is used, above 0.
        power_kw: Drawn by it.
        pue: What the site draws for each kilowatt of it, at least 1.
        usd_per_kwh: Tariff.
        colocation_usd_per_month: Space and network.
        support_usd_per_year: Contracts and hands.
        spare_ratio: Spare nodes for each one in use.
    """

    capex_usd: Fraction = Fraction(0)
    residual_usd: Fraction = Fraction(0)
    life_hours: Fraction = Fraction(1)
    power_kw: Fraction = Fraction(0)
    pue: Fraction = Fraction(1)
    usd_per_kwh: Fraction = Fraction(0)
    colocation_usd_per_month: Fraction = Fraction(0)
    support_usd_per_year: Fraction = Fraction(0)
    spare_ratio: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ValueError: A fact is negative, nothing is used for no time, more is left than was paid,
                or a site draws less than what stands in it.
        """
        for one in fields(self):
            if getattr(self, one.name) < 0:
                raise ValueError(f"{one.name} must be at least 0")
        if not self.life_hours:
            raise ValueError("life_hours must be above 0")
        if self.residual_usd > self.capex_usd:
            raise ValueError("residual_usd is above capex_usd")
        if self.pue < 1:
            raise ValueError("pue must be at least 1")

    def parts(self) -> Mapping[str, Fraction]:
        """USD per hour by what it is for; `depreciation`, `power` and so on, in this order."""
        own = {
            "depreciation": (self.capex_usd - self.residual_usd) / self.life_hours,
            "colocation": self.colocation_usd_per_month * MONTHS_PER_YEAR / HOURS_PER_YEAR,
            "support": self.support_usd_per_year / HOURS_PER_YEAR,
        }
        return {
            "depreciation": own["depreciation"],
            "power": self.power_kw * self.pue * self.usd_per_kwh,
            "colocation": own["colocation"],
            "support": own["support"],
            "spare": self.spare_ratio * sum(own.values()),
        }

    @property
    def usd_per_hour(self) -> Fraction:
        """All parts together."""
        return sum(self.parts().values(), Fraction(0))
