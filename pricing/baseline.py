"""What the same usage would have cost elsewhere: the baseline that savings are measured against.

Counts are taken as they were metered. Another deployment may count the same text as more or fewer
tokens, and its cache may hold other prompts; nobody can know that afterwards, so it is not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pricing.money import PicoUsd
from pricing.price_book import Basis, PriceVersion, Unpriced
from pricing.quote import Charge, charge
from pricing.usage import METER_PLACES, Meter

_REQUESTS = METER_PLACES[Meter.REQUESTS]


class Baseline(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a request is compared with.

    Attributes:
        deployment: `provider/model-id`.
        price: Its price in force when the request came.
    """

    deployment: str
    price: PriceVersion | Unpriced

    @property
    def label(self) -> str:
        """Deployment and version of the price, so that a later change of either shows."""
        version = "" if isinstance(self.price, Unpriced) else self.price.version_id
        return f"{self.deployment}@{version}"


def baseline_cost(used: Mapping[str, int], version: PriceVersion | Unpriced) -> PicoUsd | Unpriced:
    """Price what an attempt used at another deployment.

    A fee per request is charged once where the baseline has one, whatever the attempt was charged.
    Busy time of a machine is no usage of the baseline. Any other count that the baseline has no
    rate for (its own or its fallback's) makes the whole attempt unpriced.

    Args:
        used: Counts above zero by the names of their meters (`Usage.named`).
        version: The baseline's price in force when the attempt started.
    """
    if isinstance(version, Unpriced):
        return version
    if version.basis is Basis.GPU_TIME:
        return Unpriced(reason="the baseline is priced by machine time")
    counted = {name: units for name, units in used.items() if name != Meter.REQUESTS}
    if counted and version.plan[_REQUESTS]:
        counted[Meter.REQUESTS.value] = used.get(Meter.REQUESTS, 1)
    charged = charge(counted, version)
    if not isinstance(charged, Charge):
        return charged
    if not charged.fits:
        return Unpriced(reason="more than an entry of the ledger can hold")
    return charged.total_pico_usd
