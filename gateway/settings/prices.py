"""The section `price`, under a provider or a deployment: what its operator pays."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.settings.scalars import Instant, OneOrList, Section, Usd, one_or_list
from pricing.money import rate_per_hour_us
from pricing.node_rate import NodeFacts
from pricing.quote import EVENT_PICO_USD_MAX

TOKEN_RATES = (
    "input_usd_per_mtok",
    "cached_input_usd_per_mtok",
    "cache_write_usd_per_mtok",
    "output_usd_per_mtok",
    "reasoning_usd_per_mtok",
    "request_usd",
    "image_usd",
    "audio_usd_per_minute",
)


_BY_HOUR = "gpu_usd_per_hour"
_OF_MACHINES = ("gpus", "ops_usd_per_month", "marginal_usd_per_hour", "hours")
_IN_PLACE_OF = {
    "cached_input_usd_per_mtok": "input_usd_per_mtok",
    "cache_write_usd_per_mtok": "input_usd_per_mtok",
    "reasoning_usd_per_mtok": "output_usd_per_mtok",
}


class ListPriceSettings(Section):
    """What the same usage costs in public; what is left out is as in the price beside it."""

    input_usd_per_mtok: Usd | None = None
    """Public price in USD per million fresh input tokens."""
    cached_input_usd_per_mtok: Usd | None = None
    """Public price in USD per million input tokens read from a cache."""
    cache_write_usd_per_mtok: Usd | None = None
    """Public price in USD per million input tokens written to a cache."""
    output_usd_per_mtok: Usd | None = None
    """Public price in USD per million output tokens."""
    reasoning_usd_per_mtok: Usd | None = None
    """Public price in USD per million reasoning tokens where they are billed apart."""
    request_usd: Usd | None = None
    """Public price in USD per request."""
    image_usd: Usd | None = None
    """Public price in USD per generated image."""
    audio_usd_per_minute: Usd | None = None
    """Public price in USD per minute of audio."""
    gpu_usd_per_hour: Usd | None = None
    """Public price in USD per hour of one GPU."""


class NodeSettings(Section):
    """What a machine costs by facts, in the place of `gpu_usd_per_hour`; all of its GPUs together.

    A year has 8,760 hours; a month is a twelfth of it.
    """

    capex_usd: Usd = Decimal(0)
    """USD paid for the machine."""
    residual_usd: Usd = Decimal(0)
    """USD that it will still be worth at the end; at most `capex_usd`."""
    life_hours: int | None = Field(default=None, ge=1, le=1_000_000)
    """Hours for which it is used, 43800 for five years; needed with `capex_usd`."""
    power_kw: Usd = Decimal(0)
    """Kilowatts that it draws; needs `usd_per_kwh`."""
    pue: Usd = Decimal(1)
    """Kilowatts that the site draws for each of them (power usage effectiveness), at least 1."""
    usd_per_kwh: Usd = Decimal(0)
    """USD per kilowatt-hour."""
    colocation_usd_per_month: Usd = Decimal(0)
    """USD per month for space and network."""
    support_usd_per_year: Usd = Decimal(0)
    """USD per year for contracts and hands."""
    spare_ratio: Usd = Decimal(0)
    """Spare machines for each one in use, such as 0.125; they cost all but power."""

    @property
    def facts(self) -> NodeFacts:
        """The same as exact fractions."""
        return NodeFacts(
            capex_usd=Fraction(self.capex_usd),
            residual_usd=Fraction(self.residual_usd),
            life_hours=Fraction(self.life_hours or 1),
            power_kw=Fraction(self.power_kw),
            pue=Fraction(self.pue),
            usd_per_kwh=Fraction(self.usd_per_kwh),
            colocation_usd_per_month=Fraction(self.colocation_usd_per_month),
            support_usd_per_year=Fraction(self.support_usd_per_year),
            spare_ratio=Fraction(self.spare_ratio),
        )

    @model_validator(mode="after")
    def _check_facts(self) -> Self:
        if self.capex_usd and self.life_hours is None:
            raise ValueError("capex_usd needs life_hours, 43800 for five years")
        if bool(self.power_kw) != bool(self.usd_per_kwh):
            raise ValueError("power_kw and usd_per_kwh belong together")
        if not self.facts.usd_per_hour:  # raises what a fact alone cannot be
            raise ValueError("needs a cost, such as capex_usd with life_hours")
        return self


class PriceSettings(Section):
    """One price, by usage or by machine hour, from a moment on."""

    input_usd_per_mtok: Usd | None = None
    """USD per million fresh input tokens."""
    cached_input_usd_per_mtok: Usd | None = None
    """USD per million input tokens read from a cache; unset: they cost what fresh ones do."""
    cache_write_usd_per_mtok: Usd | None = None
    """USD per million input tokens written to a cache; unset: they cost what fresh ones do."""
    output_usd_per_mtok: Usd | None = None
    """USD per million output tokens."""
    reasoning_usd_per_mtok: Usd | None = None
    """USD per million reasoning tokens where they are billed apart."""
    request_usd: Usd | None = None
    """USD per request."""
    image_usd: Usd | None = None
    """USD per generated image."""
    audio_usd_per_minute: Usd | None = None
    """USD per minute of audio."""
    gpu_usd_per_hour: Usd | None = None
    """USD per hour of one GPU (or of this machine, for `local`)."""
    node: NodeSettings | None = None
    """What the machine costs by facts, in the place of `gpu_usd_per_hour`."""
    gpus: int | None = Field(default=None, ge=1, le=4_096)
    """GPUs that the server uses; 1 when unset."""
    ops_usd_per_month: Usd | None = None
    """USD per month for running the server; accrues with the hours that are paid for, in reports of
    machines and in break-even plans."""
    marginal_usd_per_hour: Usd | None = None
    """USD that one more busy hour of one GPU costs, such as its power; unset: the power of `node`,
    else `gpu_usd_per_hour`. For reports of machines at the marginal rate."""
    hours: Literal["always_on", "seen"] | None = None
    """Which hours of the machine are paid for: `always_on` from when it is configured until it is
    not, `seen` those in which it was up; unset: `seen` for `local`, `always_on` for a server."""
    valid_from: Instant | None = None
    """The moment from which the price holds; unset: always."""
    list: ListPriceSettings | None = None
    """The public list price, where a contract gives another one; reports show both."""

    @property
    def is_by_hour(self) -> bool:
        """Whether busy machine time is charged instead of tokens."""
        return self.gpu_usd_per_hour is not None or self.node is not None

    @property
    def usd_per_hour(self) -> Fraction | None:
        """USD per hour of one GPU, exactly; None where it is not priced by the hour."""
        if self.node is not None:
            return self.node.facts.usd_per_hour / (self.gpus or 1)
        return None if self.gpu_usd_per_hour is None else Fraction(self.gpu_usd_per_hour)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        has_usage_rate = any(getattr(self, name) is not None for name in TOKEN_RATES)
        if self.node is not None and self.gpu_usd_per_hour is not None:
            raise ValueError("has gpu_usd_per_hour and node; give only one of them")
        if has_usage_rate and self.is_by_hour:
            raise ValueError("has rates by usage and by hour; give only one kind")
        if not has_usage_rate and not self.is_by_hour:
            raise ValueError("needs a rate, such as input_usd_per_mtok or gpu_usd_per_hour")
        odd = [name for name in _OF_MACHINES if getattr(self, name) is not None]
        if not self.is_by_hour and odd:
            raise ValueError(f"{' and '.join(odd)} belong to gpu_usd_per_hour or node")
        if self.node is not None and not _is_exact(self.node.facts.usd_per_hour):
            raise ValueError("node has too many decimals in all for an exact rate; shorten some")
        self._check_list_price()
        return self

    def _check_list_price(self) -> None:
        listed = self.list
        if listed is None:
            return
        given = {name for name in (*TOKEN_RATES, _BY_HOUR) if getattr(listed, name) is not None}
        if not given:
            raise ValueError("list needs a rate, such as input_usd_per_mtok")
        odd = given & (set(TOKEN_RATES) if self.is_by_hour else {_BY_HOUR})
        if odd:
            kind = "by the hour" if self.is_by_hour else "by usage"
            raise ValueError(f"list has {min(odd)}, but the price beside it is {kind}")
        missing = sorted(name for name in given if not self._charges(name))
        if missing:
            raise ValueError(f"list has {missing[0]}, which the price beside it does not charge")

    def _charges(self, name: str) -> bool:
        """Whether there is a rate of that name, or another one in its place."""
        return any(
            getattr(self, one, None) is not None for one in (name, _IN_PLACE_OF.get(name, name))
        ) or (name == _BY_HOUR and self.is_by_hour)


def _is_exact(usd_per_hour: Fraction) -> bool:
    """Whether an entry of the ledger can hold the rate."""
    rate = rate_per_hour_us(usd_per_hour)
    return max(rate.pico_usd, rate.per_units) <= EVENT_PICO_USD_MAX


_ALWAYS = datetime.min.replace(tzinfo=UTC)


def _check_validity(prices: tuple[PriceSettings, ...]) -> tuple[PriceSettings, ...]:
    starts = [price.valid_from for price in prices]
    if len(set(starts)) != len(starts):
        raise ValueError("two prices hold from the same moment; give each its valid_from")
    return tuple(sorted(prices, key=lambda price: price.valid_from or _ALWAYS))


Prices = Annotated[
    tuple[PriceSettings, ...],
    AfterValidator(_check_validity),
    BeforeValidator(one_or_list),
    OneOrList(),
]
"""Prices in the order of the moments from which they hold; the file may give one without a list."""
