"""What a question about a month of machines means, the same for command, API and page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date

from gateway.clock import from_microseconds
from gateway.finance.machines.messages import HostedPrice, RateKind, ShowMachines
from gateway.finance.messages import MONTH_PATTERN
from gateway.fleet import Fleet
from gateway.ledger.periods import month_bounds_us, month_of
from gateway.settings.machines import MachineSettings
from pricing.price_book import Basis, PriceVersion, Unpriced

_TEXT_MAX = 64
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


class NoMeaning(Exception):
    """A question cannot be answered as it is put.

    Attributes:
        param: What of it is wrong: `month`, `day`, `rate` or `against`.
    """

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


def question(
    *,
    month: str | None = None,
    day: str | None = None,
    rate: str | None = None,
    against: str | None = None,
    teams: tuple[str, ...] | None,
    usual: MachineSettings,
    fleet: Fleet,
    now_us: int,
) -> ShowMachines:
    """Make a question of what somebody typed; what is left out or empty is not given.

    Args:
        month: `YYYY-MM`; else the day's, else this one.
        day: Tell its hours too.
        rate: Of the shares; else the configured one.
        against: A deployment with a price by usage that every pool is compared with, in the place
            of the configured ones.
        teams: Whose shares may be seen, None for everything.
        usual: The configured rate.
        fleet: Prices of deployments.
        now_us: Microseconds since the epoch.

    Raises:
        NoMeaning: One of them means nothing, or they contradict each other.
    """
    wanted = month or (day or "")[:7] or month_of(now_us)
    if not re.fullmatch(MONTH_PATTERN, wanted):
        raise NoMeaning(
            f"{wanted[:_TEXT_MAX]!r} is no month such as 2026-11", param="month" if month else "day"
        )
    if day and not _is_day_of(day, wanted):
        raise NoMeaning(f"{day[:_TEXT_MAX]!r} is no day of {wanted}", param="day")
    kind = rate or usual.rate
    if kind not in set(RateKind):
        raise NoMeaning(f"{kind[:_TEXT_MAX]!r} is none of {', '.join(RateKind)}", param="rate")
    # The prices in force at the end of the month, or now.
    at_us = min(now_us, month_bounds_us(wanted)[1] - 1)
    return ShowMachines(
        month=wanted,
        rate=RateKind(kind),
        day=day or None,
        teams=teams,
        hosted=(_named(fleet, against, at_us),) if against else tuple(_configured(fleet, at_us)),
    )


def _is_day_of(day: str, month: str) -> bool:
    if not _DAY.fullmatch(day) or not day.startswith(month):
        return False
    try:
        date.fromisoformat(day)
    except ValueError:
        return False
    return True


def _configured(fleet: Fleet, at_us: int) -> Iterator[HostedPrice]:
    for pool, deployment in sorted(fleet.hosted.items()):
        found = fleet.hosted_prices.lookup(pool, from_microseconds(at_us))
        yield _hosted(pool, deployment, found)


def _named(fleet: Fleet, against: str, at_us: int) -> HostedPrice:
    if against not in fleet.known_names:
        message = f"{against[:_TEXT_MAX]!r} is no deployment that a model lists"
        raise NoMeaning(message, param="against")
    found = fleet.prices.lookup(against, from_microseconds(at_us))
    if isinstance(found, Unpriced):
        raise NoMeaning(f"{against} cannot be compared with: {found.reason}", param="against")
    if found.basis is Basis.GPU_TIME:
        message = f"{against} is priced by the hour; name a deployment that is priced by usage"
        raise NoMeaning(message, param="against")
    return _hosted("", against, found)


def _hosted(pool: str, deployment: str, price: PriceVersion | Unpriced) -> HostedPrice:
    if isinstance(price, Unpriced):
        return HostedPrice(pool=pool, deployment=deployment)
    return HostedPrice(
        pool=pool,
        deployment=deployment,
        price_version=price.version_id,
        rates={meter.value: (rate.pico_usd, rate.per_units) for meter, rate in price.rates.items()},
    )
