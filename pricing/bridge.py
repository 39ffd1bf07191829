"""Why spend changed from one period to another: volume, mix, output share, cache rate, price.

The effects come from replacing one factor after the other, in this order, and looking at what the
spend of the first period would have been (a chained bridge). Their sum is the change, exactly:

1. **volume**: more or fewer units at the first period's average cost per unit;
2. **mix**: other products (deployments) at the first period's cost per unit of each;
3. **output share**: within a product, more or less output per prompt token;
4. **cache rate**: within a product's prompt, more or less of it read from or written to a cache;
5. **price**: other rates per unit of the same meter.

What was not there in the first period has no cost per unit of that time; it is counted at its own,
so that a new product or meter is mix, share or cache, and never a price change.

Tokens are one kind of unit; images, audio, machine time and fees per request are kinds of their
own, which know volume, mix and price only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Generic, TypeVar

from pricing.shares import round_together
from pricing.usage import Meter

P = TypeVar("P", bound=Hashable)

PROMPT_METERS = frozenset({Meter.INPUT, Meter.CACHE_READ, Meter.CACHE_WRITE})
OUTPUT_METERS = frozenset({Meter.OUTPUT, Meter.REASONING})
TOKEN_METERS = PROMPT_METERS | OUTPUT_METERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Line(Generic[P]):
    """What a product used on one meter in a period.

    Attributes:
        product: What has a price of its own, for example a deployment.
        meter: The kind of usage.
        units: How much, at least 0.
        cost_pico_usd: What it cost.
    """

    product: P
    meter: Meter
    units: int
    cost_pico_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Parts of a change in picodollars; their sum is the change.

    Attributes:
        volume_pico_usd: More or fewer units.
        mix_pico_usd: Other products.
        output_share_pico_usd: More or less output per prompt token.
        cache_rate_pico_usd: More or less of the prompt from a cache.
        price_pico_usd: Other rates.
    """

    volume_pico_usd: int
    mix_pico_usd: int
    output_share_pico_usd: int
    cache_rate_pico_usd: int
    price_pico_usd: int

    @property
    def total_pico_usd(self) -> int:
        """The change."""
        return sum(getattr(self, one.name) for one in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge(Generic[P]):
    """The way from one period's spend to another's.

    Attributes:
        before_pico_usd: Spend of the first period.
        after_pico_usd: Spend of the second.
        effects: Of everything together.
        by_product: Of each product; each effect adds up to that of everything together.
    """

    before_pico_usd: int
    after_pico_usd: int
    effects: Effects
    by_product: Mapping[P, Effects]


def bridge(before: Iterable[Line[P]], after: Iterable[Line[P]]) -> Bridge[P]:
    """Explain the change between two periods.

    A cost without units (a correction, a minimum fee) has no rate; it counts as mix.

    Args:
        before: Lines of the first period; a product's meter may come more than once.
        after: Lines of the second period.
    """
    first, second = _gather(before), _gather(after)
    steps: dict[P, list[Fraction]] = {}
    for kind in _kinds(first, second):
        for product, parts in _explain(first, second, kind).items():
            sums = steps.setdefault(product, [Fraction(0)] * 5)
            steps[product] = [old + new for old, new in zip(sums, parts, strict=True)]
    rounded = {product: round_together(parts) for product, parts in steps.items()}
    by_product = {product: _effects(parts) for product, parts in rounded.items()}
    return Bridge(
        before_pico_usd=_cost(first),
        after_pico_usd=_cost(second),
        effects=_effects([sum(parts) for parts in zip(*rounded.values(), strict=True)] or [0] * 5),
        by_product=by_product,
    )


_Used = dict[P, dict[Meter, tuple[int, int]]]
"""Units and cost by product and meter."""


def _effects(parts: Iterable[int]) -> Effects:
    volume, mix, share, cache, price = parts
    return Effects(
        volume_pico_usd=volume,
        mix_pico_usd=mix,
        output_share_pico_usd=share,
        cache_rate_pico_usd=cache,
        price_pico_usd=price,
    )


def _gather(lines: Iterable[Line[P]]) -> _Used[P]:
    used: _Used[P] = {}
    for line in lines:
        if line.units < 0:
            raise ValueError(f"units must be >= 0, got {line.units}")
        meters = used.setdefault(line.product, {})
        units, cost = meters.get(line.meter, (0, 0))
        meters[line.meter] = (units + line.units, cost + line.cost_pico_usd)
    return used


def _cost(used: _Used[P]) -> int:
    return sum(cost for meters in used.values() for _, cost in meters.values())


def _kinds(*periods: _Used[P]) -> list[frozenset[Meter]]:
    """Groups of meters with one unit, those that were used."""
    meters = {meter for used in periods for found in used.values() for meter in found}
    others = [frozenset({meter}) for meter in Meter if meter in meters - TOKEN_METERS]
    return [TOKEN_METERS, *others] if meters & TOKEN_METERS else others


def _explain(
    first: _Used[P], second: _Used[P], kind: frozenset[Meter]
) -> dict[P, tuple[Fraction, ...]]:
    """The five effects of each product on meters of one kind."""
    units_before = sum(_units(meters, kind) for meters in first.values())
    units_after = sum(_units(meters, kind) for meters in second.values())
    growth = Fraction(units_after, units_before) if units_before else None
    found: dict[P, tuple[Fraction, ...]] = {}
    for product in dict.fromkeys([*first, *second]):
        was = {m: u for m, u in first.get(product, {}).items() if m in kind}
        now = {m: u for m, u in second.get(product, {}).items() if m in kind}
        cost_was = Fraction(sum(cost for _, cost in was.values()))
        # Without any units before there is no average to grow with: all of it is mix.
        at_volume = cost_was if growth is None else cost_was * growth
        at_mix = _at_rate(was, now, kind)
        prompt, output = kind & PROMPT_METERS, kind & OUTPUT_METERS
        at_share = at_mix
        if kind == TOKEN_METERS:
            at_share = _at_rate(was, now, prompt) + _at_rate(was, now, output)
        at_cache = sum((_at_rate(was, now, frozenset({meter})) for meter in kind), Fraction(0))
        cost_now = Fraction(sum(cost for _, cost in now.values()))
        found[product] = (
            at_volume - cost_was,
            at_mix - at_volume,
            at_share - at_mix,
            at_cache - at_share,
            cost_now - at_cache,
        )
    return found


def _units(meters: Mapping[Meter, tuple[int, int]], kind: frozenset[Meter]) -> int:
    return sum(units for meter, (units, _) in meters.items() if meter in kind)


def _at_rate(
    was: Mapping[Meter, tuple[int, int]],
    now: Mapping[Meter, tuple[int, int]],
    meters: frozenset[Meter],
) -> Fraction:
    """The second period's units of some meters at their cost per unit in the first one.

    Meters that were not used in the first period cost what they cost in the second. So does what
    has no units: there is nothing that it could be the price of.
    """
    units_was, units_now = _units(was, meters), _units(now, meters)
    if not units_was or not units_now:
        return Fraction(sum(cost for meter, (_, cost) in now.items() if meter in meters))
    cost_was = sum(cost for meter, (_, cost) in was.items() if meter in meters)
    return Fraction(cost_was * units_now, units_was)
