"""A pool beside a vendor's price for the same use: the break-even card; pure."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from gateway.finance.machines.allocation import Used
from gateway.finance.machines.hours import HOUR_US
from gateway.finance.machines.messages import BreakEvenCard, HostedPrice
from pricing.break_even import BreakEven, mix_cost
from pricing.money import TOKENS_PER_MTOK, Rate
from pricing.price_book import PriceVersion, Unpriced
from pricing.usage import Meter

_PER_CENT = 100


def break_even_card(
    pool: str,
    hosted: HostedPrice,
    *,
    cost_pico_usd: int,
    up_us: int,
    busy_us: int,
    used: Used,
    is_nominal: bool,
) -> BreakEvenCard:
    """Compare what a pool's machines cost with what a vendor would take for what they did.

    Args:
        pool: Which.
        hosted: The vendor's price.
        cost_pico_usd: Of all its machines.
        up_us: Time that is paid for, of all of them; above 0.
        busy_us: Time in which they computed.
        used: What they were used for.
        is_nominal: Whether any of it is at a nominal rate.
    """
    hours = Fraction(up_us, HOUR_US)
    card = BreakEvenCard(
        pool=pool,
        deployment=hosted.deployment,
        price_version=hosted.price_version,
        is_nominal=is_nominal,
        machine_pico_usd_per_hour=round(cost_pico_usd / hours),
        tokens=used.tokens,
        input_tokens=used.input_tokens - used.cache_write_tokens,
        cache_write_tokens=used.cache_write_tokens,
        cached_input_tokens=used.cached_input_tokens,
        output_tokens=used.output_tokens - used.reasoning_tokens,
        reasoning_tokens=used.reasoning_tokens,
        requests=used.requests,
        tokens_per_hour=round(used.tokens / hours),
        busy_tokens_per_hour=round(Fraction(used.tokens * HOUR_US, busy_us)) if busy_us else None,
    )
    price = _hosted_cost(card, hosted)
    if isinstance(price, Unpriced):
        return msgspec.structs.replace(card, fault=price.reason)
    crossing = BreakEven(
        fixed_pico_usd=cost_pico_usd / hours, hosted_pico_usd_per_unit=price / used.tokens
    )
    needed = crossing.units
    return msgspec.structs.replace(
        card,
        hosted_pico_usd=round(price),
        saved_pico_usd=round(price - cost_pico_usd),
        hosted_pico_usd_per_mtok=round(price * TOKENS_PER_MTOK / used.tokens),
        break_even_tokens_per_hour=crossing.whole_units,
        break_even_percent=None if needed is None else percent_text(used.tokens / hours, needed),
        break_even_use_percent=None
        if needed is None
        else percent_text(needed * busy_us, Fraction(used.tokens * HOUR_US)),
    )


def percent_text(part: int | Fraction, whole: int | Fraction) -> str | None:
    """Decimal text with two places, rounded half-even; None of nothing."""
    if not whole:
        return None
    hundredths = round(Fraction(part) * _PER_CENT * _PER_CENT / whole)
    return f"{hundredths // _PER_CENT}.{hundredths % _PER_CENT:02d}"


def _hosted_cost(card: BreakEvenCard, hosted: HostedPrice) -> Fraction | Unpriced:
    """What the mix would have cost at the vendor."""
    if not card.tokens:
        return Unpriced(reason="no tokens were used, so there is no mix to price")
    if not hosted.rates:
        return Unpriced(reason="it has no price by usage then")
    version = PriceVersion(
        rates={
            Meter(meter): Rate(pico_usd=pico_usd, per_units=per_units)
            for meter, (pico_usd, per_units) in hosted.rates.items()
        },
        source=hosted.deployment,
    )
    mix = {
        Meter.INPUT.value: card.input_tokens,
        Meter.CACHE_WRITE.value: card.cache_write_tokens,
        Meter.CACHE_READ.value: card.cached_input_tokens,
        Meter.OUTPUT.value: card.output_tokens,
        Meter.REASONING.value: card.reasoning_tokens,
        Meter.REQUESTS.value: card.requests,
    }
    return mix_cost(mix, version)
