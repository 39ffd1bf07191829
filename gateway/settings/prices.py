"""The section `price`, under a provider or a deployment: what its operator pays."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.settings.scalars import Instant, OneOrList, Section, Usd, one_or_list

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
    gpus: int | None = Field(default=None, ge=1, le=4_096)
    """GPUs that the server uses; 1 when unset."""
    ops_usd_per_month: Usd | None = None
    """USD per month for running the server; accrues with the hours that are paid for, in reports of
    machines and in break-even plans."""
    marginal_usd_per_hour: Usd | None = None
    """USD that one more busy hour of one GPU costs, such as its power; unset: `gpu_usd_per_hour`.
    For reports of machines at the marginal rate."""
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
        return self.gpu_usd_per_hour is not None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        has_usage_rate = any(getattr(self, name) is not None for name in TOKEN_RATES)
        if has_usage_rate and self.is_by_hour:
            raise ValueError("has rates by usage and by hour; give only one kind")
        if not has_usage_rate and not self.is_by_hour:
            raise ValueError("needs a rate, such as input_usd_per_mtok or gpu_usd_per_hour")
        odd = [name for name in _OF_MACHINES if getattr(self, name) is not None]
        if not self.is_by_hour and odd:
            raise ValueError(f"{' and '.join(odd)} belong to gpu_usd_per_hour")
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
        )


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
