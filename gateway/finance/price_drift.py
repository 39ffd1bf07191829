"""Prices that bills imply, where they are not ours: exact fractions, by model and meter of a month.

Pure. Only where both sides can be told apart: a line of the bill names model and meter, counts its
units, is of the standard tier and of a day that is final. Days with the same prices of ours
and the same price of the bill are taken together: a price of either side that changed within the
month is compared on its own days, and a day on which nothing drifted is no part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

from gateway.finance.bill_messages import Tolerances
from gateway.finance.cells import Billed, Cell, Metered, cells_of_day, namer
from gateway.finance.matching import USAGE, Sides, by_day
from gateway.finance.sources.rows import STANDARD
from pricing.money import PICO_PER_USD, SIGNIFICANT_DIGITS
from pricing.usage import Meter

_PER_MTOK = Fraction(1_000_000, PICO_PER_USD)
PRICE_KEYS: Mapping[str, tuple[str, Fraction]] = {
    Meter.INPUT.value: ("input_usd_per_mtok", _PER_MTOK),
    Meter.CACHE_READ.value: ("cached_input_usd_per_mtok", _PER_MTOK),
    Meter.CACHE_WRITE.value: ("cache_write_usd_per_mtok", _PER_MTOK),
    Meter.OUTPUT.value: ("output_usd_per_mtok", _PER_MTOK),
    Meter.REASONING.value: ("reasoning_usd_per_mtok", _PER_MTOK),
    Meter.IMAGES.value: ("image_usd", Fraction(1, PICO_PER_USD)),
    Meter.AUDIO_MS.value: ("audio_usd_per_minute", Fraction(60_000, PICO_PER_USD)),
    Meter.REQUESTS.value: ("request_usd", Fraction(1, PICO_PER_USD)),
}
"""Key of a price in the configuration by meter, and its amount for a picodollar per unit."""
_Key = tuple[str, str, str, tuple[Fraction, ...]]
"""Account, model, meter, and the prices of ours."""
_CONTEXT = Context(prec=SIGNIFICANT_DIGITS, rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A price of a bill that is not ours.

    Attributes:
        account: Provider of the configuration.
        model: Model at the provider.
        meter: A meter of `PRICE_KEYS`.
        ours: What we charged, picodollars per unit; of several prices of ours the mean by units.
        billed: What the bill implies, picodollars per unit.
        is_mixed: Whether we charged more than one price on these days.
        days: Days of charge, in their order.
        metered_units: Units that we priced.
        billed_units: Units that the bill counts.
        billed_pico_usd: Billed for them, without what the currency makes.
        lines: The lines of bills behind it.
    """

    account: str
    model: str
    meter: str
    ours: Fraction
    billed: Fraction
    is_mixed: bool
    days: tuple[str, ...]
    metered_units: int
    billed_units: int
    billed_pico_usd: int
    lines: tuple[Billed, ...]


@dataclass(slots=True)
class _Days:
    """Days of one model and meter on which both sides have a price."""

    days: list[str] = field(default_factory=list[str])
    metered: list[Metered] = field(default_factory=list[Metered])
    billed: list[Billed] = field(default_factory=list[Billed])

    def add(self, other: _Days) -> None:
        """Take other days in."""
        self.days += other.days
        self.metered += other.metered
        self.billed += other.billed

    @property
    def ours(self) -> Fraction:
        """What we charged, the mean by units."""
        priced = [part for row in self.metered for part in row.rates]
        units = sum(count for _, count in priced)
        return sum((rate * count for rate, count in priced), Fraction(0)) / units

    @property
    def units(self) -> int:
        """Units on the bill."""
        return sum(line.units or 0 for line in self.billed)

    @property
    def amount_pico_usd(self) -> int:
        """Billed, without what the currency makes."""
        return sum(line.amount_pico_usd - line.fx_pico_usd for line in self.billed)

    @property
    def price(self) -> Fraction:
        """What the bill implies."""
        return Fraction(self.amount_pico_usd, self.units)


