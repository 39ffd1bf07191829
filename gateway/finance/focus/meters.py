"""How each meter is named, priced and counted in an export.

A pricing unit is the one that prices are quoted in, so that a unit price is exact; the quantity is
rounded to 12 decimals where it has to be. The keys of token semantics are those of the draft of
FOCUS 1.5, with the prefix that earlier versions demand.

Source: FOCUS 1.4, columns PricingUnit, ConsumedUnit, SkuPriceDetails; `finance_policy.md` 1.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pricing.money import MICROSECONDS_PER_HOUR, MILLISECONDS_PER_MINUTE, TOKENS_PER_MTOK

_MILLISECONDS_PER_S = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterForm:
    """A meter as finance reads it.

    Attributes:
        sku_meter: Its name.
        pricing_unit: What a price is quoted for.
        units_per_price: Metered units in one pricing unit.
        consumed_unit: What is counted.
        units_per_consumed: Metered units in one of these.
        direction: `Input` or `Output` for a meter of tokens.
        cache_action: What a cache did to these tokens.
        cache_retention: How long a written cache is kept.
    """

    sku_meter: str
    pricing_unit: str
    units_per_price: int
    consumed_unit: str
    units_per_consumed: int = 1
    direction: str | None = None
    cache_action: str | None = None
    cache_retention: str | None = None


def _tokens(
    sku_meter: str, direction: str, cache_action: str | None = None, retention: str | None = None
) -> MeterForm:
    return MeterForm(
        sku_meter=sku_meter,
        pricing_unit="1000000 Tokens",
        units_per_price=TOKENS_PER_MTOK,
        consumed_unit="Tokens",
        direction=direction,
        cache_action=cache_action,
        cache_retention=retention,
    )


def _counted(sku_meter: str, unit: str) -> MeterForm:
    return MeterForm(sku_meter=sku_meter, pricing_unit=unit, units_per_price=1, consumed_unit=unit)


METER_FORMS: Mapping[str, MeterForm] = MappingProxyType(
    {
        "input": _tokens("Input Tokens", "Input", "Uncached"),
        "cache_read": _tokens("Cache Read Input Tokens", "Input", "Read"),
        "cache_write": _tokens("Cache Write Input Tokens", "Input", "Write"),
        "cache_write_5m": _tokens("Cache Write Input Tokens 5 Minutes", "Input", "Write", "5m"),
        "cache_write_1h": _tokens("Cache Write Input Tokens 1 Hour", "Input", "Write", "1h"),
        "output": _tokens("Output Tokens", "Output"),
        "reasoning": _tokens("Reasoning Output Tokens", "Output"),
        # Storage of a cache is priced by time: no token of it is consumed. Not by the million, for
        # the rules of 1.2 know a quantity only before a plain unit.
        "cache_storage_token_hours": _counted("Cache Storage", "Token-Hours"),
        "images": _counted("Images", "Images"),
        "audio_ms": MeterForm(
            sku_meter="Audio",
            pricing_unit="Minutes",
            units_per_price=MILLISECONDS_PER_MINUTE,
            consumed_unit="Seconds",
            units_per_consumed=_MILLISECONDS_PER_S,
        ),
        # Machines are priced by time; what they made of it are tokens, which nothing else counts.
        "gpu_us": MeterForm(
            sku_meter="GPU Time",
            pricing_unit="GPU Hours",
            units_per_price=MICROSECONDS_PER_HOUR,
            consumed_unit="Tokens",
        ),
        "requests": _counted("Requests", "Requests"),
        "web_searches": _counted("Web Searches", "Requests"),
    }
)
"""Every meter of the ledger, and those that vendors' invoices know besides."""

GPU_METER = "gpu_us"