def drifts(
    sides: Sides, tolerances: Tolerances, aliases: Mapping[str, str], *, as_of: date
) -> list[Drift]:
    """Every price of a bill that differs by more than the tolerance, by account, model and meter.

    Args:
        sides: What is compared.
        tolerances: `price_ratio` of ours is the same price, and so is what makes no more than
            `amount_pico_usd` of all days together.
        aliases: Names of models on bills, `account/name` to the ledger's.
        as_of: Today; the days just before it are not final.
    """
    final = (as_of - timedelta(days=tolerances.delay_days)).isoformat()
    models: defaultdict[str, set[str]] = defaultdict(set)
    for row in sides.metered:
        models[row.account].add(row.model)
    groups: defaultdict[_Key, list[_Days]] = defaultdict(list)
    for (account, day), one in sorted(by_day(sides).items()):
        if not day or day >= final:
            continue
        name = namer(account, models[account], aliases)
        usage = [line for line in one.billed if line.kind == USAGE]
        for (model, meter), cell in cells_of_day(one.metered, (), usage, (), name).items():
            rates = _rates(cell)
            if meter in PRICE_KEYS and rates and _tells_a_price(cell):
                one_day = _Days(days=[day], metered=cell.metered, billed=cell.billed)
                groups[account, model, meter, tuple(sorted(rates))].append(one_day)
    found = [
        _drift(key, together)
        for key, days in groups.items()
        for together in _of_one_price(days, tolerances)
    ]
    return sorted(
        (one for one in found if _is_drift(one, tolerances)),
        key=lambda one: (one.account, one.model, one.meter, one.days),
    )


def cleaned(rate: Fraction) -> Decimal:
    """A rate rounded once to 12 significant digits, half-even; the caller keeps the original."""
    return _CONTEXT.divide(Decimal(rate.numerator), Decimal(rate.denominator))


def price_of(meter: str, rate: Fraction) -> Decimal:
    """What stands in the configuration for a rate, in the unit of the meter's key, cleaned."""
    return cleaned(rate * PRICE_KEYS[meter][1])


def is_same_price(one: Fraction, other: Fraction, ratio: str) -> bool:
    """Whether two rates differ by no more than a share of the first."""
    return abs(other - one) <= Fraction(ratio) * abs(one)


def _rates(cell: Cell) -> set[Fraction]:
    return {rate for row in cell.metered for rate, _ in row.rates}


def _tells_a_price(cell: Cell) -> bool:
    return (
        bool(cell.billed)
        and all(line.tier == STANDARD for line in cell.billed)
        and all(line.units is not None for line in cell.billed)
        and sum(line.units or 0 for line in cell.billed) > 0
    )


def _of_one_price(days: Sequence[_Days], tolerances: Tolerances) -> list[_Days]:
    """Days whose price is not ours, those with one price of the bill after each other together."""
    found: list[_Days] = []
    for day in days:
        if is_same_price(day.ours, day.price, tolerances.price_ratio):
            continue
        if found and _is_one_price(found[-1], day, tolerances):
            found[-1].add(day)
        else:
            found.append(_Days(days=[*day.days], metered=[*day.metered], billed=[*day.billed]))
    return found


def _is_one_price(before: _Days, day: _Days, tolerances: Tolerances) -> bool:
    """Whether two prices are the same, but for what bills round their amounts to."""
    apart = (
        abs(day.amount_pico_usd - before.price * day.units),
        abs(before.amount_pico_usd - day.price * before.units),
    )
    is_same = is_same_price(before.price, day.price, tolerances.price_ratio)
    return is_same or min(apart) <= tolerances.amount_pico_usd


def _drift(key: _Key, days: _Days) -> Drift:
    account, model, meter, rates = key
    return Drift(
        account=account,
        model=model,
        meter=meter,
        ours=days.ours,
        billed=days.price,
        is_mixed=len(rates) > 1,
        days=tuple(days.days),
        metered_units=sum(count for row in days.metered for _, count in row.rates),
        billed_units=days.units,
        billed_pico_usd=days.amount_pico_usd,
        lines=tuple(days.billed),
    )


def _is_drift(one: Drift, tolerances: Tolerances) -> bool:
    if one.billed <= 0 or is_same_price(one.ours, one.billed, tolerances.price_ratio):
        return False
    # What invoices round their amounts to is no price: it has to make more than a tolerance.
    return abs(one.billed_pico_usd - one.ours * one.billed_units) > tolerances.amount_pico_usd
